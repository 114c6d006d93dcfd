//! A server on loopback that answers what a test says and keeps what it was sent.
#![allow(dead_code, reason = "each test program uses its own part")]

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use fairlead_crds::ModelProviderSpec;
use fairlead_decide::model::ModelRequest;
use futures::StreamExt as _;
use http::{HeaderMap, Request};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Reply = Arc<dyn Fn(&Seen) -> Response + Send + Sync>;

/// A request the server was sent.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Value,
}

#[derive(Clone)]
pub struct Server {
    pub base: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    reply: Reply,
}

impl Server {
    /// Serves until the runtime ends; every request gets what `reply` makes.
    pub async fn start(reply: impl Fn() -> Response + Send + Sync + 'static) -> Self {
        Self::answering(move |_| reply()).await
    }

    /// As [`start`](Self::start), with answers that depend on the request.
    pub async fn answering(reply: impl Fn(&Seen) -> Response + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/v1", listener.local_addr().unwrap());
        let server = Self {
            base,
            seen: Arc::default(),
            reply: Arc::new(reply),
        };
        let router = Router::new().fallback(handle).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        server
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// A provider that names this server, with `more` put into its spec.
    pub fn provider(&self, more: Value) -> ModelProviderSpec {
        provider(&self.base, more)
    }
}

pub fn provider(base: &str, more: Value) -> ModelProviderSpec {
    let mut spec = json!({"wireApi": "ChatCompletions", "baseUrl": base});
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

async fn handle(State(server): State<Server>, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let seen = Seen {
        path: head.uri.path().to_owned(),
        headers: head.headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    let reply = (server.reply)(&seen);
    server.seen.lock().unwrap().push(seen);
    reply
}

/// A request with one tool, `ls`.
pub fn request() -> ModelRequest {
    serde_json::from_value(json!({
        "turn": 1, "model": "m-1", "max_output_tokens": 77, "parameters": {"temperature": 0.5},
        "messages": [{"role": "system", "text": "be good"}, {"role": "user", "text": "go"}],
        "tools": [{"name": "ls", "description": "lists", "schema": {"type": "object"}}],
    }))
    .unwrap()
}

/// An answer of `status` with this body.
pub fn plain(status: u16, content_type: &str, body: impl Into<Body>) -> Response {
    Response::builder()
        .status(status)
        .header("content-type", content_type)
        .body(body.into())
        .unwrap()
}

/// A stream of events, sent in these pieces.
pub fn events(pieces: Vec<Vec<u8>>) -> Response {
    let pieces = futures::stream::iter(
        pieces
            .into_iter()
            .map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece))),
    );
    plain(200, "text/event-stream; charset=utf-8", Body::from_stream(pieces))
}

/// As [`events`], and then nothing more while the connection stays.
pub fn events_then_silence(pieces: Vec<Vec<u8>>) -> Response {
    let pieces = futures::stream::iter(
        pieces
            .into_iter()
            .map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece))),
    );
    plain(
        200,
        "text/event-stream",
        Body::from_stream(pieces.chain(futures::stream::pending())),
    )
}

/// As [`events`], and then the connection breaks.
pub fn events_then_break(pieces: Vec<Vec<u8>>) -> Response {
    let pieces = futures::stream::iter(pieces.into_iter().map(|piece| Ok(Bytes::from(piece))));
    // The pieces are on the wire before the break: a server drops what it still holds when a body fails.
    let end = futures::stream::once(async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Err(std::io::Error::other("broken"))
    });
    plain(200, "text/event-stream", Body::from_stream(pieces.chain(end)))
}

/// One event with these deltas of the first choice.
pub fn delta(delta: Value, finish: Option<&str>) -> Vec<u8> {
    let event = json!({"id": "resp-1", "object": "chat.completion.chunk", "extra": {"x": [1]},
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": null}]});
    format!("data: {event}\n\n").into_bytes()
}

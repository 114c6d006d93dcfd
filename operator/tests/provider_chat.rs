//! The chat completions client against servers that behave well, oddly and badly.
#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "a test ends at the first surprise; a table is one list"
)]

mod support;

use axum::body::{Body, Bytes};
use fairlead_crds::{ModelProviderSpec, TurnUsage};
use fairlead_decide::model::{ModelError, ModelErrorKind as Kind, ModelResponse, RawCall};
use fairlead_operator::provider::{ApiKey, ProviderClient, check};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use support::{Server, delta, events, events_then_break, events_then_silence, plain, provider, request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

async fn ask(spec: &ModelProviderSpec) -> Result<ModelResponse, ModelError> {
    ProviderClient::new().call(spec, None, &request(), 0).await
}

/// A stream whose characters and calls are spread over deltas.
fn long_stream() -> Vec<u8> {
    let call =
        |index: u64, rest: Value| delta(json!({"tool_calls": [{"index": index, "function": rest}]}), None);
    let mut out = b": ping\n\n".to_vec();
    out.extend(delta(json!({"role": "assistant", "content": ""}), None));
    out.extend(delta(json!({"content": "Grüße, "}), None));
    out.extend(delta(json!({"content": "世界 🌍"}), None));
    out.extend(delta(json!({"tool_calls": [{"index": 0, "id": "c-0", "type": "function", "function": {"name": "l", "arguments": ""}}]}), None));
    out.extend(call(0, json!({"name": "s"})));
    out.extend(delta(json!({"tool_calls": [{"index": 1, "id": "c-1", "function": {"name": "cat", "arguments": "{\"f\":"}}]}), None));
    out.extend(call(0, json!({"arguments": "{\"p\":\"/ü"})));
    out.extend(call(1, json!({"arguments": "1}"})));
    out.extend(call(0, json!({"arguments": "\"}"})));
    out.extend(delta(json!({}), Some("tool_calls")));
    out.extend(b"data: {\"id\":\"resp-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\n");
    out.extend(b"data: [DONE]\n\n");
    out
}

fn check_long(response: &ModelResponse) {
    assert_eq!(response.text.as_deref(), Some("Grüße, 世界 🌍"));
    let raw = |id: &str, name: &str, arguments: &str| RawCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    assert_eq!(
        response.calls,
        [raw("c-0", "ls", "{\"p\":\"/ü\"}"), raw("c-1", "cat", "{\"f\":1}")]
    );
    assert_eq!(response.finish_reason.as_deref(), Some("tool_calls"));
    assert_eq!(
        response.usage,
        Some(TurnUsage {
            input_tokens: 11,
            output_tokens: 7,
            cached_tokens: 3
        })
    );
    assert_eq!(response.request_id.as_deref(), Some("resp-1"));
    assert!(response.first_delta_millis.unwrap() <= response.latency_millis);
}

#[tokio::test]
async fn a_stream_may_be_cut_at_every_byte() {
    let stream = long_stream();
    let at = std::sync::atomic::AtomicUsize::new(0);
    let bytes = stream.clone();
    let server = Server::start(move || {
        let cut = at.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (head, tail) = bytes.split_at(cut);
        events(vec![head.to_vec(), tail.to_vec()])
    })
    .await;
    let client = ProviderClient::new();
    let spec = server.provider(json!({}));
    for _ in 0..=stream.len() {
        check_long(&client.call(&spec, None, &request(), 0).await.unwrap());
    }
    let every = stream.clone();
    let server = Server::start(move || events(every.iter().map(|byte| vec![*byte]).collect())).await;
    check_long(&ask(&server.provider(json!({}))).await.unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn a_stream_may_be_cut_anywhere_and_often(cuts in proptest::collection::vec(any::<prop::sample::Index>(), 1..40)) {
        let stream = long_stream();
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
        at.extend([0, stream.len()]);
        at.sort_unstable();
        let pieces: Vec<Vec<u8>> = at.windows(2).map(|w| stream[w[0]..w[1]].to_vec()).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::start(move || events(pieces.clone())).await;
            check_long(&ask(&server.provider(json!({}))).await.unwrap());
        });
    }
}

fn whole_answer() -> Value {
    json!({"id": "cmpl-1", "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1}})
}

#[tokio::test]
async fn the_request_says_what_the_provider_and_the_run_say() {
    let server = Server::start(|| plain(200, "application/json", whole_answer().to_string())).await;
    let base = format!("{}/", server.base);
    for (stream, spec) in [(true, json!({})), (false, json!({"stream": false}))] {
        let response = ask(&provider(&base, spec)).await.unwrap();
        assert_eq!(
            response.text.as_deref(),
            Some("hello"),
            "a server may answer whole though a stream was asked for"
        );
        assert_eq!(response.request_id.as_deref(), Some("cmpl-1"));
        let seen = server.seen().pop().unwrap();
        assert_eq!(seen.path, "/v1/chat/completions");
        assert_eq!(seen.body["stream"], stream);
        assert_eq!(seen.body.get("stream_options").is_some(), stream);
        assert_eq!(
            (&seen.body["model"], &seen.body["max_tokens"]),
            (&json!("m-1"), &json!(77))
        );
        assert_eq!(seen.body["temperature"], 0.5);
        assert_eq!(seen.body["tools"][0]["function"]["name"], "ls");
        assert!(seen.headers.get("authorization").is_none());
        assert!(
            seen.headers["user-agent"]
                .to_str()
                .unwrap()
                .starts_with("fairlead/")
        );
    }
}

#[tokio::test]
async fn the_form_of_an_answer_is_found_out() {
    for kind in ["application/octet-stream", "text/plain"] {
        let server = Server::start(move || plain(200, kind, long_stream())).await;
        check_long(&ask(&server.provider(json!({"stream": false}))).await.unwrap());
        let server = Server::start(move || plain(200, kind, format!("\n {}", whole_answer()))).await;
        assert_eq!(
            ask(&server.provider(json!({}))).await.unwrap().text.as_deref(),
            Some("hello")
        );
    }
    let server = Server::start(|| {
        let mut answer = plain(200, "application/vnd.api+json", whole_answer().to_string());
        answer
            .headers_mut()
            .insert("x-request-id", "from-header".parse().unwrap());
        answer
    })
    .await;
    assert_eq!(
        ask(&server.provider(json!({})))
            .await
            .unwrap()
            .request_id
            .as_deref(),
        Some("from-header")
    );
}

#[tokio::test]
async fn a_stream_that_ends_early_is_an_answer_only_once_the_model_has_stopped() {
    let hello = || delta(json!({"content": "hello"}), None);
    let stop = || delta(json!({}), Some("stop"));
    let cut_call = || {
        delta(
            json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "ls", "arguments": "{\"p"}}]}),
            None,
        )
    };

    let server = Server::start(move || events(vec![hello(), stop()])).await;
    assert_eq!(
        ask(&server.provider(json!({}))).await.unwrap().text.as_deref(),
        Some("hello"),
        "no [DONE]"
    );
    let server = Server::start(move || events(vec![hello(), b"data: [DONE]\n\n".to_vec()])).await;
    assert_eq!(
        ask(&server.provider(json!({}))).await.unwrap().finish_reason,
        None,
        "no reason"
    );
    let server = Server::start(move || events_then_break(vec![hello(), stop()])).await;
    assert_eq!(
        ask(&server.provider(json!({}))).await.unwrap().text.as_deref(),
        Some("hello"),
        "broken after the end"
    );
    let server = Server::start(move || events_then_silence(vec![hello(), stop()])).await;
    let quick = json!({"timeouts": {"idleSeconds": 1}});
    assert_eq!(
        ask(&server.provider(quick)).await.unwrap().text.as_deref(),
        Some("hello"),
        "never closed"
    );

    let server = Server::start(move || events(vec![hello(), cut_call()])).await;
    let error = ask(&server.provider(json!({}))).await.unwrap_err();
    assert_eq!(
        (error.kind, error.answer_begun),
        (Kind::Disconnected, true),
        "{}",
        error.message
    );
    let server = Server::start(move || events_then_break(vec![hello()])).await;
    let error = ask(&server.provider(json!({}))).await.unwrap_err();
    assert_eq!(
        (error.kind, error.answer_begun),
        (Kind::Disconnected, true),
        "{}",
        error.message
    );
    let server = Server::start(|| events(vec![b": ping\n\n".to_vec()])).await;
    let error = ask(&server.provider(json!({}))).await.unwrap_err();
    assert_eq!(
        (error.kind, error.answer_begun),
        (Kind::Disconnected, false),
        "{}",
        error.message
    );
}

/// The error, and whether it came within the second that the limit sets and a bound above it.
async fn timed(spec: &ModelProviderSpec) -> ModelError {
    let started = Instant::now();
    let error = ask(spec).await.unwrap_err();
    let took = started.elapsed();
    assert!(
        took >= Duration::from_millis(950) && took < Duration::from_secs(15),
        "{took:?}: {}",
        error.message
    );
    error
}

#[tokio::test]
async fn each_time_limit_ends_a_try() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", silent.local_addr().unwrap());
    let error = timed(&provider(&base, json!({"timeouts": {"firstByteSeconds": 1}}))).await;
    assert_eq!((error.kind, error.answer_begun), (Kind::Timeout, false));
    assert!(
        error.message.contains("firstByteSeconds (1 s)"),
        "{}",
        error.message
    );

    let error = timed(&provider(&base, json!({"timeouts": {"totalSeconds": 1}}))).await;
    assert_eq!(error.kind, Kind::Timeout);
    assert!(error.message.contains("totalSeconds (1 s)"), "{}", error.message);

    let server = Server::start(|| events_then_silence(vec![delta(json!({"content": "a"}), None)])).await;
    let error = timed(&server.provider(json!({"timeouts": {"idleSeconds": 1}}))).await;
    assert_eq!((error.kind, error.answer_begun), (Kind::Timeout, true));
    assert!(error.message.contains("idleSeconds (1 s)"), "{}", error.message);

    let server = Server::start(|| {
        let beats = futures::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b": beat\n\n")), ()))
        });
        plain(200, "text/event-stream", Body::from_stream(beats))
    })
    .await;
    let error = timed(&server.provider(json!({"timeouts": {"totalSeconds": 1, "idleSeconds": 30}}))).await;
    assert_eq!((error.kind, error.answer_begun), (Kind::Timeout, false));
    assert!(error.message.contains("totalSeconds (1 s)"), "{}", error.message);
}

#[tokio::test]
async fn no_connection_is_told_as_such() {
    // A port that was just given back refuses.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let error = ask(&provider(&format!("http://user:word@{free}/v1"), json!({})))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.answer_begun),
        (Kind::Connect, false),
        "{}",
        error.message
    );
    let address = format!("spec.baseUrl http://{free}/v1: ");
    let told = &error.message;
    assert!(
        told.starts_with(&address) && told.contains("; check the address"),
        "{told}"
    );
    assert!(!told.contains("word"), "{told}");

    // A listener with a full queue drops the first packet of a connection, as a black hole does.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = socket.listen(1).unwrap();
    let address = full.local_addr().unwrap();
    let mut held = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(
        Duration::from_millis(200),
        tokio::net::TcpStream::connect(address),
    )
    .await
    {
        held.push(stream);
    }
    let error = timed(&provider(
        &format!("http://{address}/v1"),
        json!({"timeouts": {"connectSeconds": 1}}),
    ))
    .await;
    assert_eq!(error.kind, Kind::Connect, "{}", error.message);
}

#[tokio::test]
async fn every_status_has_its_kind_and_the_providers_words() {
    let body = json!({"error": {"message": "the model's own words", "type": "t"}}).to_string();
    let cases = [
        (400, Kind::Refused),
        (404, Kind::Refused),
        (413, Kind::Refused),
        (422, Kind::Refused),
        (401, Kind::Unauthorized),
        (403, Kind::Unauthorized),
        (429, Kind::RateLimited),
        (529, Kind::RateLimited),
        (500, Kind::Server),
        (503, Kind::Server),
        (302, Kind::Refused),
    ];
    for (status, kind) in cases {
        let body = body.clone();
        let server = Server::start(move || {
            let mut answer = plain(status, "application/json", body.clone());
            answer
                .headers_mut()
                .insert("location", "http://192.0.2.1/elsewhere".parse().unwrap());
            answer
        })
        .await;
        let error = ask(&server.provider(json!({}))).await.unwrap_err();
        assert_eq!(
            (error.kind, error.status),
            (kind, Some(status)),
            "{}",
            error.message
        );
        assert!(!error.answer_begun);
        let expected = if status == 302 {
            "redirect to http://192.0.2.1/elsewhere, which is not followed"
        } else {
            "the model's own words"
        };
        assert!(error.message.contains(expected), "{}", error.message);
        assert_eq!(server.seen().len(), 1, "one try is one request");
    }
}

#[tokio::test]
async fn retry_after_is_read_as_seconds_and_as_a_date() {
    let date = httpdate::fmt_http_date(std::time::SystemTime::now() + Duration::from_secs(90));
    for (value, least, most) in [("7".to_owned(), 7, 7), (date, 80, 91)] {
        let server = Server::start(move || {
            let mut answer = plain(429, "text/plain", "slow down");
            answer.headers_mut().insert("retry-after", value.parse().unwrap());
            answer
        })
        .await;
        let error = ask(&server.provider(json!({}))).await.unwrap_err();
        let wait = error.retry_after_seconds.unwrap();
        assert!((least..=most).contains(&wait), "{wait}");
        assert_eq!(error.message, "HTTP 429: slow down");
    }
    let server = Server::start(|| plain(429, "text/plain", "slow down")).await;
    assert_eq!(
        ask(&server.provider(json!({})))
            .await
            .unwrap_err()
            .retry_after_seconds,
        None
    );
}

#[tokio::test]
async fn garbage_is_a_protocol_error() {
    for body in [
        "<html>",
        "{\"choices\": [",
        "{}",
        "{\"choices\": \"no\"}",
        "[1]",
        "",
    ] {
        let server = Server::start(move || plain(200, "application/json", body)).await;
        let error = ask(&server.provider(json!({}))).await.unwrap_err();
        assert!(matches!(error.kind, Kind::Protocol), "{body}: {error:?}");
    }
    for kind in ["text/html", "Text/HTML; charset=utf-8", "image/png"] {
        let server = Server::start(move || plain(200, kind, "<html>sign in</html>")).await;
        let error = ask(&server.provider(json!({}))).await.unwrap_err();
        assert_eq!(
            (error.kind, error.answer_begun),
            (Kind::Protocol, false),
            "{kind}"
        );
        assert!(error.message.contains("set spec.baseUrl"), "{}", error.message);
    }
    for stream in [
        "data: {not json}\n\n",
        "data: \u{0}\n\n",
        "data: [DONE]\n\n",
        "data: {}\n\ndata: [DONE]\n\n",
    ] {
        let server = Server::start(move || plain(200, "text/event-stream", stream)).await;
        assert_eq!(
            ask(&server.provider(json!({}))).await.unwrap_err().kind,
            Kind::Protocol,
            "{stream}"
        );
    }
    let server = Server::start(|| plain(200, "text/event-stream", &b"data: \xff\xfe\n\n"[..])).await;
    assert_eq!(
        ask(&server.provider(json!({}))).await.unwrap_err().kind,
        Kind::Protocol
    );
}

#[tokio::test]
async fn an_error_inside_a_stream_is_an_error() {
    let begun = || delta(json!({"content": "a"}), None);
    let fault = b"data: {\"error\": {\"message\": \"overloaded\", \"code\": 503}}\n\n".to_vec();
    let server = Server::start(move || events(vec![begun(), fault.clone()])).await;
    let error = ask(&server.provider(json!({}))).await.unwrap_err();
    assert_eq!(
        (error.kind, error.status, error.answer_begun),
        (Kind::Server, Some(503), true)
    );
    assert!(error.message.contains("overloaded"), "{}", error.message);
    let server =
        Server::start(|| plain(200, "application/json", json!({"error": "no credit"}).to_string())).await;
    let error = ask(&server.provider(json!({}))).await.unwrap_err();
    assert!(error.message.contains("no credit"), "{}", error.message);
}

#[tokio::test]
async fn what_is_too_large_is_cut_off() {
    const MANY: usize = 20 * 1024 * 1024;
    let server = Server::start(|| plain(200, "application/json", vec![b' '; MANY])).await;
    assert_eq!(
        ask(&server.provider(json!({}))).await.unwrap_err().kind,
        Kind::TooLarge
    );
    let server = Server::start(|| {
        let mut whole = whole_answer();
        whole["choices"][0]["message"]["content"] = "x".repeat(600 * 1024).into();
        plain(200, "application/json", whole.to_string())
    })
    .await;
    assert_eq!(
        ask(&server.provider(json!({}))).await.unwrap_err().kind,
        Kind::TooLarge
    );
    // A single event that never ends, and text without an end.
    let server = Server::start(|| {
        let endless =
            futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 16384])));
        plain(200, "text/event-stream", Body::from_stream(endless))
    })
    .await;
    let error = ask(&server.provider(json!({}))).await.unwrap_err();
    assert_eq!((error.kind, error.answer_begun), (Kind::TooLarge, true));
    let server = Server::start(|| {
        let piece = delta(json!({"content": "x".repeat(4000)}), None);
        let endless =
            futures::stream::repeat_with(move || Ok::<_, std::io::Error>(Bytes::from(piece.clone())));
        plain(200, "text/event-stream", Body::from_stream(endless))
    })
    .await;
    assert_eq!(
        ask(&server.provider(json!({}))).await.unwrap_err().kind,
        Kind::TooLarge
    );
    let server = Server::start(|| plain(500, "text/plain", vec![b'e'; MANY])).await;
    let error = ask(&server.provider(json!({}))).await.unwrap_err();
    assert_eq!(error.kind, Kind::Server);
    assert!(error.message.len() <= 2048, "{}", error.message.len());
}

#[tokio::test]
async fn the_key_is_sent_and_never_told() {
    let credentials = json!({"credentials": {"secretRef": {"name": "s"}}});
    let server = Server::start(|| {
        plain(
            401,
            "application/json",
            json!({"error": {"message": "bad key sk-very-secret-1 given"}}).to_string(),
        )
    })
    .await;
    let key = ApiKey::from("sk-very-secret-1\n");
    let client = ProviderClient::new();
    let error = client
        .call(&server.provider(credentials.clone()), Some(&key), &request(), 0)
        .await
        .unwrap_err();
    assert_eq!(error.kind, Kind::Unauthorized);
    assert_eq!(error.message, "HTTP 401: bad key [key] given");
    assert_eq!(
        server.seen()[0].headers["authorization"],
        "Bearer sk-very-secret-1"
    );
    assert!(!format!("{key:?} {client:?} {error:?}").contains("secret-1"));

    let error = client
        .call(&server.provider(credentials.clone()), None, &request(), 0)
        .await
        .unwrap_err();
    assert_eq!(error.kind, Kind::SecretNotReadable);
    let error = client
        .call(
            &server.provider(credentials),
            Some(&ApiKey::from("a\nb")),
            &request(),
            0,
        )
        .await
        .unwrap_err();
    assert_eq!(error.kind, Kind::SecretNotReadable);
    assert!(error.message.contains("spec.credentials"), "{}", error.message);
    assert_eq!(server.seen().len(), 1, "neither was sent");
}

#[tokio::test]
async fn a_parameter_that_is_fairleads_own_is_refused_before_anything_is_sent() {
    let server = Server::start(|| plain(200, "application/json", whole_answer().to_string())).await;
    let mut own = request();
    own.parameters.insert("messages".to_owned(), json!([]));
    let error = ProviderClient::new()
        .call(&server.provider(json!({})), None, &own, 0)
        .await
        .unwrap_err();
    assert_eq!(error.kind, Kind::Refused);
    assert!(
        error.message.starts_with("spec.model.parameters.messages: "),
        "{}",
        error.message
    );
    assert!(server.seen().is_empty());
}

#[test]
fn ready_judges_the_url() {
    assert_eq!(
        check(&provider("https://models.example.com/v1", json!({}))),
        Ok(())
    );
    for bad in [
        "https://",
        "http://[::1/v1",
        "ftp://x/v1",
        "https://x/v1?k=1",
        "http://x:99999/",
    ] {
        let message = check(&provider(bad, json!({}))).unwrap_err();
        assert!(message.starts_with("spec.baseUrl: "), "{bad}: {message}");
    }
    let mut none = provider("https://x", json!({}));
    none.base_url = None;
    assert!(
        check(&none)
            .unwrap_err()
            .contains("required with wireApi ChatCompletions")
    );
}

/// Reads a request to its end: bytes left unread would make the close of the connection a reset.
async fn read_request(stream: &mut tokio::net::TcpStream) {
    let mut got = Vec::new();
    loop {
        assert!(stream.read_buf(&mut got).await.unwrap() > 0, "a whole request");
        let text = String::from_utf8_lossy(&got).to_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let (_, length) = head.split_once("content-length: ").unwrap();
        if body.len() >= length.lines().next().unwrap().parse().unwrap() {
            return;
        }
    }
}

/// Bytes that are no HTTP, a head that is larger than is read, and a connection that ends without one.
#[tokio::test]
async fn what_is_no_answer_is_not_called_a_timeout() {
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    let cases = [
        (b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), Kind::Protocol),
        (long.into_bytes(), Kind::Protocol),
        (Vec::new(), Kind::Disconnected),
        (b"HTTP/1.1 200 OK\r\ncontent-".to_vec(), Kind::Disconnected),
    ];
    for (bytes, kind) in cases {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let serve = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await;
            // The client may hang up before it has read all.
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
        });
        let error = ask(&provider(&base, json!({}))).await.unwrap_err();
        serve.await.unwrap();
        assert_eq!(
            (error.kind, error.answer_begun),
            (kind, false),
            "{shown}: {error:?}"
        );
    }
}

//! A model endpoint on loopback that keeps every request it got and answers by the number of turns in it.

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use fairlead_crds::API_VERSION;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};

/// The endpoint. It ends with the runtime of its test.
#[derive(Clone)]
pub struct Model {
    requests: Arc<Mutex<Vec<Value>>>,
    answers: Arc<Vec<Value>>,
    address: String,
}

impl Model {
    /// Starts an endpoint whose n-th turn is answered by the n-th message of `answers`, as an assistant's message.
    pub async fn start(answers: Vec<Value>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = format!("http://{}/v1", listener.local_addr().expect("an address"));
        let model = Self {
            requests: Arc::default(),
            answers: Arc::new(answers),
            address,
        };
        let router = Router::new()
            .route("/v1/chat/completions", post(answer))
            .with_state(model.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        model
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Value> {
        self.requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// A ModelProvider that points here.
    pub fn provider(&self, name: &str) -> Value {
        json!({
            "apiVersion": API_VERSION, "kind": "ModelProvider", "metadata": {"name": name},
            "spec": {"wireApi": "ChatCompletions", "baseUrl": self.address, "defaultModel": "m", "stream": false},
        })
    }
}

async fn answer(State(model): State<Model>, Json(request): Json<Value>) -> Json<Value> {
    let messages = request["messages"].as_array().cloned().unwrap_or_default();
    let turn = messages.iter().filter(|m| m["role"] == "assistant").count();
    model
        .requests
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(request);
    let message = model
        .answers
        .get(turn)
        .cloned()
        .unwrap_or_else(|| json!({"role": "assistant", "content": "Done."}));
    let reason = if message["tool_calls"].is_array() {
        "tool_calls"
    } else {
        "stop"
    };
    Json(json!({
        "id": format!("answer-{turn}"), "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }))
}

/// An assistant's message that calls tools: id, name, arguments as text.
pub fn calls(calls: &[(&str, &str, &str)]) -> Value {
    let calls: Vec<_> = calls
        .iter()
        .map(|(id, name, arguments)| {
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        })
        .collect();
    json!({"role": "assistant", "content": null, "tool_calls": calls})
}

//! Conversations with public servers of the chat completions protocol that others wrote: the proxy of LiteLLM before an
//! upstream that is scripted here, and aimock. Each twice, streaming and not, with tool calls spread over deltas.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test ends at the first surprise"
)]

#[path = "../../e2e/src/model_servers.rs"]
mod model_servers;
mod support;

use fairlead_crds::ModelProviderSpec;
use fairlead_crds::values::OpenObject;
use fairlead_decide::model::{Message, MessageCall, ModelErrorKind, ModelRequest, ModelResponse};
use fairlead_operator::provider::{ApiKey, ProviderClient};
use model_servers::{ModelServer, installed};
use serde_json::{Value, json};
use support::{Seen, Server, delta, events, plain};

fn provider(server: &ModelServer, stream: bool) -> ModelProviderSpec {
    let more = json!({"stream": stream, "credentials": {"secretRef": {"name": "s"}}});
    support::provider(&server.url("/v1"), more)
}

async fn ask(server: &ModelServer, stream: bool, request: &ModelRequest) -> ModelResponse {
    let key = ApiKey::from(KEY);
    let result = ProviderClient::new()
        .call(&provider(server, stream), Some(&key), request, 0)
        .await;
    result.unwrap_or_else(|error| panic!("stream {stream}: {error:?}\n{}", server.log()))
}

const KEY: &str = "sk-local-4711";
const RESULT: &str = "17 °C, \"clear\"\nwind 3";

fn object(value: Value) -> OpenObject {
    value.as_object().unwrap().clone()
}

fn first_request(model: &str, user: &str) -> ModelRequest {
    serde_json::from_value(json!({
        "turn": 1, "model": model, "max_output_tokens": 77, "parameters": {"temperature": 0.5},
        "messages": [{"role": "system", "text": "Be brief."}, {"role": "user", "text": user}],
        "tools": [{"name": "lookup", "description": "Weather of a city.", "schema":
            {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}],
    }))
    .unwrap()
}

/// The calls of an answer, with their arguments read.
fn calls(response: &ModelResponse) -> Vec<(String, String, Value)> {
    response
        .calls
        .iter()
        .map(|call| {
            (
                call.id.clone(),
                call.name.clone(),
                serde_json::from_str(&call.arguments).unwrap(),
            )
        })
        .collect()
}

/// The request after `response`, with a result for each call.
fn next_request(mut request: ModelRequest, response: &ModelResponse) -> ModelRequest {
    request.turn += 1;
    let made = calls(response).into_iter();
    let made: Vec<_> = made
        .map(|(id, name, arguments)| MessageCall {
            id,
            name,
            arguments: object(arguments),
        })
        .collect();
    let results: Vec<_> = made
        .iter()
        .map(|call| Message::Tool {
            call_id: call.id.clone(),
            name: call.name.clone(),
            text: RESULT.to_owned(),
        })
        .collect();
    request.messages.push(Message::Assistant {
        text: response.text.clone(),
        calls: made,
    });
    request.messages.extend(results);
    request
}

fn expected_calls() -> Vec<(String, String, Value)> {
    vec![
        ("c-0".to_owned(), "lookup".to_owned(), json!({"city": "Zürich"})),
        ("c-1".to_owned(), "lookup".to_owned(), json!({"city": "Oslo"})),
    ]
}

/// What the upstream of LiteLLM answers: two calls, and once it has their results, a text that holds the last one.
fn upstream(seen: &Seen) -> axum::response::Response {
    let usage = json!({"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18});
    let last = seen.body["messages"]
        .as_array()
        .and_then(|messages| messages.last())
        .cloned()
        .unwrap_or_default();
    if last["content"] == "forbidden" {
        return plain(
            401,
            "application/json",
            json!({"error": {"message": "the upstream says no"}}).to_string(),
        );
    }
    let text = (last["role"] == "tool").then(|| format!("It is {}.", last["content"].as_str().unwrap()));
    let arguments = ["{\"city\": \"Zürich\"}", "{\"city\": \"Oslo\"}"];
    let finish = if text.is_some() { "stop" } else { "tool_calls" };
    if seen.body["stream"] != true {
        let made = arguments.iter().enumerate().map(|(n, arguments)| {
            json!({"id": format!("c-{n}"), "type": "function", "function": {"name": "lookup", "arguments": arguments}})
        });
        let message = match text {
            Some(text) => json!({"role": "assistant", "content": text}),
            None => json!({"role": "assistant", "content": null, "tool_calls": made.collect::<Value>()}),
        };
        let whole = json!({"id": "up-1", "object": "chat.completion", "created": 1, "model": "m", "usage": usage,
            "choices": [{"index": 0, "finish_reason": finish, "message": message}]});
        return plain(200, "application/json", whole.to_string());
    }
    let mut pieces = vec![delta(json!({"role": "assistant", "content": ""}), None)];
    for piece in text.unwrap_or_default().chars().collect::<Vec<_>>().chunks(3) {
        pieces.push(delta(json!({"content": piece.iter().collect::<String>()}), None));
    }
    for (n, arguments) in arguments.iter().enumerate().filter(|_| finish == "tool_calls") {
        let head = json!({"name": "lookup", "arguments": ""});
        pieces.push(delta(json!({"tool_calls": [{"index": n, "id": format!("c-{n}"), "type": "function", "function": head}]}), None));
        for piece in arguments.chars().collect::<Vec<_>>().chunks(3) {
            let function = json!({"arguments": piece.iter().collect::<String>()});
            pieces.push(delta(
                json!({"tool_calls": [{"index": n, "function": function}]}),
                None,
            ));
        }
    }
    pieces.push(delta(json!({}), Some(finish)));
    let tail = json!({"id": "resp-1", "object": "chat.completion.chunk", "choices": [], "usage": usage});
    pieces.push(format!("data: {tail}\n\ndata: [DONE]\n\n").into_bytes());
    events(pieces)
}

/// The last request for an answer; the proxy asks for other things as well.
fn last_chat(server: &Server) -> Seen {
    server
        .seen()
        .into_iter()
        .rfind(|seen| seen.path.ends_with("/chat/completions"))
        .unwrap()
}

#[tokio::test]
async fn litellms_proxy() {
    let Some(places) = installed() else { return };
    let scripted = Server::answering(upstream).await;
    let proxy = ModelServer::litellm(places, &scripted.base, "sk-upstream", KEY).await;
    for stream in [true, false] {
        let request = first_request("relayed", "The weather?");
        let response = ask(&proxy, stream, &request).await;
        assert_eq!(calls(&response), expected_calls(), "stream {stream}");
        assert_eq!(response.finish_reason.as_deref(), Some("tool_calls"));
        let usage = response.usage.unwrap();
        assert_eq!(
            (usage.input_tokens, usage.output_tokens),
            (11, 7),
            "stream {stream}"
        );
        assert!(response.request_id.as_ref().is_some_and(|id| !id.is_empty()));
        let seen = last_chat(&scripted);
        assert_eq!(seen.body["stream"] == true, stream);
        assert_eq!(
            (&seen.body["max_tokens"], &seen.body["temperature"]),
            (&json!(77), &json!(0.5))
        );
        assert_eq!(
            seen.body["tools"][0]["function"]["parameters"]["required"],
            json!(["city"])
        );

        let answer = ask(&proxy, stream, &next_request(request, &response)).await;
        assert_eq!(answer.text, Some(format!("It is {RESULT}.")), "stream {stream}");
        assert_eq!(
            (answer.finish_reason.as_deref(), answer.calls.len()),
            (Some("stop"), 0)
        );
        let relayed = last_chat(&scripted).body["messages"].clone();
        let roles: Vec<_> = relayed
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message["role"].clone())
            .collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "tool"]);
        assert_eq!(
            relayed[2]["tool_calls"][0]["function"]["arguments"],
            "{\"city\":\"Zürich\"}"
        );
        assert_eq!(
            (&relayed[4]["tool_call_id"], &relayed[4]["content"]),
            (&json!("c-1"), &json!(RESULT))
        );
    }
    let raw = json!({"model": "relayed", "stream": true, "messages": [{"role": "user", "content": "x"}]});
    let spread = proxy.call_deltas(KEY, &raw).await;
    assert!(spread > 8, "two calls came in {spread} deltas");

    litellms_errors(&proxy).await;
}

async fn litellms_errors(proxy: &ModelServer) {
    let client = ProviderClient::new();
    let ask = async |key: &str, model: &str, user: &str| {
        let key = ApiKey::from(key);
        client
            .call(&provider(proxy, true), Some(&key), &first_request(model, user), 0)
            .await
            .unwrap_err()
    };
    // Without a database it can only say that it cannot look the key up.
    let error = ask("sk-wrong-0815", "relayed", "x").await;
    assert!(matches!(error.status, Some(400 | 401)), "{error:?}");
    assert!(!error.message.contains("sk-wrong-0815"), "{}", error.message);
    let error = ask(KEY, "nowhere", "x").await;
    assert_eq!(error.kind, ModelErrorKind::Refused, "{error:?}");
    assert!(error.message.contains("nowhere"), "{}", error.message);
    let error = ask(KEY, "relayed", "forbidden").await;
    assert_eq!(error.kind, ModelErrorKind::Unauthorized, "{error:?}");
    assert!(
        error.message.contains("the upstream says no"),
        "{}",
        error.message
    );
}

fn fixtures() -> Value {
    json!([
        {"match": {"userMessage": "weather", "hasToolResult": false}, "response": {"content": "Looking it up.", "toolCalls": [
            {"id": "c-0", "name": "lookup", "arguments": {"city": "Zürich"}},
            {"id": "c-1", "name": "lookup", "arguments": {"city": "Oslo"}},
        ]}},
        {"match": {"userMessage": "weather", "toolCallId": "c-1", "toolResultContains": RESULT},
            "response": {"content": "It is 17 °C there.", "usage": {"prompt_tokens": 21, "completion_tokens": 5, "total_tokens": 26}}},
        {"match": {"userMessage": "overload"},
            "response": {"error": {"message": "slow down", "type": "rate_limit_error"}, "status": 429, "retryAfter": 7}},
        {"match": {"userMessage": "cut"}, "response": {"content": "a long answer that is cut off somewhere"}, "truncateAfterChunks": 3, "latency": 50},
    ])
}

#[tokio::test]
async fn aimocks_server() {
    let Some(places) = installed() else { return };
    let server = ModelServer::aimock(places, &fixtures()).await;
    for stream in [true, false] {
        let request = first_request("m", "The weather?");
        let response = ask(&server, stream, &request).await;
        assert_eq!(
            response.text.as_deref(),
            Some("Looking it up."),
            "stream {stream}"
        );
        assert_eq!(calls(&response), expected_calls(), "stream {stream}");
        assert_eq!(response.finish_reason.as_deref(), Some("tool_calls"));
        assert!(
            response
                .request_id
                .as_ref()
                .is_some_and(|id| id.starts_with("req-")),
            "{response:?}"
        );

        let answer = ask(&server, stream, &next_request(request, &response)).await;
        assert_eq!(
            answer.text.as_deref(),
            Some("It is 17 °C there."),
            "stream {stream}"
        );
        assert_eq!(answer.finish_reason.as_deref(), Some("stop"));
        let usage = answer.usage.unwrap();
        assert_eq!(
            (usage.input_tokens, usage.output_tokens),
            (21, 5),
            "stream {stream}"
        );
    }
    let raw = json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "weather"}]});
    let spread = server.call_deltas(KEY, &raw).await;
    assert!(spread > 8, "two calls came in {spread} deltas");

    let client = ProviderClient::new();
    let key = ApiKey::from(KEY);
    let ask = async |user: &str| {
        client
            .call(&provider(&server, true), Some(&key), &first_request("m", user), 0)
            .await
            .unwrap_err()
    };
    let error = ask("overload").await;
    assert_eq!(
        (error.kind, error.retry_after_seconds),
        (ModelErrorKind::RateLimited, Some(7))
    );
    assert_eq!(error.message, "HTTP 429: slow down");
    let error = ask("cut").await;
    assert_eq!(
        (error.kind, error.answer_begun),
        (ModelErrorKind::Disconnected, true),
        "{error:?}"
    );
    assert_eq!(ask("nothing fits").await.kind, ModelErrorKind::Server);
}

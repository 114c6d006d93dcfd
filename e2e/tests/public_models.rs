//! Whole runs on public model servers that others wrote: streamed, with calls that are spread over the deltas, and with
//! results that reach the model byte for byte as they are stored.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use fairlead_crds::{API_VERSION, AgentRun, RunPhase};
use fairlead_e2e::fleet::*;
use fairlead_e2e::model_servers::{ModelServer, installed};
use fairlead_e2e::{admin, grant, namespace, objects, wait_for};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// What the operator shows the proxy; it stands in a Secret and nowhere else.
const KEY: &str = "sk-local-0Zq4711";
const UPSTREAM_KEY: &str = "sk-upstream-0815";
const ANSWER: &str = "17 °C in Zürich, and in Oslo it is late.";
/// Calls of the first turn: id, tool, name and value of the argument. The last two become no execution.
const CALLS: [(&str, &str, &str, &str); 4] = [
    ("c-0", "weather", "arg", "Zürich \"West\""),
    ("c-1", "clock", "arg", "Oslo\\Sentrum\n"),
    ("c-2", "no-such-tool", "arg", "x"),
    ("c-3", "get_tool_execution", "execution_id", "nobody's"),
];

/// An event of a streamed answer of the chat completions protocol.
fn event(delta: &Value, finish: Option<&str>) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
    let event = json!({"id": "up-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]});
    format!("data: {event}\n\n")
}

fn pieces(text: &str) -> Vec<String> {
    let all: Vec<char> = text.chars().collect();
    all.chunks(3).map(|piece| piece.iter().collect()).collect()
}

/// The calls begin one after the other, and then their arguments come in turns, three characters at a time.
fn calls_in_pieces() -> Vec<String> {
    let mut events = Vec::new();
    let mut arguments = Vec::new();
    for (index, (id, name, key, value)) in CALLS.iter().enumerate() {
        let function = json!({"name": name, "arguments": ""});
        let call = json!({"index": index, "id": id, "type": "function", "function": function});
        events.push(event(&json!({"tool_calls": [call]}), None));
        arguments.push(pieces(&json!({*key: value}).to_string()));
    }
    let longest = arguments.iter().map(Vec::len).max().unwrap();
    for n in 0..longest {
        for (index, piece) in arguments
            .iter()
            .enumerate()
            .filter_map(|(i, a)| Some((i, a.get(n)?)))
        {
            let call = json!({"index": index, "function": {"arguments": piece}});
            events.push(event(&json!({"tool_calls": [call]}), None));
        }
    }
    events
}

type Requests = Arc<Mutex<Vec<Value>>>;

async fn upstream(
    State(seen): State<Requests>,
    headers: axum::http::HeaderMap,
    Json(request): Json<Value>,
) -> Response {
    let last = request["messages"].as_array().and_then(|all| all.last()).cloned();
    let mut request = request;
    request["authorization"] = json!(headers["authorization"].to_str().unwrap());
    seen.lock().unwrap().push(request);
    let (body, finish) = match last.is_some_and(|message| message["role"] == "tool") {
        true => (
            pieces(ANSWER)
                .iter()
                .map(|piece| event(&json!({"content": piece}), None))
                .collect(),
            "stop",
        ),
        false => (calls_in_pieces(), "tool_calls"),
    };
    let head = event(&json!({"role": "assistant", "content": ""}), None);
    let usage = json!({"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18});
    let tail = json!({"id": "up-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": usage});
    let end = [
        event(&json!({}), Some(finish)),
        format!("data: {tail}\n\ndata: [DONE]\n\n"),
    ];
    let all = [head].into_iter().chain(body).chain(end);
    let stream = futures::stream::iter(all.map(|event| Ok::<_, std::io::Error>(Bytes::from(event))));
    Response::builder()
        .header("content-type", "text/event-stream")
        .body(Body::from_stream(stream))
        .unwrap()
}

/// Starts the upstream and gives its base URL and what it was asked.
async fn start_upstream() -> (String, Requests) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/v1", listener.local_addr().unwrap());
    let seen = Requests::default();
    let router = Router::new()
        .route("/v1/chat/completions", post(upstream))
        .with_state(Arc::clone(&seen));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (base, seen)
}

/// Makes the tools, a provider at `server` with `more` in its spec, and a run on it; gives the run when it has ended.
async fn run_on(ns: &str, server: &ModelServer, more: Value) -> AgentRun {
    // What the tools print is awkward on purpose: quotes, control characters, no UTF-8, what a template would expand.
    let weather =
        r#"printf '17 °C, "clear" in %s\twind\\3\r\n{{arg}} $HOME\001\303' "$1"; echo to stderr >&2"#;
    for (name, script) in [
        ("weather", weather),
        ("clock", r#"printf '%s|%s' "$1" "$(date +%s%N)""#),
    ] {
        let mut tool = shell_tool(name, script);
        tool["spec"]["parallelSafe"] = json!(true);
        made(ns, &tool).await;
    }
    let mut provider = json!({
        "apiVersion": API_VERSION, "kind": "ModelProvider", "metadata": {"name": "public"},
        "spec": {"wireApi": "ChatCompletions", "baseUrl": server.url("/v1"), "stream": true},
    });
    let spec = provider["spec"].as_object_mut().unwrap();
    spec.extend(more.as_object().unwrap().clone());
    made(ns, &provider).await;
    let mut run = run_with("public", "public", &["weather", "clock"]);
    run["spec"]["input"] = json!("The weather?");
    made(ns, &run).await;
    let run = ended_run(ns, "public", SOON).await;
    let status = run.status.clone().unwrap();
    let log = server.log();
    assert_eq!(status.phase, Some(RunPhase::Succeeded), "{status:?}\n{log}");
    assert_eq!(status.answer.unwrap().text, ANSWER);
    assert_eq!(status.turns, 2);
    run
}

/// Checks that the results in `request`, the last one the model got, are those that are stored.
async fn results_are_as_stored(ns: &str, run: &AgentRun, request: &Value) {
    let messages = request["messages"].as_array().unwrap();
    let told: BTreeMap<_, _> = messages
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| {
            let [id, text] = ["tool_call_id", "content"].map(|key| message[key].as_str().unwrap());
            (id.to_owned(), text.to_owned())
        })
        .collect();
    let mut stored = BTreeMap::new();
    for execution in executions_of(ns, run).await {
        let status = execution.status.unwrap();
        stored.insert(execution.spec.call_id.unwrap(), status.output.unwrap().text);
    }
    assert_eq!(stored.keys().collect::<Vec<_>>(), ["c-0", "c-1"], "{stored:?}");
    assert!(stored["c-0"].contains("17 °C, \"clear\" in Zürich \"West\""));
    assert!(stored["c-1"].starts_with("Oslo\\Sentrum\n|"), "{stored:?}");
    let turns = turns_of(ns, run).await;
    let calls = turns[0].status.clone().unwrap().tool_calls;
    let refused = calls.into_iter().filter_map(|c| Some((c.call_id, c.error?.text)));
    stored.extend(refused);
    let observed = turns[1].spec.observations.clone().into_iter();
    stored.extend(observed.map(|o| (o.call_id, o.text)));
    assert!(stored["c-2"].contains("no-such-tool"), "{stored:?}");
    assert!(stored["c-3"].contains("nobody's"), "{stored:?}");
    let bytes = |texts: &BTreeMap<String, String>| -> Vec<(String, Vec<u8>)> {
        let all = texts.clone().into_iter();
        all.map(|(id, text)| (id, text.into_bytes())).collect()
    };
    assert_eq!(bytes(&told), bytes(&stored), "{told:?} beside {stored:?}");
}

/// Checks that `secret` is in no object but its Secret, in no Event, in no log or metric of ours and in no output.
async fn is_nowhere(secret: &str, ns: &str) {
    let kinds = [
        (API_VERSION, "AgentRun"),
        (API_VERSION, "AgentTurn"),
        (API_VERSION, "ToolExecution"),
        (API_VERSION, "Tool"),
        (API_VERSION, "ModelProvider"),
        ("v1", "Event"),
        ("v1", "ConfigMap"),
        ("coordination.k8s.io/v1", "Lease"),
    ];
    let client = admin().await;
    let mut texts = Vec::new();
    for (api_version, kind) in kinds {
        // Events and Leases of ours are not only in the run's own namespace.
        for place in [ns, xtask::install::NAMESPACE] {
            let list = objects(&client, place, api_version, kind)
                .list(&Default::default())
                .await
                .unwrap_or_else(|error| panic!("list {kind} in {place}: {error}"));
            if place == ns && api_version == API_VERSION {
                assert!(!list.items.is_empty(), "no {kind} was made");
            }
            texts.push((
                format!("{kind} in {place}"),
                serde_json::to_string(&list.items).unwrap(),
            ));
        }
    }
    let names = ["operator".to_owned(), node(0)];
    for name in names {
        let (log, port) = {
            let stack = fleet(1);
            (stack.log(&name), stack.metrics_port(&name).unwrap())
        };
        let read = std::fs::read(&log).unwrap_or_else(|error| panic!("read {}: {error}", log.display()));
        assert!(!read.is_empty(), "{} is empty", log.display());
        texts.push((
            log.display().to_string(),
            String::from_utf8_lossy(&read).into_owned(),
        ));
        let metrics = reqwest::get(format!("http://127.0.0.1:{port}/metrics"))
            .await
            .unwrap();
        texts.push((format!("metrics of {name}"), metrics.text().await.unwrap()));
    }
    for (place, text) in texts {
        assert!(!text.contains(secret), "{place} holds the credential: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_through_litellms_proxy_succeeds_and_shows_its_key_to_nobody_else() {
    let Some(places) = installed() else { return };
    drop(fleet(1));
    let ns = namespace("litellm").await;
    let (base, seen) = start_upstream().await;
    let proxy = ModelServer::litellm(places, &base, UPSTREAM_KEY, KEY).await;
    made(&ns, &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"apiKey": KEY}}))
        .await;
    grant(
        &ns,
        xtask::install::NAMESPACE,
        xtask::install::OPERATOR,
        "get",
        "secrets",
        "key",
    )
    .await;
    let credentials = json!({"defaultModel": "relayed", "credentials": {"secretRef": {"name": "key"}}});
    let run = run_on(&ns, &proxy, credentials).await;
    let requests = seen.lock().unwrap().clone();
    assert_eq!(requests.len(), 2, "{requests:#?}");
    for request in &requests {
        assert_eq!(request["stream"], true);
        assert_eq!(request["authorization"], format!("Bearer {UPSTREAM_KEY}"));
    }
    results_are_as_stored(&ns, &run, &requests[1]).await;
    assert_eq!(
        run.status.as_ref().unwrap().usage.as_ref().unwrap().total_tokens,
        36
    );
    let raw = json!({"model": "relayed", "stream": true, "messages": [{"role": "user", "content": "x"}]});
    let spread = proxy.call_deltas(KEY, &raw).await;
    assert!(spread > 12, "four calls came in {spread} deltas");
    is_nowhere(KEY, &ns).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_on_aimock_succeeds() {
    let Some(places) = installed() else { return };
    drop(fleet(1));
    let ns = namespace("aimock").await;
    let calls =
        CALLS.map(|(id, name, key, value)| json!({"id": id, "name": name, "arguments": {key: value}}));
    let fixtures = json!([
        {"match": {"userMessage": "weather", "hasToolResult": false},
            "response": {"content": "Looking it up.", "toolCalls": calls}},
        {"match": {"userMessage": "weather", "toolCallId": "c-3"}, "response": {"content": ANSWER}},
    ]);
    let server = ModelServer::aimock(places, &fixtures).await;
    let run = run_on(&ns, &server, json!({"defaultModel": "m"})).await;
    let journal = server.url("/__aimock/journal");
    let requests: Vec<Value> = wait_for("both requests in aimock's journal", SOON, || async {
        let text = reqwest::get(&journal)
            .await
            .map_err(|e| e.to_string())?
            .text()
            .await
            .map_err(|e| e.to_string())?;
        let entries: Vec<Value> = serde_json::from_str(&text).map_err(|e| format!("{e}: {text}"))?;
        let asked: Vec<_> = entries
            .into_iter()
            .filter(|entry| entry["path"] == "/v1/chat/completions")
            .collect();
        if asked.len() == 2 { Ok(asked) } else { Err(text) }
    })
    .await;
    assert!(
        requests.iter().all(|entry| entry["body"]["stream"] == true),
        "{requests:#?}"
    );
    results_are_as_stored(&ns, &run, &requests[1]["body"]).await;
    let raw = json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "weather"}]});
    let spread = server.call_deltas("none", &raw).await;
    assert!(spread > 12, "four calls came in {spread} deltas");
}

//! Scripted providers: which step answers, what it answers, and what Ready says of a script.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use fairlead_crds::ModelProviderSpec;
use fairlead_decide::model::{ModelErrorKind, ModelRequest, ModelResponse};
use fairlead_operator::provider::{ProviderClient, check, scripted};
use serde_json::{Value, json};
use std::time::Duration;

fn provider(script: Value) -> ModelProviderSpec {
    serde_json::from_value(json!({"wireApi": "Scripted", "script": script})).unwrap()
}

/// A request of turn `turn` whose conversation holds these results, as (tool, text).
fn request(turn: i64, results: &[(&str, &str)]) -> ModelRequest {
    let mut messages = vec![json!({"role": "user", "text": "go"})];
    for (name, text) in results {
        messages.push(json!({"role": "tool", "call_id": "c", "name": name, "text": text}));
    }
    serde_json::from_value(json!({
        "turn": turn, "model": "m", "messages": messages, "tools": [], "parameters": {}, "max_output_tokens": 10,
    }))
    .unwrap()
}

fn answer(script: &Value, request: &ModelRequest, tries_before: u32) -> (usize, ModelResponse) {
    let played = scripted::answer(&provider(script.clone()).script, request, tries_before).unwrap();
    (played.step, played.outcome.unwrap())
}

#[test]
fn the_first_step_that_matches_answers() {
    let script = json!([
        {"when": {"turn": 1}, "respond": {"text": "one"}},
        {"when": {"lastTool": "shell", "resultMatches": "^ok"}, "respond": {"text": "shell ok"}},
        {"when": {"lastTool": "shell"}, "respond": {"text": "shell"}},
        {"when": {"resultMatches": "x+"}, "respond": {"text": "x"}},
        {"respond": {"text": "else"}},
    ]);
    assert_eq!(answer(&script, &request(1, &[("shell", "ok")]), 0).0, 1);
    assert_eq!(
        answer(&script, &request(2, &[("other", "no"), ("shell", "ok then")]), 0).0,
        2
    );
    assert_eq!(answer(&script, &request(2, &[("shell", "not ok")]), 0).0, 3);
    assert_eq!(
        answer(&script, &request(2, &[("shell", "ok"), ("other", "axx")]), 0).0,
        4
    );
    let (step, last) = answer(&script, &request(2, &[]), 0);
    assert_eq!(
        (step, last.text.as_deref(), last.finish_reason.as_deref()),
        (5, Some("else"), Some("stop"))
    );
}

#[test]
fn captures_reach_text_and_arguments_and_are_not_read_again() {
    let script = json!([{
        "when": {"resultMatches": "n=(\\S+) (z)?"},
        "respond": {
            "text": "<{{1}}|{{0}}|{{2}}|{{3}}|{{a}}|{{>",
            "toolCalls": [{"id": "c9", "name": "t", "arguments": {"a": "{{1}}", "b": ["x{{1}}", 1, {"c": "{{0}}"}], "n": 2}}],
        },
    }]);
    let (_, response) = answer(&script, &request(1, &[("t", "say n={{0}}\" now")]), 0);
    assert_eq!(
        response.text.as_deref(),
        Some("<{{0}}\"|n={{0}}\" ||{{3}}|{{a}}|{{>")
    );
    assert_eq!(response.finish_reason.as_deref(), Some("tool_calls"));
    let call = &response.calls[0];
    assert_eq!((call.id.as_str(), call.name.as_str()), ("c9", "t"));
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
    assert_eq!(
        arguments,
        json!({"a": "{{0}}\"", "b": ["x{{0}}\"", 1, {"c": "n={{0}}\" "}], "n": 2})
    );
}

#[test]
fn times_falls_through_by_the_number_of_tries() {
    let script = json!([
        {"when": {"turn": 2}, "respond": {"error": {"status": 429, "retryAfterSeconds": 2}, "times": 1}},
        {"respond": {"error": {"status": 503}, "times": 2}},
        {"respond": {"text": "done"}},
    ]);
    let spec = provider(script.clone());
    let kind = |tries| {
        scripted::answer(&spec.script, &request(2, &[]), tries)
            .unwrap()
            .outcome
            .map_err(|e| (e.kind, e.status, e.retry_after_seconds))
    };
    assert_eq!(
        kind(0).unwrap_err(),
        (ModelErrorKind::RateLimited, Some(429), Some(2))
    );
    assert_eq!(kind(1).unwrap_err(), (ModelErrorKind::Server, Some(503), None));
    assert_eq!(kind(2).unwrap_err(), (ModelErrorKind::Server, Some(503), None));
    assert_eq!(kind(3).unwrap().text.as_deref(), Some("done"));
    assert_eq!(
        answer(&script, &request(1, &[]), 2).0,
        3,
        "a step of another turn uses no try up"
    );
}

#[test]
fn a_script_without_an_answer_says_why_of_each_step() {
    let spec = provider(json!([
        {"when": {"turn": 9}, "respond": {"text": "a"}},
        {"when": {"lastTool": "shell"}, "respond": {"text": "b"}},
        {"when": {"resultMatches": "^yes"}, "respond": {"text": "c"}},
        {"respond": {"text": "d", "times": 1}},
    ]));
    let told = |request: &ModelRequest| {
        scripted::answer(&spec.script, request, 1)
            .map(|_| ())
            .unwrap_err()
    };
    let error = told(&request(2, &[("ls", "no")]));
    assert_eq!(error.kind, ModelErrorKind::ScriptExhausted);
    for part in [
        "no step answers turn 2",
        "step 1: wants turn 9",
        "step 2: wants a result of shell, the last is of ls",
        "step 3: resultMatches \"^yes\" is not found in the last result, which begins \"no\"",
        "step 4: has answered its 1 times",
    ] {
        assert!(error.message.contains(part), "{part}: {}", error.message);
    }
    assert!(told(&request(2, &[])).message.contains("there is no result yet"));
    let long = provider(Value::from_iter(
        (0..128).map(|_| json!({"when": {"lastTool": "x".repeat(60)}, "respond": {"text": "t"}})),
    ));
    assert!(
        scripted::answer(&long.script, &request(1, &[]), 0)
            .unwrap_err()
            .message
            .len()
            <= 2048
    );
}

#[test]
fn an_answer_that_captures_make_too_large_is_refused() {
    let script =
        provider(json!([{"when": {"resultMatches": "(?s).*"}, "respond": {"text": "{{0}}".repeat(100)}}]));
    let big = "y".repeat(100_000);
    let error = scripted::answer(&script.script, &request(1, &[("t", &big)]), 0).unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::TooLarge);
}

#[tokio::test]
async fn the_delay_stands_under_the_time_limits() {
    let client = ProviderClient::new();
    let mut spec = provider(json!([{"respond": {"text": "late", "delayMillis": 1100}}]));
    let started = tokio::time::Instant::now();
    let response = client.call(&spec, None, &request(1, &[]), 0).await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(1100));
    assert_eq!(
        (response.latency_millis, response.first_delta_millis),
        (1100, Some(1100))
    );
    spec.timeouts.first_byte_seconds = 1;
    let error = client.call(&spec, None, &request(1, &[]), 0).await.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Timeout);
    assert!(
        error.message.contains("spec.timeouts.firstByteSeconds (1 s)"),
        "{}",
        error.message
    );
}

#[test]
fn ready_names_every_fault_of_a_script() {
    let text = check(&provider(json!([
        {"when": {"resultMatches": "("}, "respond": {"text": "a"}},
        {"when": {"resultMatches": "(a)(b)"}, "respond": {"text": "{{2}} {{3}}"}},
        {"respond": {"toolCalls": [{"id": "i", "name": "n", "arguments": {"a": ["{{0}}"]}}]}},
        {"when": {"resultMatches": "(\\w{500}){500}"}, "respond": {"text": "b"}},
    ])))
    .unwrap_err();
    for part in [
        "spec.script[0].when.resultMatches: ",
        "spec.script[1].respond: {{3}} names no group",
        "spec.script[2].respond: {{0}} names no group of when.resultMatches, which has not been given",
        "spec.script[3].when.resultMatches: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(check(&provider(json!([]))).is_err());
    let good = json!([{"when": {"resultMatches": "^(6\\.[0-9]+)"}, "respond": {"text": "Kernel {{1}}, {{name}}, {{."}}]);
    assert_eq!(check(&provider(good)), Ok(()));
}

use super::*;
use serde_json::json;

fn run(status: serde_json::Value) -> AgentRun {
    serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "AgentRun",
        "metadata": {"name": "triage", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"input": "What kernel is this?\nBe short.", "model": {"providerRef": {"name": "main"}}},
        "status": status,
    }))
    .unwrap()
}

fn turn(index: i64, attempt: i64, status: serde_json::Value) -> AgentTurn {
    serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "AgentTurn",
        "metadata": {"name": format!("t{index}-{attempt}"), "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"runRef": {"name": "triage", "uid": "u"}, "index": index, "attempt": attempt,
                 "providerRef": {"name": "main"}, "model": "m", "maxOutputTokens": 1, "requestDigest": ""},
        "status": status,
    }))
    .unwrap()
}

fn execution(name: &str, status: serde_json::Value) -> ToolExecution {
    serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ToolExecution",
        "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"tool": {"toolRef": {"name": "shell"}}, "runRef": {"name": "triage", "uid": "u"}, "turn": 1,
                 "callId": "c1"},
        "status": status,
    }))
    .unwrap()
}

fn said(story: &mut Story) -> Vec<String> {
    let news = story.news();
    news.into_iter()
        .map(|fact| format!("{} {}", story.clock(fact.at), fact.line))
        .collect()
}

fn call_of_turn_one() -> serde_json::Value {
    json!({"phase": "Completed", "startTime": "2026-01-01T00:00:00.100Z", "completionTime": "2026-01-01T00:00:00.200Z",
           "message": "Looking.", "latencyMillis": 52,
           "toolCalls": [{"callId": "c1", "tool": "shell", "arguments": {"command": "uname -r"}, "stage": 1,
                          "executionName": "triage-1-aa"}]})
}

fn end_of_shell() -> serde_json::Value {
    json!({"phase": "Succeeded", "reason": "Completed", "outcome": "Completed", "nodeName": "node-0",
           "startTime": "2026-01-01T00:00:00.300Z", "completionTime": "2026-01-01T00:00:01.335Z",
           "output": {"text": "6.18\n", "truncated": false, "totalBytes": 5, "sha256": ""},
           "result": {"exitCode": 0}, "usage": {"wallMillis": 1035}})
}

#[test]
fn a_finished_run_is_told_in_the_order_in_which_it_happened() {
    let mut story = Story::new(run(json!({})));
    // As watches may deliver it: the end first.
    let answer = json!({"phase": "Completed", "startTime": "2026-01-01T00:00:01.340Z", "latencyMillis": 60,
                        "completionTime": "2026-01-01T00:00:01.400Z", "message": "Kernel 6.18."});
    story.see_turn(turn(2, 1, answer));
    story.see_execution(execution("triage-1-aa", end_of_shell()));
    story.see_turn(turn(1, 1, call_of_turn_one()));
    assert_eq!(
        said(&mut story),
        [
            "0.00 s run    \"What kernel is this?…\" by provider main",
            "0.00 s turn 1 asks m of provider main",
            "0.10 s turn 1 makes 1 call in 52 ms: \"Looking.\"",
            "0.10 s   call shell {\"command\":\"uname -r\"} → triage-1-aa",
            "1.23 s   shell Succeeded: exit 0, 1.0 s, 5 bytes of output, on node-0",
            "1.24 s turn 2 asks m of provider main",
            "1.30 s turn 2 answers in 60 ms",
        ]
    );
    assert_eq!(said(&mut story), Vec::<String>::new(), "each line is said once");
}

#[test]
fn a_live_run_is_told_piece_by_piece() {
    let mut story = Story::new(run(json!({})));
    story.see_turn(turn(1, 1, json!({})));
    assert_eq!(said(&mut story).len(), 2);
    story.see_turn(turn(1, 1, call_of_turn_one()));
    assert_eq!(said(&mut story).len(), 2);
    let running = json!({"phase": "Running", "nodeName": "node-0", "startTime": "2026-01-01T00:00:00.300Z"});
    story.see_execution(execution("triage-1-aa", running));
    assert_eq!(said(&mut story), ["0.20 s   shell runs on node-0 triage-1-aa"]);
    let now = "2026-01-01T00:01:30Z".parse().unwrap();
    assert_eq!(story.in_progress(now).unwrap(), "shell runs for 90s");
    story.see_execution(execution("triage-1-aa", end_of_shell()));
    assert_eq!(said(&mut story).len(), 1);
    assert_eq!(story.in_progress(now), None);
}

#[test]
fn a_model_that_is_slow_is_said_to_be() {
    let mut story = Story::new(run(json!({})));
    story.see_turn(turn(
        1,
        1,
        json!({"phase": "Abandoned", "completionTime": "2026-01-01T00:00:05Z",
               "failure": {"class": "Automatic", "reason": "RequestLost", "message": "m"}}),
    ));
    story.see_turn(turn(1, 2, json!({})));
    let now = "2026-01-01T00:00:20Z".parse().unwrap();
    assert_eq!(
        story.in_progress(now).unwrap(),
        "turn 1: the model has been asked for 20s"
    );
    let lines = said(&mut story).join("\n");
    assert!(
        lines.contains("turn 1 attempt 1 given up (RequestLost)"),
        "{lines}"
    );
    assert!(
        lines.contains("turn 1 asks m of provider main, attempt 2"),
        "{lines}"
    );
}

#[test]
fn a_refused_call_and_a_failed_execution_say_why() {
    let mut story = Story::new(run(json!({})));
    let status = json!({"phase": "Completed", "completionTime": "2026-01-01T00:00:00Z",
        "toolCalls": [{"callId": "c1", "tool": "nope\u{1b}[2J", "stage": 1,
                       "error": {"reason": "TOOL_NOT_FOUND", "text": "TOOL_NOT_FOUND: there is no tool nope; offered are: shell"}}]});
    story.see_turn(turn(1, 1, status));
    let failed = json!({"phase": "TimedOut", "reason": "HardTimeout", "message": "stopped after 5 s",
                        "completionTime": "2026-01-01T00:00:09Z", "result": {"signal": 15}});
    story.see_execution(execution("triage-1-bb", failed));
    let lines = said(&mut story).join("\n");
    assert!(
        lines.contains(
            "call nope\\u{1b}[2J {} refused (TOOL_NOT_FOUND): there is no tool nope; offered are: shell"
        ),
        "{lines}"
    );
    assert!(
        lines.contains("shell TimedOut (HardTimeout): signal 15; stopped after 5 s"),
        "{lines}"
    );
}

#[test]
fn what_a_run_waits_for_is_said_once_and_the_usual_is_not() {
    let waiting = |reason: &str, message: &str| {
        run(json!({"phase": "Pending", "conditions": [{
            "type": "Succeeded", "status": "Unknown", "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:01Z"}]}))
    };
    let mut story = Story::new(waiting("ToolNotFound", "there is no Tool \"x\""));
    let line = "run    waits (ToolNotFound): there is no Tool \"x\"";
    assert!(said(&mut story).iter().any(|said| said.ends_with(line)));
    story.see_run(waiting("ToolNotFound", "there is no Tool \"x\""));
    assert!(said(&mut story).is_empty());
    story.see_run(waiting("ModelAsked", "Turn 1 waits for the answer."));
    assert!(said(&mut story).is_empty());
}

#[test]
fn the_end_names_the_reason_of_a_failure() {
    let status = json!({"phase": "Failed", "turns": 1, "toolCalls": 0, "startTime": "2026-01-01T00:00:00Z",
        "completionTime": "2026-01-01T00:00:02.500Z", "usage": {"totalTokens": 1200},
        "failure": {"class": "Terminal", "reason": "ScriptExhausted", "message": "no step of the script matches turn 2"}});
    let (line, _) = story_facts::end_of_run(&run(status));
    assert_eq!(
        line,
        "run    Failed: 1 turn, 0 tool calls, 1,200 tokens\n       \
         ScriptExhausted: no step of the script matches turn 2"
    );
}

#[test]
fn the_clock_starts_when_the_run_was_taken_up_and_never_runs_backwards() {
    let mut story = Story::new(run(json!({"startTime": "2026-01-01T00:00:00.900Z"})));
    let at = |text: &str| Some(format!("2026-01-01T00:00:{text}Z").parse().unwrap());
    assert_eq!(story.clock(at("00")), "0.00 s", "created before it was taken up");
    assert_eq!(story.clock(at("02.100")), "1.20 s");
    assert_eq!(story.clock(at("02")), "1.20 s", "known to the second only");
    assert_eq!(story.clock(None), "1.20 s");
    assert_eq!(story.clock_at(at("01").unwrap()), "1.20 s");
    assert_eq!(story.clock(at("03.400")), "2.50 s");

    let mut late = Story::new(run(json!({"startTime": "2026-01-01T00:00:30Z"})));
    assert_eq!(
        late.clock(at("30.999")),
        "30.00 s",
        "that nobody took it up counts"
    );
}

#[test]
fn a_call_that_waits_is_said_after_the_call_was_made() {
    let mut story = Story::new(run(json!({})));
    story.see_turn(turn(1, 1, call_of_turn_one()));
    let waits = json!({"phase": "Queued", "reason": "NoReadyNode"});
    story.see_execution(execution("triage-1-aa", waits));
    let lines = said(&mut story);
    assert_eq!(
        lines.last().unwrap(),
        "0.10 s   shell waits (NoReadyNode) triage-1-aa"
    );
}

#[test]
fn the_next_turn_is_asked_after_the_calls_of_the_one_before() {
    let mut story = Story::new(run(json!({"startTime": "2026-01-01T00:00:00.100Z"})));
    story.see_turn(turn(1, 1, call_of_turn_one()));
    let mut next = turn(2, 1, json!({}));
    let second = "2026-01-01T00:00:01Z".parse().unwrap();
    next.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(second));
    story.see_turn(next);
    story.see_execution(execution("triage-1-aa", end_of_shell()));
    let lines = said(&mut story);
    let last = &lines[lines.len() - 2..];
    assert!(last[0].starts_with("1.23 s   shell Succeeded"), "{lines:#?}");
    assert_eq!(last[1], "1.23 s turn 2 asks m of provider main", "{lines:#?}");
}

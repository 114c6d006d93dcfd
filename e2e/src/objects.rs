//! Objects the tests make, as JSON, so that a test can spoil any part of one.

use fairlead_crds::API_VERSION;
use serde_json::{Value, json};

/// A fence with `digit` in every place.
pub fn fence(digit: char) -> String {
    digit.to_string().repeat(32)
}

/// A Tool that prints a word.
pub fn tool(name: &str) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "Tool", "metadata": {"name": name},
        "spec": {"description": "Prints a word.", "runner": {"command": {"argv": ["echo", "word"]}}},
    })
}

/// A scripted ModelProvider that answers at once.
pub fn provider(name: &str) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "ModelProvider", "metadata": {"name": name},
        "spec": {"wireApi": "Scripted", "defaultModel": "m", "script": [{"respond": {"text": "Done."}}]},
    })
}

/// An AgentRun.
pub fn run(name: &str) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "AgentRun", "metadata": {"name": name},
        "spec": {"input": "Say a word.", "model": {"providerRef": {"name": "script"}}},
    })
}

/// A user's own ToolExecution.
pub fn execution(name: &str) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "ToolExecution", "metadata": {"name": name},
        "spec": {"tool": {"toolRef": {"name": "word"}}},
    })
}

/// A binding to `node` for `attempt` with fence [`fence`]`(digit)`, in the term of the tests' leader Lease.
pub fn binding(node: &str, attempt: i64, digit: char) -> Value {
    json!({
        "nodeName": node, "incarnation": "boot-1", "attempt": attempt, "fence": fence(digit), "term": crate::TERM,
        "planVersion": 1, "admittedAt": "2026-01-01T00:00:00Z", "callDigest": "0".repeat(64), "decisions": [],
        "plan": {
            "toolGeneration": 1, "command": {"argv": ["echo", "word"]},
            "timeouts": {"hardSeconds": 60, "graceSeconds": 3},
            "resources": {"memoryMaxBytes": 67_108_864, "cpuMillicores": 1000, "maxProcesses": 64, "oomGroup": true},
            "network": "None", "outputMaxBytes": 50_000,
        },
    })
}

/// An execution as the operator makes it for `run` (an object the server gave, with its UID), bound to `node`.
pub fn run_execution(name: &str, run: &Value, node: &str) -> Value {
    let mut object = execution(name);
    let (run_name, uid) = (&run["metadata"]["name"], &run["metadata"]["uid"]);
    object["metadata"]["labels"] = json!({fairlead_crds::names::LABEL_RUN_UID: uid});
    object["metadata"]["ownerReferences"] = owner(run);
    object["spec"]["runRef"] = json!({"name": run_name, "uid": uid});
    object["spec"]["turn"] = json!(1);
    object["spec"]["callId"] = json!(name);
    object["spec"]["binding"] = binding(node, 1, 'a');
    object
}

/// A turn as the operator makes it for `run`.
pub fn turn(name: &str, run: &Value) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "AgentTurn",
        "metadata": {
            "name": name, "ownerReferences": owner(run),
            "labels": {fairlead_crds::names::LABEL_RUN_UID: run["metadata"]["uid"]},
        },
        "spec": {
            "runRef": {"name": run["metadata"]["name"], "uid": run["metadata"]["uid"]}, "index": 1, "attempt": 1,
            "providerRef": {"name": "script"}, "model": "m", "maxOutputTokens": 100, "input": "Say a word.",
            "requestDigest": "0".repeat(64),
        },
    })
}

/// An owner reference to `object`, an object the server gave.
pub fn owner(object: &Value) -> Value {
    json!([{
        "apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
    }])
}

/// The status of an execution that runs, as its agent writes it.
pub fn running(attempt: i64, digit: char) -> Value {
    json!({
        "fence": fence(digit), "phase": "Running", "startTime": "2026-01-01T00:00:01Z",
        "attempts": [{"n": attempt, "startTime": "2026-01-01T00:00:01Z"}],
    })
}

/// The status of an execution that ended well.
pub fn succeeded(attempt: i64, digit: char) -> Value {
    json!({
        "fence": fence(digit), "phase": "Succeeded", "outcome": "Completed", "startTime": "2026-01-01T00:00:01Z",
        "completionTime": "2026-01-01T00:00:02Z",
        "output": {"text": "word\n", "truncated": false, "totalBytes": 5, "sha256": "0".repeat(64)},
        "attempts": [{"n": attempt, "startTime": "2026-01-01T00:00:01Z", "endTime": "2026-01-01T00:00:02Z"}],
    })
}

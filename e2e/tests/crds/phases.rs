//! Which status may follow which.

use fairlead_crds::ExecutionPhase;
use fairlead_e2e::*;
use kube::Client;
use serde_json::{Value, json};

/// Makes an object of its own in `namespace`, brings it into `state`, and returns the answer to `step`.
async fn step(
    client: &Client,
    namespace: &str,
    object: &Value,
    state: &Value,
    step: &Value,
) -> kube::Result<Value> {
    let made = create(client, namespace, object).await.unwrap();
    if !state.is_null() {
        merge_status(client, namespace, &made, state).await.unwrap();
    }
    merge_status(client, namespace, &made, step).await
}

#[tokio::test]
async fn phases_follow_each_other_as_the_types_say() {
    let namespace = namespace("phases").await;
    let operator = operator().await;
    let task = create(&admin().await, &namespace, &run("task")).await.unwrap();
    for (a, from) in ExecutionPhase::ALL.iter().enumerate() {
        for (b, to) in ExecutionPhase::ALL.iter().enumerate() {
            let object = run_execution(&format!("x-{a}-{b}"), &task, "n1");
            let mut next = execution_status(*to, 1);
            if from == to || from.is_terminal() && to.is_terminal() {
                continue;
            }
            let expected = from.successors().contains(to);
            if (*from, *to) == (ExecutionPhase::Running, ExecutionPhase::Queued) {
                next["attempts"] = json!([{"n": 1}, {"n": 2}]);
            }
            if from.is_terminal() {
                next["completionTime"] = json!(null);
            }
            let answer = step(&operator, &namespace, &object, &execution_status(*from, 1), &next).await;
            if expected {
                answer.unwrap_or_else(|error| panic!("{from} → {to}: {error}"));
            } else {
                refused(&format!("{from} → {to}"), answer, &["status.phase"]);
            }
        }
    }
}

fn execution_status(phase: ExecutionPhase, attempts: i64) -> Value {
    let mut status = json!({"phase": phase.as_str(), "startTime": "2026-01-01T00:00:01Z"});
    status["attempts"] = (1..=attempts).map(|n| json!({"n": n})).collect();
    if phase.is_terminal() {
        status["completionTime"] = json!("2026-01-01T00:00:02Z");
    }
    status
}

const START: &str = "2026-01-01T00:00:01Z";
const END: &str = "2026-01-01T00:00:02Z";

/// What is wrong, the object, the status it has, the status written then, and what the refusal says.
type Case = (&'static str, Value, Value, Value, &'static str);

async fn all_refused(client: &Client, namespace: &str, cases: Vec<Case>) {
    for (what, object, state, next, says) in cases {
        refused(
            what,
            step(client, namespace, &object, &state, &next).await,
            &[says],
        );
    }
}

#[tokio::test]
async fn a_status_of_an_execution_contradicts_neither_itself_nor_the_past() {
    let namespace = namespace("rules").await;
    let task = create(&admin().await, &namespace, &run("task")).await.unwrap();
    let none = || json!(null);
    let object = |name: &str| run_execution(name, &task, "n1");
    let (failed, running_only) = (json!({"phase": "Failed"}), json!({"phase": "Running"}));
    let cases = vec![
        (
            "an end without a time",
            object("a"),
            none(),
            failed,
            "status.completionTime",
        ),
        (
            "a time without an end",
            object("b"),
            none(),
            json!({"completionTime": END}),
            "status.completionTime",
        ),
        (
            "Running without a start",
            object("c"),
            none(),
            running_only,
            "status.startTime",
        ),
        (
            "Queued without an attempt",
            object("d"),
            running(1, 'a'),
            json!({"phase": "Queued"}),
            "back to Queued",
        ),
        (
            "another end",
            object("e"),
            succeeded(1, 'a'),
            json!({"completionTime": START}),
            "final once set",
        ),
    ];
    all_refused(&operator().await, &namespace, cases).await;
}

#[tokio::test]
async fn a_turn_that_has_ended_is_final_and_so_is_its_spec() {
    let namespace = namespace("turns").await;
    let operator = operator().await;
    let task = create(&admin().await, &namespace, &run("task")).await.unwrap();
    let done = json!({"phase": "Completed", "completionTime": END, "message": "a"});
    let (failed, other) = (json!({"phase": "Failed"}), json!({"message": "b"}));
    let cases = vec![
        (
            "an end without a time",
            turn("t1", &task),
            json!(null),
            failed,
            "status.completionTime",
        ),
        (
            "a completed turn that changes",
            turn("t2", &task),
            done,
            other,
            "a turn that has ended is final",
        ),
    ];
    all_refused(&operator, &namespace, cases).await;
    let turn = create(&operator, &namespace, &turn("t3", &task)).await.unwrap();
    let change = merge(
        &admin().await,
        &namespace,
        &turn,
        &json!({"spec": {"model": "other"}}),
    )
    .await;
    refused("another model in a turn", change, &["written once"]);
}

#[tokio::test]
async fn a_run_that_has_ended_is_final() {
    let namespace = namespace("runs").await;
    let operator = operator().await;
    let cancelled = json!({"phase": "Cancelled", "completionTime": END});
    let running = json!({"phase": "Running", "completionTime": null});
    for (what, name, state, next, says) in [
        (
            "an end without a time",
            "a",
            json!(null),
            json!({"phase": "Failed"}),
            "status.completionTime",
        ),
        (
            "a time without an end",
            "b",
            json!(null),
            json!({"completionTime": END}),
            "status.completionTime",
        ),
        (
            "Cancelled back to Running",
            "c",
            cancelled,
            running,
            "a terminal phase is final",
        ),
    ] {
        let run = create(&admin().await, &namespace, &run(name)).await.unwrap();
        if !state.is_null() {
            merge_status(&operator, &namespace, &run, &state).await.unwrap();
        }
        refused(
            what,
            merge_status(&operator, &namespace, &run, &next).await,
            &[says],
        );
    }
}

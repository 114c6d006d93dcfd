//! What only the operator writes, and what of it only while it leads.

use fairlead_e2e::*;
use serde_json::json;
use xtask::install;

use crate::{careless, run_bound_to, until_refused};

const ONLY_OPERATOR: &str = "status: only the operator writes it";

#[tokio::test]
async fn only_the_operator_writes_turns() {
    let (namespace, run, _) = run_bound_to("forged", "node-i1").await;
    let user = user(&namespace, "author", "fairlead-edit").await;
    let mut forged = turn("task-t9", &run);
    forged["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("ownerReferences");
    let made = create(&user, &namespace, &forged).await;
    refused(
        "user: create a turn",
        made,
        &["cannot create resource \"agentturns\""],
    );
    careless(&namespace, &namespace, "author").await;
    until_refused("AgentTurn: only the operator", || {
        create(&user, &namespace, &forged)
    })
    .await;
    let made = create(&user, &namespace, &forged).await;
    refused(
        "careless user: create a turn",
        made,
        &["only the operator", "create an AgentRun"],
    );
}

#[tokio::test]
async fn only_the_operator_writes_the_status_of_its_kinds() {
    let (namespace, run, execution) = run_bound_to("status", "node-i2").await;
    let user = user(&namespace, "author", "fairlead-edit").await;
    let answered = json!({"phase": "Succeeded", "completionTime": "2026-01-01T00:00:00Z"});
    let ended = merge_status(&user, &namespace, &run, &answered).await;
    refused(
        "user: end a run",
        ended,
        &["cannot patch resource \"agentruns/status\""],
    );

    careless(&namespace, &namespace, "author").await;
    until_refused(ONLY_OPERATOR, || merge_status(&user, &namespace, &run, &answered)).await;
    let tool = create(&user, &namespace, &tool("word")).await.unwrap();
    let model = create(&user, &namespace, &provider("script")).await.unwrap();
    let seen = json!({"observedGeneration": 1});
    for (object, status) in [(&run, &answered), (&tool, &seen), (&model, &seen)] {
        let what = format!("careless user: status of {}", object["kind"]);
        refused(
            &what,
            merge_status(&user, &namespace, object, status).await,
            &[ONLY_OPERATOR, "change spec"],
        );
    }
    let patch = merge_status(&user, &namespace, &execution, &running(1, 'a')).await;
    let says = [
        "status: only the operator and the node agents",
        "spec.desiredState",
    ];
    refused("careless user: status of an execution", patch, &says);
    let agent = node_agent("node-i2").await;
    careless(&namespace, install::NAMESPACE, install::NODE_AGENT).await;
    until_refused(ONLY_OPERATOR, || {
        merge_status(&agent, &namespace, &run, &answered)
    })
    .await;
    merge_status(&operator().await, &namespace, &run, &answered)
        .await
        .expect("the operator ends runs");
}

#[tokio::test]
async fn a_binding_carries_the_term_of_the_present_leader() {
    let (namespace, run, execution) = run_bound_to("term", "node-j1").await;
    let operator = operator().await;
    let mut stale = run_execution("task-2", &run, "node-j1");
    stale["spec"]["binding"]["term"] = json!(TERM - 1);
    let made = create(&operator, &namespace, &stale).await;
    refused(
        "operator: a stale term",
        made,
        &["spec.binding.term", "is 4", "is 5", "stand for election again"],
    );
    let mut rebind = json!({"spec": {"binding": binding("node-j1", 2, 'b')}});
    rebind["spec"]["binding"]["term"] = json!(TERM + 1);
    refused(
        "operator: a term to come",
        merge(&operator, &namespace, &execution, &rebind).await,
        &["is 6", "is 5"],
    );

    // Without a new binding an old leader may still write; a cancel must not wait for an election.
    let cancel = json!({"spec": {"desiredState": "Cancelled"}});
    merge(&operator, &namespace, &execution, &cancel)
        .await
        .expect("the term concerns bindings only");
    rebind["spec"]["binding"]["term"] = json!(TERM);
    merge(&operator, &namespace, &execution, &rebind)
        .await
        .expect("the present term may bind");
    let mut queued = run_execution("task-3", &run, "node-j1");
    queued["spec"].as_object_mut().unwrap().remove("binding");
    create(&operator, &namespace, &queued)
        .await
        .expect("an execution may wait unbound");
}

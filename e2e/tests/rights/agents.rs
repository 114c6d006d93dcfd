//! What a node agent may report, and of which executions.

use fairlead_e2e::*;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use xtask::install;

use crate::{careless, run_bound_to, until_refused};

#[tokio::test]
async fn an_agent_reports_on_executions_of_its_own_node_only() {
    let (namespace, _, execution) = run_bound_to("other-node", "node-a1").await;
    let (owner, other) = (node_agent("node-a1").await, node_agent("node-a2").await);
    let report = merge_status(&other, &namespace, &execution, &running(1, 'a')).await;
    refused(
        "another node's execution",
        report,
        &[
            "status",
            "\"node-a1\"",
            "\"node-a2\"",
            "leave the object to that agent",
        ],
    );

    // A token of the same ServiceAccount that is bound to no Pod is of no node at all.
    let loose = client_for(&token(install::NAMESPACE, install::NODE_AGENT).await).await;
    let report = merge_status(&loose, &namespace, &execution, &running(1, 'a')).await;
    refused(
        "an agent's token without a node",
        report,
        &["spec.binding.nodeName"],
    );

    let mut unbound = fairlead_e2e::execution("unbound");
    unbound = create(&admin().await, &namespace, &unbound).await.unwrap();
    let report = merge_status(&owner, &namespace, &unbound, &json!({"phase": "Queued"})).await;
    refused(
        "an execution that is bound to nobody",
        report,
        &["spec.binding.nodeName"],
    );

    merge_status(&owner, &namespace, &execution, &running(1, 'a'))
        .await
        .expect("its own node's agent may");
}

#[tokio::test]
async fn a_terminal_phase_is_final_for_agent_and_operator() {
    let (namespace, _, execution) = run_bound_to("final", "node-b1").await;
    let agent = node_agent("node-b1").await;
    merge_status(&agent, &namespace, &execution, &running(1, 'a'))
        .await
        .unwrap();
    merge_status(&agent, &namespace, &execution, &succeeded(1, 'a'))
        .await
        .unwrap();
    let back = json!({"phase": "Running", "completionTime": null});
    for (who, client) in [("agent", &agent), ("operator", &operator().await)] {
        let report = merge_status(client, &namespace, &execution, &back).await;
        refused(
            &format!("{who}: Succeeded back to Running"),
            report,
            &["status.phase: a terminal phase is final"],
        );
        let report = merge_status(
            client,
            &namespace,
            &execution,
            &json!({"output": {"text": "other\n"}}),
        )
        .await;
        refused(
            &format!("{who}: other output after the end"),
            report,
            &["status.output: final"],
        );
    }
}

#[tokio::test]
async fn an_agent_writes_only_the_attempt_that_is_bound() {
    let (namespace, _, execution) = run_bound_to("attempts", "node-c1").await;
    let (agent, operator) = (node_agent("node-c1").await, operator().await);
    merge_status(&agent, &namespace, &execution, &running(1, 'a'))
        .await
        .unwrap();
    let again = json!({"spec": {"binding": binding("node-c1", 2, 'b')}});
    merge(&operator, &namespace, &execution, &again)
        .await
        .expect("a higher attempt may be bound");

    let late = merge_status(&agent, &namespace, &execution, &succeeded(1, 'a')).await;
    refused(
        "a late report of attempt 1",
        late,
        &["status.fence", "spec.binding.fence", "read the object again"],
    );
    let mut status = running(2, 'b');
    let forgets = merge_status(&agent, &namespace, &execution, &status).await;
    refused(
        "a report that forgets attempt 1",
        forgets,
        &["status.attempts", "repeat every entry"],
    );
    status["attempts"] = json!([{"n": 1, "reason": "Other"}, {"n": 2}]);
    let rewrites = merge_status(&agent, &namespace, &execution, &status).await;
    refused(
        "a report that rewrites attempt 1",
        rewrites,
        &["status.attempts", "n = 2"],
    );
    status["attempts"] = json!([{"n": 1, "startTime": "2026-01-01T00:00:01Z"}, {"n": 2}, {"n": 3}]);
    let ahead = merge_status(&agent, &namespace, &execution, &status).await;
    refused("a report of attempt 3", ahead, &["status.attempts", "n = 2"]);
    status["attempts"] = json!([{"n": 1, "startTime": "2026-01-01T00:00:01Z"}, {"n": 2}]);
    merge_status(&agent, &namespace, &execution, &status)
        .await
        .expect("attempt 2 may be reported");

    let lower = json!({"spec": {"binding": binding("node-c1", 1, 'c')}});
    let lower = merge(&operator, &namespace, &execution, &lower).await;
    refused(
        "operator: a binding of a lower attempt",
        lower,
        &["spec.binding", "only with a higher attempt"],
    );
}

#[tokio::test]
async fn an_agent_cannot_touch_the_binding_or_anything_else_of_the_spec() {
    let (namespace, _, execution) = run_bound_to("binding", "node-d1").await;
    let agent = node_agent("node-d1").await;
    let theft = json!({"spec": {"binding": binding("node-d2", 2, 'b')}});
    let patch = merge(&agent, &namespace, &execution, &theft).await;
    refused(
        "agent: the operator's binding",
        patch,
        &["toolexecutions.fairlead.dev", "cannot patch resource"],
    );
    let removed = delete(&agent, &namespace, &execution).await;
    refused("agent: delete an execution", removed, &["cannot delete resource"]);

    // What goes beside the status in a status write is dropped by the server.
    let api = objects(&agent, &namespace, fairlead_crds::API_VERSION, "ToolExecution");
    let patch = json!({"spec": theft["spec"], "metadata": {"labels": {"x": "y"}}, "status": running(1, 'a')});
    let after = api
        .patch_status("task-1", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    assert_eq!(after.data["spec"]["binding"]["nodeName"], "node-d1");
    assert!(!after.metadata.labels.unwrap().contains_key("x"));

    careless(&namespace, install::NAMESPACE, install::NODE_AGENT).await;
    until_refused("spec.binding: only the operator", || {
        merge(&agent, &namespace, &execution, &theft)
    })
    .await;
    let patch = merge(&agent, &namespace, &execution, &theft).await;
    refused(
        "agent with too many rights: the binding",
        patch,
        &["spec.binding: only the operator", "leave spec.binding"],
    );
    let removed = delete(&agent, &namespace, &execution).await;
    refused(
        "agent with too many rights: delete",
        removed,
        &["cannot be deleted by hand"],
    );
}

//! What a user may say of executions, runs and turns, and what they may delete.

use std::time::Duration;

use fairlead_e2e::*;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::json;

use crate::{careless, run_bound_to, until_refused};

#[tokio::test]
async fn a_user_cannot_create_what_only_the_operator_may() {
    let (namespace, run, _) = run_bound_to("user", "node-f1").await;
    let user = user(&namespace, "author", "fairlead-edit").await;
    let (mut bound, mut labelled, mut owned) = (execution("own"), execution("own"), execution("own"));
    bound["spec"]["binding"] = binding("node-f1", 1, 'a');
    labelled["metadata"]["labels"] = json!({"fairlead.dev/run-uid": run["metadata"]["uid"]});
    owned["metadata"]["ownerReferences"] = owner(&run);
    let mut called = run_execution("own", &run, "node-f1");
    called["spec"].as_object_mut().unwrap().remove("binding");
    called["metadata"] = json!({"name": "own"});
    for (what, object, field, fix) in [
        (
            "binding",
            bound,
            "spec.binding: only the operator decides",
            "leave spec.binding",
        ),
        ("runRef", called, "spec.runRef", "leave all three out"),
        (
            "a run's label",
            labelled,
            "metadata.labels[fairlead.dev/run-uid]",
            "leave the label",
        ),
        (
            "a run as owner",
            owned,
            "metadata.ownerReferences",
            "leave such references",
        ),
    ] {
        let what = format!("user: create with {what}");
        refused(&what, create(&user, &namespace, &object).await, &[field, fix]);
    }
    let own = create(&user, &namespace, &execution("own"))
        .await
        .expect("a call of their own may be made");
    delete(&user, &namespace, &own)
        .await
        .expect("a call of their own may be deleted");
}

#[tokio::test]
async fn a_user_cannot_change_what_only_the_operator_may() {
    let (namespace, _, bound) = run_bound_to("change", "node-f1").await;
    let user = user(&namespace, "author", "fairlead-edit").await;
    let own = create(&user, &namespace, &execution("own")).await.unwrap();
    let bind = |node, attempt, digit| json!({"spec": {"binding": binding(node, attempt, digit)}});
    let reference = json!({"spec": {"runRef": {"name": "task", "uid": "u"}, "turn": 1, "callId": "c"}});
    let no_label = json!({"metadata": {"labels": {"fairlead.dev/run-uid": null}}});
    let no_owner = json!({"metadata": {"ownerReferences": null}});
    for (what, object, patch, field) in [
        ("add a binding", &own, bind("node-f1", 1, 'a'), "spec.binding"),
        (
            "change a binding",
            &bound,
            bind("node-f2", 2, 'b'),
            "spec.binding",
        ),
        ("add a runRef", &own, reference, "spec.runRef: immutable"),
        (
            "take the run's label away",
            &bound,
            no_label,
            "metadata.labels[fairlead.dev/run-uid]",
        ),
        (
            "take the owner away",
            &bound,
            no_owner,
            "metadata.ownerReferences",
        ),
    ] {
        refused(
            &format!("user: {what}"),
            merge(&user, &namespace, object, &patch).await,
            &[field],
        );
    }
    let cancel = json!({"spec": {"desiredState": "Cancelled"}});
    merge(&user, &namespace, &bound, &cancel)
        .await
        .expect("one call of a run may be cancelled");
}

#[tokio::test]
async fn a_user_deletes_a_run_but_not_its_executions_or_turns() {
    let (namespace, run, execution) = run_bound_to("delete", "node-g1").await;
    let turn = create(&operator().await, &namespace, &turn("task-t1", &run))
        .await
        .unwrap();
    let user = user(&namespace, "author", "fairlead-edit").await;
    careless(&namespace, &namespace, "author").await;
    let removed = delete(&user, &namespace, &execution).await;
    refused(
        "user: delete a run's execution",
        removed,
        &["cannot be deleted by hand", "desiredState", "AgentRun \"task\""],
    );
    until_refused("cannot be deleted by hand", || delete(&user, &namespace, &turn)).await;
    refused(
        "user: delete a run's turn",
        delete(&user, &namespace, &turn).await,
        &["delete AgentRun \"task\""],
    );
    let all = objects(&user, &namespace, fairlead_crds::API_VERSION, "ToolExecution");
    let removed = all
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await;
    refused(
        "user: delete all executions",
        removed.map(|_| ()),
        &["cannot be deleted by hand"],
    );
    let removed = delete(&admin().await, &namespace, &execution).await;
    refused(
        "administrator: delete a run's execution",
        removed,
        &["cannot be deleted by hand"],
    );

    delete(&user, &namespace, &run)
        .await
        .expect("a run may be deleted");
    gone(&namespace, "ToolExecution", "task-1").await;
    gone(&namespace, "AgentTurn", "task-t1").await;
}

#[tokio::test]
async fn what_a_run_left_behind_on_purpose_may_be_deleted() {
    // Until the garbage collector knows the kind it finds nobody to take the owner off.
    let (known, run, _) = run_bound_to("orphans-first", "node-l1").await;
    delete(&admin().await, &known, &run)
        .await
        .expect("a run may be deleted");
    gone(&known, "ToolExecution", "task-1").await;
    let (namespace, run, execution) = run_bound_to("orphans", "node-l1").await;
    let user = user(&namespace, "author", "fairlead-edit").await;
    let runs = objects(&user, &namespace, fairlead_crds::API_VERSION, "AgentRun");
    let name = run["metadata"]["name"].as_str().unwrap();
    wait_for("the run to leave its executions", COLLECTED, || async {
        match runs.delete(name, &DeleteParams::orphan()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    delete(&user, &namespace, &execution)
        .await
        .expect("nobody owns it any more");
}

/// The garbage collector looks for kinds that are new to it every 30 s.
const COLLECTED: Duration = Duration::from_secs(90);

async fn gone(namespace: &str, kind: &str, name: &str) {
    let api = objects(&admin().await, namespace, fairlead_crds::API_VERSION, kind);
    wait_for(&format!("{kind} {name} to go"), COLLECTED, || async {
        match api.get_opt(name).await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn a_namespace_with_live_runs_can_be_deleted() {
    let (namespace, run, execution) = run_bound_to("going", "node-k1").await;
    let operator = operator().await;
    create(&operator, &namespace, &turn("task-t1", &run))
        .await
        .unwrap();
    merge_status(
        &node_agent("node-k1").await,
        &namespace,
        &execution,
        &running(1, 'a'),
    )
    .await
    .unwrap();
    merge_status(&operator, &namespace, &run, &json!({"phase": "WaitingForTools"}))
        .await
        .unwrap();
    create(&admin().await, &namespace, &fairlead_e2e::execution("own"))
        .await
        .unwrap();

    let spaces: Api<Namespace> = Api::all(admin().await);
    spaces.delete(&namespace, &DeleteParams::default()).await.unwrap();
    wait_for("the namespace to go", Duration::from_secs(60), || async {
        match spaces.get_opt(&namespace).await {
            Ok(None) => Ok(()),
            other => Err(format!(
                "{:?}",
                other.map(|space| space.and_then(|space| space.status))
            )),
        }
    })
    .await;
}

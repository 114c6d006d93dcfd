//! Who may write what, against a real API server with the chart's rights and tokens minted for its ServiceAccounts.
//! Every refusal is the server's own, and says the field, the rule and the fix.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use fairlead_e2e::*;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use xtask::install;

const LIMIT: Duration = Duration::from_secs(30);

/// A namespace with a run, and an execution of it that the operator bound to `node`.
async fn run_bound_to(prefix: &str, node: &str) -> (String, Value, Value) {
    let namespace = namespace(prefix).await;
    let run = create(&admin().await, &namespace, &run("task")).await.unwrap();
    let execution = create(
        &operator().await,
        &namespace,
        &run_execution("task-1", &run, node),
    )
    .await
    .unwrap();
    (namespace, run, execution)
}

/// Gives ServiceAccount `account` in `from` every right on Fairlead's kinds in `namespace`, as a careless
/// administrator would: what is refused then is refused by admission and not by RBAC.
async fn careless(namespace: &str, from: &str, account: &str) {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": format!("{account}-all")},
        "rules": [{"apiGroups": ["fairlead.dev"], "resources": ["*"], "verbs": ["*"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": format!("{account}-all")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": format!("{account}-all")},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": from}],
    });
    for object in [role, binding] {
        create(&admin().await, namespace, &object).await.unwrap();
    }
}

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
    wait_for("admission to be what refuses", LIMIT, || async {
        let said = merge(&agent, &namespace, &execution, &theft)
            .await
            .unwrap_err()
            .to_string();
        if said.contains("spec.binding: only the operator decides") {
            Ok(())
        } else {
            Err(said)
        }
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

#[tokio::test]
async fn an_agent_keeps_the_lease_of_its_own_node_only() {
    cluster();
    let (agent, other) = (node_agent("node-e1").await, node_agent("node-e2").await);
    let lease = |name: &str| Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some("me".to_owned()),
            ..LeaseSpec::default()
        }),
    };
    let parameters = PostParams::default();
    leases(agent.clone())
        .create(&parameters, &lease("node-e1"))
        .await
        .expect("its own Lease may be made");
    let made = leases(agent.clone()).create(&parameters, &lease("node-e2")).await;
    refused(
        "create another node's Lease",
        made,
        &["metadata.name", "\"node-e1\"", "\"node-e2\""],
    );

    leases(other.clone())
        .create(&parameters, &lease("node-e2"))
        .await
        .unwrap();
    let renew = json!({"spec": {"holderIdentity": "thief"}});
    let patch = |name: &'static str| {
        let (api, renew) = (leases(agent.clone()), renew.clone());
        async move {
            api.patch(name, &PatchParams::default(), &Patch::Merge(&renew))
                .await
        }
    };
    patch("node-e1").await.expect("its own Lease may be renewed");
    refused(
        "renew another node's Lease",
        patch("node-e2").await,
        &["metadata.name", "\"node-e2\""],
    );
    let leader = patch(fairlead_crds::names::LEADER_LEASE).await;
    refused(
        "take the leader's Lease",
        leader,
        &["metadata.name", "fairlead-operator"],
    );
    let removed = leases(agent.clone())
        .delete("node-e2", &DeleteParams::default())
        .await;
    refused(
        "delete another node's Lease",
        removed,
        &["cannot delete resource"],
    );
}

#[tokio::test]
async fn the_lease_of_a_node_that_is_named_like_the_leader_is_out_of_reach() {
    cluster();
    let agent = node_agent(fairlead_crds::names::LEADER_LEASE).await;
    let patch = json!({"spec": {"leaseTransitions": 99}});
    let api = leases(agent);
    let patch = api
        .patch(
            fairlead_crds::names::LEADER_LEASE,
            &PatchParams::default(),
            &Patch::Merge(&patch),
        )
        .await;
    refused(
        "an agent of a node called fairlead-operator",
        patch,
        &["metadata.name"],
    );
}

#[tokio::test]
async fn a_user_cannot_say_what_only_the_operator_says() {
    let (namespace, run, mine) = run_bound_to("user", "node-f1").await;
    let user = user(&namespace, "author", "fairlead-edit").await;
    let mut object = execution("own");
    object["spec"]["binding"] = binding("node-f1", 1, 'a');
    let made = create(&user, &namespace, &object).await;
    refused(
        "user: create with binding",
        made,
        &["spec.binding: only the operator decides", "leave spec.binding"],
    );

    let mut object = run_execution("own", &run, "node-f1");
    object["spec"].as_object_mut().unwrap().remove("binding");
    object["metadata"] = json!({"name": "own"});
    let made = create(&user, &namespace, &object).await;
    refused(
        "user: create with runRef",
        made,
        &["spec.runRef", "leave all three out", "create an AgentRun"],
    );

    let mut object = execution("own");
    object["metadata"]["labels"] = json!({"fairlead.dev/run-uid": run["metadata"]["uid"]});
    let made = create(&user, &namespace, &object).await;
    refused(
        "user: create with a run's label",
        made,
        &["metadata.labels[fairlead.dev/run-uid]", "leave the label"],
    );

    let mut object = execution("own");
    object["metadata"]["ownerReferences"] = owner(&run);
    let made = create(&user, &namespace, &object).await;
    refused(
        "user: create with a run as owner",
        made,
        &["metadata.ownerReferences", "leave such references"],
    );

    let own = create(&user, &namespace, &execution("own"))
        .await
        .expect("a call of their own may be made");
    let bind = json!({"spec": {"binding": binding("node-f1", 1, 'a')}});
    refused(
        "user: add a binding",
        merge(&user, &namespace, &own, &bind).await,
        &["spec.binding"],
    );
    let rebind = json!({"spec": {"binding": binding("node-f2", 2, 'b')}});
    refused(
        "user: change a binding",
        merge(&user, &namespace, &mine, &rebind).await,
        &["spec.binding"],
    );
    let reference = json!({"spec": {"runRef": {"name": "task", "uid": "u"}, "turn": 1, "callId": "c"}});
    refused(
        "user: add a runRef",
        merge(&user, &namespace, &own, &reference).await,
        &["spec.runRef: immutable"],
    );
    let label = json!({"metadata": {"labels": {"fairlead.dev/run-uid": null}}});
    refused(
        "user: take the run's label away",
        merge(&user, &namespace, &mine, &label).await,
        &["run-uid"],
    );
    let owners = json!({"metadata": {"ownerReferences": null}});
    refused(
        "user: take the owner away",
        merge(&user, &namespace, &mine, &owners).await,
        &["metadata.ownerReferences"],
    );
    let cancel = json!({"spec": {"desiredState": "Cancelled"}});
    merge(&user, &namespace, &mine, &cancel)
        .await
        .expect("one call of a run may be cancelled");
    delete(&user, &namespace, &own)
        .await
        .expect("a call of their own may be deleted");
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
    wait_for("the rights on turns", LIMIT, || async {
        let said = delete(&user, &namespace, &turn).await.unwrap_err().to_string();
        if said.contains("cannot be deleted by hand") {
            Ok(())
        } else {
            Err(said)
        }
    })
    .await;
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

async fn gone(namespace: &str, kind: &str, name: &str) {
    let api = objects(&admin().await, namespace, fairlead_crds::API_VERSION, kind);
    wait_for(&format!("{kind} {name} to go"), LIMIT, || async {
        match api.get_opt(name).await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn naming_a_service_account_needs_impersonate_on_it() {
    let namespace = namespace("accounts").await;
    let user = user(&namespace, "author", "fairlead-edit").await;
    for account in ["robot", "other"] {
        let object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}});
        create(&admin().await, &namespace, &object).await.unwrap();
    }
    for mut object in [run("as-robot"), execution("as-robot")] {
        object["spec"]["serviceAccountName"] = json!("robot");
        let made = create(&user, &namespace, &object).await;
        let what = format!("user: {} as another ServiceAccount", object["kind"]);
        refused(
            &what,
            made,
            &[
                "spec.serviceAccountName",
                "\"robot\"",
                "impersonate",
                "kubectl create role",
            ],
        );
    }
    grant(
        &namespace,
        &namespace,
        "author",
        "impersonate",
        "serviceaccounts",
        "robot",
    )
    .await;
    let mut object = run("as-robot");
    object["spec"]["serviceAccountName"] = json!("robot");
    wait_for("the granted right to count", LIMIT, || {
        create(&user, &namespace, &object)
    })
    .await;
    object["metadata"]["name"] = json!("as-other");
    object["spec"]["serviceAccountName"] = json!("other");
    refused(
        "user: the right on another one",
        create(&user, &namespace, &object).await,
        &["\"other\""],
    );

    let bound = create(&admin().await, &namespace, &run("task")).await.unwrap();
    let mut object = run_execution("task-1", &bound, "node-h1");
    object["spec"]["serviceAccountName"] = json!("robot");
    create(&operator().await, &namespace, &object)
        .await
        .expect("the operator copies a run's identity");
}

#[tokio::test]
async fn naming_a_secret_needs_get_on_it() {
    let namespace = namespace("secrets").await;
    let user = user(&namespace, "author", "fairlead-edit").await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"apiKey": "k"}});
    create(&admin().await, &namespace, &secret).await.unwrap();
    let mut object = provider("main");
    object["spec"] = json!({
        "wireApi": "ChatCompletions", "baseUrl": "https://models.example.com/v1",
        "credentials": {"secretRef": {"name": "key"}},
    });
    let made = create(&user, &namespace, &object).await;
    let parts = [
        "spec.credentials.secretRef.name",
        "\"key\"",
        "needs the verb get",
        "kubectl create role",
    ];
    refused("user: a provider with a Secret they may not read", made, &parts);

    let theirs = create(&admin().await, &namespace, &object).await.unwrap();
    let elsewhere = json!({"spec": {"baseUrl": "https://thief.example.com"}});
    let patch = merge(&user, &namespace, &theirs, &elsewhere).await;
    refused(
        "user: send a Secret they may not read to their own URL",
        patch,
        &["spec.credentials.secretRef.name"],
    );
    let label = json!({"metadata": {"labels": {"team": "a"}}});
    merge(&user, &namespace, &theirs, &label)
        .await
        .expect("what is not in the spec may be changed");

    grant(&namespace, &namespace, "author", "get", "secrets", "key").await;
    wait_for("the granted right to count", LIMIT, || {
        merge(&user, &namespace, &theirs, &elsewhere)
    })
    .await;

    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(operator().await, &namespace);
    refused(
        "operator: a Secret nobody granted",
        secrets.get("key").await,
        &["cannot get resource \"secrets\""],
    );
    grant(
        &namespace,
        install::NAMESPACE,
        install::OPERATOR,
        "get",
        "secrets",
        "key",
    )
    .await;
    wait_for("the operator to read the granted Secret", LIMIT, || {
        secrets.get("key")
    })
    .await;
    let listed = secrets.list(&ListParams::default()).await.map(|_| ());
    refused(
        "operator: list Secrets",
        listed,
        &["cannot list resource \"secrets\""],
    );
}

#[tokio::test]
async fn only_the_operator_writes_turns_and_the_status_of_its_kinds() {
    let (namespace, run, execution) = run_bound_to("status", "node-i1").await;
    let user = user(&namespace, "author", "fairlead-edit").await;
    let forged = turn("task-t9", &run);
    refused(
        "user: create a turn",
        create(&user, &namespace, &forged).await,
        &["cannot create resource \"agentturns\""],
    );
    let answered = json!({"phase": "Succeeded", "completionTime": "2026-01-01T00:00:00Z"});
    refused(
        "user: end a run",
        merge_status(&user, &namespace, &run, &answered).await,
        &["agentruns/status"],
    );

    careless(&namespace, &namespace, "author").await;
    wait_for("admission to be what refuses", LIMIT, || async {
        let said = create(&user, &namespace, &forged).await.unwrap_err().to_string();
        if said.contains("AgentTurn: only the operator") {
            Ok(())
        } else {
            Err(said)
        }
    })
    .await;
    let tool = create(&user, &namespace, &tool("word")).await.unwrap();
    let model = create(&user, &namespace, &provider("script")).await.unwrap();
    refused(
        "careless user: create a turn",
        create(&user, &namespace, &forged).await,
        &["create an AgentRun"],
    );
    for (object, status) in [
        (&run, answered.clone()),
        (&tool, json!({"observedGeneration": 1})),
        (&model, json!({"observedGeneration": 1})),
    ] {
        let what = format!("careless user: status of {}", object["kind"]);
        let patch = merge_status(&user, &namespace, object, &status).await;
        refused(
            &what,
            patch,
            &["status: only the operator writes it", "change spec"],
        );
    }
    let patch = merge_status(&user, &namespace, &execution, &running(1, 'a')).await;
    refused(
        "careless user: status of an execution",
        patch,
        &["status: only the operator and the node agents"],
    );
    let agent = node_agent("node-i1").await;
    careless(&namespace, install::NAMESPACE, install::NODE_AGENT).await;
    wait_for("admission to be what refuses the agent", LIMIT, || async {
        let said = merge_status(&agent, &namespace, &run, &answered)
            .await
            .unwrap_err()
            .to_string();
        if said.contains("status: only the operator writes it") {
            Ok(())
        } else {
            Err(said)
        }
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

    let spaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(admin().await);
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

/// Asks the server whether ServiceAccount `account` of the install namespace may do something.
async fn may(
    client: &Client,
    account: &str,
    verb: &str,
    group: &str,
    resource: &str,
    namespace: &str,
) -> bool {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {},
        "spec": {
            "user": format!("system:serviceaccount:{}:{account}", install::NAMESPACE),
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {"verb": verb, "group": group, "resource": resource, "subresource": subresource,
                                   "namespace": namespace},
        },
    });
    let answer = create(client, "", &review).await.unwrap();
    answer["status"]["allowed"].as_bool().unwrap()
}

#[tokio::test]
async fn our_parts_have_the_rights_they_need_and_no_more() {
    cluster();
    let admin = admin().await;
    let ours = install::NAMESPACE;
    let kinds = [
        "agentruns",
        "agentturns",
        "modelproviders",
        "tools",
        "toolexecutions",
    ];
    for kind in kinds {
        for verb in ["get", "list", "watch"] {
            assert!(
                may(&admin, install::OPERATOR, verb, "fairlead.dev", kind, "default").await,
                "{verb} {kind}"
            );
            let agent = may(&admin, install::NODE_AGENT, verb, "fairlead.dev", kind, "default").await;
            assert_eq!(agent, kind == "toolexecutions", "{verb} {kind}");
        }
        let status = format!("{kind}/status");
        assert!(
            may(
                &admin,
                install::OPERATOR,
                "patch",
                "fairlead.dev",
                &status,
                "default"
            )
            .await,
            "{status}"
        );
        for verb in ["create", "update", "patch", "delete", "deletecollection"] {
            assert!(
                !may(&admin, install::NODE_AGENT, verb, "fairlead.dev", kind, "default").await,
                "{verb} {kind}"
            );
        }
    }
    for (verb, resource) in [
        ("create", "agentruns"),
        ("patch", "agentruns"),
        ("patch", "tools"),
        ("delete", "tools"),
        ("create", "modelproviders"),
        ("patch", "agentturns"),
    ] {
        assert!(
            !may(
                &admin,
                install::OPERATOR,
                verb,
                "fairlead.dev",
                resource,
                "default"
            )
            .await,
            "{verb} {resource}"
        );
    }
    for account in [install::OPERATOR, install::NODE_AGENT] {
        for (group, resource) in [
            ("", "secrets"),
            ("", "pods"),
            ("", "pods/exec"),
            ("", "configmaps"),
            ("", "nodes"),
            ("", "events"),
            ("", "serviceaccounts/token"),
            ("rbac.authorization.k8s.io", "clusterroles"),
            ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
            ("coordination.k8s.io", "leases"),
        ] {
            for verb in [
                "get",
                "list",
                "create",
                "update",
                "patch",
                "delete",
                "impersonate",
            ] {
                let allowed = may(&admin, account, verb, group, resource, "default").await;
                assert!(!allowed, "{account} may {verb} {resource} in namespace default");
            }
        }
    }
    for (account, verb, expected) in [
        (install::OPERATOR, "list", true),
        (install::OPERATOR, "watch", true),
        (install::OPERATOR, "create", true),
        (install::OPERATOR, "delete", false),
        (install::NODE_AGENT, "get", true),
        (install::NODE_AGENT, "create", true),
        (install::NODE_AGENT, "patch", true),
        (install::NODE_AGENT, "update", true),
        (install::NODE_AGENT, "list", false),
        (install::NODE_AGENT, "delete", false),
    ] {
        let allowed = may(&admin, account, verb, "coordination.k8s.io", "leases", ours).await;
        assert_eq!(allowed, expected, "{account} {verb} leases in {ours}");
    }
}

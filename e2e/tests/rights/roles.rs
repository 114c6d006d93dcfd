//! The roles of our parts: what they need and no more.

use fairlead_e2e::*;
use kube::Client;
use serde_json::json;
use xtask::install::{NAMESPACE, NODE_AGENT, OPERATOR};

const OURS: &str = "fairlead.dev";
const KINDS: [&str; 5] = [
    "agentruns",
    "agentturns",
    "modelproviders",
    "tools",
    "toolexecutions",
];

/// Checks that ServiceAccount `account` of the install namespace may do each of `verbs` on `resource` in `namespace`,
/// or may do none of them.
async fn check(
    client: &Client,
    allowed: bool,
    account: &str,
    verbs: &[&str],
    resource: (&str, &str),
    namespace: &str,
) {
    let (name, subresource) = resource.1.split_once('/').unwrap_or((resource.1, ""));
    for verb in verbs {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {},
            "spec": {
                "user": format!("system:serviceaccount:{NAMESPACE}:{account}"),
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "resourceAttributes": {"verb": verb, "group": resource.0, "resource": name,
                                       "subresource": subresource, "namespace": namespace},
            },
        });
        let answer = create(client, "", &review).await.unwrap();
        assert_eq!(
            answer["status"]["allowed"],
            json!(allowed),
            "{account} {verb} {} in {namespace}",
            resource.1
        );
    }
}

#[tokio::test]
async fn each_part_has_its_rights_on_the_kinds() {
    cluster();
    let admin = admin().await;
    for kind in KINDS {
        let (resource, status) = ((OURS, kind), format!("{kind}/status"));
        let read = ["get", "list", "watch"];
        check(&admin, true, OPERATOR, &read, resource, "default").await;
        check(
            &admin,
            true,
            OPERATOR,
            &["patch", "update"],
            (OURS, &status),
            "default",
        )
        .await;
        let executions = kind == "toolexecutions";
        check(&admin, executions, NODE_AGENT, &read, resource, "default").await;
        check(
            &admin,
            executions,
            NODE_AGENT,
            &["patch", "update"],
            (OURS, &status),
            "default",
        )
        .await;
        let write = ["create", "update", "patch", "delete", "deletecollection"];
        check(&admin, false, NODE_AGENT, &write, resource, "default").await;
    }
    let all = ["create", "delete", "deletecollection"];
    for (allowed, verbs, kind) in [
        (true, all.as_slice(), "toolexecutions"),
        (true, &["patch", "update"], "toolexecutions"),
        (true, &all, "agentturns"),
        (false, &["patch", "update"], "agentturns"),
        (true, &["delete"], "agentruns"),
        (
            false,
            &["create", "patch", "update", "deletecollection"],
            "agentruns",
        ),
        (false, &["create", "patch", "update", "delete"], "tools"),
        (false, &["create", "patch", "update", "delete"], "modelproviders"),
    ] {
        check(&admin, allowed, OPERATOR, verbs, (OURS, kind), "default").await;
    }
}

const EVERY: [&str; 7] = [
    "get",
    "list",
    "create",
    "update",
    "patch",
    "delete",
    "impersonate",
];

#[tokio::test]
async fn no_part_has_rights_beyond_the_kinds() {
    cluster();
    let admin = admin().await;
    let core = [
        "secrets",
        "pods",
        "pods/exec",
        "configmaps",
        "nodes",
        "events",
        "serviceaccounts/token",
    ];
    let policies = ("admissionregistration.k8s.io", "validatingadmissionpolicies");
    let bindings = (policies.0, "validatingadmissionpolicybindings");
    let roles = ("rbac.authorization.k8s.io", "clusterroles");
    for resource in core
        .map(|name| ("", name))
        .into_iter()
        .chain([policies, bindings, roles])
    {
        for account in [OPERATOR, NODE_AGENT] {
            check(&admin, false, account, &EVERY, resource, "default").await;
            check(&admin, false, account, &EVERY, resource, NAMESPACE).await;
        }
    }
}

#[tokio::test]
async fn leases_are_written_at_home_only() {
    cluster();
    let admin = admin().await;
    let leases = ("coordination.k8s.io", "leases");
    for (allowed, account, verbs) in [
        (true, OPERATOR, ["get", "list", "watch", "create"].as_slice()),
        (false, OPERATOR, &["update", "patch", "delete"]),
        (true, NODE_AGENT, &["get", "create", "update", "patch"]),
        (false, NODE_AGENT, &["list", "watch", "delete"]),
    ] {
        check(&admin, allowed, account, verbs, leases, NAMESPACE).await;
        check(&admin, false, account, verbs, leases, "default").await;
    }
}

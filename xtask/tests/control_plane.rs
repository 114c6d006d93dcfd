//! The control plane itself: it starts, knows a node's token, and leaves nothing behind.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use xtask::cluster::Cluster;
use xtask::control_plane::{ControlPlane, Options};
use xtask::process::Identity;
use xtask::{install, wait};

/// The installation's namespace and the node agent's ServiceAccount, which the chart makes elsewhere.
fn make_service_account(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&["create", "namespace", install::NAMESPACE])?;
    cluster.kubectl(&[
        "create",
        "serviceaccount",
        install::NODE_AGENT,
        "--namespace",
        install::NAMESPACE,
    ])?;
    Ok(())
}

/// Waits until the audit log holds exactly one review by `user`.
fn one_review_in(audit: &Path, user: &Value) -> Result<()> {
    wait::until(
        "one review in the audit log",
        Duration::from_secs(10),
        Duration::from_millis(50),
        || {
            let text = fs::read_to_string(audit)?;
            let events = text
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let reviews = events.filter(|event| {
                event["objectRef"]["resource"] == "selfsubjectreviews" && event["user"]["username"] == *user
            });
            Ok((reviews.count() == 1).then_some(()))
        },
        || fs::read_to_string(audit).unwrap_or_default(),
    )
}

#[test]
fn a_node_token_carries_its_node_and_nothing_is_left() {
    let control_plane = ControlPlane::for_tests("smoke").unwrap();
    let cluster = control_plane.cluster();
    make_service_account(cluster).unwrap();

    let token = install::node_identity(cluster, "node-7").unwrap();
    let kubeconfig = control_plane.dir().join("node-7.kubeconfig");
    install::kubeconfig_for(cluster, &token, &kubeconfig).unwrap();
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let answer = cluster
        .kubectl_as(
            &kubeconfig,
            &["create", "--output=json", "--validate=false", "--filename=-"],
            Some(&review),
        )
        .unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let user = &answer["status"]["userInfo"];
    assert_eq!(
        user["username"],
        format!(
            "system:serviceaccount:{}:{}",
            install::NAMESPACE,
            install::NODE_AGENT
        )
    );
    assert_eq!(
        user["extra"]["authentication.kubernetes.io/node-name"],
        json!(["node-7"]),
        "{answer}"
    );

    // The audit log tells whose request it was.
    one_review_in(&control_plane.audit_log(), &user["username"]).unwrap();

    // A namespace goes once the identity's Pod is gone.
    install::remove_node_identity(cluster, "node-7").unwrap();
    cluster
        .kubectl(&["delete", "namespace", install::NAMESPACE, "--timeout=60s"])
        .unwrap();

    let pids = control_plane.pids().unwrap();
    assert_eq!(pids.len(), 3, "{pids:?}");
    let processes: Vec<Identity> = pids
        .values()
        .map(|pid| Identity::of(*pid).unwrap().unwrap())
        .collect();
    drop(control_plane);
    for process in processes {
        assert!(!process.is_alive().unwrap(), "{process:?} is left");
    }
}

#[test]
fn a_second_start_finds_what_runs_and_starts_what_is_missing() {
    let first = ControlPlane::for_tests("again").unwrap();
    let options = Options {
        dir: first.dir().to_path_buf(),
        fsync: false,
    };
    let before = first.pids().unwrap();
    let second = ControlPlane::start(&options).unwrap();
    assert_eq!(second.pids().unwrap(), before);
    drop(second);
    assert_eq!(
        first.pids().unwrap(),
        before,
        "what the second did not start does not end with it"
    );

    let controllers = Identity::of(before["kube-controller-manager"]).unwrap().unwrap();
    controllers.signal(rustix::process::Signal::KILL).unwrap();
    controllers.wait(Duration::from_secs(10)).unwrap();
    let third = ControlPlane::start(&options).unwrap();
    let after = third.pids().unwrap();
    assert_eq!(after["etcd"], before["etcd"]);
    assert_eq!(after["kube-apiserver"], before["kube-apiserver"]);
    assert_ne!(
        after["kube-controller-manager"],
        before["kube-controller-manager"]
    );
}

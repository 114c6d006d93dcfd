//! What a cluster gets before our programs run in it: the chart, nodes, and tokens of the chart's
//! ServiceAccounts. No program of ours ever runs as the administrator.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cluster::{Cluster, User};
use crate::repo;

/// Namespace of the installation.
pub const NAMESPACE: &str = "fairlead-system";
/// Name of the helm release.
pub const RELEASE: &str = "fairlead";
/// The chart's ServiceAccount of the operator.
pub const OPERATOR: &str = "fairlead-operator";
/// The chart's ServiceAccount of the node agents.
pub const NODE_AGENT: &str = "fairlead-node-agent";
/// Life of a token that nobody renews: 30 days.
pub const TOKEN_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Installs the repository's chart into [`NAMESPACE`], or upgrades it, with `values` set (`name=value`),
/// and waits until its CRDs are served. It does not wait for Pods: there is no kubelet to run them.
pub fn chart(cluster: &Cluster, values: &[&str]) -> Result<()> {
    chart_at(cluster, &repo::chart(), values)
}

/// As [`chart`], for the chart in directory `path`.
pub fn chart_at(cluster: &Cluster, path: &Path, values: &[&str]) -> Result<()> {
    let path = path.display().to_string();
    let mut args = vec![
        "upgrade",
        "--install",
        RELEASE,
        &path,
        "--namespace",
        NAMESPACE,
        "--create-namespace",
    ];
    for value in values {
        args.extend(["--set", *value]);
    }
    cluster
        .helm(&args)
        .with_context(|| format!("install chart {path}"))?;
    let crds = cluster.kubectl(&["get", "crd", "--output=name"])?;
    let ours: Vec<&str> = crds
        .lines()
        .filter(|name| name.ends_with(".fairlead.dev"))
        .collect();
    if !ours.is_empty() {
        let mut wait = vec!["wait", "--for=condition=Established", "--timeout=60s"];
        wait.extend(ours);
        cluster
            .kubectl(&wait)
            .context("wait until the chart's CRDs are served")?;
    }
    Ok(())
}

/// Mints a token of ServiceAccount `account` in `namespace` for the API server's own audience, valid for
/// `life` (at least 10 minutes). Bound to a Pod it ends with that Pod, and carries the name of the Pod's
/// node in the claim `authentication.kubernetes.io/node-name`.
pub fn mint_token(
    cluster: &Cluster,
    namespace: &str,
    account: &str,
    pod: Option<&str>,
    life: Duration,
) -> Result<String> {
    let duration = format!("--duration={}s", life.as_secs());
    let mut args = vec!["create", "token", account, "--namespace", namespace, &duration];
    if let Some(pod) = pod {
        args.extend(["--bound-object-kind=Pod", "--bound-object-name", pod]);
    }
    let token = cluster
        .kubectl(&args)
        .with_context(|| format!("mint a token of {namespace}/{account}"))?;
    Ok(token.trim().to_owned())
}

/// Writes a kubeconfig that speaks with `token` to `path`.
pub fn kubeconfig_for(cluster: &Cluster, token: &str, path: &Path) -> Result<()> {
    cluster.write_kubeconfig(User::Token(token), path)
}

/// Makes Node `name` and, in [`NAMESPACE`], a Pod on it as the node agent's ServiceAccount, and mints
/// a token bound to that Pod. No kubelet runs the Pod; it is there so that the token names the node.
pub fn node_identity(cluster: &Cluster, name: &str) -> Result<String> {
    cluster
        .apply(&node(name))
        .with_context(|| format!("create Node {name}"))?;
    let pod = identity_pod_name(name);
    cluster
        .apply(&identity_pod(name))
        .with_context(|| format!("create Pod {NAMESPACE}/{pod}"))?;
    mint_token(cluster, NAMESPACE, NODE_AGENT, Some(&pod), TOKEN_LIFE)
}

/// Removes what [`node_identity`] made. The Pod is removed by force, since no kubelet confirms its end
/// and it would hold its namespace for ever.
pub fn remove_node_identity(cluster: &Cluster, name: &str) -> Result<()> {
    let pod = identity_pod_name(name);
    let force = ["--force", "--grace-period=0", "--ignore-not-found"];
    cluster.kubectl(
        &[
            &["delete", "pod", &pod, "--namespace", NAMESPACE],
            force.as_slice(),
        ]
        .concat(),
    )?;
    cluster
        .kubectl(&["delete", "node", name, "--ignore-not-found"])
        .map(drop)
}

fn identity_pod_name(node: &str) -> String {
    format!("identity-{node}")
}

fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
    })
}

/// It satisfies the restricted Pod security standard, whatever the namespace enforces.
fn identity_pod(node: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": identity_pod_name(node), "namespace": NAMESPACE},
        "spec": {
            "nodeName": node,
            "serviceAccountName": NODE_AGENT,
            "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65534,
                                "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "identity",
                "image": "localhost/none",
                "imagePullPolicy": "Never",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

//! Who may write what, against a real API server with the chart's rights and tokens minted for its ServiceAccounts.
//! Every refusal is the server's own, and says the field, the rule and the fix.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agents;
mod leases;
mod named;
mod operator;
mod roles;
mod users;

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use fairlead_e2e::*;
use serde_json::{Value, json};

/// How long a right that was granted may take to count.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A namespace with a run, and an execution of it that the operator bound to `node`.
pub async fn run_bound_to(prefix: &str, node: &str) -> (String, Value, Value) {
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
pub async fn careless(namespace: &str, from: &str, account: &str) {
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

/// Waits until `act` is refused with `says`: a right that was just granted first has to count, so that it is admission
/// that refuses and not RBAC.
pub async fn until_refused<T: Debug, F>(says: &str, mut act: impl FnMut() -> F)
where
    F: Future<Output = kube::Result<T>>,
{
    wait_for(&format!("a refusal that says {says:?}"), LIMIT, || {
        let answer = act();
        async {
            match answer.await {
                Err(kube::Error::Api(status)) if status.message.contains(says) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        }
    })
    .await;
}

//! What a user must be allowed before they may name it: ServiceAccounts, Secrets, and the node's network.

use fairlead_e2e::*;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams};
use serde_json::json;
use xtask::install;

use crate::LIMIT;

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

    let secrets: Api<Secret> = Api::namespaced(operator().await, &namespace);
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
async fn the_network_of_the_node_needs_the_verb_unconfined() {
    let namespace = namespace("unconfined").await;
    let user = user(&namespace, "author", "fairlead-edit").await;
    let mut object = tool("fetch");
    object["spec"]["network"] = json!("Host");
    let made = create(&user, &namespace, &object).await;
    let parts = [
        "spec.network",
        "verb unconfined",
        "leave the field out",
        "--clusterrole=fairlead-unconfined",
    ];
    refused("user: a tool on the node's network", made, &parts);
    create(&user, &namespace, &tool("alone"))
        .await
        .expect("without a network a tool needs no such right");

    let theirs = create(&admin().await, &namespace, &object).await.unwrap();
    let other = json!({"spec": {"runner": {"command": {"argv": ["curl", "http://169.254.169.254/"]}}}});
    refused(
        "user: another command under the permission of somebody else",
        merge(&user, &namespace, &theirs, &other).await,
        &["spec.network"],
    );
    let label = json!({"metadata": {"labels": {"team": "a"}}});
    merge(&user, &namespace, &theirs, &label)
        .await
        .expect("what is not in the spec may be changed");
    let confined = json!({"spec": {"network": "None"}});
    merge(&user, &namespace, &theirs, &confined)
        .await
        .expect("giving the network up needs no right");

    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "unconfined"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "fairlead-unconfined"},
        "subjects": [{"kind": "ServiceAccount", "name": "author", "namespace": namespace}],
    });
    create(&admin().await, &namespace, &binding).await.unwrap();
    let open = json!({"spec": {"network": "Host"}});
    wait_for("the granted right to count", LIMIT, || {
        merge(&user, &namespace, &theirs, &open)
    })
    .await;
}

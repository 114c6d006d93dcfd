//! The control plane of a test program, and clients of it.

use std::fmt::Debug;
use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use xtask::control_plane::ControlPlane;
use xtask::install;

/// The term of the leader Lease in every test's cluster, unless a test raises it.
pub const TERM: i64 = 5;

/// The control plane of this test program: started, with the repository's chart installed and the leader Lease at
/// [`TERM`], by whoever asks first. It ends with the program. Blocks while it starts (seconds).
pub fn cluster() -> &'static ControlPlane {
    CLUSTER.get_or_init(|| {
        let plane = plane_with_chart();
        let term = json!({"spec": {"leaseTransitions": TERM, "holderIdentity": "test"}}).to_string();
        let lease = fairlead_crds::names::LEADER_LEASE;
        plane
            .cluster()
            .kubectl(&[
                "patch",
                "lease",
                lease,
                "--namespace",
                install::NAMESPACE,
                "--type=merge",
                "--patch",
                &term,
            ])
            .expect("set the term of the leader Lease");
        plane
    })
}

static CLUSTER: OnceLock<ControlPlane> = OnceLock::new();

/// As [`cluster`], with the leader Lease free, so that real operators can stand for election. Whoever asks first decides.
pub fn cluster_for_programs() -> &'static ControlPlane {
    CLUSTER.get_or_init(plane_with_chart)
}

fn plane_with_chart() -> ControlPlane {
    let plane = bare_plane();
    install::chart(plane.cluster(), &[]).expect("install the chart");
    until_enforced(&plane);
    plane
}

/// Waits until the server enforces the chart's admission policies, which it takes up a moment after they are stored.
fn until_enforced(plane: &ControlPlane) {
    let mut forbidden = crate::execution("forbidden");
    forbidden["spec"]["binding"] = crate::binding("nowhere", 1, 'a');
    let path = plane.dir().join("forbidden.json");
    std::fs::write(&path, forbidden.to_string()).expect("write an execution");
    let file = format!("--filename={}", path.display());
    let said = std::cell::RefCell::new(String::new());
    let refused = || {
        let made = plane
            .cluster()
            .kubectl(&["create", &file, "--dry-run=server", "--namespace=default"]);
        said.replace(made.unwrap_or_else(|error| format!("{error:#}")));
        Ok(said.borrow().contains("only the operator decides").then_some(()))
    };
    xtask::wait::until(
        "the admission policies to count",
        Duration::from_secs(120),
        Duration::from_millis(100),
        refused,
        || said.borrow().clone(),
    )
    .expect("enforced policies");
}

/// A fresh control plane without the chart, with its state in a directory named after the test program.
pub fn bare_plane() -> ControlPlane {
    let program = std::env::current_exe().expect("path of the test program");
    let stem = program
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let name = stem.rsplit_once('-').map_or(stem.as_str(), |(name, _hash)| name);
    ControlPlane::for_tests(name).expect("start a control plane")
}

/// A client that speaks as the administrator. Clients live and die with the runtime of their test.
pub async fn admin() -> Client {
    client(json!(null)).await
}

/// A client that speaks with `token`.
pub async fn client_for(token: &str) -> Client {
    client(json!({"token": token})).await
}

async fn client(user: Value) -> Client {
    let path = cluster().kubeconfig();
    let mut text =
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    if !user.is_null() {
        let mut config = serde_saphyr::from_str::<Value>(&text).expect("the kubeconfig is YAML");
        config["users"][0]["user"] = user;
        text = config.to_string();
    }
    let config = Kubeconfig::from_yaml(&text).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    Client::try_from(config).expect("a client")
}

/// Makes a namespace for one test and gives its name: `prefix` and a number.
pub async fn namespace(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let name = format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let made: Result<Value, _> = create(&admin().await, "", &object).await;
    made.unwrap_or_else(|error| panic!("create namespace {name}: {error}"));
    // A request that acts as `default` needs it to exist.
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(admin().await, &name);
    wait_for(
        &format!("ServiceAccount {name}/default"),
        Duration::from_secs(30),
        || async {
            accounts
                .get_opt("default")
                .await
                .ok()
                .flatten()
                .ok_or("not there yet")
        },
    )
    .await;
    name
}

/// A client that speaks as the operator, as the chart lets it.
pub async fn operator() -> Client {
    client_for(&token(install::NAMESPACE, install::OPERATOR).await).await
}

/// Makes Node `node` with an agent's identity and gives a client that speaks as that agent.
pub async fn node_agent(node: &str) -> Client {
    let token = install::node_identity(cluster().cluster(), node).expect("a node's identity");
    client_for(&token).await
}

/// Makes ServiceAccount `name` in `namespace`, bound to ClusterRole `role` there, and gives a client that speaks as it.
pub async fn user(namespace: &str, name: &str, role: &str) -> Client {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    });
    let admin = admin().await;
    for object in [account, binding] {
        create(&admin, namespace, &object)
            .await
            .unwrap_or_else(|error| panic!("create {object}: {error}"));
    }
    let user = client_for(&token(namespace, name).await).await;
    until_allowed(&user, namespace).await;
    user
}

/// Waits until `user` may read runs in `namespace`, as whoever has a role of the chart may: rights count a moment after
/// they are stored, and what is refused before is not refused by what a test looks at.
async fn until_allowed(user: &Client, namespace: &str) {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(user.clone());
    let review: SelfSubjectAccessReview = serde_json::from_value(json!({
        "spec": {"resourceAttributes":
            {"namespace": namespace, "verb": "get", "group": "fairlead.dev", "resource": "agentruns"}},
    }))
    .expect("a review");
    wait_for(
        &format!("rights in {namespace}"),
        Duration::from_secs(60),
        || async {
            let answer = reviews.create(&PostParams::default(), &review).await;
            let status = answer.map_err(|error| error.to_string())?.status;
            match &status {
                Some(status) if status.allowed => Ok(()),
                _ => Err(format!("{status:?}")),
            }
        },
    )
    .await;
}

/// Lets ServiceAccount `account` of `from` do `verb` on the one object `name` of core resource `resource` in
/// `namespace`.
pub async fn grant(namespace: &str, from: &str, account: &str, verb: &str, resource: &str, name: &str) {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": format!("{account}-{verb}-{name}")},
        "rules": [{"apiGroups": [""], "resources": [resource], "resourceNames": [name], "verbs": [verb]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": format!("{account}-{verb}-{name}")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role["metadata"]["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": from}],
    });
    let admin = admin().await;
    for object in [role, binding] {
        create(&admin, namespace, &object)
            .await
            .unwrap_or_else(|error| panic!("create {object}: {error}"));
    }
}

/// A token of a ServiceAccount, valid for an hour.
pub async fn token(namespace: &str, account: &str) -> String {
    let api: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(admin().await, namespace);
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [], "expirationSeconds": 3600},
    });
    let answer: Value = api
        .create_subresource("token", account, &PostParams::default(), &request)
        .await
        .unwrap_or_else(|error| panic!("mint a token of {namespace}/{account}: {error}"));
    answer["status"]["token"].as_str().expect("a token").to_owned()
}

/// The Leases of the install namespace.
pub fn leases(client: Client) -> Api<Lease> {
    Api::namespaced(client, install::NAMESPACE)
}

/// Untyped access to `kind` of `api_version` in `namespace`, or to the cluster's own with an empty one.
pub fn objects(client: &Client, namespace: &str, api_version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    if namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), namespace, &resource)
    }
}

fn objects_like(client: &Client, namespace: &str, object: &Value) -> Api<DynamicObject> {
    let text = |key: &str| {
        object[key]
            .as_str()
            .unwrap_or_else(|| panic!("{key} of {object}"))
            .to_owned()
    };
    objects(client, namespace, &text("apiVersion"), &text("kind"))
}

/// Creates `object`.
pub async fn create(client: &Client, namespace: &str, object: &Value) -> kube::Result<Value> {
    let parameters = PostParams {
        field_manager: Some("fairlead-tests".to_owned()),
        ..PostParams::default()
    };
    let typed = serde_json::from_value(object.clone()).expect("an object");
    let made = objects_like(client, namespace, object)
        .create(&parameters, &typed)
        .await?;
    Ok(serde_json::to_value(made).expect("JSON"))
}

/// Merges `patch` into the object of the same kind and name as `object`.
pub async fn merge(client: &Client, namespace: &str, object: &Value, patch: &Value) -> kube::Result<Value> {
    let name = object["metadata"]["name"].as_str().expect("a name");
    let api = objects_like(client, namespace, object);
    let patched = api
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(serde_json::to_value(patched).expect("JSON"))
}

/// Merges `status` into the status of the object of the same kind and name as `object`.
pub async fn merge_status(
    client: &Client,
    namespace: &str,
    object: &Value,
    status: &Value,
) -> kube::Result<Value> {
    let name = object["metadata"]["name"].as_str().expect("a name");
    let api = objects_like(client, namespace, object);
    let patch = json!({"status": status});
    let patched = api
        .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(serde_json::to_value(patched).expect("JSON"))
}

/// Deletes the object of the same kind and name as `object`.
pub async fn delete(client: &Client, namespace: &str, object: &Value) -> kube::Result<()> {
    let name = object["metadata"]["name"].as_str().expect("a name");
    objects_like(client, namespace, object)
        .delete(name, &Default::default())
        .await
        .map(drop)
}

/// The refusal in `result`: prints it, checks that it says each of `parts`, and gives its whole message.
///
/// # Panics
/// When the server did not refuse, or said something else.
pub fn refused<T: Debug>(what: &str, result: kube::Result<T>, parts: &[&str]) -> String {
    match result {
        Err(kube::Error::Api(status)) => {
            println!("REFUSED {what}: {} {}", status.code, status.message);
            assert!((400..500).contains(&status.code), "{what}: {status:?}");
            for part in parts {
                assert!(
                    status.message.contains(part),
                    "{what}: expected {part:?} in {:?}",
                    status.message
                );
            }
            status.message.clone()
        }
        other => panic!("{what}: expected a refusal, got {other:?}"),
    }
}

/// Asks `condition` every 50 ms until it gives a value; after `limit` the test fails with what it said last.
pub async fn wait_for<T, E: Debug, F>(what: &str, limit: Duration, mut condition: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, E>>,
{
    let start = Instant::now();
    loop {
        match condition().await {
            Ok(value) => return value,
            Err(state) if start.elapsed() >= limit => {
                panic!("waited {} s for {what}, in vain: {state:?}", limit.as_secs())
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

//! The API server's part alone.

use std::time::{Duration, Instant};

use fairlead_crds::ToolExecution;
use fairlead_crds::names::LEADER_LEASE;
use fairlead_e2e::{running, succeeded};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::calls::call;
use crate::seen::{News, Seen};
use crate::{SYSTEM, client, executions, flood, micros, spaced};

pub async fn measure(count: usize, in_flight: usize, total: usize) -> Value {
    let binding = binding_of_this_term().await;
    let operator = executions("LOAD_OPERATOR").await;
    let seen = Seen::start(executions("LOAD_USER").await).await;
    // Two writes by two clients: the second one ends what it sees of the first.
    writer("two-", News::Added, None).await;
    let two = hops(&seen, "two", count).await;
    // Three by three: one more binds between them.
    writer("three-", News::Added, Some(binding.clone())).await;
    writer("three-", News::Bound, None).await;
    let three = hops(&seen, "three", count).await;
    // What a turn with one call writes: a turn and its end, an execution and its end, and the run.
    let five = spaced(count, |index| five(&operator, index)).await;
    json!({
        "spaced": micros(two),
        "boundLater": micros(three),
        "five": micros(five),
        "perSecond": rate("raw", in_flight, total, None).await,
        "boundLaterPerSecond": rate("raw-bound", in_flight, total, Some(&binding)).await,
    })
}

/// A binding that the server takes from the operator's token.
async fn binding_of_this_term() -> Value {
    let leases: Api<Lease> = Api::namespaced(client("LOAD_OPERATOR").await, SYSTEM);
    let lease = leases.get(LEADER_LEASE).await.expect("read the leader's Lease");
    let term = lease.spec.and_then(|spec| spec.lease_transitions);
    let mut binding = fairlead_e2e::binding("node", 1, '1');
    binding["term"] = json!(term.expect("a term"));
    binding
}

/// Times from a user's create to the end that another client sees, for executions whose names begin with `prefix`.
async fn hops(seen: &Seen, prefix: &'static str, count: usize) -> Vec<Duration> {
    let user = executions("LOAD_USER").await;
    spaced(count, |index| {
        let user = &user;
        async move {
            let name = format!("{prefix}-{index}");
            let start = Instant::now();
            user.create(&PostParams::default(), &call(&name, "none"))
                .await
                .expect("create");
            let took = seen.success(&name).await - start;
            delete(user, &name).await;
            took
        }
    })
    .await
}

/// A client of its own that writes to what it sees: binds, if it is given a binding, what appears with a name that begins
/// with `prefix`; else ends it, once it is bound if `after` says so.
async fn writer(prefix: &'static str, after: News, binding: Option<Value>) {
    let (found, mut names) = mpsc::unbounded_channel::<String>();
    let told = move |name: &str, news: News| {
        if news == after && name.starts_with(prefix) {
            found.send(name.to_owned()).expect("somebody listens");
        }
    };
    drop(Seen::start_with(executions("LOAD_OPERATOR").await, told).await);
    let api = executions("LOAD_OPERATOR").await;
    tokio::spawn(async move {
        while let Some(name) = names.recv().await {
            match &binding {
                Some(binding) => bind(&api, &name, binding).await,
                None => end(&api, &name).await,
            }
        }
    });
}

/// Executions per second: created, bound if there is a binding, ended, deleted, `in_flight` of them at a time.
async fn rate(prefix: &str, in_flight: usize, total: usize, binding: Option<&Value>) -> f64 {
    let (user, operator) = (executions("LOAD_USER").await, executions("LOAD_OPERATOR").await);
    flood(in_flight, total, |index| {
        let (user, operator) = (&user, &operator);
        async move {
            let name = format!("{prefix}-{index}");
            user.create(&PostParams::default(), &call(&name, "none"))
                .await
                .expect("create");
            if let Some(binding) = binding {
                bind(operator, &name, binding).await;
            }
            end(operator, &name).await;
            delete(user, &name).await;
        }
    })
    .await
}

async fn five(operator: &Api<ToolExecution>, index: usize) -> Duration {
    let [turn, execution] = ["turn", "call"].map(|kind| format!("{kind}-{index}"));
    let start = Instant::now();
    operator
        .create(&PostParams::default(), &call(&turn, "none"))
        .await
        .expect("create");
    patch(operator, &turn, &running(1, '1')).await;
    operator
        .create(&PostParams::default(), &call(&execution, "none"))
        .await
        .expect("create");
    end(operator, &execution).await;
    end(operator, &turn).await;
    let took = start.elapsed();
    delete(operator, &turn).await;
    delete(operator, &execution).await;
    took
}

async fn end(api: &Api<ToolExecution>, name: &str) {
    patch(api, name, &succeeded(1, '1')).await;
}

async fn bind(api: &Api<ToolExecution>, name: &str, binding: &Value) {
    let body = Patch::Merge(json!({"spec": {"binding": binding}}));
    api.patch(name, &PatchParams::default(), &body)
        .await
        .expect("bind");
}

async fn patch(api: &Api<ToolExecution>, name: &str, status: &Value) {
    let body = Patch::Merge(json!({"status": status}));
    api.patch_status(name, &PatchParams::default(), &body)
        .await
        .expect("write the status");
}

pub async fn delete(api: &Api<ToolExecution>, name: &str) {
    api.delete(name, &DeleteParams::default()).await.expect("delete");
}

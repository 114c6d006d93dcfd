//! The API server's part alone.

use std::time::Instant;

use fairlead_crds::ToolExecution;
use fairlead_e2e::{running, succeeded};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::calls::call;
use crate::seen::Seen;
use crate::{executions, flood, micros, spaced};

pub async fn measure(count: usize, in_flight: usize, total: usize) -> Value {
    let (user, operator) = (executions("LOAD_USER").await, executions("LOAD_OPERATOR").await);
    // Two writes by two clients: the second one ends what it sees of the first.
    let (found, mut names) = mpsc::unbounded_channel::<String>();
    let hop = move |name: &str| {
        if name.starts_with("hop-") {
            found.send(name.to_owned()).expect("somebody listens");
        }
    };
    drop(Seen::start_with(executions("LOAD_OPERATOR").await, hop).await);
    let writer = operator.clone();
    tokio::spawn(async move {
        while let Some(name) = names.recv().await {
            end(&writer, &name).await;
        }
    });
    let seen = Seen::start(executions("LOAD_USER").await).await;
    let hops = spaced(count, |index| {
        let (user, seen) = (&user, &seen);
        async move {
            let name = format!("hop-{index}");
            let start = Instant::now();
            user.create(&PostParams::default(), &call(&name, "none"))
                .await
                .expect("create");
            let took = seen.success(&name).await - start;
            delete(user, &name).await;
            took
        }
    })
    .await;
    // What a turn with one call writes: a turn and its end, an execution and its end, and the run.
    let five = spaced(count, |index| five(&operator, index)).await;
    let per_second = flood(in_flight, total, |index| {
        let (user, operator) = (&user, &operator);
        async move {
            let name = format!("raw-{index}");
            user.create(&PostParams::default(), &call(&name, "none"))
                .await
                .expect("create");
            end(operator, &name).await;
            delete(user, &name).await;
        }
    })
    .await;
    json!({"spaced": micros(hops), "five": micros(five), "perSecond": per_second})
}

async fn five(operator: &Api<ToolExecution>, index: usize) -> std::time::Duration {
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

async fn patch(api: &Api<ToolExecution>, name: &str, status: &Value) {
    let body = Patch::Merge(json!({"status": status}));
    api.patch_status(name, &PatchParams::default(), &body)
        .await
        .expect("write the status");
}

pub async fn delete(api: &Api<ToolExecution>, name: &str) {
    api.delete(name, &DeleteParams::default()).await.expect("delete");
}

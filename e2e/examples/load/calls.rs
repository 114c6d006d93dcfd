//! A user's own executions.

use std::time::{Duration, Instant};

use fairlead_crds::conditions::{self, kind};
use fairlead_crds::{API_VERSION, Tool, ToolExecution};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::floor::delete;
use crate::groups::Removals;
use crate::seen::Seen;
use crate::{LIMIT, client, executions, flood, micros, setting, spaced};

/// An execution of `tool`.
pub fn call(name: &str, tool: &str) -> ToolExecution {
    let object = json!({
        "apiVersion": API_VERSION, "kind": "ToolExecution", "metadata": {"name": name},
        "spec": {"tool": {"toolRef": {"name": tool}}},
    });
    serde_json::from_value(object).expect("an execution")
}

/// Makes a Tool that runs `argv` and waits until it is accepted.
pub async fn tool(name: &str, argv: &[&str]) {
    let object = json!({
        "apiVersion": API_VERSION, "kind": "Tool", "metadata": {"name": name},
        "spec": {
            "description": "A tool of the bench.", "parallelSafe": true,
            "runner": {"command": {"argv": argv}}, "timeouts": {"hardSeconds": 600, "graceSeconds": 1},
        },
    });
    let api: Api<Tool> = Api::namespaced(client("LOAD_USER").await, &setting("LOAD_NAMESPACE"));
    let tool = serde_json::from_value(object).expect("a tool");
    match api.create(&PostParams::default(), &tool).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        other => drop(other.expect("create the tool")),
    }
    let start = Instant::now();
    loop {
        let status = api.get(name).await.expect("read the tool").status;
        let accepted = status
            .as_ref()
            .is_some_and(|s| conditions::is_true(&s.conditions, kind::ACCEPTED));
        if accepted {
            return;
        }
        assert!(
            start.elapsed() < LIMIT,
            "tool {name} was not accepted: {status:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub async fn own(count: usize, in_flight: usize, total: usize, roots: &[&str]) -> Value {
    tool("true", &["true"]).await;
    let user = executions("LOAD_USER").await;
    let seen = Seen::start(executions("LOAD_USER").await).await;
    let removals = Removals::start(roots);
    let round_trips = spaced(count, |index| {
        let (user, seen) = (&user, &seen);
        async move {
            let name = format!("spaced-{index}");
            let start = Instant::now();
            user.create(&PostParams::default(), &call(&name, "true"))
                .await
                .expect("create");
            seen.success(&name).await - start
        }
    })
    .await;
    // Both by our own clock: the binding as a watching client sees it, and the kernel's word of the removal.
    let mut removed = Vec::new();
    for times in seen.all() {
        let bound = times.bound.expect("it has run");
        removed.push(removals.of(&times.uid).saturating_duration_since(bound));
    }
    for index in 0..count {
        delete(&user, &format!("spaced-{index}")).await;
    }
    let per_second = flood(in_flight, total, |index| {
        let (user, seen) = (&user, &seen);
        async move {
            let name = format!("flood-{index}");
            user.create(&PostParams::default(), &call(&name, "true"))
                .await
                .expect("create");
            seen.success(&name).await;
            delete(user, &name).await;
        }
    })
    .await;
    json!({"spaced": micros(round_trips), "removed": micros(removed), "perSecond": per_second})
}

pub async fn hold(count: usize) -> Value {
    tool("sleep", &["sleep", "600"]).await;
    let user = executions("LOAD_USER").await;
    let seen = Seen::start(executions("LOAD_USER").await).await;
    let name = |index: usize| format!("held-{index}");
    flood(16, count, |index| {
        let user = &user;
        async move {
            drop(
                user.create(&PostParams::default(), &call(&name(index), "sleep"))
                    .await
                    .expect("create"),
            )
        }
    })
    .await;
    for index in 0..count {
        let times = seen
            .wait(&name(index), |times| {
                times.running.is_some() || times.ended.is_some()
            })
            .await;
        assert!(times.ended.is_none(), "{times:?}");
    }
    println!("held");
    tokio::io::stdin()
        .read_to_end(&mut Vec::new())
        .await
        .expect("read standard input");
    let cancel = Patch::Merge(json!({"spec": {"desiredState": "Cancelled"}}));
    for index in 0..count {
        user.patch(&name(index), &PatchParams::default(), &cancel)
            .await
            .expect("cancel");
    }
    // The end is written when nothing is left of it, so the nodes have room again.
    for index in 0..count {
        seen.wait(&name(index), |times| times.ended.is_some()).await;
        delete(&user, &name(index)).await;
    }
    json!({"held": count})
}

//! Many runs at once, and nothing left of them.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_crds::{AgentRun, ExecutionPhase, RunPhase};
use fairlead_e2e::fleet::*;
use fairlead_e2e::{namespace, wait_for};
use futures::{StreamExt, TryStreamExt};
use kube::api::{DeleteParams, ListParams};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

const RUNS: usize = 200;

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").trim().parse().ok())
        .unwrap_or(0)
}

fn report_memory(when: &str) {
    let stack = fleet(1);
    let operator = stack.process("operator").unwrap().unwrap();
    let supervisor = stack.process(&node(0)).unwrap().unwrap();
    let agent = stack.agent(0).unwrap().unwrap();
    println!(
        "resident memory {when}: operator {} KiB, supervisor {} KiB, agent {} KiB",
        resident_kib(operator.pid),
        resident_kib(supervisor.pid),
        resident_kib(agent.pid)
    );
}

/// Entries of a directory whose names begin with `prefix`.
fn entries(dir: &Path, prefix: &str) -> Vec<String> {
    let list = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    list.map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|n| n.starts_with(prefix))
        .collect()
}

fn groups_left() -> Vec<String> {
    let root = fleet(1).cgroup_root(0);
    entries(&root, "payload-")
        .iter()
        .flat_map(|payload| entries(&root.join(payload), "tx-"))
        .collect()
}

/// Makes the tool, the model and the runs, and gives the names of the runs.
async fn all_at_once(ns: &str) -> Vec<String> {
    let mut tool = shell_tool("word", "echo $1");
    tool["spec"]["parallelSafe"] = json!(true);
    made(ns, &tool).await;
    let call = |id: &str| json!({"id": id, "name": "word", "arguments": {"arg": id}});
    let steps = json!([
        {"when": {"turn": 1}, "respond": {"toolCalls": [call("a"), call("b"), call("c")]}},
        {"respond": {"text": "Done."}}
    ]);
    made(ns, &script("model", &steps)).await;
    let names: Vec<_> = (0..RUNS).map(|n| format!("run-{n}")).collect();
    let creates = names.iter().map(|name| {
        let object = run_with(name, "model", &["word"]);
        async move { made(ns, &object).await }
    });
    futures::stream::iter(creates)
        .buffer_unordered(16)
        .collect::<Vec<_>>()
        .await;
    names
}

async fn all_ended(ns: &str) -> Vec<AgentRun> {
    let api = runs(ns).await;
    wait_for("all runs to end", Duration::from_secs(180), || async {
        let list = api
            .list(&ListParams::default())
            .await
            .map_err(|e| e.to_string())?;
        let phases = list
            .items
            .iter()
            .filter_map(|r| r.status.as_ref().and_then(|s| s.phase));
        let count = phases.filter(|p| p.is_terminal()).count();
        if count == RUNS {
            Ok(list.items)
        } else {
            Err(format!("{count} of {RUNS} have ended"))
        }
    })
    .await
}

/// Deletes the runs and waits until nothing of them is left: no object, no byte, no slot.
async fn delete_all(ns: &str, names: &[String], uids: &[String]) {
    let api = runs(ns).await;
    futures::stream::iter(names.iter().map(|name| {
        let api = api.clone();
        async move { api.delete(name, &DeleteParams::background()).await.map(|_| ()) }
    }))
    .buffer_unordered(16)
    .try_collect::<Vec<_>>()
    .await
    .unwrap();
    let spool = fleet(1).spool(0);
    let left = executions(ns).await;
    let limit = Duration::from_secs(180);
    wait_for("objects and bytes to be gone", limit, || async {
        let list = left
            .list(&ListParams::default())
            .await
            .map_err(|e| e.to_string())?;
        let bytes = uids.iter().filter(|uid| !entries(&spool, uid).is_empty()).count();
        match list.items.len() {
            0 if bytes == 0 => Ok(()),
            objects => Err(format!("{objects} executions, bytes of {bytes}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_runs_at_once_all_succeed_and_leave_nothing() {
    drop(fleet(1));
    let ns = namespace("load").await;
    report_memory("idle");
    let began = Instant::now();
    let names = all_at_once(&ns).await;
    let ended = all_ended(&ns).await;
    let took = began.elapsed();
    for run in &ended {
        let phase = run.status.as_ref().unwrap().phase;
        assert_eq!(phase, Some(RunPhase::Succeeded), "{:?}", run.status);
    }
    let list = executions(&ns)
        .await
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    assert_eq!(list.len(), RUNS * 3);
    let phases = list.iter().map(|x| x.status.as_ref().and_then(|s| s.phase));
    assert!(phases.into_iter().all(|p| p == Some(ExecutionPhase::Succeeded)));
    let rate = (RUNS * 3) as f64 / took.as_secs_f64();
    println!("{RUNS} runs with 3 calls each: {took:?}, {rate:.1} executions/s");
    report_memory("after the load");
    wait_for("the groups to be gone", SOON, || async {
        let left = groups_left();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
    let uids: Vec<_> = list.iter().filter_map(|x| x.metadata.uid.clone()).collect();
    delete_all(&ns, &names, &uids).await;
}

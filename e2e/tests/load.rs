//! Many runs at once, and nothing left of them.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_crds::{ExecutionPhase, RunPhase};
use fairlead_e2e::fleet::*;
use fairlead_e2e::{admin, namespace, wait_for};
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

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_runs_at_once_all_succeed_and_leave_nothing() {
    drop(fleet(1));
    let ns = namespace("load").await;
    let mut tool = shell_tool("word", "echo $1");
    tool["spec"]["parallelSafe"] = json!(true);
    made(&ns, &tool).await;
    made(
        &ns,
        &script(
            "model",
            &json!([
        {"when": {"turn": 1}, "respond": {"toolCalls": [
            {"id": "a", "name": "word", "arguments": {"arg": "1"}},
            {"id": "b", "name": "word", "arguments": {"arg": "2"}},
            {"id": "c", "name": "word", "arguments": {"arg": "3"}}]}},
        {"respond": {"text": "Done."}}]),
        ),
    )
    .await;
    report_memory("idle");
    let began = Instant::now();
    let names: Vec<_> = (0..RUNS).map(|n| format!("run-{n}")).collect();
    let creates = names.iter().map(|name| {
        let object = run_with(name, "model", &["word"]);
        let ns = ns.clone();
        async move { made(&ns, &object).await }
    });
    futures::stream::iter(creates)
        .buffer_unordered(16)
        .collect::<Vec<_>>()
        .await;
    let all_runs = runs(&ns).await;
    let ended = wait_for("all runs to end", Duration::from_secs(180), || async {
        let list = all_runs
            .list(&ListParams::default())
            .await
            .map_err(|e| e.to_string())?
            .items;
        let ended = list.iter().filter(|r| {
            r.status
                .as_ref()
                .and_then(|s| s.phase)
                .is_some_and(RunPhase::is_terminal)
        });
        let count = ended.count();
        if count == RUNS {
            Ok(list)
        } else {
            Err(format!("{count} of {RUNS} have ended"))
        }
    })
    .await;
    let took = began.elapsed();
    for run in &ended {
        assert_eq!(
            run.status.as_ref().unwrap().phase,
            Some(RunPhase::Succeeded),
            "{:?}",
            run.status
        );
    }
    let all_executions = executions(&ns).await;
    let list = all_executions.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(list.len(), RUNS * 3);
    assert!(
        list.iter()
            .all(|x| x.status.as_ref().and_then(|s| s.phase) == Some(ExecutionPhase::Succeeded))
    );
    println!(
        "{RUNS} runs with 3 calls each: {took:?}, {:.1} executions/s",
        (RUNS * 3) as f64 / took.as_secs_f64()
    );
    report_memory("after the load");
    wait_for("the groups to be gone", SOON, || async {
        let left = groups_left();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;

    let spool = fleet(1).spool(0);
    futures::stream::iter(names.iter().map(|name| {
        let api = all_runs.clone();
        async move { api.delete(name, &DeleteParams::background()).await.map(|_| ()) }
    }))
    .buffer_unordered(16)
    .try_collect::<Vec<_>>()
    .await
    .unwrap();
    let _ = admin().await;
    let uids: Vec<_> = list.iter().filter_map(|x| x.metadata.uid.clone()).collect();
    wait_for(
        "objects and bytes to be gone",
        Duration::from_secs(180),
        || async {
            let left = all_executions
                .list(&ListParams::default())
                .await
                .map_err(|e| e.to_string())?
                .items
                .len();
            let bytes = uids.iter().filter(|uid| !entries(&spool, uid).is_empty()).count();
            if left == 0 && bytes == 0 {
                Ok(())
            } else {
                Err(format!("{left} executions, bytes of {bytes}"))
            }
        },
    )
    .await;
}

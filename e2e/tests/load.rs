//! Many runs at once, and nothing left of them.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_crds::{AgentRun, ExecutionPhase, RunPhase};
use fairlead_e2e::fleet::*;
use fairlead_e2e::{admin, namespace, wait_for};
use fairlead_supervisor::slot::parse_attempt_name;
use futures::{StreamExt, TryStreamExt};
use kube::api::{DeleteParams, ListParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use serde_json::json;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::pin::pin;
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

/// Waits until a watch has shown the end of all runs, and gives them.
async fn all_ended(ns: &str) -> Vec<AgentRun> {
    let mut ended = BTreeMap::new();
    let mut seen = pin!(watcher(runs(ns).await, Config::default()).default_backoff());
    let limit = Instant::now() + Duration::from_secs(300);
    while ended.len() < RUNS {
        let event = tokio::time::timeout_at(limit.into(), seen.next()).await;
        let event = event.unwrap_or_else(|_| panic!("{} of {RUNS} runs have ended", ended.len()));
        // What a broken watch missed is listed by the next one.
        if let Some(Ok(Event::Apply(run) | Event::InitApply(run))) = event {
            let phase = run.status.as_ref().and_then(|s| s.phase);
            if phase.is_some_and(RunPhase::is_terminal) {
                ended.insert(run.metadata.name.clone(), run);
            }
        }
    }
    ended.into_values().collect()
}

/// A process: proc_pid_status(5).
struct Process {
    parent: u32,
    users: Vec<u32>,
    shown: String,
}

fn processes() -> BTreeMap<u32, Process> {
    let list = std::fs::read_dir("/proc").unwrap();
    let pids = list.filter_map(|e| e.unwrap().file_name().to_string_lossy().parse::<u32>().ok());
    pids.filter_map(|pid| {
        // One that cannot be read has just gone.
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = |key: &str| text.lines().find_map(|l| l.strip_prefix(key)).map(str::trim);
        let process = Process {
            parent: line("PPid:")?.parse().ok()?,
            users: line("Uid:")?
                .split_whitespace()
                .filter_map(|id| id.parse().ok())
                .collect(),
            shown: format!("process {pid} {} {}", line("Name:")?, line("State:")?),
        };
        Some((pid, process))
    })
    .collect()
}

/// Node 0 as it is seen from outside.
struct Node {
    spool: PathBuf,
    users: RangeInclusive<u32>,
    supervisor: u32,
}

impl Node {
    fn look() -> Self {
        let stack = fleet(1);
        Self {
            spool: stack.spool(0),
            users: stack.users(0).unwrap(),
            supervisor: stack.process(&node(0)).unwrap().unwrap().pid,
        }
    }

    /// What is left of runs: attempts with their slots and bytes, directories of runs, which hold their users, and
    /// processes of these users. Another system on this machine may use the same numbers, but its processes do not
    /// descend from this supervisor, which is the first process of its PID namespace.
    fn left(&self) -> Vec<String> {
        let names = entries(&self.spool, "").into_iter();
        let mut left: Vec<_> = names
            .filter(|name| parse_attempt_name(name.as_ref()).is_some())
            .collect();
        let held = entries(&self.spool.join("runs"), "").into_iter();
        left.extend(held.map(|name| format!("runs/{name}")));
        let all = processes();
        let descends = |pid: u32| {
            let parent = |pid: &u32| all.get(pid).map(|process| process.parent);
            std::iter::successors(Some(pid), parent).any(|pid| pid == self.supervisor)
        };
        let ours = all.iter().filter(|(pid, process)| {
            process.users.iter().any(|user| self.users.contains(user)) && descends(**pid)
        });
        left.extend(ours.map(|(_, process)| process.shown.clone()));
        left
    }
}

/// Deletes the runs and waits until nothing of them is left: no object, no byte, no slot, no user, no process.
async fn delete_all(ns: &str, names: &[String]) {
    let api = runs(ns).await;
    futures::stream::iter(names.iter().map(|name| {
        let api = api.clone();
        async move { api.delete(name, &DeleteParams::background()).await.map(|_| ()) }
    }))
    .buffer_unordered(16)
    .try_collect::<Vec<_>>()
    .await
    .unwrap();
    let node = Node::look();
    let objects = executions(ns).await;
    let limit = Duration::from_secs(300);
    // One object is enough to know that not all have gone.
    let one = ListParams::default().limit(1);
    wait_for(
        "objects, bytes, users and processes to be gone",
        limit,
        || async {
            let list = objects.list(&one).await.map_err(|e| e.to_string())?;
            let left = node.left();
            match list.items.first() {
                None if left.is_empty() => Ok(()),
                object => Err(format!("{:?} and {left:?}", object.map(|x| &x.metadata.name))),
            }
        },
    )
    .await;
}

/// The check at the end must look in the right place: now it finds what the runs hold, and a process that runs.
async fn what_is_left_is_seen(ns: &str) {
    made(ns, &shell_tool("sleep", "sleep 600")).await;
    let own = made(ns, &own_execution("sleep", "sleep", "")).await;
    let held = wait_for("a process of a tool", SOON, || async {
        let left = Node::look().left();
        let runs = left.iter().any(|what| what.starts_with("process "));
        if runs { Ok(left) } else { Err(left) }
    })
    .await;
    let count = |prefix: &str| held.iter().filter(|what| what.starts_with(prefix)).count();
    let processes = count("process ");
    assert_eq!(count("runs/"), RUNS + 1, "each run holds a user: {held:?}");
    let attempts = held.len() - processes - count("runs/");
    assert_eq!(attempts, RUNS * 3 + 1, "each execution holds a slot: {held:?}");
    fairlead_e2e::delete(&admin().await, ns, &own).await.unwrap();
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
    what_is_left_is_seen(&ns).await;
    delete_all(&ns, &names).await;
}

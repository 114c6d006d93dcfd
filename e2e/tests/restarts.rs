//! Operators and node agents that are killed under load: same end, no line lost, no effect twice.
//!
//! `FAIRLEAD_KILLS` is the number of kills of each part (3 by default; the long form is 20).

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_crds::{ExecutionPhase, RunPhase, ToolExecution};
use fairlead_e2e::fleet::*;
use fairlead_e2e::{admin, leases, namespace, wait_for};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::Signal;
use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A record outside of everything that is tested: each tool writes its execution's name once. It is a pipe, since files
/// outside of its home are read-only for a tool.
struct Ledger {
    dir: PathBuf,
    pipe: File,
    seen: RefCell<Vec<u8>>,
}

impl Ledger {
    fn new() -> Self {
        let dir = PathBuf::from(format!("/var/tmp/fairlead-ledger-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("make the ledger");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("open the ledger to tools");
        let file = dir.join("effects");
        mknodat(CWD, &file, FileType::Fifo, Mode::empty(), 0).expect("make the ledger");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("open the ledger to tools");
        let mut options = File::options();
        // Open for both, so that it neither waits for a writer nor ends with the last one.
        options
            .read(true)
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        Self {
            pipe: options.open(file).expect("open the ledger"),
            dir,
            seen: RefCell::default(),
        }
    }

    fn file(&self) -> PathBuf {
        self.dir.join("effects")
    }

    fn effects(&self) -> BTreeMap<String, usize> {
        let mut seen = self.seen.borrow_mut();
        let end = (&self.pipe)
            .read_to_end(&mut seen)
            .expect_err("a pipe that stays open has no end");
        assert_eq!(end.kind(), ErrorKind::WouldBlock, "{end}");
        let mut counts = BTreeMap::new();
        for line in String::from_utf8_lossy(&seen).lines() {
            *counts.entry(line.to_owned()).or_insert(0) += 1;
        }
        counts
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn kills() -> usize {
    std::env::var("FAIRLEAD_KILLS")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(3)
}

/// Life of the leader's Lease.
const LEASE: Duration = Duration::from_secs(15);

async fn leader() -> Option<(String, i32)> {
    let lease = leases(admin().await)
        .get_opt(fairlead_crds::names::LEADER_LEASE)
        .await
        .ok()??;
    let spec = lease.spec?;
    let holder = spec.holder_identity.filter(|h| !h.is_empty())?;
    let name = holder.rsplit_once('-').map(|(name, _)| name.to_owned())?;
    Some((name, spec.lease_transitions.unwrap_or(0)))
}

/// Waits for a leader of a higher term, and gives its name, its term and how long that took.
async fn next_leader(above: i32, limit: Duration) -> (String, i32, Duration) {
    let since = Instant::now();
    let (name, term) = wait_for("another leader", limit, || async {
        leader().await.filter(|(_, term)| *term > above).ok_or(above)
    })
    .await;
    (name, term, since.elapsed())
}

fn signal(name: &str, what: Signal) {
    let process = fleet(1)
        .process(name)
        .expect("look at the process")
        .unwrap_or_else(|| panic!("{name} does not run"));
    assert!(process.signal(what).expect("send a signal"), "{name} is gone");
}

/// Starts a program that was killed again, once nothing of it is left.
async fn start_again(name: &str) {
    wait_for(&format!("{name} to be gone"), SOON, || async {
        if fleet(1).is_running(name).unwrap_or(true) {
            Err("still there")
        } else {
            Ok(())
        }
    })
    .await;
    fleet(1).start_operator(name).expect("start an operator");
}

/// How long a tool of the load runs, in seconds, ten lines in each.
const SECONDS: u64 = 20;
const LINES: u64 = SECONDS * 10;

/// A tool that records its effect outside once, and prints numbered lines for as long as the load lasts.
async fn prepare(ns: &str, ledger: &Ledger) {
    let program = format!(
        "echo \"$FAIRLEAD_EXECUTION\" >> {}; i=0; \
         while [ $i -lt {LINES} ]; do i=$((i+1)); echo \"line $i\"; sleep 0.1; done",
        ledger.file().display()
    );
    let mut tool = shell_tool("numbered", &program);
    tool["spec"]["parallelSafe"] = json!(true);
    made(ns, &tool).await;
    let steps = json!([
        {"when": {"turn": 1}, "respond": {"toolCalls": [
            {"id": "a", "name": "numbered"}, {"id": "b", "name": "numbered"}]}},
        {"respond": {"text": "Done."}}
    ]);
    made(ns, &script("model", &steps)).await;
}

/// Kills every part `kills` times under a load that lasts as long, and gives the names of its runs.
async fn kill_under_load(ns: &str, kills: usize) -> Vec<String> {
    let (mut wave, mut done) = (0, 0);
    let mut runs = Vec::new();
    while done < kills {
        wave += 1;
        for n in 0..3 {
            let mut run = run_with(&format!("run-{wave}-{n}"), "model", &["numbered"]);
            run["spec"]["toolWaitSeconds"] = json!(600);
            made(ns, &run).await;
            runs.push(format!("run-{wave}-{n}"));
        }
        running(ns).await;
        let until = Instant::now() + Duration::from_secs(SECONDS - 5);
        while done < kills && Instant::now() < until {
            kill_operator(done).await;
            kill_agent().await;
            done += 1;
        }
    }
    runs
}

/// The executions of the runs, by name; every run has succeeded.
async fn succeeded(ns: &str, runs: &[String]) -> BTreeMap<String, ToolExecution> {
    let mut executions = BTreeMap::new();
    for name in runs {
        let run = ended_run(ns, name, Duration::from_secs(180)).await;
        let status = run.status.as_ref().unwrap();
        assert_eq!(status.phase, Some(RunPhase::Succeeded), "{name}: {status:?}");
        for execution in executions_of(ns, &run).await {
            executions.insert(execution.metadata.name.clone().unwrap(), execution);
        }
    }
    executions
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_every_part_lose_nothing_and_repeat_nothing() {
    drop(fleet(1));
    fleet(1)
        .start_operator("second")
        .expect("start a second operator");
    fleet(1).wait_ready("second").expect("the second operator");
    hand_over().await;
    let kills = kills();
    let ns = namespace("kills").await;
    let ledger = Ledger::new();
    prepare(&ns, &ledger).await;
    let runs = kill_under_load(&ns, kills).await;
    let executions = succeeded(&ns, &runs).await;
    assert_eq!(executions.len(), runs.len() * 2);
    let whole: String = (1..=LINES).map(|n| format!("line {n}\n")).collect();
    for (name, execution) in &executions {
        let status = execution.status.as_ref().unwrap();
        let phase = status.phase;
        assert_eq!(phase, Some(ExecutionPhase::Succeeded), "{name}: {status:?}");
        let text = &status.output.as_ref().unwrap().text;
        assert_eq!(*text, whole, "{name} lost lines");
    }
    let effects = ledger.effects();
    let (seen, wanted) = (effects.keys(), executions.keys());
    assert_eq!(seen.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
    let once = effects.values().all(|n| *n == 1);
    assert!(once, "an effect was repeated: {effects:?}");
    let count = executions.len();
    println!(
        "{kills} kills of each part over {count} executions: all succeeded, one effect each, no line lost"
    );
}

/// Two operators: hand-over on SIGTERM, on SIGKILL, and a leader that was paused for longer than its lease.
async fn hand_over() {
    let (first, term) = wait_for("a leader", SOON, || async { leader().await.ok_or("none") }).await;
    signal(&first, Signal::TERM);
    let (second, term, took) = next_leader(term, SOON).await;
    println!("hand-over on SIGTERM: {first} to {second} in {took:?}");
    // Sooner than a Lease that is left to expire: it was given back.
    assert!(took < LEASE, "hand-over on SIGTERM took {took:?}");
    assert_ne!(first, second);
    start_again(&first).await;
    signal(&second, Signal::KILL);
    let (third, term, took) = next_leader(term, SOON).await;
    println!("hand-over on SIGKILL: {second} to {third} in {took:?}");
    start_again(&second).await;
    signal(&third, Signal::STOP);
    let (fourth, term, took) = next_leader(term, SOON).await;
    println!("hand-over from a paused leader: {third} to {fourth} in {took:?}");
    signal(&third, Signal::CONT);
    // The one that woke up must find out by itself; the term does not move again.
    wait_for("the old leader to follow", SOON, || async {
        let port = fleet(1).metrics_port(&third).map_err(|e| e.to_string())?;
        let text = reqwest::get(format!("http://127.0.0.1:{port}/metrics"))
            .await
            .map_err(|e| e.to_string())?;
        let text = text.text().await.map_err(|e| e.to_string())?;
        if text.contains("fairlead_operator_leader 0") {
            Ok(())
        } else {
            Err("it still says that it leads".to_owned())
        }
    })
    .await;
    assert_eq!(leader().await.unwrap(), (fourth, term), "one leads");
}

async fn running(ns: &str) {
    let api = executions(ns).await;
    wait_for("six executions to run", SOON, || async {
        let list = api.list(&Default::default()).await.map_err(|e| e.to_string())?;
        let running = list
            .items
            .iter()
            .filter(|x| x.status.as_ref().and_then(|s| s.phase) == Some(ExecutionPhase::Running));
        let count = running.count();
        if count >= 6 {
            Ok(())
        } else {
            Err(format!("{count} run"))
        }
    })
    .await;
}

/// Kills the leader; every third time it is paused until another leads, and woken.
async fn kill_operator(n: usize) {
    let (name, term) = wait_for("a leader", SOON, || async { leader().await.ok_or("none") }).await;
    if n % 3 == 2 {
        signal(&name, Signal::STOP);
        next_leader(term, SOON).await;
        signal(&name, Signal::CONT);
        return;
    }
    signal(&name, Signal::KILL);
    start_again(&name).await;
}

/// Kills the agent and waits until another one is ready.
async fn kill_agent() {
    let agent = fleet(1)
        .agent(0)
        .expect("look for the agent")
        .expect("an agent runs");
    assert!(agent.signal(Signal::KILL).expect("send a signal"));
    wait_for("another agent", SOON, || async {
        match fleet(1).agent(0) {
            Ok(Some(now)) if now != agent => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    fleet(1).wait_ready(&node(0)).expect("the new agent to be ready");
}

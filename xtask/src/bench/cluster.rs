//! Executions and runs through everything: a real control plane that flushes to disk, the chart, one operator, two
//! nodes. Every client has a ServiceAccount's token and the rights the chart gives it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::samples::Samples;
use super::{Row, Table, memory};
use crate::cgroup::Tree;
use crate::cluster::Cluster;
use crate::control_plane::{ControlPlane, Options};
use crate::install::{self, NAMESPACE, OPERATOR};
use crate::process::Identity;
use crate::programs::Programs;
use crate::repo;
use crate::stack::{Stack, node_name};

/// Nodes; together they take as many executions as are in flight.
const NODES: u32 = 2;
/// Executions that a node takes unless it is told otherwise.
const NODE_CAPACITY: u32 = 32;
/// Calls in flight in the throughput series.
const IN_FLIGHT: u32 = NODES * NODE_CAPACITY;
/// Where the load is.
const LOAD_NAMESPACE: &str = "bench";
/// ServiceAccount of the user, who has the chart's role for users and no more.
const USER: &str = "bench-user";
const OPERATOR_NAME: &str = "operator";
/// Life of the tokens.
const TOKEN_LIFE: Duration = Duration::from_secs(4 * 3600);

/// Measures and adds the rows.
pub fn measure(table: &mut Table, programs: &Programs, tool: &Path, quick: bool) -> Result<()> {
    let dir = repo::target_dir().join("bench");
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    let options = Options {
        dir: dir.clone(),
        fsync: true,
    };
    let plane = ControlPlane::start(&options)?;
    install::chart(plane.cluster(), &[])?;
    let load = Load::prepare(plane.cluster(), &dir, tool)?;
    let share = if quick { 4 } else { 1 };
    let [spaced, total, runs] = [100, 2_000, 200].map(|count: u32| (count / share).to_string());
    let in_flight = IN_FLIGHT.to_string();

    let floor = load.run(&["floor", &spaced, &in_flight, &total])?;
    let groups = Tree::named(&format!("fairlead-bench-{}", std::process::id()))?;
    let mut stack = Stack::open(&dir, plane.cluster(), programs, groups)?;
    stack.start_operator(OPERATOR_NAME)?;
    for index in 0..NODES {
        stack.start_node(index)?;
    }
    for name in (0..NODES).map(node_name).chain([OPERATOR_NAME.to_owned()]) {
        stack.wait_ready(&name)?;
    }
    let idle = Memory::read(&stack)?;
    // A few first, so that what the parts take once and for all is not counted as growth.
    load.held(NODES, || Ok(()))?;
    let before = Memory::read(&stack)?;
    let held = load.held(IN_FLIGHT, || Memory::read(&stack))?;
    let roots: Vec<String> = (0..NODES)
        .map(|index| stack.cgroup_root(index).display().to_string())
        .collect();
    let roots: Vec<&str> = roots.iter().map(String::as_str).collect();
    let own = load.run(&[&["own", &spaced, &in_flight, &total], roots.as_slice()].concat())?;
    round_trips(table, &own, &floor)?;
    let many = load.run(&["runs", &runs])?;
    let rounds = load.run(&["rounds", if quick { "10" } else { "50" }])?;
    run_rows(table, &runs, &many, &rounds, &floor)?;
    let after = Memory::read(&stack)?;
    memory_rows(table, &idle, [&before, &held], &after);
    notes(table);
    Ok(())
}

fn round_trips(table: &mut Table, own: &Value, floor: &Value) -> Result<()> {
    let hops = samples(floor, "spaced")?;
    table.push(Row::times(
        "user's execution of `true`, 100 ms apart: create → end seen by another client",
        &samples(own, "spaced")?,
        &hops,
        "≤ 2 ×",
    ));
    table.push(Row {
        path: "the same: binding seen by another client → group removed".to_owned(),
        ours: samples(own, "removed")?.text(),
        aim: "beside `true` through the supervisor",
        ..Row::default()
    });
    table.push(Row::rate(
        &format!("user's executions of `true`, {IN_FLIGHT} in flight: create → end → delete"),
        number(own, "perSecond")?,
        number(floor, "perSecond")?,
        "≥ 60 %",
    ));
    Ok(())
}

fn run_rows(table: &mut Table, runs: &str, many: &Value, rounds: &Value, floor: &Value) -> Result<()> {
    table.push(Row::rate(
        &format!("{runs} runs × 3 calls at once: executions"),
        number(many, "perSecond")?,
        number(floor, "perSecond")?,
        "",
    ));
    table.push(Row {
        path: format!(
            "{runs} runs × 3 calls at once: execution seen → its end seen, waiting for a place included"
        ),
        ours: samples(many, "roundTrip")?.text(),
        floor: samples(floor, "spaced")?.text(),
        aim: "",
        ratio: "floor unloaded".to_owned(),
    });
    table.push(Row::times(
        "one round of a run, a turn with one call of `true`: call → next call",
        &samples(rounds, "rounds")?,
        &samples(floor, "five")?,
        "",
    ));
    Ok(())
}

fn memory_rows(table: &mut Table, idle: &Memory, [before, held]: [&Memory; 2], after: &Memory) {
    let mib = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
    let rows = [
        ("supervisor", idle.supervisor, after.supervisor, "≤ 2 MiB idle"),
        ("supervisor's pump", idle.pump, after.pump, ""),
        ("node agent", idle.agent, after.agent, "≤ 25 MiB idle"),
        ("operator", idle.operator, after.operator, ""),
    ];
    for (what, idle, after, aim) in rows {
        let ours = format!("{} / {}", mib(idle), mib(after));
        table.push(Row::alone(
            &format!("resident memory, idle / after all of the above: {what}"),
            ours,
            aim,
        ));
    }
    let each = |held: u64, before: u64| (held as f64 - before as f64) / f64::from(NODE_CAPACITY);
    let agent = each(held.agent, before.agent);
    let supervisor = each(held.supervisor + held.pump, before.supervisor + before.pump);
    for (what, kib, aim) in [
        ("node agent", agent, "≤ 64 KiB"),
        ("supervisor and pump", supervisor, ""),
    ] {
        let path = format!("resident memory, more for each of {NODE_CAPACITY} running executions: {what}");
        table.push(Row::alone(&path, format!("{kib:.0} KiB"), aim));
    }
}

fn notes(table: &mut Table) {
    table.note(format!(
        "Cluster: etcd with fsync, kube-apiserver, kube-controller-manager, one operator, {NODES} nodes with room for \
         {NODE_CAPACITY} executions each, and the load, all on this machine. The load has a ServiceAccount's token with \
         the chart's role for users; the floor's second client has the operator's token. The floor of a round trip is a \
         create by one client and a status write by a second one that watches, seen by a third; a user's own execution \
         is bound in between, which is one write more. The floor of a rate is create, status write, delete, by as many \
         clients in flight, with no program of ours running: three writes, where the runs have nearly five for each of \
         their calls (run and turns included). The floor of a round is the five writes of a turn with one \
         call, one after the other."
    ));
    table.note(
        "Resident memory is VmRSS of node 0's processes and the operator, program text included; per execution it is \
         the growth while a node is full, before the load."
            .to_owned(),
    );
}

/// The program that makes the load, and who it is.
struct Load {
    tool: PathBuf,
    user: PathBuf,
    operator: PathBuf,
}

impl Load {
    fn prepare(cluster: &Cluster, dir: &Path, tool: &Path) -> Result<Self> {
        cluster
            .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LOAD_NAMESPACE}}))?;
        let meta = json!({"name": USER, "namespace": LOAD_NAMESPACE});
        cluster.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}))?;
        cluster.apply(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "fairlead-edit"},
            "subjects": [{"kind": "ServiceAccount", "name": USER, "namespace": LOAD_NAMESPACE}],
        }))?;
        let load = Self {
            tool: tool.to_owned(),
            user: dir.join("load-user.kubeconfig"),
            operator: dir.join("load-operator.kubeconfig"),
        };
        let accounts = [
            (LOAD_NAMESPACE, USER, &load.user),
            (NAMESPACE, OPERATOR, &load.operator),
        ];
        for (namespace, account, path) in accounts {
            let token = install::mint_token(cluster, namespace, account, None, TOKEN_LIFE)?;
            install::kubeconfig_for(cluster, &token, path)?;
        }
        Ok(load)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.tool);
        command.args(args).env("LOAD_NAMESPACE", LOAD_NAMESPACE);
        command
            .env("LOAD_USER", &self.user)
            .env("LOAD_OPERATOR", &self.operator);
        command
    }

    fn run(&self, args: &[&str]) -> Result<Value> {
        eprintln!("bench: load {}", args.join(" "));
        let mut command = self.command(args);
        let output = command.stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("start {command:?}"))?;
        if !output.status.success() {
            bail!("{command:?} failed with {}", output.status);
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("read the answer of {command:?}"))
    }

    /// Calls `look` while `count` executions run.
    fn held<T>(&self, count: u32, look: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut command = self.command(&["hold", &count.to_string()]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("start {command:?}"))?;
        let mut lines = BufReader::new(child.stdout.take().context("no pipe to the load")?).lines();
        let looked = match lines.next() {
            Some(Ok(line)) if line == "held" => look(),
            _ => Err(anyhow::anyhow!("{command:?} could not hold {count} executions")),
        };
        // The end of its input tells it to remove what it made.
        drop(child.stdin.take());
        lines.for_each(drop);
        let status = child.wait().with_context(|| format!("wait for {command:?}"))?;
        let looked = looked?;
        if !status.success() {
            bail!("{command:?} failed with {status}");
        }
        Ok(looked)
    }
}

/// Resident memory of the parts in KiB; of a node's, node 0.
struct Memory {
    operator: u64,
    supervisor: u64,
    pump: u64,
    agent: u64,
}

impl Memory {
    fn read(stack: &Stack) -> Result<Self> {
        let of = |name: &str| {
            stack
                .process(name)?
                .with_context(|| format!("{name} does not run"))
        };
        let node = node_name(0);
        let supervisor = of(&node)?;
        let agent = stack
            .agent(0)?
            .with_context(|| format!("the agent of {node} does not run"))?;
        let program = |process: &Identity| fs::read_link(format!("/proc/{}/exe", process.pid)).ok();
        let own = program(&supervisor);
        let mut pump = 0;
        for child in supervisor.children()? {
            if program(&child) == own {
                pump += memory::rss_kib(&child)?;
            }
        }
        Ok(Self {
            operator: memory::rss_kib(&of(OPERATOR_NAME)?)?,
            supervisor: memory::rss_kib(&supervisor)?,
            pump,
            agent: memory::rss_kib(&agent)?,
        })
    }
}

fn samples(answer: &Value, key: &str) -> Result<Samples> {
    let list = answer[key]
        .as_array()
        .with_context(|| format!("the load did not answer with {key}"))?;
    Samples::new(list.iter().filter_map(Value::as_f64).collect()).with_context(|| format!("read {key}"))
}

fn number(answer: &Value, key: &str) -> Result<f64> {
    answer[key]
        .as_f64()
        .with_context(|| format!("the load did not answer with {key}"))
}

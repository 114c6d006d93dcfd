//! Executions and runs through everything: a real control plane that flushes to disk, the chart, one operator, two
//! nodes. Every client has a ServiceAccount's token and the rights the chart gives it.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fairlead_crds::names::LEADER_LEASE;
use serde_json::{Value, json};

use super::memory::Memory;
use super::samples::Samples;
use super::{Row, Table, flood};
use crate::cgroup::Tree;
use crate::cluster::Cluster;
use crate::control_plane::{ControlPlane, Options};
use crate::install::{self, NAMESPACE, OPERATOR};
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
/// Name of the operator's process.
pub const OPERATOR_NAME: &str = "operator";
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
    let idle = Memory::read(&stack, OPERATOR_NAME)?;
    // A few first, so that what the parts take once and for all is not counted as growth.
    load.held(NODES, || Ok(()))?;
    let before = Memory::read(&stack, OPERATOR_NAME)?;
    let held = load.held(IN_FLIGHT, || Memory::read(&stack, OPERATOR_NAME))?;
    let roots: Vec<String> = (0..NODES)
        .map(|index| stack.cgroup_root(index).display().to_string())
        .collect();
    let roots: Vec<&str> = roots.iter().map(String::as_str).collect();
    let bound = load.run(&["bound", &spaced, &in_flight, &total])?;
    let own = load.run(&[&["own", &spaced, &in_flight, &total], roots.as_slice()].concat())?;
    round_trips(table, [&bound, &own], &floor)?;
    let many = load.run(&["runs", &runs])?;
    let rounds = load.run(&["rounds", if quick { "10" } else { "50" }])?;
    run_rows(table, &runs, &many, &rounds, &floor)?;
    let after = Memory::read(&stack, OPERATOR_NAME)?;
    memory_rows(table, &idle, [&before, &held], &after);
    flood::measure(table, &load, &stack, if quick { 10 } else { 60 })?;
    notes(table);
    Ok(())
}

fn round_trips(table: &mut Table, [bound, own]: [&Value; 2], floor: &Value) -> Result<()> {
    table.push(Row::times(
        "execution of `true` bound at its creation, as a run's calls are, 100 ms apart: create → end seen by another \
         client; floor two writes",
        &samples(bound, "spaced")?,
        &samples(floor, "spaced")?,
        "≤ 2 ×",
    ));
    table.push(Row::rate(
        &format!(
            "executions of `true` bound at their creation, {IN_FLIGHT} in flight: create → end → delete; floor three writes"
        ),
        number(bound, "perSecond")?,
        number(floor, "perSecond")?,
        "≥ 60 %",
    ));
    table.push(Row::times(
        "user's execution of `true`, 100 ms apart: create → end seen by another client; floor three writes",
        &samples(own, "spaced")?,
        &samples(floor, "boundLater")?,
        "≤ 2 ×",
    ));
    table.push(Row {
        path: "the same: binding seen by another client → group removed".to_owned(),
        ours: samples(own, "removed")?.text(),
        aim: "beside `true` through the supervisor",
        ..Row::default()
    });
    table.push(Row::rate(
        &format!(
            "user's executions of `true`, {IN_FLIGHT} in flight: create → end → delete; floor four writes"
        ),
        number(own, "perSecond")?,
        number(floor, "boundLaterPerSecond")?,
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
        ("init of the call (Pss)", each(held.inits, before.inits), ""),
    ] {
        let path = format!("resident memory, more for each of {NODE_CAPACITY} running executions: {what}");
        table.push(Row::alone(&path, format!("{kib:.0} KiB"), aim));
    }
}

fn notes(table: &mut Table) {
    table.note(format!(
        "Cluster: etcd with fsync, kube-apiserver, kube-controller-manager, one operator, {NODES} nodes with room for \
         {NODE_CAPACITY} executions each, and the load, all on this machine. The load has a ServiceAccount's token with \
         the chart's role for users, and the operator's token for what is bound at its creation and for the writes of a \
         floor that are not a user's. The floor of a round trip is a create by one client and a status write by a second \
         one that watches, seen by a third; where the operator binds what a user made, a further client that watches \
         binds in between. The floor of a rate is create, the binding where there is one, status write, delete, by as \
         many clients in flight, with no program of ours running; the runs, whose floor is the one without a binding, \
         have nearly five writes for each of their calls (run and turns included). The floor of a round is the five \
         writes of a turn with one call, one after the other."
    ));
    table.note(
        "Resident memory is VmRSS of node 0's processes and the operator, program text included; per execution it is \
         the growth while a node is full, before the load."
            .to_owned(),
    );
}

/// The program that makes the load, and who it is.
pub struct Load {
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
        // No operator has stood for election yet, and a binding names a term.
        let term = json!({"spec": {"leaseTransitions": 1}}).to_string();
        cluster.kubectl(&[
            "patch",
            "lease",
            LEADER_LEASE,
            "--namespace",
            NAMESPACE,
            "--type=merge",
            "--patch",
            &term,
        ])?;
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
        let mut talk = self.talk(&["hold", &count.to_string()])?;
        let looked = match talk.line()? {
            line if line == "held" => look(),
            other => bail!("the load could not hold {count} executions: {other:?}"),
        };
        // The end of its input tells it to remove what it made.
        talk.end()?;
        looked
    }

    /// Starts the load and talks with it, line by line.
    pub fn talk(&self, args: &[&str]) -> Result<Talk> {
        eprintln!("bench: load {}", args.join(" "));
        let mut command = self.command(args);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("start {command:?}"))?;
        let lines = BufReader::new(child.stdout.take().context("no pipe to the load")?).lines();
        Ok(Talk { child, lines })
    }
}

/// A load that measures in steps.
pub struct Talk {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Talk {
    /// The next line it says; an error if it ends instead.
    pub fn line(&mut self) -> Result<String> {
        let line = self.lines.next().context("the load ended too early")?;
        line.context("read what the load says")
    }

    /// Lets it go on.
    pub fn go_on(&mut self) -> Result<()> {
        let input = self.child.stdin.as_mut().context("no pipe to the load")?;
        input.write_all(b"\n").context("write to the load")
    }

    /// Ends its input and waits until it has ended well; what it said last.
    pub fn end(mut self) -> Result<String> {
        drop(self.child.stdin.take());
        let mut last = String::new();
        for line in self.lines {
            last = line.context("read what the load says")?;
        }
        let status = self.child.wait().context("wait for the load")?;
        if !status.success() {
            bail!("the load failed with {status}");
        }
        Ok(last)
    }
}

/// The times called `key` in an answer of the load.
pub fn samples(answer: &Value, key: &str) -> Result<Samples> {
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

//! Our own programs beside a control plane, each under the rights of its ServiceAccount.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cgroup::Tree;
use crate::cluster::Cluster;
use crate::install::{self, NAMESPACE, OPERATOR, TOKEN_LIFE};
use crate::ledger::{Ledger, Spec};
use crate::ports::Ports;
use crate::process::Identity;
use crate::programs::Programs;
use crate::wait;

/// First user number of the first node's tools; each node has [`UIDS_PER_NODE`] of its own, so that a
/// tool of one node can never signal a tool of another one on this machine.
const FIRST_UID: u32 = 200_000;
const UIDS_PER_NODE: u32 = 65_536;
/// How long a program may take to say that it is ready.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// How long a program has between SIGTERM and SIGKILL: more than the 30 s in which a supervisor ends and reports what
/// runs on its node.
const GRACE: Duration = Duration::from_secs(40);
/// Our programs beside a control plane.
const OPERATOR_PROGRAM: &str = "fairlead-operator";
const SUPERVISOR_PROGRAM: &str = "fairlead-supervisor";
const AGENT_PROGRAM: &str = "fairlead-node-agent";

/// The programs that run beside one control plane. Unless it is [detached](Stack::detach), what it
/// started ends with it, and its control groups are removed, also if our own process is killed.
#[derive(Debug)]
pub struct Stack {
    dir: PathBuf,
    cluster: Cluster,
    programs: Programs,
    ledger: Ledger,
    ports: Ports,
    groups: Tree,
}

impl Stack {
    /// A stack with its state in `dir` (kubeconfigs, logs, records, spools) and its control groups in
    /// `groups`. Nothing is started yet.
    pub fn open(dir: &Path, cluster: &Cluster, programs: &Programs, groups: Tree) -> Result<Self> {
        let kubeconfigs = dir.join("kubeconfigs");
        fs::create_dir_all(&kubeconfigs).with_context(|| format!("make {}", kubeconfigs.display()))?;
        let dir = dir
            .canonicalize()
            .with_context(|| format!("resolve {}", dir.display()))?;
        let ledger = Ledger::open(&dir)?;
        let ports = Ports::load(&dir.join("metrics-ports.json"))?;
        Ok(Self {
            ledger,
            ports,
            cluster: cluster.clone(),
            programs: programs.clone(),
            groups,
            dir,
        })
    }

    /// Starts an operator called `name` (its process, its leader identity) unless it runs, and gives
    /// whether it was started now. Two of different names stand for election.
    pub fn start_operator(&mut self, name: &str) -> Result<bool> {
        if self.ledger.is_running(name)? {
            return Ok(false);
        }
        let token = install::mint_token(&self.cluster, NAMESPACE, OPERATOR, None, TOKEN_LIFE)?;
        let kubeconfig = self.kubeconfig(name);
        install::kubeconfig_for(&self.cluster, &token, &kubeconfig)?;
        let [port] = self.ports.choose([name])?;
        let spec = Spec {
            name: name.to_owned(),
            program: self.programs.path(OPERATOR_PROGRAM),
            args: flags(&[
                ("--kubeconfig", &kubeconfig.display()),
                ("--namespace", &NAMESPACE),
                ("--identity", &name),
                ("--metrics-addr", &format!("127.0.0.1:{port}")),
            ]),
            env: Vec::new(),
            launcher: false,
        };
        self.ledger.ensure(&spec)
    }

    /// Starts node number `index` unless it runs: its Node, its token, its control group, its spool, and
    /// its supervisor in a PID namespace of its own, which starts the agent. Gives the node's name and
    /// whether it was started now.
    pub fn start_node(&mut self, index: u32) -> Result<(String, bool)> {
        let name = node_name(index);
        if self.ledger.is_running(&name)? {
            return Ok((name, false));
        }
        let token = install::node_identity(&self.cluster, &name)?;
        let kubeconfig = self.kubeconfig(&name);
        install::kubeconfig_for(&self.cluster, &token, &kubeconfig)?;
        let root = self.groups.create(&name)?;
        // The node's own only: what other calls started in the tree stays.
        self.ledger.guard_cgroup(&root)?;
        let spool = self.spool(index);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&spool);
        made.with_context(|| format!("make spool {}", spool.display()))?;
        let [port] = self.ports.choose([name.as_str()])?;
        let users = self.users(index)?;
        let uids = format!("{}-{}", users.start(), users.end());
        let supervisor = self.programs.path(SUPERVISOR_PROGRAM).display().to_string();
        // With --kill-child the namespace, and so every tool in it, dies with the launcher.
        let mut args: Vec<String> = [
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--",
            &supervisor,
        ]
        .map(str::to_owned)
        .to_vec();
        args.extend(flags(&[
            ("--agent", &self.programs.path(AGENT_PROGRAM).display()),
            ("--spool", &spool.display()),
            ("--cgroup-root", &root.display()),
            ("--uid-range", &uids),
        ]));
        args.push("--".to_owned());
        args.extend(flags(&[
            ("--kubeconfig", &kubeconfig.display()),
            ("--node-name", &name),
            ("--namespace", &NAMESPACE),
            ("--spool", &spool.display()),
            ("--cgroup-root", &root.display()),
            ("--metrics-addr", &format!("127.0.0.1:{port}")),
            ("--uid-range", &uids),
        ]));
        let program = "unshare".into();
        let spec = Spec {
            name: name.clone(),
            program,
            args,
            env: Vec::new(),
            launcher: true,
        };
        let started = self.ledger.ensure(&spec)?;
        Ok((name, started))
    }

    /// Waits until the program called `name` answers its readiness probe; fails at once if it ends.
    pub fn wait_ready(&self, name: &str) -> Result<()> {
        let port = self.metrics_port(name)?;
        let last = std::cell::RefCell::new(String::new());
        wait::until(
            &format!("{name} to be ready"),
            READY_LIMIT,
            Duration::from_millis(100),
            || {
                if !self.ledger.is_running(name)? {
                    bail!("{name} ended: {}", self.ledger.log_tail(name));
                }
                let answer = get(port, "/readyz").unwrap_or_else(|error| format!("{error:#}"));
                let ready = answer.split(' ').nth(1) == Some("200");
                last.replace(answer);
                Ok(ready.then_some(()))
            },
            || {
                format!(
                    "/readyz says {:?}; log: {}",
                    last.borrow(),
                    self.ledger.log_tail(name)
                )
            },
        )
    }

    /// The loopback port of a program's metrics and probes.
    pub fn metrics_port(&self, name: &str) -> Result<u16> {
        self.ports
            .get(name)
            .with_context(|| format!("{name} was never started here"))
    }

    /// True while the program called `name`, or the launcher of its namespace, lives; only after that is
    /// it started again.
    pub fn is_running(&self, name: &str) -> Result<bool> {
        self.ledger.is_running(name)
    }

    /// The live process called `name`: an operator, or a node's supervisor.
    pub fn process(&self, name: &str) -> Result<Option<Identity>> {
        self.ledger.process(name)
    }

    /// The live agent of a node: the supervisor's child that runs `fairlead-node-agent`.
    pub fn agent(&self, index: u32) -> Result<Option<Identity>> {
        let Some(supervisor) = self.ledger.process(&node_name(index))? else {
            return Ok(None);
        };
        for child in supervisor.children()? {
            // A link that cannot be read is of a child that just ended.
            let program = fs::read_link(format!("/proc/{}/exe", child.pid)).unwrap_or_default();
            if program
                .file_name()
                // The kernel marks the link so once the file was replaced.
                .is_some_and(|name| name.to_string_lossy().trim_end_matches(" (deleted)") == AGENT_PROGRAM)
            {
                return Ok(Some(child));
            }
        }
        Ok(None)
    }

    /// The numbers of the nodes that run, in order.
    pub fn running_nodes(&self) -> Result<Vec<u32>> {
        let mut running = Vec::new();
        for name in self.ledger.names()? {
            let index = name
                .strip_prefix(NODE_PREFIX)
                .and_then(|index| index.parse().ok());
            if let Some(index) = index
                && self.ledger.is_running(&name)?
            {
                running.push(index);
            }
        }
        running.sort_unstable();
        Ok(running)
    }

    /// The programs of the part called `name` that run and are not the ones that are built now.
    pub fn outdated(&self, name: &str) -> Result<Vec<&'static str>> {
        let index = name
            .strip_prefix(NODE_PREFIX)
            .and_then(|index| index.parse().ok());
        let parts = match index {
            Some(index) => vec![
                (SUPERVISOR_PROGRAM, self.ledger.process(name)?),
                (AGENT_PROGRAM, self.agent(index)?),
            ],
            None => vec![(OPERATOR_PROGRAM, self.ledger.process(name)?)],
        };
        let mut outdated = Vec::new();
        for (program, process) in parts {
            if let Some(process) = process
                && !process.runs(&self.programs.path(program))?
            {
                outdated.push(program);
            }
        }
        Ok(outdated)
    }

    /// Ends the program called `name`: SIGTERM, 40 s of patience, SIGKILL.
    pub fn stop(&mut self, name: &str) -> Result<()> {
        self.ledger.stop(name, GRACE)
    }

    /// The log of the program called `name`.
    pub fn log(&self, name: &str) -> PathBuf {
        self.ledger.log(name)
    }

    /// The kubeconfig of the program called `name`.
    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        self.dir.join("kubeconfigs").join(name)
    }

    /// The spool of node number `index`.
    pub fn spool(&self, index: u32) -> PathBuf {
        self.dir.join("spool").join(node_name(index))
    }

    /// The control group root of node number `index`.
    pub fn cgroup_root(&self, index: u32) -> PathBuf {
        self.groups.path().join(node_name(index))
    }

    /// The user numbers that the tools of node number `index` run as.
    ///
    /// # Errors
    /// A number so high that there are none for it.
    pub fn users(&self, index: u32) -> Result<RangeInclusive<u32>> {
        let first = index
            .checked_mul(UIDS_PER_NODE)
            .and_then(|offset| offset.checked_add(FIRST_UID));
        let last = first.and_then(|first| first.checked_add(UIDS_PER_NODE - 1));
        let range = first.zip(last).map(|(first, last)| first..=last);
        range.with_context(|| format!("there are no user numbers for node {index}"))
    }

    /// Lets the programs live on after this value.
    pub fn detach(mut self) -> Result<()> {
        self.ledger.detach()
    }
}

const NODE_PREFIX: &str = "node-";

/// The name of node number `index`, and of its process and log.
pub fn node_name(index: u32) -> String {
    format!("{NODE_PREFIX}{index}")
}

fn flags(pairs: &[(&str, &dyn std::fmt::Display)]) -> Vec<String> {
    pairs
        .iter()
        .flat_map(|(flag, value)| [(*flag).to_owned(), value.to_string()])
        .collect()
}

/// The answer to a plain HTTP GET on a loopback port, head and body, within 2 s.
fn get(port: u16, path: &str) -> Result<String> {
    let mut stream =
        TcpStream::connect(("127.0.0.1", port)).with_context(|| format!("connect to port {port}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .with_context(|| format!("ask port {port} for {path}"))?;
    let mut answer = Vec::new();
    stream
        .read_to_end(&mut answer)
        .with_context(|| format!("read {path} from port {port}"))?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

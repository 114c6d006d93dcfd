//! Putting the parts together.

use crate::agent::{Agent, Input};
use crate::args::{Args, Isolation};
use crate::executor::Executor;
use crate::host::Host;
use crate::identity_probe::{self, Secrets};
use crate::lease::Ending;
use crate::link::Link;
use crate::metrics::Metrics;
use crate::spool::Spool;
use crate::{lease, sources, start};
use anyhow::{Context, Result, anyhow, bail};
use fairlead_admin::{Readiness, ReadyToken, Shutdown, init_telemetry};
use fairlead_crds::IsolationBackend;
use fairlead_decide::node::{Entry, Node};
use fairlead_installation::Needs;
use fairlead_supervisor::cgroup::{CONTROLLERS, Group, find_own_group};
use fairlead_supervisor::probe::probe;
use fairlead_supervisor::wire::Backend;
use futures::FutureExt;
use futures::future::select_all;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::{JoinError, JoinHandle};

/// The one kind that an agent reads and writes.
const CRD: &str = "toolexecutions.fairlead.dev";
/// Pause before what tools can reach is tried again.
const PROBE_AGAIN: Duration = Duration::from_secs(10);
/// Longest wait at the end for the Lease to say so.
const RELEASE_BOUND: Duration = Duration::from_secs(2);

/// Prints what `root`, by default the own group, can isolate. Success if that is everything.
pub fn check_isolation(root: Option<&Path>) -> ExitCode {
    let root = match root.map_or_else(find_own_group, |root| Ok(root.to_owned())) {
        Ok(root) => root,
        Err(error) => {
            println!(
                "backend: ProcessGroup\nmissing controllers: {}\nreason: {error}",
                CONTROLLERS.join(", ")
            );
            return ExitCode::FAILURE;
        }
    };
    let answer = probe(&root);
    let missing = if answer.missing.is_empty() {
        "none".to_owned()
    } else {
        answer.missing.join(", ")
    };
    println!("cgroup root: {}", root.display());
    println!(
        "backend: {}\nmissing controllers: {missing}",
        backend(answer.backend)
    );
    if let Some(reason) = &answer.reason {
        println!("reason: {reason}");
    }
    if answer.complete() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn backend(backend: Backend) -> IsolationBackend {
    match backend {
        Backend::CgroupV2 => IsolationBackend::CgroupV2,
        Backend::ProcessGroup => IsolationBackend::ProcessGroup,
    }
}

/// Runs the agent until it is told to end.
///
/// # Errors
/// What could not be set up, or that the supervisor is gone.
pub async fn run(args: Args) -> Result<()> {
    // The client library says every failed request once more than we do.
    init_telemetry("info")?;
    let shutdown = Shutdown::on_signals()?;
    // Before anything that may take time: the supervisor kills what runs if it hears of no agent.
    let (link, entries) = Link::open()?;
    let node_name = args.node_name.as_deref().context("--node-name is missing")?;
    let spool = Spool::open(args.spool.as_deref().context("--spool is missing")?)?;
    let node = describe(&args, node_name, &link, &spool)?;
    let missing = node.missing_controllers.join(",");
    tracing::info!(
        node = node.name,
        backend = %node.backend,
        missing,
        incarnation = node.incarnation,
        epoch = node.epoch,
        "node agent"
    );
    let client = connect(args.kubeconfig.as_deref()).await?;
    let host = Host {
        node,
        link,
        spool,
        store_max_bytes: args.store_max_bytes,
        open_files: start::open_files(),
    };
    work(args, Arc::new(host), client, entries, shutdown).await
}

/// The work of an agent whose connections are there.
async fn work(
    args: Args,
    host: Arc<Host>,
    client: Client,
    entries: Vec<Entry>,
    shutdown: Shutdown,
) -> Result<()> {
    let readiness = Readiness::new();
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    let server = fairlead_admin::bind(args.metrics_addr).await?;
    let server = tokio::spawn(server.run(registry, readiness.clone(), shutdown.clone()));

    let (out, inputs) = unbounded_channel();
    let executor = Executor::new(Arc::clone(&host), client.clone(), out.clone());
    let state_read = Arc::new(Notify::new());
    let ready = readiness.token("state-read");
    let told = Arc::clone(&state_read);
    let agent = Agent::new(Arc::clone(&host), executor, metrics, entries, ready, told);
    let secrets = Secrets::new(
        args.kubeconfig.as_deref(),
        host.spool.path(),
        host.link.payload.as_deref(),
    );
    let probe_as = unused_user(&host)?;
    let drain = Duration::from_secs(args.drain_seconds);
    let mut agent = tokio::spawn(agent.run(inputs, shutdown.clone(), drain));
    listen(&host, out.clone())?;

    readiness.token("supervisor").set_ready();
    let (identity, ready) = (readiness.token("tool-identity"), readiness.token("lease"));
    let (to_serve, said) = (client.clone(), Arc::new(Notify::new()));
    let ending = Ending {
        shutdown: shutdown.clone(),
        said: Arc::clone(&said),
    };
    let served = Arc::clone(&host);
    // New work comes once both the probe has shown that tools cannot reach what is ours and the state is read.
    let serve = async move {
        probe_until_safe(secrets, probe_as, identity).await;
        state_read.notified().await;
        lease::keep(to_serve, served, args.namespace, args.capacity, ready, ending).await;
    };
    let needs = Needs {
        program: "node agent",
        crds: vec![CRD.to_owned()],
    };
    let installation = needs.keep_checking(client.clone(), readiness.token("installation"));
    let watch = sources::watch(client, host, out);
    let mut beside = [
        tokio::spawn(installation.map(|()| "the check of the installation")),
        tokio::spawn(watch.map(|()| "the watch of executions")),
        tokio::spawn(serve.map(|()| "the upkeep of the Lease")),
    ];
    let result = tokio::select! {
        ended = &mut agent => ended.context("the agent's loop").and_then(|result| result),
        (ended, ..) = select_all(&mut beside) => Err(ended_early(ended)),
    };
    finish(&result, agent, beside, &said).await;
    shutdown.begin();
    server.await.context("the metrics server")?;
    result
}

type Beside = JoinHandle<&'static str>;

async fn finish(
    result: &Result<()>,
    agent: JoinHandle<Result<()>>,
    beside: [Beside; 3],
    said_in_the_lease: &Notify,
) {
    if result.is_ok() {
        // Until the Lease says that the node takes nothing more, work is bound to it that must wait for the next agent.
        let _ = tokio::time::timeout(RELEASE_BOUND, said_in_the_lease.notified()).await;
    } else if !agent.is_finished() {
        // What runs goes on for the next agent: the loop must not see the shutdown.
        agent.abort();
        let _ = agent.await;
    }
    for task in beside {
        task.abort();
    }
}

/// A user number that no run holds, for the probe.
fn unused_user(host: &Host) -> Result<u32> {
    let taken: BTreeSet<u32> = host.spool.runs()?.into_iter().map(|(_, user)| user).collect();
    let (first, last) = (host.node.first_user, host.node.last_user);
    let unused = (first..=last).rev().find(|user| !taken.contains(user));
    Ok(unused.unwrap_or(last))
}

/// None of the tasks beside the loop ends by itself.
fn ended_early(ended: Result<&'static str, JoinError>) -> anyhow::Error {
    match ended {
        Ok(name) => anyhow!("{name} ended; nothing can go on without it"),
        Err(error) => anyhow!("a task beside the loop died: {error}"),
    }
}

/// Returns once tools cannot reach what is ours. Until then there is no Lease, so new work goes elsewhere; what runs is
/// adopted and reported all the same.
async fn probe_until_safe(secrets: Secrets, user: u32, ready: ReadyToken) {
    let secrets = Arc::new(secrets);
    loop {
        let secrets = Arc::clone(&secrets);
        let probed = tokio::task::spawn_blocking(move || identity_probe::probe(&secrets, user)).await;
        match probed.context("the identity probe").and_then(|result| result) {
            Ok(()) => return ready.set_ready(),
            Err(error) => ready.set_not_ready(format!("{error:#}")),
        }
        tokio::time::sleep(PROBE_AGAIN).await;
    }
}

/// A thread of its own reads the supervisor's socket: waiting for it in the runtime would need `unsafe`.
fn listen(host: &Arc<Host>, out: UnboundedSender<Input>) -> Result<()> {
    let host = Arc::clone(host);
    let thread = std::thread::Builder::new()
        .name("supervisor-events".to_owned())
        .stack_size(128 * 1024);
    // However the thread ends, the loop hears of it.
    let end = Hangup(out.clone());
    let read = move || {
        let _end = end;
        host.link.read_all(|said| out.send(Input::Said(said)).is_ok());
    };
    thread
        .spawn(read)
        .context("start the thread that reads the supervisor's events")?;
    Ok(())
}

/// Tells the loop on being dropped that the supervisor is not heard any more.
struct Hangup(UnboundedSender<Input>);

impl Drop for Hangup {
    fn drop(&mut self) {
        // Without a receiver the loop has ended already.
        let _ = self.0.send(Input::Said(None));
    }
}

async fn connect(kubeconfig: Option<&Path>) -> Result<Client> {
    let config = match kubeconfig {
        Some(path) => {
            let read =
                Kubeconfig::read_from(path).with_context(|| format!("read kubeconfig {}", path.display()))?;
            let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
            config.with_context(|| format!("use kubeconfig {}", path.display()))?
        }
        None => {
            Config::incluster().context("use the Pod's ServiceAccount; outside a Pod give --kubeconfig")?
        }
    };
    Client::try_from(config).context("make the API client")
}

fn describe(args: &Args, name: &str, link: &Link, spool: &Spool) -> Result<Node> {
    let missing = match &link.payload {
        // Said by the supervisor already; here it is read, and nothing is left to be switched on.
        Some(payload) => Group::at(payload)
            .enable_controllers()
            .context("read the controllers of the payload group")?,
        None => CONTROLLERS.to_vec(),
    };
    let backend = backend(link.backend);
    match args.isolation {
        Isolation::Required if backend != IsolationBackend::CgroupV2 || !missing.is_empty() => bail!(
            "--isolation required: backend {backend}, missing controllers {}; --check-isolation says more",
            missing.join(", ")
        ),
        Isolation::ProcessGroup if backend != IsolationBackend::ProcessGroup => {
            bail!(
                "--isolation process-group: the supervisor uses {backend}; start it with --backend process-group"
            )
        }
        _ => {}
    }
    Ok(Node {
        name: name.to_owned(),
        incarnation: spool.incarnation()?,
        backend,
        missing_controllers: missing.into_iter().map(str::to_owned).collect(),
        first_user: args.uid_range.first,
        last_user: args.uid_range.last,
        epoch: link.epoch,
    })
}

//! The operator: runs the agent loop, admits and places tool calls, keeps the status of every run.
//!
//! All decisions are made by `fairlead_decide::cluster`; this crate observes, carries out, and keeps leadership.

pub mod clock;
pub mod config;
mod controller;
mod execute;
pub mod lease;
mod metrics;
pub mod provider;
mod refusal;
mod secrets;
mod sources;
mod write;

use anyhow::{Context, Result, anyhow};
use clock::Clock;
use config::Config;
use controller::Controller;
use execute::Executor;
use fairlead_admin::{Readiness, Shutdown};
use fairlead_crds::all_crds;
use fairlead_crds::names::LEADER_LEASE;
use fairlead_decide::cluster::World;
use fairlead_installation::Needs;
use kube::{Api, Client};
use lease::{Election, Leadership};
use metrics::Metrics;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Observations of the watches that may wait to be taken in; a watch that is ahead waits.
const WATCHED_AHEAD: usize = 1024;

/// Runs the operator until `shutdown`.
///
/// # Errors
/// When the metrics address cannot be bound, or a part ends that should not.
pub async fn run(config: Config, client: Client, shutdown: Shutdown) -> Result<()> {
    let mut registry = Registry::default();
    let metrics = Arc::new(Metrics::new(&mut registry));
    let readiness = Readiness::new();
    let clock = Arc::new(Clock::default());
    let (lead, leadership) = watch::channel(Leadership::Follower);
    let (watched_in, watched) = mpsc::channel(WATCHED_AHEAD);
    let (results_in, results) = mpsc::unbounded_channel();
    let server = fairlead_admin::bind(config.metrics_addr).await?;
    tracing::info!(address = %server.address(), "probes and metrics");

    let grantee = format!("{}:fairlead-operator", config.namespace);
    let executor = Executor::new(
        client.clone(),
        grantee,
        leadership.clone(),
        results_in,
        Arc::clone(&clock),
        Arc::clone(&metrics),
    );
    let controller = Controller {
        world: World::new(config.settings()),
        executor,
        clock,
        metrics,
        leadership,
        watched,
        results,
        ready: readiness.token("watches"),
    };
    let election = election(&config, &client);
    let installed = readiness.token("installation");

    let mut parts = tokio::task::JoinSet::new();
    parts.spawn(sources::watch_all(
        client.clone(),
        config.namespace.clone(),
        config.node_capacity,
        watched_in,
    ));
    parts.spawn(needs().keep_checking(client, installed));
    // Leadership is given back last: the loop has stopped, and its writes had their time. One that is still on its way is
    // refused by its version or its term.
    let mut deciding = tokio::spawn(controller.run(shutdown.token()));
    let stop_election = tokio_util::sync::CancellationToken::new();
    let mut electing = tokio::spawn(election.run(lead, stop_election.clone()));
    let mut serving = tokio::spawn(server.run(registry, readiness, shutdown.clone()));

    // A part that ends early ends the process: a leader that decides nothing would keep every other from leading.
    let early = tokio::select! {
        // First: parts that end because of the shutdown have not ended early.
        biased;
        () = shutdown.wait() => None,
        ended = parts.join_next() => Some(anyhow!("a watch or check ended: {ended:?}")),
        ended = &mut deciding => return Err(anyhow!("the loop ended: {ended:?}")),
        ended = &mut electing => return Err(anyhow!("the leader election ended: {ended:?}")),
        ended = &mut serving => return Err(anyhow!("the probes ended: {ended:?}")),
    };
    shutdown.begin();
    deciding.await.context("the loop")?;
    stop_election.cancel();
    electing.await.context("the leader election")?;
    serving.await.context("the probes")?;
    early.map_or(Ok(()), Err)
}

/// What of the chart this program cannot do without.
fn needs() -> Needs {
    let crds = all_crds().into_iter().filter_map(|crd| crd.metadata.name);
    Needs {
        program: "operator",
        crds: crds.collect(),
    }
}

/// This process as a candidate of its own, also when another one of the same name has just ended.
fn election(config: &Config, client: &Client) -> Election {
    let identity = format!("{}-{:08x}", config.identity, rand::random::<u32>());
    let leases = Api::namespaced(client.clone(), &config.namespace);
    Election::new(leases, LEADER_LEASE, identity)
}

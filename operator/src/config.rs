//! Flags of the operator.

use clap::Parser;
use fairlead_decide::cluster::Settings;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Runs the agent loop: calls models, admits and places tool calls, keeps the status of every run.
#[derive(Clone, Debug, Parser)]
#[command(name = "fairlead-operator", version)]
pub struct Config {
    /// Kubeconfig file; without it the Pod's ServiceAccount is used, or what kubectl would use.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,

    /// Namespace Fairlead is installed in: its leader Lease and the Leases of its node agents stand there.
    #[arg(long, default_value = "fairlead-system")]
    pub namespace: String,

    /// Name of this replica in the leader Lease; a random suffix is added, so that each start is a candidate of its own.
    #[arg(long, default_value = "operator")]
    pub identity: String,

    /// Address of the probes and the metrics.
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub metrics_addr: SocketAddr,

    /// Executions a node runs at once where its Lease names no capacity of its own. 1 to 10,000.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub node_capacity: u32,

    /// Seconds without a move of its Lease after which a node's executions are orphaned. 60 to 86,400.
    #[arg(long, default_value_t = 330, value_parser = clap::value_parser!(i64).range(60..=86_400))]
    pub orphan_after_seconds: i64,

    /// Seconds a user's own execution waits for a place on a node before it ends unstarted. 60 to 604,800.
    #[arg(long, default_value_t = 3600, value_parser = clap::value_parser!(i64).range(60..=604_800))]
    pub queue_timeout_seconds: i64,
}

impl Config {
    /// The bounds the core decides by.
    pub fn settings(&self) -> Settings {
        Settings {
            orphan_after_seconds: self.orphan_after_seconds,
            queue_seconds: self.queue_timeout_seconds,
            ..Settings::default()
        }
    }
}

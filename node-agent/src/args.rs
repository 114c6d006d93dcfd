//! The command line.

use clap::{Parser, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Executes the tool executions bound to this node. Started by fairlead-supervisor, which is the parent of all tools.
#[derive(Clone, Debug, Parser)]
#[command(name = "fairlead-node-agent", version)]
pub struct Args {
    /// Kubeconfig file; without it the ServiceAccount of the Pod.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of this node, as in `spec.binding.nodeName`.
    #[arg(
        long,
        value_name = "NAME",
        env = "NODE_NAME",
        required_unless_present = "check_isolation"
    )]
    pub node_name: Option<String>,
    /// Namespace of the installation, which holds the node's Lease.
    #[arg(long, value_name = "NAME", default_value = "fairlead-system")]
    pub namespace: String,
    /// Directory of slots, outputs and run directories; the same as the supervisor's.
    #[arg(long, value_name = "DIR", required_unless_present = "check_isolation")]
    pub spool: Option<PathBuf>,
    /// cgroup v2 directory below which groups are made; the group of this process by default.
    #[arg(long, value_name = "DIR")]
    pub cgroup_root: Option<PathBuf>,
    /// Address of probes and metrics.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9465")]
    pub metrics_addr: SocketAddr,
    /// User numbers that runs are given, one each; the same as the supervisor's.
    #[arg(long, value_name = "FIRST-LAST", default_value = "60000-64999")]
    pub uid_range: UidRange,
    /// How many executions this node takes at once. 1 to 10,000.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub capacity: u32,
    /// What must keep executions apart.
    #[arg(long, value_enum, default_value = "auto")]
    pub isolation: Isolation,
    /// Bytes of one execution's output that are kept on the node. 65,536 to 1,099,511,627,776.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30,
          value_parser = clap::value_parser!(u64).range(65_536..=1 << 40))]
    pub store_max_bytes: u64,
    /// Seconds from SIGTERM until the agent ends although ends are not reported yet; less than the supervisor's. 0 to
    /// 86,400.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub drain_seconds: u64,
    /// Print what this machine can isolate, and end: 0 if everything is there, 1 if not.
    #[arg(long)]
    pub check_isolation: bool,
}

/// What must keep executions apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Isolation {
    /// The best there is.
    Auto,
    /// cgroup v2 with memory, pids and cpu, or the agent ends.
    Required,
    /// Process groups. Also needs the supervisor's `--backend process-group`.
    ProcessGroup,
}

/// A range of user numbers without 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UidRange {
    /// First number.
    pub first: u32,
    /// Last number.
    pub last: u32,
}

impl FromStr for UidRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = text.split_once('-').and_then(|(first, last)| {
            Some(Self {
                first: first.parse().ok()?,
                last: last.parse().ok()?,
            })
        });
        range
            .filter(|range| range.first > 0 && range.first <= range.last && range.last < u32::MAX)
            .ok_or_else(|| format!("{text}: expected FIRST-LAST with 1 <= FIRST <= LAST < 4294967295"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let parse =
            |line: &str| Args::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string());
        assert!(parse("a --node-name n --spool /s --uid-range 5-9").is_ok());
        assert!(parse("a --check-isolation").is_ok());
        for (line, needle) in [
            ("a --node-name n", "--spool"),
            ("a --node-name n --spool /s --uid-range 0-9", "0-9: expected"),
            ("a --node-name n --spool /s --uid-range 9-5", "9-5: expected"),
            ("a --node-name n --spool /s --capacity 0", "--capacity"),
            ("a --node-name n --spool /s --isolation some", "--isolation"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(needle), "{line}: {error}");
        }
    }
}

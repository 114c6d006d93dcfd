//! Resident memory, as the kernel counts it.

use std::fs;

use anyhow::{Context, Result};

use crate::process::Identity;
use crate::stack::{Stack, node_name};

/// Memory of the machine in MiB.
pub fn total_mib() -> Result<u64> {
    Ok(kib("/proc/meminfo", "MemTotal:")? / 1024)
}

/// `VmRSS` of a process in KiB (proc_pid_status(5)): all its resident pages, also those of files that others share.
fn rss_kib(process: &Identity) -> Result<u64> {
    kib(&format!("/proc/{}/status", process.pid), "VmRSS:")
}

fn kib(path: &str, key: &str) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    value(&text, key).with_context(|| format!("{path} has no line {key}"))
}

fn value(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// Resident memory of the parts in KiB; of a node's, node 0.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// The operator.
    pub operator: u64,
    /// The supervisor.
    pub supervisor: u64,
    /// The supervisor's pump.
    pub pump: u64,
    /// The node agent.
    pub agent: u64,
}

impl Memory {
    /// As it is now; `operator` is that program's name.
    ///
    /// # Errors
    /// One of them does not run.
    pub fn read(stack: &Stack, operator: &str) -> Result<Self> {
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
                pump += rss_kib(&child)?;
            }
        }
        Ok(Self {
            operator: rss_kib(&of(operator)?)?,
            supervisor: rss_kib(&supervisor)?,
            pump,
            agent: rss_kib(&agent)?,
        })
    }
}

impl Memory {
    /// The larger value of each part.
    pub fn max(self, other: Self) -> Self {
        Self {
            operator: self.operator.max(other.operator),
            supervisor: self.supervisor.max(other.supervisor),
            pump: self.pump.max(other.pump),
            agent: self.agent.max(other.agent),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_is_read_by_its_key() {
        let text = "Name:\tx\nVmRSS:\t    1234 kB\nRssAnon:\t 1 kB\n";
        assert_eq!(super::value(text, "VmRSS:"), Some(1_234));
        assert_eq!(super::value(text, "VmHWM:"), None);
    }
}

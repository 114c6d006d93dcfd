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
    /// The inits of the calls that run, together; of pages that they share with others, a share only.
    pub inits: u64,
}

/// What the pump and the inits of calls call themselves (`PR_SET_NAME`); they run the supervisor's program.
const PUMP: &str = "fairlead-pump";
const INIT: &str = "fairlead-init";

/// `Pss` of a process in KiB (proc_pid_smaps(5)); 0 if it has ended: calls come and go.
fn pss_kib(process: &Identity) -> u64 {
    kib(&format!("/proc/{}/smaps_rollup", process.pid), "Pss:").unwrap_or(0)
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
        let (mut pump, mut inits) = (0, 0);
        for child in supervisor.children()? {
            let name = fs::read_to_string(format!("/proc/{}/comm", child.pid)).unwrap_or_default();
            match name.trim_end() {
                PUMP => pump += rss_kib(&child)?,
                INIT => inits += pss_kib(&child),
                _ => {}
            }
        }
        Ok(Self {
            inits,
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
            inits: self.inits.max(other.inits),
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

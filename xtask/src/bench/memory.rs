//! Resident memory, as the kernel counts it.

use std::fs;

use anyhow::{Context, Result};

use crate::process::Identity;

/// Memory of the machine in MiB.
pub fn total_mib() -> Result<u64> {
    Ok(kib("/proc/meminfo", "MemTotal:")? / 1024)
}

/// `VmRSS` of a process in KiB (proc_pid_status(5)): all its resident pages, also those of files that others share.
pub fn rss_kib(process: &Identity) -> Result<u64> {
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

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_is_read_by_its_key() {
        let text = "Name:\tx\nVmRSS:\t    1234 kB\nRssAnon:\t 1 kB\n";
        assert_eq!(super::value(text, "VmRSS:"), Some(1_234));
        assert_eq!(super::value(text, "VmHWM:"), None);
    }
}

//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

/// Printed by `--help` and after a wrong command line.
pub(crate) const USAGE: &str = "\
usage: fairlead-supervisor --agent PATH --spool DIR [options] [-- AGENT-ARGUMENT...]

  --agent PATH              program to run and restart as the node agent
  --spool DIR               directory of slots and output; made if missing, locked while running
  --cgroup-root DIR         cgroup v2 directory below which groups are made (default: the own group)
  --backend NAME            auto (default), cgroup-v2 or process-group
  --uid-range A-B           users and groups tools may run as (default 60000-64999); never 0
  --hide DIR                directory that private mount namespaces hide; repeatable, spool is always hidden
  --adopt-seconds N         empty all groups when no agent lived for this long (1-3600, default 10)
  --heartbeat-seconds N     kill and restart an agent that is silent for this long (2-3600, default 10)
  --drain-seconds N         on SIGTERM wait this long for the agent to end (0-86400, default 30)";

/// Which way of keeping processes together is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackendChoice {
    /// cgroup v2 if it works, else process groups.
    Auto,
    /// cgroup v2 or nothing.
    CgroupV2,
    /// Process groups.
    ProcessGroup,
}

/// All settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) agent: PathBuf,
    pub(crate) agent_args: Vec<OsString>,
    pub(crate) spool: PathBuf,
    pub(crate) cgroup_root: Option<PathBuf>,
    pub(crate) backend: BackendChoice,
    pub(crate) uid_first: u32,
    pub(crate) uid_last: u32,
    pub(crate) hide: Vec<PathBuf>,
    pub(crate) adopt_ms: u64,
    pub(crate) heartbeat_ms: u64,
    pub(crate) drain_ms: u64,
}

/// Reads the arguments after the program name. `Ok(None)` = help was asked for.
///
/// # Errors
/// A sentence naming the option and what is wrong with its value.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Option<Config>, String> {
    let mut args = args.into_iter();
    let (mut agent, mut spool) = (None, None);
    let mut config = Config {
        agent: PathBuf::new(),
        agent_args: Vec::new(),
        spool: PathBuf::new(),
        cgroup_root: None,
        backend: BackendChoice::Auto,
        uid_first: 60_000,
        uid_last: 64_999,
        hide: Vec::new(),
        adopt_ms: 10_000,
        heartbeat_ms: 10_000,
        drain_ms: 30_000,
    };
    while let Some(arg) = args.next() {
        let name = arg.to_string_lossy().into_owned();
        if name == "--" {
            config.agent_args = args.collect();
            break;
        }
        if name == "--help" {
            return Ok(None);
        }
        let mut value = || args.next().ok_or_else(|| format!("{name} needs a value"));
        match name.as_str() {
            "--agent" => agent = Some(absolute(&name, value()?)?),
            "--spool" => spool = Some(absolute(&name, value()?)?),
            "--cgroup-root" => config.cgroup_root = Some(absolute(&name, value()?)?),
            "--hide" => config.hide.push(absolute(&name, value()?)?),
            "--backend" => config.backend = backend(&value()?.to_string_lossy())?,
            "--uid-range" => (config.uid_first, config.uid_last) = uid_range(&value()?.to_string_lossy())?,
            "--adopt-seconds" => config.adopt_ms = seconds(&name, &value()?.to_string_lossy(), 1, 3_600)?,
            "--heartbeat-seconds" => {
                config.heartbeat_ms = seconds(&name, &value()?.to_string_lossy(), 2, 3_600)?
            }
            "--drain-seconds" => config.drain_ms = seconds(&name, &value()?.to_string_lossy(), 0, 86_400)?,
            other => return Err(format!("unknown option {other}")),
        }
    }
    config.agent = agent.ok_or("--agent is required")?;
    config.spool = spool.ok_or("--spool is required")?;
    Ok(Some(config))
}

/// The supervisor changes its working directory, so every path must stand on its own.
fn absolute(name: &str, value: OsString) -> Result<PathBuf, String> {
    let path = PathBuf::from(value);
    std::path::absolute(&path).map_err(|e| format!("{name} {}: {e}", path.display()))
}

fn backend(value: &str) -> Result<BackendChoice, String> {
    match value {
        "auto" => Ok(BackendChoice::Auto),
        "cgroup-v2" => Ok(BackendChoice::CgroupV2),
        "process-group" => Ok(BackendChoice::ProcessGroup),
        other => Err(format!(
            "--backend {other}: expected auto, cgroup-v2 or process-group"
        )),
    }
}

fn uid_range(value: &str) -> Result<(u32, u32), String> {
    let bad = || format!("--uid-range {value}: expected FIRST-LAST with 1 <= FIRST <= LAST < 4294967295");
    let (first, last) = value.split_once('-').ok_or_else(bad)?;
    let (first, last): (u32, u32) = (
        first.parse().map_err(|_| bad())?,
        last.parse().map_err(|_| bad())?,
    );
    // The highest number means "no change" to the kernel.
    if first == 0 || first > last || last == u32::MAX {
        Err(bad())
    } else {
        Ok((first, last))
    }
}

fn seconds(name: &str, value: &str, least: u64, most: u64) -> Result<u64, String> {
    match value.parse::<u64>() {
        Ok(n) if (least..=most).contains(&n) => Ok(n * 1_000),
        _ => Err(format!(
            "{name} {value}: expected whole seconds from {least} to {most}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<Option<Config>, String> {
        parse(args.iter().map(OsString::from))
    }

    #[test]
    fn options_and_agent_arguments_are_read() {
        let line = "--agent /a --spool /s --uid-range 5-9 --hide /x --hide /y --adopt-seconds 3 \
                    --backend process-group --drain-seconds 0 -- --flag v";
        let args: Vec<&str> = line.split_whitespace().collect();
        let config = read(&args).expect("valid").expect("not help");
        assert_eq!(
            (
                config.uid_first,
                config.uid_last,
                config.adopt_ms,
                config.drain_ms
            ),
            (5, 9, 3_000, 0)
        );
        assert_eq!(config.hide, [PathBuf::from("/x"), PathBuf::from("/y")]);
        assert_eq!(config.agent_args, ["--flag", "v"]);
        assert_eq!(config.backend, BackendChoice::ProcessGroup);
        assert_eq!(read(&["--help"]), Ok(None));
    }

    #[test]
    fn wrong_lines_name_the_option() {
        for (args, needle) in [
            (&["--spool", "/s"][..], "--agent is required"),
            (&["--agent", "/a"], "--spool is required"),
            (&["--agent"], "--agent needs a value"),
            (&["--what", "x"], "unknown option --what"),
            (&["--uid-range", "0-5"], "--uid-range 0-5"),
            (&["--uid-range", "9-5"], "--uid-range 9-5"),
            (&["--uid-range", "1-4294967295"], "--uid-range"),
            (&["--adopt-seconds", "0"], "from 1 to 3600"),
            (&["--heartbeat-seconds", "ten"], "--heartbeat-seconds ten"),
            (&["--backend", "docker"], "--backend docker"),
        ] {
            let error = read(args).expect_err("refused");
            assert!(error.contains(needle), "{args:?}: {error}");
        }
    }
}

//! Background processes with a record on disk, so that a later call finds them again and never
//! mistakes a stranger for one of them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::process::Identity;
use crate::watchdog::Watchdog;

/// A process to start.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its name in the ledger and of its log.
    pub name: String,
    /// The program, by path or looked up on `PATH`.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables added to our own environment.
    pub env: Vec<(String, String)>,
    /// True for a launcher (`unshare --fork`) whose one child is the process meant: a request to end
    /// goes to that child, since the launcher passes none on.
    pub launcher: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    #[serde(flatten)]
    identity: Identity,
    launcher: bool,
    argv: Vec<String>,
}

/// The processes of one state directory: a record in `pids/NAME.json` and a log in `logs/NAME.log` each.
///
/// As long as [`Ledger::detach`] was not called, what this ledger started ends with it, also if our
/// process is killed.
#[derive(Debug)]
pub struct Ledger {
    pids: PathBuf,
    logs: PathBuf,
    children: BTreeMap<String, Child>,
    watchdog: Option<Watchdog>,
}

impl Ledger {
    /// Opens the ledger of `dir`, which is made if it is missing.
    pub fn open(dir: &Path) -> Result<Self> {
        let (pids, logs) = (dir.join("pids"), dir.join("logs"));
        for directory in [&pids, &logs] {
            fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        }
        Ok(Self {
            pids,
            logs,
            children: BTreeMap::new(),
            watchdog: Some(Watchdog::start()?),
        })
    }

    /// Starts `spec` unless it runs; true if it was started now.
    pub fn ensure(&mut self, spec: &Spec) -> Result<bool> {
        if self.identity(&spec.name)?.is_some() {
            return Ok(false);
        }
        self.reap(&spec.name);
        let log = self.log(&spec.name);
        let output = OpenOptions::new().create(true).append(true).open(&log);
        let output = output.with_context(|| format!("open log {}", log.display()))?;
        let errors: File = output
            .try_clone()
            .with_context(|| format!("duplicate log {}", log.display()))?;
        let child = Command::new(&spec.program)
            .args(&spec.args)
            .envs(spec.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {} ({})", spec.name, spec.program.display()))?;
        let identity = Identity::of(child.id())?;
        self.children.insert(spec.name.clone(), child);
        let Some(identity) = identity else {
            bail!(
                "{} ended as soon as it was started; its log says: {}",
                spec.name,
                self.log_tail(&spec.name)
            );
        };
        if let Some(watchdog) = &mut self.watchdog {
            watchdog.process(identity.pid, identity.start_ticks)?;
        }
        let argv = std::iter::once(spec.program.display().to_string())
            .chain(spec.args.iter().cloned())
            .collect();
        let record = Record {
            identity,
            launcher: spec.launcher,
            argv,
        };
        let path = self.record_path(&spec.name);
        fs::write(&path, serde_json::to_vec_pretty(&record)?)
            .with_context(|| format!("write {}", path.display()))?;
        Ok(true)
    }

    /// The live process of this name, if there is one. Of a launcher it is the process it launched.
    pub fn process(&self, name: &str) -> Result<Option<Identity>> {
        let Some(record) = self.record(name)? else {
            return Ok(None);
        };
        if !record.identity.is_alive()? {
            return Ok(None);
        }
        Ok(if record.launcher {
            record.identity.children()?.pop()
        } else {
            Some(record.identity)
        })
    }

    /// The live process started under this name, be it a launcher or not.
    fn identity(&self, name: &str) -> Result<Option<Identity>> {
        let Some(record) = self.record(name)? else {
            return Ok(None);
        };
        Ok(record.identity.is_alive()?.then_some(record.identity))
    }

    /// True while the process started under this name lives.
    pub fn is_running(&self, name: &str) -> Result<bool> {
        Ok(self.identity(name)?.is_some())
    }

    /// All names with a record, of dead processes too, in alphabetical order.
    pub fn names(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(&self.pids).with_context(|| format!("list {}", self.pids.display()))?;
        let mut names = Vec::new();
        for entry in entries {
            let path = entry
                .with_context(|| format!("list {}", self.pids.display()))?
                .path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            if let (Some(stem), true) = (stem, path.extension().is_some_and(|end| end == "json")) {
                names.push(stem.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Ends the process of this name: SIGTERM, at most `grace` of patience, SIGKILL. Its record goes
    /// when it is gone. With no patience at all it is killed at once.
    pub fn stop(&mut self, name: &str, grace: Duration) -> Result<()> {
        if let Some(started) = self.identity(name)? {
            let process = self.process(name)?.unwrap_or_else(|| started.clone());
            if !grace.is_zero() {
                process.signal(Signal::TERM)?;
                started.wait(grace)?;
            }
            started.signal(Signal::KILL)?;
            for dying in [&started, &process] {
                if !dying.wait(Duration::from_secs(10))? {
                    bail!("{name} (process {}) does not die of SIGKILL", dying.pid);
                }
            }
        }
        self.reap(name);
        match fs::remove_file(self.record_path(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove {}", self.record_path(name).display()))
            }
            _ => Ok(()),
        }
    }

    /// Has a control group killed and removed if this ledger ends before it is detached; see
    /// [`Watchdog::cgroup`].
    pub fn guard_cgroup(&mut self, path: &Path) -> Result<()> {
        match &mut self.watchdog {
            Some(watchdog) => watchdog.cgroup(path),
            None => Ok(()),
        }
    }

    /// Lets everything live on after this ledger.
    pub fn detach(&mut self) -> Result<()> {
        match self.watchdog.take() {
            Some(watchdog) => watchdog.release(),
            None => Ok(()),
        }
    }

    /// The log of this name.
    pub fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    /// The last lines of a log, for an error message.
    pub fn log_tail(&self, name: &str) -> String {
        let path = self.log(name);
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => return format!("(cannot read {}: {error})", path.display()),
        };
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(8)..).unwrap_or_default();
        format!("{}\n(whole log: {})", tail.join("\n"), path.display())
    }

    fn record_path(&self, name: &str) -> PathBuf {
        self.pids.join(format!("{name}.json"))
    }

    fn record(&self, name: &str) -> Result<Option<Record>> {
        let path = self.record_path(name);
        match fs::read(&path) {
            Ok(bytes) => {
                let record =
                    serde_json::from_slice(&bytes).with_context(|| format!("parse {}", path.display()))?;
                Ok(Some(record))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }

    /// Takes the exit status of a child of ours that is dead or no longer on record; it stays a zombie
    /// otherwise.
    fn reap(&mut self, name: &str) {
        if let Some(mut child) = self.children.remove(name) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        if self.watchdog.is_none() {
            return;
        }
        let names: Vec<String> = self.children.keys().cloned().collect();
        for name in names {
            if let Err(error) = self.stop(&name, Duration::ZERO) {
                eprintln!("stop {name}: {error:#}");
            }
        }
    }
}

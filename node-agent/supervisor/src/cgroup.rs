//! cgroup v2 groups (kernel: `Documentation/admin-guide/cgroup-v2.rst`).
//!
//! Errors name the attempted act with path and value. No path is assumed: everything lies below a
//! directory the caller gives, so a temporary directory can stand in for reading and writing.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use crate::cgroup_find::{check_root, find_own_group, own_group};

/// Controllers that limits need.
pub const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// A failed act on a group.
#[derive(Debug)]
pub struct Error {
    /// What was attempted, with path and value.
    pub act: String,
    /// Why it failed.
    pub source: io::Error,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.act, self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl Error {
    /// The error number, where the kernel gave one.
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

/// Result of an act on a group.
pub type Result<T> = std::result::Result<T, Error>;

fn act<T>(result: io::Result<T>, act: impl FnOnce() -> String) -> Result<T> {
    result.map_err(|source| Error { act: act(), source })
}

/// Limits of a group. `None` leaves the kernel's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// `memory.max` in bytes; the kernel rounds down to whole pages. Sets `memory.swap.max` to 0, so that
    /// the limit is one, and `memory.oom.group` to 1, so that the group dies as a whole.
    pub memory_max: Option<u64>,
    /// `pids.max`: processes and threads.
    pub pids_max: Option<u64>,
    /// `cpu.max` in thousandths of one CPU, over periods of 100 ms.
    pub cpu_max_millis: Option<u64>,
}

/// `memory.events` or `memory.events.local`: counters since the group was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryEvents {
    /// Times the limit was about to be exceeded.
    pub max: u64,
    /// Times allocation was about to fail.
    pub oom: u64,
    /// Kills by any OOM killer, also one that a limit further up called.
    pub oom_kill: u64,
    /// Times the whole group was killed by the OOM killer.
    pub oom_group_kill: u64,
}

/// What a group used, read after it is empty and before it is removed. `None` where the kernel has no
/// such file or the controller is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// `cpu.stat` `usage_usec`, there without the controller too; 0 proves that nothing ever ran.
    pub cpu_usec: Option<u64>,
    /// `memory.peak` in bytes (kernel 5.19 and later).
    pub memory_peak: Option<u64>,
    /// `pids.peak` (kernel 6.1 and later).
    pub pids_peak: Option<u64>,
    /// `memory.events`.
    pub memory_events: Option<MemoryEvents>,
}

/// A directory of a cgroup v2 hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Names an existing group.
    pub fn at(path: impl Into<PathBuf>) -> Group {
        Group { path: path.into() }
    }

    /// Makes a new group; it must not exist, since a group that was once killed is never reused.
    ///
    /// # Errors
    /// Those of `mkdir(2)`.
    pub fn create(path: impl Into<PathBuf>) -> Result<Group> {
        let path = path.into();
        act(fs::create_dir(&path), || format!("make group {}", path.display()))?;
        Ok(Group { path })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The group of that name below this one.
    pub fn child(&self, name: &str) -> Group {
        Group {
            path: self.path.join(name),
        }
    }

    /// Opens the directory, for `CLONE_INTO_CGROUP`.
    ///
    /// # Errors
    /// Those of `open(2)`.
    pub fn open(&self) -> Result<OwnedFd> {
        let file = act(File::open(&self.path), || {
            format!("open group {}", self.path.display())
        })?;
        Ok(file.into())
    }

    /// Writes one control file.
    ///
    /// # Errors
    /// Those of `open(2)` and `write(2)`, with path and value.
    pub fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.path.join(file);
        // One write, and never create: a missing file means a missing controller.
        let result = fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut f| io::Write::write_all(&mut f, value.as_bytes()));
        act(result, || format!("write {value:?} to {}", path.display()))
    }

    /// Reads one control file, without the last line end.
    ///
    /// # Errors
    /// Those of `open(2)` and `read(2)`, with the path.
    pub fn read(&self, file: &str) -> Result<String> {
        let path = self.path.join(file);
        let text = act(fs::read_to_string(&path), || format!("read {}", path.display()))?;
        Ok(text.trim_end().to_owned())
    }

    /// Writes a limit and reads it back. `expected` is what the kernel must then hold.
    ///
    /// # Errors
    /// As [`Group::write`]; `InvalidData` if another value stands there afterwards.
    pub fn write_checked(&self, file: &str, value: &str, expected: &str) -> Result<()> {
        self.write(file, value)?;
        let found = self.read(file)?;
        if found == expected {
            return Ok(());
        }
        let source = io::Error::new(io::ErrorKind::InvalidData, format!("reads back as {found:?}"));
        Err(Error {
            act: format!("write {value:?} to {}", self.path.join(file).display()),
            source,
        })
    }

    /// Writes and reads back all limits that are set.
    ///
    /// # Errors
    /// The first that could not be set: the execution must then not start.
    pub fn set_limits(&self, limits: &Limits) -> Result<()> {
        if let Some(bytes) = limits.memory_max {
            let page = page_size();
            let held = (bytes / page * page).to_string();
            self.write_checked("memory.max", &bytes.to_string(), &held)?;
            self.write_checked("memory.oom.group", "1", "1")?;
            // Absent where the kernel has no swap accounting; then there is nothing to limit.
            if self.path.join("memory.swap.max").exists() {
                self.write_checked("memory.swap.max", "0", "0")?;
            }
        }
        if let Some(pids) = limits.pids_max {
            self.write_checked("pids.max", &pids.to_string(), &pids.to_string())?;
        }
        if let Some(millis) = limits.cpu_max_millis {
            let value = format!("{} 100000", millis.saturating_mul(100));
            self.write_checked("cpu.max", &value, &value)?;
        }
        Ok(())
    }

    /// Which of [`CONTROLLERS`] the group itself has.
    ///
    /// # Errors
    /// Those of reading `cgroup.controllers`.
    pub fn controllers(&self) -> Result<Vec<&'static str>> {
        Ok(known(&self.read("cgroup.controllers")?))
    }

    /// Hands the controllers this group has on to its children. Returns those of [`CONTROLLERS`] that the
    /// children do not have in the end.
    ///
    /// # Errors
    /// Those of reading the two control files, and of the first write that was refused (EBUSY: processes
    /// live in this very group).
    pub fn enable_controllers(&self) -> Result<Vec<&'static str>> {
        let enabled = known(&self.read("cgroup.subtree_control")?);
        for name in self.controllers()? {
            if !enabled.contains(&name) {
                self.write("cgroup.subtree_control", &format!("+{name}"))?;
            }
        }
        let enabled = known(&self.read("cgroup.subtree_control")?);
        Ok(CONTROLLERS
            .into_iter()
            .filter(|name| !enabled.contains(name))
            .collect())
    }

    /// Whether any live process is in the group or below it.
    ///
    /// # Errors
    /// Those of reading `cgroup.events`.
    pub fn populated(&self) -> Result<bool> {
        Ok(field(&self.read("cgroup.events")?, "populated") != Some(0))
    }

    /// Processes of exactly this group, as seen from the caller's PID namespace.
    ///
    /// # Errors
    /// Those of reading `cgroup.procs`.
    pub fn procs(&self) -> Result<Vec<i32>> {
        Ok(self
            .read("cgroup.procs")?
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect())
    }

    /// `memory.events`: of the group and of all below it. `None` without the memory controller.
    ///
    /// # Errors
    /// Those of reading it, except its absence.
    pub fn memory_events(&self) -> Result<Option<MemoryEvents>> {
        self.events("memory.events")
    }

    /// `memory.events.local`: of the group alone, so that its `oom` counts its own limit. `None` without the memory
    /// controller, and on kernels before 5.2.
    ///
    /// # Errors
    /// Those of reading it, except its absence.
    pub fn memory_events_local(&self) -> Result<Option<MemoryEvents>> {
        self.events("memory.events.local")
    }

    fn events(&self, file: &str) -> Result<Option<MemoryEvents>> {
        let Some(text) = self.read_if_there(file)? else {
            return Ok(None);
        };
        let get = |name| field(&text, name).unwrap_or(0);
        Ok(Some(MemoryEvents {
            max: get("max"),
            oom: get("oom"),
            oom_kill: get("oom_kill"),
            oom_group_kill: get("oom_group_kill"),
        }))
    }

    /// All counters.
    ///
    /// # Errors
    /// Those of reading the files that are there.
    pub fn usage(&self) -> Result<Usage> {
        let cpu = self.read_if_there("cpu.stat")?;
        let number = |text: Option<String>| text.and_then(|t| t.parse().ok());
        Ok(Usage {
            cpu_usec: cpu.and_then(|text| field(&text, "usage_usec")),
            memory_peak: number(self.read_if_there("memory.peak")?),
            pids_peak: number(self.read_if_there("pids.peak")?),
            memory_events: self.memory_events()?,
        })
    }

    /// Kills everything in the group and below it, once. A fork that was under way may survive: write
    /// again while [`Group::populated`].
    ///
    /// # Errors
    /// Those of writing `cgroup.kill` (kernel 5.14 and later).
    pub fn kill(&self) -> Result<()> {
        self.write("cgroup.kill", "1")
    }

    /// Kills until the group is empty, at most for `bound`. Says whether it is.
    ///
    /// # Errors
    /// Those of the control files; a group that is gone is empty.
    pub fn kill_until_empty(&self, bound: Duration) -> Result<bool> {
        let end = Instant::now() + bound;
        let mut pause = Duration::from_millis(1);
        loop {
            match self.populated() {
                Ok(false) => return Ok(true),
                Err(e) if gone(&e) => return Ok(true),
                Err(e) => return Err(e),
                Ok(true) => {}
            }
            match self.kill() {
                Err(e) if gone(&e) => return Ok(true),
                other => other?,
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Groups directly below this one.
    ///
    /// # Errors
    /// Those of reading the directory.
    pub fn children(&self) -> Result<Vec<Group>> {
        let what = || format!("list groups below {}", self.path.display());
        let mut found = Vec::new();
        for entry in act(fs::read_dir(&self.path), what)? {
            let entry = act(entry, what)?;
            if act(entry.file_type(), what)?.is_dir() {
                found.push(Group { path: entry.path() });
            }
        }
        Ok(found)
    }

    /// Removes the group, children first. EBUSY, which a group keeps for a moment after its last process,
    /// is retried until `bound` is over. A group that is gone is removed.
    ///
    /// # Errors
    /// EBUSY if it is still in use at the end of the bound, else those of `rmdir(2)`.
    pub fn remove(&self, bound: Duration) -> Result<()> {
        let end = Instant::now() + bound;
        let mut pause = Duration::from_millis(1);
        loop {
            let result = self.remove_once();
            match &result {
                Err(e) if e.errno() == Some(libc::EBUSY) && Instant::now() < end => {}
                _ => return result,
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// One attempt of [`Group::remove`], without waiting.
    ///
    /// # Errors
    /// EBUSY if it is in use, else those of `rmdir(2)`.
    pub fn remove_once(&self) -> Result<()> {
        match act(fs::remove_dir(&self.path), || {
            format!("remove group {}", self.path.display())
        }) {
            Err(e) if gone(&e) => return Ok(()),
            // A group with groups below it answers EBUSY like one with processes.
            Err(e) if e.errno() == Some(libc::EBUSY) => {}
            other => return other,
        }
        for child in self.children()? {
            child.remove_once()?;
        }
        match act(fs::remove_dir(&self.path), || {
            format!("remove group {}", self.path.display())
        }) {
            Err(e) if gone(&e) => Ok(()),
            other => other,
        }
    }

    fn read_if_there(&self, file: &str) -> Result<Option<String>> {
        match self.read(file) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.source.kind() == io::ErrorKind::NotFound && self.path.exists() => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Whether the error says that the group is not there any more.
pub fn gone(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::ENOENT | libc::ENODEV))
}

fn known(list: &str) -> Vec<&'static str> {
    CONTROLLERS
        .into_iter()
        .filter(|name| list.split_whitespace().any(|word| word == *name))
        .collect()
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

fn page_size() -> u64 {
    // SAFETY: sysconf touches no memory of ours.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).ok().filter(|s| *s > 0).unwrap_or(4_096)
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;

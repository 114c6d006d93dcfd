//! Processes named so that none is ever mistaken for another one with the same number.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// What names a process for ever: its number, its start and the boot it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Process number.
    pub pid: u32,
    /// Start, in clock ticks since boot: field 22 of `/proc/PID/stat`, proc(5).
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id` of the boot it was started in.
    pub boot_id: String,
}

impl Identity {
    /// The identity of a live process; `None` if there is none with this number, or only a zombie.
    pub fn of(pid: u32) -> Result<Option<Self>> {
        let path = format!("/proc/{pid}/stat");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(3) => {
                return Ok(None);
            }
            Err(error) => return Err(error).with_context(|| format!("read {path}")),
        };
        // The command may hold blanks and brackets: count from its last closing bracket.
        let fields: Vec<&str> = text
            .rsplit_once(") ")
            .map(|(_, rest)| rest.split(' ').collect())
            .unwrap_or_default();
        let (Some(state), Some(start)) = (fields.first(), fields.get(19)) else {
            bail!("{path} has an unknown form: {text:?}");
        };
        if matches!(*state, "Z" | "X") {
            return Ok(None);
        }
        let start_ticks = start
            .parse()
            .with_context(|| format!("parse the start time {start:?} in {path}"))?;
        Ok(Some(Self {
            pid,
            start_ticks,
            boot_id: boot_id()?,
        }))
    }

    /// True while exactly this process lives.
    pub fn is_alive(&self) -> Result<bool> {
        Ok(Self::of(self.pid)?.as_ref() == Some(self))
    }

    /// A descriptor of this process, or `None` if it is gone. The check comes after the opening: from
    /// then on the descriptor cannot mean another process.
    fn open(&self) -> Result<Option<OwnedFd>> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            bail!("{} is not a process number", self.pid);
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Ok(self.is_alive()?.then_some(descriptor)),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("open process {}", self.pid)),
        }
    }

    /// Sends a signal to exactly this process; false if it is gone.
    pub fn signal(&self, signal: Signal) -> Result<bool> {
        let Some(descriptor) = self.open()? else {
            return Ok(false);
        };
        match pidfd_send_signal(&descriptor, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("send {signal:?} to process {}", self.pid)),
        }
    }

    /// Waits at most `limit` for this process to end; true if it has.
    pub fn wait(&self, limit: Duration) -> Result<bool> {
        let Some(descriptor) = self.open()? else {
            return Ok(true);
        };
        let timeout = Timespec::try_from(limit).context("wait limit out of range")?;
        let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
        let ready = retry_on_intr(|| poll(&mut polled, Some(&timeout)));
        let ready = ready.with_context(|| format!("wait for process {}", self.pid))?;
        Ok(ready > 0)
    }

    /// The children of this process's first thread (`/proc/PID/task/PID/children`).
    pub fn children(&self) -> Result<Vec<Identity>> {
        let path = format!("/proc/{0}/task/{0}/children", self.pid);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(|| format!("read {path}")),
        };
        let mut children = Vec::new();
        for pid in text.split_whitespace() {
            let pid = pid.parse().with_context(|| format!("parse {pid:?} in {path}"))?;
            children.extend(Self::of(pid)?);
        }
        Ok(children)
    }

    /// True while this process runs exactly the program that is now at `path`, false also if the process is gone.
    ///
    /// `/proc/PID/exe` leads to the file that was started, also after it was replaced, and the kernel lets nobody write
    /// to it. So the same inode is the same program; another one may be a copy, and its bytes decide.
    pub fn runs(&self, path: &Path) -> Result<bool> {
        let running = format!("/proc/{}/exe", self.pid);
        let running = match File::open(&running) {
            Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(3) => {
                return Ok(false);
            }
            opened => opened.with_context(|| format!("open {running}"))?,
        };
        let there = File::open(path).with_context(|| format!("open program {}", path.display()))?;
        let look = |file: &File| {
            file.metadata()
                .with_context(|| format!("compare {}", path.display()))
        };
        let (old, new) = (look(&running)?, look(&there)?);
        let same = (old.dev(), old.ino()) == (new.dev(), new.ino())
            || old.len() == new.len()
                && equal(running, there).with_context(|| format!("compare {}", path.display()))?;
        // Only now is it known that the number was this process's all the time.
        Ok(same && self.is_alive()?)
    }
}

/// True if both files have the same bytes.
fn equal(one: File, other: File) -> std::io::Result<bool> {
    const CHUNK: u64 = 1 << 20;
    let (mut left, mut right) = (Vec::new(), Vec::new());
    loop {
        left.clear();
        right.clear();
        (&one).take(CHUNK).read_to_end(&mut left)?;
        (&other).take(CHUNK).read_to_end(&mut right)?;
        if left != right || left.is_empty() {
            return Ok(left == right);
        }
    }
}

fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(path)
        .with_context(|| format!("read {path}"))?
        .trim()
        .to_owned())
}

//! The supervisor's hold on the processes of one attempt: a cgroup, or a process group where there is none.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use fairlead_supervisor::sys;

use crate::os;

/// Most processes of one group that a signal reaches.
const PIDS_MAX: usize = 8_192;
/// Handles open at once while signalling.
const BATCH: usize = 64;
/// Most batches, so that a group that forks faster than it is signalled cannot hold us.
const ROUNDS: usize = PIDS_MAX / BATCH;

/// Descriptors of one group, opened before anything runs in it. They stay valid whoever renames what.
pub(crate) struct Cgroup {
    dir: OwnedFd,
    kill: OwnedFd,
    events: OwnedFd,
}

impl Cgroup {
    /// Opens the control files of a group's directory.
    ///
    /// # Errors
    /// The error number: EINVAL if it is no cgroup v2 directory, ENOENT if the group is gone or the kernel
    /// is older than 5.14.
    pub(crate) fn open(dir: OwnedFd) -> Result<Cgroup, i32> {
        let number = |e: io::Error| os::errno(&e);
        if !os::is_cgroup2(dir.as_fd()).map_err(number)? {
            return Err(libc::EINVAL);
        }
        let kill = os::open_at(dir.as_fd(), c"cgroup.kill", libc::O_WRONLY).map_err(number)?;
        let events = os::open_at(dir.as_fd(), c"cgroup.events", libc::O_RDONLY).map_err(number)?;
        Ok(Cgroup { dir, kill, events })
    }

    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Reports a change of `populated` as a priority event.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    fn populated(&self) -> io::Result<bool> {
        let mut buf = [0u8; 128];
        let len = sys::pread(self.events.as_raw_fd(), &mut buf, 0)?;
        Ok(!buf[..len]
            .split(|b| *b == b'\n')
            .any(|line| line == b"populated 0"))
    }
}

/// How the processes of an entry are reached.
pub(crate) enum Hold {
    /// All processes of a cgroup; nobody escapes.
    Cgroup {
        /// The group.
        group: Cgroup,
        /// Handle on the leader.
        leader: OwnedFd,
    },
    /// The process group of the leader.
    ProcessGroup {
        /// Its number, which is that of the first process.
        pgid: i32,
        /// Handle on the first process; with an own PID namespace all others end with it, wherever they went.
        leader: OwnedFd,
    },
}

impl Hold {
    /// SIGKILL to everything, once. A fork under way may survive it.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match self {
            Hold::Cgroup { group, leader } => {
                let result = os::write(group.kill.as_fd(), b"1").map(drop);
                // A child that joins its group by a write may not be in it yet. After its end this is ESRCH.
                let _ = os::pidfd_signal(leader.as_fd(), libc::SIGKILL);
                result
            }
            Hold::ProcessGroup { pgid, leader } => {
                // After its end this is ESRCH.
                let _ = os::pidfd_signal(leader.as_fd(), libc::SIGKILL);
                os::signal_process_group(*pgid, libc::SIGKILL).map(drop)
            }
        }
    }

    /// Whether any live process is left. To be trusted for a process group only after its leader was reaped.
    pub(crate) fn populated(&self) -> io::Result<bool> {
        match self {
            Hold::Cgroup { group, .. } => match group.populated() {
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(false),
                other => other,
            },
            Hold::ProcessGroup { pgid, .. } => match os::signal_process_group(*pgid, 0) {
                Err(e) if e.raw_os_error() == Some(libc::EPERM) => Ok(true),
                other => other,
            },
        }
    }
}

/// Buffers for signalling, made once.
pub(crate) struct Signaller {
    text: Vec<u8>,
    listed: Vec<i32>,
    done: Vec<i32>,
}

impl Signaller {
    pub(crate) fn new() -> Signaller {
        Signaller {
            text: vec![0; 4_096],
            listed: Vec::with_capacity(PIDS_MAX),
            done: Vec::with_capacity(PIDS_MAX),
        }
    }

    /// Sends a signal to every process of the hold.
    ///
    /// In a cgroup each is reached by a handle, and only if it was still listed after the handle was opened:
    /// a number that went to a process outside the group in between is not in the list any more. The list
    /// is read again until it has no new process, at most [`ROUNDS`] times.
    pub(crate) fn send(&mut self, hold: &Hold, signal: i32) -> io::Result<()> {
        let group = match hold {
            Hold::ProcessGroup { pgid, .. } => return os::signal_process_group(*pgid, signal).map(drop),
            Hold::Cgroup { group, .. } => group,
        };
        self.done.clear();
        for _ in 0..ROUNDS {
            self.list(group)?;
            let mut batch: [Option<(i32, OwnedFd)>; BATCH] = [const { None }; BATCH];
            let mut count = 0;
            for pid in &self.listed {
                if count == BATCH || self.done.len() == PIDS_MAX {
                    break;
                }
                if !self.done.contains(pid) {
                    // Noted whether or not a handle is got, so that every batch makes the rest shorter. A
                    // process that ended meanwhile has no handle and needs no signal.
                    self.done.push(*pid);
                    batch[count] = os::pidfd_open(*pid).ok().map(|handle| (*pid, handle));
                    count += 1;
                }
            }
            if count == 0 {
                return Ok(());
            }
            self.list(group)?;
            for (pid, handle) in batch.iter().flatten() {
                if self.listed.contains(pid) {
                    // ESRCH: it ended by itself.
                    let _ = os::pidfd_signal(handle.as_fd(), signal);
                }
            }
        }
        Ok(())
    }

    /// Reads `cgroup.procs`, at most [`PIDS_MAX`] numbers.
    fn list(&mut self, group: &Cgroup) -> io::Result<()> {
        self.listed.clear();
        let file = os::open_at(group.dir(), c"cgroup.procs", libc::O_RDONLY)?;
        let mut number = 0i32;
        loop {
            let len = os::read(file.as_fd(), &mut self.text)?;
            if len == 0 {
                return Ok(());
            }
            for byte in &self.text[..len] {
                if byte.is_ascii_digit() {
                    number = number.wrapping_mul(10).wrapping_add(i32::from(byte - b'0'));
                } else {
                    // 0 stands for a process of another PID namespace, which has no number here.
                    if number > 0 && self.listed.len() < PIDS_MAX {
                        self.listed.push(number);
                    }
                    number = 0;
                }
            }
        }
    }
}

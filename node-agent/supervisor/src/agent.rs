//! The node agent as a child: started, watched, started again.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use fairlead_supervisor::cgroup::Group;
use fairlead_supervisor::sys;
use fairlead_supervisor::wire::{ENV_EPOCH, ENV_FD, ENV_PAYLOAD_GROUP};

use crate::config::Config;
use crate::log;
use crate::os;
use crate::os_poll;
use crate::os_signal;
use crate::setup::Groups;

const BACKOFF_FIRST_MS: u64 = 100;
const BACKOFF_MOST_MS: u64 = 5_000;
/// An agent that lived this long starts the back-off anew.
const STEADY_MS: u64 = 10_000;
/// Wait for a dead agent's group to go; its other processes were killed just before.
const GROUP_BOUND: Duration = Duration::from_millis(200);

/// One start of the agent.
pub(crate) struct Running {
    pub(crate) pid: i32,
    handle: OwnedFd,
    pub(crate) socket: OwnedFd,
    group: Option<Group>,
    pub(crate) hello: bool,
    started_ms: u64,
    pub(crate) heard_ms: u64,
    killed: bool,
}

impl Running {
    /// Whether the process lives. The sender of a request is judged by this before every clone.
    pub(crate) fn alive(&self) -> bool {
        !os_poll::readable_now(self.handle.as_fd())
    }

    pub(crate) fn signal(&self, signal: i32) {
        // ESRCH: it is dead and will be reaped.
        let _ = os::pidfd_signal(self.handle.as_fd(), signal);
    }

    /// Whether what it says counts as a sign of life.
    pub(crate) fn serves(&self) -> bool {
        self.hello && !self.killed
    }

    /// Kills it, once, with all it started for itself.
    fn kill(&mut self, why: &str) {
        if !self.killed {
            self.killed = true;
            log::warn(format_args!("killing agent {}: {why}", self.pid));
            self.signal(libc::SIGKILL);
        }
    }

    /// Since when a stuck agent counts as one.
    pub(crate) fn silent_at_ms(&self, bound_ms: u64) -> u64 {
        if self.killed {
            u64::MAX
        } else {
            self.heard_ms.saturating_add(bound_ms)
        }
    }
}

/// The agent's place, filled or not.
pub(crate) struct Agent {
    pub(crate) running: Option<Running>,
    starts: u32,
    backoff_ms: u64,
    /// When to start the next one, absolute boottime milliseconds; 0 = do not.
    pub(crate) start_at_ms: u64,
    /// Since when no agent has said Hello and then that it lives, absolute boottime milliseconds; 0 = one has.
    pub(crate) absent_ms: u64,
}

impl Agent {
    pub(crate) fn new(now_ms: u64) -> Agent {
        Agent {
            running: None,
            starts: 0,
            backoff_ms: BACKOFF_FIRST_MS,
            start_at_ms: now_ms,
            absent_ms: now_ms,
        }
    }

    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|running| running.socket.as_fd())
    }

    /// Starts one in a fresh group. On failure the next try is planned.
    pub(crate) fn start(&mut self, config: &Config, groups: Option<&Groups>, epoch: u32, now_ms: u64) {
        self.starts += 1;
        match launch(config, groups, epoch, self.starts, now_ms) {
            Ok(running) => {
                log::info(format_args!(
                    "started agent {} (start {})",
                    running.pid, self.starts
                ));
                self.running = Some(running);
                self.start_at_ms = 0;
            }
            Err(e) => {
                log::warn(format_args!("start agent {}: {e}", config.agent.display()));
                self.plan_next(now_ms);
            }
        }
    }

    /// Kills the running agent. From now on there is none, however long its death takes.
    pub(crate) fn kill(&mut self, why: &str, now_ms: u64) {
        if let Some(running) = &mut self.running {
            running.kill(why);
            if self.absent_ms == 0 {
                self.absent_ms = now_ms;
            }
        }
    }

    /// The running agent was reaped. Its socket goes, and with it every request it had not yet been asked.
    pub(crate) fn ended(&mut self, status: i32, now_ms: u64) {
        let Some(running) = self.running.take() else {
            return;
        };
        log::warn(format_args!(
            "agent {} ended with wait status {status:#x}",
            running.pid
        ));
        if let Some(group) = running.group {
            let result = group
                .kill_until_empty(GROUP_BOUND)
                .and_then(|_| group.remove(GROUP_BOUND));
            if let Err(e) = result {
                log::warn(format_args!("{e}"));
            }
        }
        if running.hello && now_ms.saturating_sub(running.started_ms) >= STEADY_MS {
            self.backoff_ms = BACKOFF_FIRST_MS;
        }
        if self.absent_ms == 0 {
            self.absent_ms = now_ms;
        }
        self.plan_next(now_ms);
    }

    fn plan_next(&mut self, now_ms: u64) {
        self.start_at_ms = now_ms + self.backoff_ms;
        self.backoff_ms = (self.backoff_ms * 2).min(BACKOFF_MOST_MS);
    }
}

fn launch(
    config: &Config,
    groups: Option<&Groups>,
    epoch: u32,
    start: u32,
    now_ms: u64,
) -> io::Result<Running> {
    let (ours, theirs) = sys::record_pair()?;
    let group = match groups {
        Some(groups) => Some(groups.agent(epoch, start).map_err(io::Error::other)?),
        None => None,
    };
    let mut command = Command::new(&config.agent);
    command.args(&config.agent_args);
    command
        .env(ENV_FD, theirs.as_raw_fd().to_string())
        .env(ENV_EPOCH, epoch.to_string());
    command.env_remove(ENV_PAYLOAD_GROUP);
    if let Some(groups) = groups {
        command.env(ENV_PAYLOAD_GROUP, groups.payload.path());
    }
    let join = match &group {
        Some(group) => Some(os::open_at(
            group.open().map_err(io::Error::other)?.as_fd(),
            c"cgroup.procs",
            libc::O_WRONLY,
        )?),
        None => None,
    };
    let socket = theirs.as_raw_fd();
    let parent = std::process::id();
    let prepare = move || {
        if let Some(join) = &join {
            os::write(join.as_fd(), b"0")?;
        }
        os_signal::reset_signals()?;
        os::die_with_parent(libc::SIGKILL)?;
        if std::os::unix::process::parent_id() != parent {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        os::keep_on_exec(socket)
    };
    // SAFETY: this process has one thread, and the closure makes system calls only.
    unsafe { command.pre_exec(prepare) };
    let child = match command.spawn() {
        Ok(child) => child,
        Err(e) => {
            if let Some(group) = &group {
                group.remove(GROUP_BOUND).map_err(io::Error::other)?;
            }
            return Err(e);
        }
    };
    // The pid cannot be reused: only this process reaps, and it has not since.
    let pid = child.id().cast_signed();
    let handle = os::pidfd_open(pid)?;
    Ok(Running {
        pid,
        handle,
        socket: ours,
        group,
        hello: false,
        started_ms: now_ms,
        heard_ms: now_ms,
        killed: false,
    })
}

//! The node agent as a child: started, watched, started again.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
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

    /// Kills it, once. What it started for itself goes with its group when it was reaped.
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
        if let Some(Err(e)) = running.group.as_ref().map(empty_and_remove) {
            log::warn(format_args!("{e}"));
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

/// Makes the process of an agent in a group of its own, and takes the group back where that fails.
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
    let command = command(config, groups, epoch, &theirs);
    match fork_agent(command, group.as_ref(), &theirs) {
        Ok((pid, handle)) => Ok(Running {
            pid,
            handle,
            socket: ours,
            group,
            hello: false,
            started_ms: now_ms,
            heard_ms: now_ms,
            killed: false,
        }),
        Err(error) => {
            if let Some(Err(left)) = group.as_ref().map(empty_and_remove) {
                log::warn(format_args!("{left}"));
            }
            Err(error)
        }
    }
}

fn command(config: &Config, groups: Option<&Groups>, epoch: u32, socket: &OwnedFd) -> Command {
    let mut command = Command::new(&config.agent);
    command
        .args(&config.agent_args)
        .env(ENV_FD, socket.as_raw_fd().to_string())
        .env(ENV_EPOCH, epoch.to_string());
    command.env_remove(ENV_PAYLOAD_GROUP);
    if let Some(groups) = groups {
        command.env(ENV_PAYLOAD_GROUP, groups.payload.path());
    }
    command
}

/// The process that becomes the agent. Nobody waits for it to do so: a disk that does not answer may keep it from its
/// program for as long as it likes, and then the bound on an agent's silence ends it.
fn fork_agent(command: Command, group: Option<&Group>, socket: &OwnedFd) -> io::Result<(i32, OwnedFd)> {
    let join = match group {
        Some(group) => Some(os::open_at(
            group.open().map_err(io::Error::other)?.as_fd(),
            c"cgroup.procs",
            libc::O_WRONLY,
        )?),
        None => None,
    };
    let parent = std::process::id();
    let pid = os::fork()?;
    if pid == 0 {
        let error = become_agent(command, join.as_ref(), socket.as_raw_fd(), parent);
        log::warn(format_args!("the agent could not be started: {error}"));
        os::exit_now(127);
    }
    // The pid cannot be reused: only this process reaps, and it has not since.
    Ok((pid, os::pidfd_open(pid)?))
}

/// Gives the error that kept this process from becoming the agent.
fn become_agent(mut command: Command, join: Option<&OwnedFd>, socket: RawFd, parent: u32) -> io::Error {
    let prepared = join
        .map_or(Ok(0), |join| os::write(join.as_fd(), b"0"))
        .and_then(|_| os_signal::reset_signals())
        .and_then(|()| os::die_with_parent(libc::SIGKILL))
        .and_then(|()| {
            let orphaned = std::os::unix::process::parent_id() != parent;
            if orphaned {
                Err(io::ErrorKind::BrokenPipe.into())
            } else {
                Ok(())
            }
        })
        .and_then(|()| os::keep_on_exec(socket));
    match prepared {
        Ok(()) => command.exec(),
        Err(error) => error,
    }
}

fn empty_and_remove(group: &Group) -> fairlead_supervisor::cgroup::Result<()> {
    group
        .kill_until_empty(GROUP_BOUND)
        .and_then(|_| group.remove(GROUP_BOUND))
}

//! The supervisor's half of a spawn: checks, descriptors, clone. Allocates nothing.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use fairlead_supervisor::channel::Received;
use fairlead_supervisor::step::Step;
use fairlead_supervisor::sys;
use fairlead_supervisor::wire::{
    Backend, FLAG_CGROUP, FLAG_HOME, FLAG_PRIVATE_MOUNTS, FLAG_PRIVATE_NETWORK, FLAG_PRIVATE_PIDS,
    FLAG_SEPARATE_STDERR, Spawn,
};

use crate::child::{self, Plan};
use crate::hold::{Cgroup, Hold};
use crate::image::Image;
use crate::log;
use crate::os::{self, errno};
use crate::os_clone::{self, CloneWish, Side};
use crate::table::Flow;

const KNOWN_FLAGS: u32 = FLAG_CGROUP
    | FLAG_SEPARATE_STDERR
    | FLAG_HOME
    | FLAG_PRIVATE_MOUNTS
    | FLAG_PRIVATE_NETWORK
    | FLAG_PRIVATE_PIDS;

/// Where a spawn ended, and the error number there.
pub(crate) type Refusal = (Step, i32);

/// The descriptors of a request, by name.
pub(crate) struct Fds {
    cgroup: Option<OwnedFd>,
    command: OwnedFd,
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
    home: Option<OwnedFd>,
}

impl Fds {
    /// Names the descriptors in the order of the protocol, the slot apart, since a refusal is written to it
    /// too. `None` if they are not as many as the flags say.
    pub(crate) fn take(flags: u32, received: &mut Received) -> Option<(OwnedFd, Fds)> {
        let mut next = 0;
        let mut take = |wanted: bool| {
            if !wanted {
                return None;
            }
            next += 1;
            received.take(next - 1)
        };
        let cgroup = take(flags & FLAG_CGROUP != 0);
        let (slot, command, stdin, stdout) = (take(true)?, take(true)?, take(true)?, take(true)?);
        let stderr = take(flags & FLAG_SEPARATE_STDERR != 0);
        let home = take(flags & FLAG_HOME != 0);
        let fds = Fds {
            cgroup,
            command,
            stdin,
            stdout,
            stderr,
            home,
        };
        let whole = fds.cgroup.is_some() == (flags & FLAG_CGROUP != 0)
            && fds.stderr.is_some() == (flags & FLAG_SEPARATE_STDERR != 0)
            && fds.home.is_some() == (flags & FLAG_HOME != 0)
            && next == received.len();
        whole.then_some((slot, fds))
    }
}

/// A child on its way to exec.
pub(crate) struct Started {
    pub(crate) pid: i32,
    pub(crate) hold: Hold,
    pub(crate) status: OwnedFd,
    /// Where the init of its PID namespace reports the leader's end.
    pub(crate) report: Option<OwnedFd>,
    /// Dropped or written after the entry is in the table; the child waits for it.
    pub(crate) register: Option<OwnedFd>,
    pub(crate) stdout: Flow,
    pub(crate) stderr: Option<Flow>,
}

/// Makes children.
pub(crate) struct Spawner {
    backend: Backend,
    ids: std::ops::RangeInclusive<u32>,
    hide: Vec<CString>,
    image: Image,
    join_by_write: bool,
}

struct Pipes {
    status: (OwnedFd, OwnedFd),
    report: Option<(OwnedFd, OwnedFd)>,
    register: Option<(OwnedFd, OwnedFd)>,
    stdout: (OwnedFd, OwnedFd),
    stderr: Option<(OwnedFd, OwnedFd)>,
    join: Option<OwnedFd>,
}

impl Spawner {
    pub(crate) fn new(backend: Backend, ids: std::ops::RangeInclusive<u32>, hide: Vec<CString>) -> Spawner {
        Spawner {
            backend,
            ids,
            hide,
            image: Image::new(),
            join_by_write: false,
        }
    }

    /// Everything from the request to the cloned child.
    ///
    /// # Errors
    /// The step and error number; then no child was made.
    pub(crate) fn start(&mut self, spawn: &Spawn, fds: Fds) -> Result<Started, Refusal> {
        self.check(spawn, &fds)?;
        self.image
            .load(fds.command.as_fd())
            .map_err(|e| (Step::Command, e))?;
        let group = match fds.cgroup {
            Some(dir) => Some(Cgroup::open(dir).map_err(|e| (Step::Group, e))?),
            None => None,
        };
        let pipes = self
            .pipes(spawn, group.as_ref())
            .map_err(|e| (Step::Pipe, errno(&e)))?;
        let plan = Plan {
            status: pipes.status.1.as_raw_fd(),
            join: -1,
            register: pipes.register.as_ref().map_or(-1, |(read, _)| read.as_raw_fd()),
            stdin: fds.stdin.as_raw_fd(),
            stdout: pipes.stdout.1.as_raw_fd(),
            stderr: pipes.stderr.as_ref().unwrap_or(&pipes.stdout).1.as_raw_fd(),
            home: fds.home.as_ref().map_or(-1, AsRawFd::as_raw_fd),
            private_mounts: spawn.flags & FLAG_PRIVATE_MOUNTS != 0,
            private_network: spawn.flags & FLAG_PRIVATE_NETWORK != 0,
            report: pipes.report.as_ref().map_or(-1, |(_, write)| write.as_raw_fd()),
            hide: &self.hide,
            uid: spawn.uid,
            gid: spawn.gid,
            nofile: spawn.nofile,
            programs: self.image.programs(),
            argv: self.image.argv(),
            envp: self.image.envp(),
        };
        let (pid, leader) = clone_child(
            plan,
            group.as_ref(),
            &pipes,
            fds.home.as_ref(),
            &mut self.join_by_write,
        )?;
        let hold = match group {
            Some(group) => Hold::Cgroup { group, leader },
            None => Hold::ProcessGroup { pgid: pid, leader },
        };
        Ok(Started {
            pid,
            hold,
            status: pipes.status.0,
            report: pipes.report.map(|(read, _)| read),
            register: pipes.register.map(|(_, write)| write),
            stdout: Flow {
                pipe: pipes.stdout.0,
                spool: fds.stdout,
            },
            stderr: pipes
                .stderr
                .zip(fds.stderr)
                .map(|((pipe, _), spool)| Flow { pipe, spool }),
        })
    }

    fn check(&self, spawn: &Spawn, fds: &Fds) -> Result<(), Refusal> {
        let has = |flag: u32| spawn.flags & flag != 0;
        let private_without_home = (has(FLAG_PRIVATE_MOUNTS) && fds.home.is_none())
            || (has(FLAG_PRIVATE_PIDS) && !has(FLAG_PRIVATE_MOUNTS));
        let wrong_backend = fds.cgroup.is_some() != (self.backend == Backend::CgroupV2);
        if spawn.flags & !KNOWN_FLAGS != 0 || private_without_home || wrong_backend {
            return Err((Step::Request, libc::EINVAL));
        }
        if !self.ids.contains(&spawn.uid) || !self.ids.contains(&spawn.gid) {
            return Err((Step::IdRange, libc::EPERM));
        }
        Ok(())
    }

    fn pipes(&self, spawn: &Spawn, group: Option<&Cgroup>) -> std::io::Result<Pipes> {
        let output = || {
            let (read, write) = sys::pipe(0)?;
            sys::set_nonblocking(read.as_fd())?;
            os::chown(write.as_fd(), spawn.uid, spawn.gid)?;
            Ok::<_, std::io::Error>((read, write))
        };
        let status = sys::pipe(0)?;
        sys::set_nonblocking(status.0.as_fd())?;
        let report = if spawn.flags & FLAG_PRIVATE_PIDS != 0 {
            let (read, write) = sys::pipe(0)?;
            sys::set_nonblocking(read.as_fd())?;
            Some((read, write))
        } else {
            None
        };
        Ok(Pipes {
            status,
            report,
            register: if group.is_none() {
                Some(sys::pipe(0)?)
            } else {
                None
            },
            stdout: output()?,
            stderr: if spawn.flags & FLAG_SEPARATE_STDERR != 0 {
                Some(output()?)
            } else {
                None
            },
            // Opened always, so that the fallback cannot fail for another reason than the first try.
            join: match group {
                Some(group) => Some(os::open_at(group.dir(), c"cgroup.procs", libc::O_WRONLY)?),
                None => None,
            },
        })
    }
}

/// Clones, in the home directory if there is one (see the child's private `/tmp`), into the group if that
/// works on this machine.
fn clone_child(
    mut plan: Plan<'_>,
    group: Option<&Cgroup>,
    pipes: &Pipes,
    home: Option<&OwnedFd>,
    join_by_write: &mut bool,
) -> Result<(i32, OwnedFd), Refusal> {
    if let Some(home) = home {
        os::change_dir(home.as_fd()).map_err(|e| (Step::WorkingDirectory, errno(&e)))?;
    }
    let wish = CloneWish {
        cgroup: group.map(|group| group.dir().as_raw_fd()),
        mounts: plan.private_mounts,
        pids: plan.report >= 0,
    };
    let mut side = if *join_by_write {
        Err(libc::ENOSYS)
    } else {
        os_clone::clone3(wish).map_err(|e| errno(&e))
    };
    if matches!(side, Err(libc::ENOSYS | libc::EPERM)) {
        plan.join = pipes.join.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        side = os_clone::clone_plain(wish).map_err(|e| errno(&e));
        if matches!(side, Ok(Side::Parent(..))) && !*join_by_write {
            *join_by_write = true;
            log::warn(format_args!(
                "clone3 is not allowed here: children join their group by a write"
            ));
        }
    }
    match side {
        Ok(Side::Child) => {
            // A copy of the writing end here would keep the child waiting for ever if the supervisor dies.
            if let Some((_, write)) = &pipes.register {
                close_copy(write.as_fd());
            }
            // And one of the reading end would hide that death from the init.
            if let Some((read, _)) = &pipes.report {
                close_copy(read.as_fd());
            }
            child::run(&plan)
        }
        Ok(Side::Parent(pid, handle)) => {
            leave_home(home.is_some());
            Ok((pid, handle))
        }
        Err(number) => {
            leave_home(home.is_some());
            Err((Step::Clone, number))
        }
    }
}

/// The child's own copy of a descriptor; its owner lives on in the parent.
fn close_copy(fd: BorrowedFd<'_>) {
    // SAFETY: in the child nothing uses this number again: it ends in exec or _exit.
    unsafe { libc::close(fd.as_raw_fd()) };
}

/// Back to the root, so that no run's directory is kept busy by us.
fn leave_home(entered: bool) {
    if entered && let Err(e) = std::env::set_current_dir("/") {
        log::warn(format_args!("leave a run's home directory for /: {e}"));
    }
}

//! Making a child: `clone3`, and what stands in for it.

use std::io;
use std::os::fd::{OwnedFd, RawFd};

use fairlead_supervisor::sys::check;

use crate::os::own;

/// Not right in every libc binding: `CLONE_INTO_CGROUP` does not fit the type used there.
pub(crate) const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// The same for `CLONE_CLEAR_SIGHAND`.
pub(crate) const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
const CLONE_PIDFD: u64 = 0x1000;
const CLONE_NEWNS: u64 = 0x2_0000;
const CLONE_NEWIPC: u64 = 0x800_0000;
const CLONE_NEWPID: u64 = 0x2000_0000;

/// How the child is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CloneWish {
    /// Group to be born in.
    pub(crate) cgroup: Option<RawFd>,
    /// Own namespaces of mounts and of System V and POSIX IPC objects, through which two runs could meet otherwise.
    pub(crate) mounts: bool,
    /// An own PID namespace, with the child as its first process.
    pub(crate) pids: bool,
}

impl CloneWish {
    fn namespaces(self) -> u64 {
        let mounts = if self.mounts {
            CLONE_NEWNS | CLONE_NEWIPC
        } else {
            0
        };
        let pids = if self.pids { CLONE_NEWPID } else { 0 };
        mounts | pids
    }
}

/// Which side of a clone this is.
pub(crate) enum Side {
    /// The new process.
    Child,
    /// The supervisor, with the child's number and a handle on it.
    Parent(i32, OwnedFd),
}

/// `clone3`: a fork that is born in its group, without our signal handlers, with a handle.
pub(crate) fn clone3(wish: CloneWish) -> io::Result<Side> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: clone_args is plain data for which all zeros is valid.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = CLONE_PIDFD | CLONE_CLEAR_SIGHAND | wish.namespaces();
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(fd) = wish.cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = fd as u64;
    }
    // SAFETY: without CLONE_VM this is a fork: the child has its own copy of all memory. The process has
    // one thread, so no lock can be held elsewhere, and the child makes only system calls until exec.
    let pid = check(
        unsafe { libc::syscall(libc::SYS_clone3, &args, size_of::<libc::clone_args>()) } as libc::c_int,
    )?;
    if pid == 0 {
        Ok(Side::Child)
    } else {
        Ok(Side::Parent(pid, own(pidfd)))
    }
}

/// The older `clone`, for machines whose system call filter answers `clone3` with ENOSYS or EPERM.
pub(crate) fn clone_plain(wish: CloneWish) -> io::Result<Side> {
    let mut pidfd: libc::c_int = -1;
    let flags = libc::SIGCHLD as u64 | CLONE_PIDFD | wish.namespaces();
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: as for clone3; a null stack means "the same address in the copy". `pidfd` is written by the
    // kernel before the call returns in the parent.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, none, &raw mut pidfd, none, none) };
    let pid = check(pid as libc::c_int)?;
    if pid == 0 {
        Ok(Side::Child)
    } else {
        Ok(Side::Parent(pid, own(pidfd)))
    }
}

/// A second process of a PID namespace, made by the first. Gives its number there, 0 in itself.
pub(crate) fn fork_plain() -> io::Result<i32> {
    let none = std::ptr::null_mut::<libc::c_void>();
    let flags = libc::SIGCHLD as libc::c_ulong;
    // SAFETY: a plain fork of a process of one thread: memory is copied, no pointer is passed, and both sides go on with
    // system calls only.
    check(unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) } as libc::c_int)
}

//! Signals: those the supervisor handles, and a clean start for its children.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use fairlead_supervisor::sys::{check, check_len};

use crate::os::own;

const LAST_SIGNAL: libc::c_int = 64;

fn signal_set(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; sigemptyset below makes it a valid empty set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a valid place for a set.
    unsafe { libc::sigemptyset(&mut set) };
    for signal in signals {
        // SAFETY: `set` is valid and the number is a known signal.
        unsafe { libc::sigaddset(&mut set, *signal) };
    }
    set
}

/// Signals the supervisor handles: children, and the wish to stop.
pub(crate) const SIGNALS: [libc::c_int; 3] = [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT];

/// Blocks [`SIGNALS`], so that they wait for [`signal_fd`] or [`wait_stop_signal`].
pub(crate) fn block_signals() -> io::Result<()> {
    // Who started us may have ignored it, and then the kernel reaps children itself and tells nobody.
    // SAFETY: the default action runs no code of ours.
    if unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    let set = signal_set(&SIGNALS);
    // SAFETY: `set` is a valid set; no old mask is asked for.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) }).map(drop)
}

/// A descriptor that reports [`SIGNALS`].
pub(crate) fn signal_fd() -> io::Result<OwnedFd> {
    let set = signal_set(&SIGNALS);
    // SAFETY: `set` is a valid set.
    Ok(own(check(unsafe {
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    })?))
}

/// The next signal number of a [`signal_fd`], or `None`.
pub(crate) fn next_signal(fd: BorrowedFd<'_>) -> Option<u32> {
    // SAFETY: signalfd_siginfo is plain data for which all zeros is valid.
    let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::signalfd_siginfo>();
    // SAFETY: `info` has `size` bytes and is exclusively ours.
    let got = check_len(unsafe { libc::read(fd.as_raw_fd(), (&raw mut info).cast(), size) });
    matches!(got, Ok(n) if n == size).then_some(info.ssi_signo)
}

/// Waits at most `millis` for SIGTERM or SIGINT while they are blocked. Says whether one came.
pub(crate) fn wait_stop_signal(millis: u32) -> bool {
    let set = signal_set(&[libc::SIGTERM, libc::SIGINT]);
    let wait = libc::timespec {
        tv_sec: 0,
        tv_nsec: libc::c_long::from(millis) * 1_000_000,
    };
    // SAFETY: `set` and `wait` are valid; no information is asked for.
    unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &wait) > 0 }
}

/// All signals to their default action, none blocked: what a program expects at its start. By plain system
/// call: the C library refuses the two signals it keeps for itself, which may have come ignored too.
pub(crate) fn reset_signals() -> io::Result<()> {
    // The kernel's own structure, all zeros: default action, no flags, no mask (rt_sigaction(2)).
    let default = [0u64; 4];
    for signal in 1..=LAST_SIGNAL {
        let none = std::ptr::null_mut::<u64>();
        // SAFETY: `default` is as long as the structure; no old action is asked for. KILL and STOP refuse.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                none,
                size_of::<u64>(),
            )
        };
    }
    let set = signal_set(&[]);
    // SAFETY: `set` is a valid set; no old mask is asked for.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) }).map(drop)
}

//! System calls only the supervisor makes, each a safe wrapper around one call.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use fairlead_supervisor::sys::{check, check_len};

/// Not right in every libc binding: `CLONE_INTO_CGROUP` does not fit the type used there.
pub(crate) const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// The same for `CLONE_CLEAR_SIGHAND`.
pub(crate) const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
const CLONE_PIDFD: u64 = 0x1000;
const CLONE_NEWNS: u64 = 0x2_0000;
const LAST_SIGNAL: libc::c_int = 64;
const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;

fn own(fd: libc::c_int) -> OwnedFd {
    // SAFETY: callers pass the fresh result of a successful descriptor-making call, owned by nobody else.
    unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) }
}

/// The error number of a failed call; EIO where there is none.
pub(crate) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// An epoll instance.
pub(crate) struct Poller(OwnedFd);

impl Poller {
    pub(crate) fn new() -> io::Result<Poller> {
        // SAFETY: no memory is passed.
        Ok(Poller(own(check(unsafe {
            libc::epoll_create1(libc::EPOLL_CLOEXEC)
        })?)))
    }

    fn control(&self, op: libc::c_int, fd: RawFd, events: libc::c_int, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: token,
        };
        // SAFETY: `event` is valid for the call, which copies it.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd, &mut event) }).map(drop)
    }

    pub(crate) fn add(&self, fd: BorrowedFd<'_>, events: libc::c_int, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), events, token)
    }

    pub(crate) fn modify(&self, fd: BorrowedFd<'_>, events: libc::c_int, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd.as_raw_fd(), events, token)
    }

    /// Takes a descriptor out and closes it. Closing alone is not enough: a child between clone and exec
    /// holds a copy, and the old registration would go on reporting.
    pub(crate) fn close(&self, fd: OwnedFd) {
        self.remove(fd.as_fd());
    }

    /// Takes a descriptor out.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        // A descriptor that was never added answers ENOENT; then there is nothing to take out.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd.as_raw_fd(), 0, 0);
    }

    /// Waits without bound; a timer descriptor ends the wait. An interrupted wait reports nothing.
    pub(crate) fn wait(&self, out: &mut [libc::epoll_event]) -> io::Result<usize> {
        let max = libc::c_int::try_from(out.len()).unwrap_or(libc::c_int::MAX);
        // SAFETY: the pointer and length describe the exclusively borrowed `out`.
        match check(unsafe { libc::epoll_wait(self.0.as_raw_fd(), out.as_mut_ptr(), max, -1) }) {
            Ok(n) => Ok(usize::try_from(n).unwrap_or(0)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(e) => Err(e),
        }
    }
}

/// A timer on `CLOCK_BOOTTIME`.
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> io::Result<Timer> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no memory is passed.
        Ok(Timer(own(check(unsafe {
            libc::timerfd_create(libc::CLOCK_BOOTTIME, flags)
        })?)))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Fires once at that absolute time; setting it clears an earlier expiry.
    pub(crate) fn set(&self, at_ms: u64) -> io::Result<()> {
        let at_ms = at_ms.max(1);
        let spec = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: (at_ms / 1_000) as libc::time_t,
                tv_nsec: ((at_ms % 1_000) * 1_000_000) as libc::c_long,
            },
        };
        let flags = libc::TFD_TIMER_ABSTIME;
        // SAFETY: `spec` is valid for the call; no old value is asked for.
        check(unsafe { libc::timerfd_settime(self.0.as_raw_fd(), flags, &spec, std::ptr::null_mut()) })
            .map(drop)
    }
}

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

/// Blocks [`SIGNALS`], so that they wait for [`signal_fd`] or [`wait_signal`].
pub(crate) fn block_signals() -> io::Result<()> {
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

/// A reaped child.
pub(crate) struct Reaped {
    pub(crate) pid: i32,
    pub(crate) status: i32,
    pub(crate) user_us: u64,
    pub(crate) system_us: u64,
    pub(crate) max_rss_kib: u64,
}

/// Reaps one dead child, ours or an orphan, or says that there is none.
pub(crate) fn reap() -> Option<Reaped> {
    let mut status = 0;
    // SAFETY: rusage is plain data for which all zeros is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both places are valid for the call to write to.
    let pid = unsafe { libc::wait4(-1, &mut status, libc::WNOHANG, &mut usage) };
    let micros = |t: libc::timeval| {
        u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(t.tv_usec).unwrap_or(0)
    };
    (pid > 0).then(|| Reaped {
        pid,
        status,
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
        max_rss_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
    })
}

/// Takes an exclusive lock without waiting. `Ok(false)` = somebody else holds it.
pub(crate) fn try_lock(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: no memory is passed.
    match check(unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(e) => Err(e),
    }
}

/// Orphans of our descendants become our children (`PR_SET_CHILD_SUBREAPER`).
pub(crate) fn become_subreaper() -> io::Result<()> {
    // SAFETY: this prctl takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

/// Raises the soft limit of open descriptors to the hard one. Returns it.
pub(crate) fn raise_nofile() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place to write to.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is valid for the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    Ok(limit.rlim_cur)
}

/// Opens a file relative to a directory.
pub(crate) fn open_at(dir: BorrowedFd<'_>, name: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: `name` is a terminated string; no mode is needed since nothing is created.
    Ok(own(check(unsafe {
        libc::openat(dir.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC)
    })?))
}

/// Whether the directory belongs to a cgroup v2 hierarchy.
pub(crate) fn is_cgroup2(dir: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: statfs is plain data for which all zeros is valid.
    let mut info: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is a valid place to write to.
    check(unsafe { libc::fstatfs(dir.as_raw_fd(), &mut info) })?;
    #[allow(
        clippy::unnecessary_cast,
        reason = "the C libraries differ in the type of this field"
    )]
    Ok(info.f_type as i64 == CGROUP2_SUPER_MAGIC)
}

/// Writes a few bytes in one call.
pub(crate) fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length describe the borrowed `bytes`.
    check_len(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) })
}

/// Reads what is there in one call. 0 = end.
pub(crate) fn read(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length describe the exclusively borrowed `buf`.
    check_len(unsafe { libc::read(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) })
}

/// Gives a descriptor's file to a user, so that the tool may open `/dev/stdout` again.
pub(crate) fn chown(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fchown(fd.as_raw_fd(), uid, gid) }).map(drop)
}

/// Makes an open directory the working directory.
pub(crate) fn change_dir(dir: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fchdir(dir.as_raw_fd()) }).map(drop)
}

/// A handle on a process.
pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: this call takes numbers only.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as libc::c_int)?;
    Ok(own(fd))
}

/// Sends a signal through a handle: never to a process that got the number later.
pub(crate) fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: no information is passed, the rest are numbers.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, none, 0) };
    check(result as libc::c_int).map(drop)
}

/// Sends a signal to all processes of a process group. `Ok(false)` = there are none.
pub(crate) fn signal_process_group(pgid: i32, signal: i32) -> io::Result<bool> {
    // SAFETY: this call takes numbers only.
    match check(unsafe { libc::kill(-pgid, signal) }) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Forks without running any handler. 0 in the child.
pub(crate) fn fork() -> io::Result<i32> {
    // SAFETY: the supervisor has one thread, so the child may go on like the parent.
    check(unsafe { libc::fork() })
}

/// Closes every descriptor from 3 up except one.
pub(crate) fn close_all_except(keep: RawFd) {
    let keep = keep.unsigned_abs();
    let ranges = [(3, keep.saturating_sub(1)), (keep + 1, u32::MAX)];
    for (first, last) in ranges {
        if first <= last {
            // SAFETY: called in a fresh child that owns none of these descriptors and forgets their owners.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

/// How the child is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CloneWish {
    /// Group to be born in.
    pub(crate) cgroup: Option<RawFd>,
    /// Own mount namespace.
    pub(crate) mounts: bool,
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
    args.flags = CLONE_PIDFD | CLONE_CLEAR_SIGHAND;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(fd) = wish.cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = fd as u64;
    }
    if wish.mounts {
        args.flags |= CLONE_NEWNS;
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
pub(crate) fn clone_plain(mounts: bool) -> io::Result<Side> {
    let mut pidfd: libc::c_int = -1;
    let flags = libc::SIGCHLD as u64 | CLONE_PIDFD | if mounts { CLONE_NEWNS } else { 0 };
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

/// Moves bytes from a pipe to a file at an offset without copying them through us. 0 = end.
pub(crate) fn splice(
    pipe: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: u64,
    len: usize,
) -> io::Result<usize> {
    let mut at = offset as libc::loff_t;
    let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
    let none = std::ptr::null_mut();
    // SAFETY: `at` is a valid place for the offset; a pipe takes none.
    check_len(unsafe { libc::splice(pipe.as_raw_fd(), none, file.as_raw_fd(), &mut at, len, flags) })
}

/// Waits until a socket takes another record or its peer is gone.
pub(crate) fn wait_writable(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one valid pollfd is passed with count 1.
    match check(unsafe { libc::poll(&mut poll, 1, -1) }) {
        Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
        _ => Ok(()),
    }
}

/// Whether a descriptor is readable now; a process handle is when its process is dead.
pub(crate) fn readable_now(fd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid pollfd is passed with count 1.
    unsafe { libc::poll(&mut poll, 1, 0) != 0 }
}

/// Length of an open file in bytes.
pub(crate) fn file_len(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: stat is plain data for which all zeros is valid.
    let mut info: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is a valid place to write to.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &mut info) })?;
    Ok(u64::try_from(info.st_size).unwrap_or(0))
}

/// The caller gets `signal` when its parent ends.
pub(crate) fn die_with_parent(signal: libc::c_int) -> io::Result<()> {
    // SAFETY: this prctl takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) }).map(drop)
}

/// The name of the process in lists, at most 15 bytes.
pub(crate) fn set_name(name: &CStr) {
    // SAFETY: `name` is a terminated string; the kernel copies at most 16 bytes of it.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Ends the process without running anything of ours.
pub(crate) fn exit_now(code: libc::c_int) -> ! {
    // SAFETY: a number only.
    unsafe { libc::_exit(code) }
}

/// Leaves a descriptor of this number open across exec.
pub(crate) fn keep_on_exec(fd: RawFd) -> io::Result<()> {
    // SAFETY: F_SETFD takes an int and touches no memory.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }).map(drop)
}

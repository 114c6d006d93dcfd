//! System calls only the supervisor makes, each a safe wrapper around one call.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use fairlead_supervisor::sys::{check, check_len};

const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;

pub(crate) fn own(fd: libc::c_int) -> OwnedFd {
    // SAFETY: callers pass the fresh result of a successful descriptor-making call, owned by nobody else.
    unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) }
}

/// The error number of a failed call; EIO where there is none.
pub(crate) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// A reaped child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reaped {
    pub(crate) pid: i32,
    pub(crate) status: i32,
    pub(crate) user_us: u64,
    pub(crate) system_us: u64,
    pub(crate) max_rss_kib: u64,
}

/// Writes without waiting, also where somebody else takes the room of a pipe in between; on files and kernels that know
/// no such write, in the ordinary way (pwritev2(2), RWF_NOWAIT).
pub(crate) fn write_now(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: one part that describes the borrowed `bytes`, which are only read; -1 is the file's own position.
    let written = unsafe { libc::pwritev2(fd.as_raw_fd(), &raw const part, 1, -1, libc::RWF_NOWAIT) };
    if written >= 0 {
        return Ok(written.cast_unsigned());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => write(fd, bytes),
        _ => Err(error),
    }
}

/// Reaps one dead child, ours or an orphan, or says that there is none.
pub(crate) fn reap() -> Option<Reaped> {
    wait4(libc::WNOHANG).filter(|dead| dead.pid > 0)
}

/// Waits for the next dead child. `None` = there is no child at all.
pub(crate) fn wait_any() -> Option<Reaped> {
    loop {
        match wait4(0) {
            None if errno(&io::Error::last_os_error()) == libc::EINTR => {}
            other => return other,
        }
    }
}

fn wait4(options: libc::c_int) -> Option<Reaped> {
    let mut status = 0;
    // SAFETY: rusage is plain data for which all zeros is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both places are valid for the call to write to.
    let pid = unsafe { libc::wait4(-1, &mut status, options, &mut usage) };
    let micros = |t: libc::timeval| {
        u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(t.tv_usec).unwrap_or(0)
    };
    (pid >= 0).then(|| Reaped {
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

//! Safe wrappers of the system calls both sides of the protocol need.
//!
//! Each wrapper is one call with the error number turned into an `io::Error`. Nothing here allocates.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Turns the -1 convention of libc into a `Result`.
///
/// # Errors
/// The current error number, if `result` is negative.
pub fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// The same for calls that return a byte count.
///
/// # Errors
/// The current error number, if `result` is negative.
pub fn check_len(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Takes ownership of a descriptor that a system call has just returned.
pub(crate) fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: callers pass the fresh result of a successful descriptor-making call, owned by nobody else.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn clock_ms(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec to write to; both clocks used exist on every supported kernel.
    unsafe { libc::clock_gettime(clock, &mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000) + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

/// `CLOCK_BOOTTIME` in milliseconds: monotonic, and it counts suspended time.
pub fn boottime_ms() -> u64 {
    clock_ms(libc::CLOCK_BOOTTIME)
}

/// `CLOCK_REALTIME` in milliseconds since the Unix epoch.
pub fn realtime_ms() -> u64 {
    clock_ms(libc::CLOCK_REALTIME)
}

/// A connected pair of record sockets, both close-on-exec and non-blocking.
///
/// # Errors
/// Those of `socketpair(2)`.
pub fn record_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds: [RawFd; 2] = [-1, -1];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `fds` has room for the two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    Ok((own(fds[0]), own(fds[1])))
}

/// A pipe, close-on-exec on both ends, with the given extra flags. Returns (read, write).
///
/// # Errors
/// Those of `pipe2(2)`.
pub fn pipe(flags: libc::c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds: [RawFd; 2] = [-1, -1];
    // SAFETY: `fds` has room for the two descriptors.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC | flags) })?;
    Ok((own(fds[0]), own(fds[1])))
}

/// An anonymous file in memory, close-on-exec.
///
/// # Errors
/// Those of `memfd_create(2)`.
pub fn memfd(name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    // SAFETY: `name` is a terminated string that outlives the call.
    Ok(own(check(unsafe {
        libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC)
    })?))
}

/// Reads at an offset without moving the file position. 0 = end of file.
///
/// # Errors
/// Those of `pread(2)`.
pub fn pread(fd: RawFd, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    // SAFETY: the pointer and length describe the exclusively borrowed `buf`.
    check_len(unsafe { libc::pread(fd, buf.as_mut_ptr().cast(), buf.len(), offset as libc::off_t) })
}

/// Writes at an offset without moving the file position.
///
/// # Errors
/// Those of `pwrite(2)`; a short write is `WriteZero`.
pub fn pwrite_all(fd: RawFd, buf: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        let rest = &buf[done..];
        let at = (offset + done as u64) as libc::off_t;
        // SAFETY: the pointer and length describe the borrowed `rest`.
        match check_len(unsafe { libc::pwrite(fd, rest.as_ptr().cast(), rest.len(), at) }) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Waits until `fd` is readable, or hung up, or the time is over. Says whether it is.
///
/// # Errors
/// Those of `poll(2)`; an interrupted wait counts as "not yet".
pub fn wait_readable(fd: BorrowedFd<'_>, timeout: std::time::Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let millis = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: one valid pollfd is passed with count 1.
    match check(unsafe { libc::poll(&mut poll, 1, millis) }) {
        Ok(n) => Ok(n > 0),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(e) => Err(e),
    }
}

/// Sets or clears close-on-exec.
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn set_cloexec(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    let flags = if on { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: F_SETFD takes an int and touches no memory.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, flags) }).map(drop)
}

/// Makes reads and writes return `WouldBlock` instead of waiting.
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: F_GETFL touches no memory.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: F_SETFL takes an int and touches no memory.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// Reserves `len` bytes on disk, so that later writes inside them cannot fail for lack of space.
/// File systems that cannot reserve get a file of that length filled with zeros.
///
/// # Errors
/// Those of `fallocate(2)` and `pwrite(2)`: ENOSPC or EDQUOT when there is no room.
pub fn preallocate(fd: BorrowedFd<'_>, len: u64) -> io::Result<()> {
    // SAFETY: fallocate touches no memory of ours.
    match check(unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, len as libc::off_t) }) {
        Ok(_) => Ok(()),
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            let zeros = [0u8; 4_096];
            let mut at = 0;
            while at < len {
                let n = (len - at).min(zeros.len() as u64);
                pwrite_all(fd.as_raw_fd(), &zeros[..n as usize], at)?;
                at += n;
            }
            Ok(())
        }
        Err(e) => Err(e),
    }
}

/// A child of this process that only waits to be killed.
#[derive(Debug)]
pub struct Sleeper {
    pid: libc::pid_t,
}

impl Sleeper {
    /// Starts it.
    ///
    /// # Errors
    /// Those of `fork(2)`.
    pub fn start() -> io::Result<Sleeper> {
        // SAFETY: the child calls nothing but pause and _exit, which are safe after a fork in any program.
        let pid = check(unsafe { libc::fork() })?;
        if pid == 0 {
            loop {
                // SAFETY: pause only waits for a signal.
                unsafe { libc::pause() };
            }
        }
        Ok(Sleeper { pid })
    }

    /// Its process id.
    pub fn pid(&self) -> libc::pid_t {
        self.pid
    }

    /// Waits for the end of a child that was killed by its group.
    ///
    /// # Errors
    /// Those of `waitpid(2)`.
    pub fn reap(self) -> io::Result<()> {
        let mut status = 0;
        // SAFETY: `status` is a valid place for the wait status.
        check(unsafe { libc::waitpid(self.pid, &mut status, 0) })?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // SAFETY: the pid is our own child, not yet reaped, so the number cannot have been reused.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        let mut status = 0;
        // SAFETY: `status` is a valid place for the wait status.
        unsafe { libc::waitpid(self.pid, &mut status, 0) };
    }
}

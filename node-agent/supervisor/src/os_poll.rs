//! Waiting: epoll, a timer on `CLOCK_BOOTTIME`, single descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use fairlead_supervisor::sys::check;

use crate::os::own;

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

/// Whether a descriptor takes a short write now without waiting.
pub(crate) fn writable_now(fd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one valid pollfd is passed with count 1.
    let ready = unsafe { libc::poll(&mut poll, 1, 0) };
    ready == 1 && poll.revents & libc::POLLOUT != 0
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_pipe_takes_nothing_more() {
        let (reader, mut writer) = io::pipe().expect("pipe");
        let page = [0u8; 4_096];
        let mut pages = 0;
        while writable_now(writer.as_fd()) {
            io::Write::write_all(&mut writer, &page).expect("write");
            pages += 1;
            assert!(pages < 100_000, "it never fills");
        }
        assert!(pages > 0);
        drop(reader);
    }
}

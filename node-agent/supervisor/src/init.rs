//! The first process of a tool's PID namespace: ours, since the kernel lets a first process ignore signals it has no
//! handler for, and ends the whole namespace with it (pid_namespaces(7)).
//!
//! It waits for everybody, tells the supervisor how the leader ended, and ends when nobody is left. It holds no
//! descriptor but that of its report and nobody of the tool's user may look into it. Nothing here allocates.

use std::os::fd::RawFd;

use crate::os::{self, Reaped};

/// Bytes of the one report: wait status, four of padding, user and system time in microseconds, peak memory in KiB,
/// little-endian.
pub(crate) const REPORT_LEN: usize = 32;

/// The report of a leader's end.
pub(crate) fn encode(dead: &Reaped) -> [u8; REPORT_LEN] {
    let mut bytes = [0u8; REPORT_LEN];
    bytes[..4].copy_from_slice(&dead.status.to_le_bytes());
    for (place, value) in [(8, dead.user_us), (16, dead.system_us), (24, dead.max_rss_kib)] {
        bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// What a report says of process `pid`.
pub(crate) fn decode(pid: i32, bytes: &[u8; REPORT_LEN]) -> Reaped {
    let number = |place: usize| {
        let mut word = [0u8; 8];
        word.copy_from_slice(&bytes[place..place + 8]);
        u64::from_le_bytes(word)
    };
    let mut status = [0u8; 4];
    status.copy_from_slice(&bytes[..4]);
    Reaped {
        pid,
        status: i32::from_le_bytes(status),
        user_us: number(8),
        system_us: number(16),
        max_rss_kib: number(24),
    }
}

/// Gives up every descriptor but `report`, so that output ends when the tool's own processes end it.
pub(crate) fn close_all_but(report: RawFd) {
    let report = report.cast_unsigned();
    for (first, last) in [(0, report.wrapping_sub(1)), (report + 1, u32::MAX)] {
        // SAFETY: numbers only; this process uses no descriptor but the one that is left out.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

/// Keeps the processes of the tool's user away: no trace, and files in /proc that belong to root (prctl(2)).
pub(crate) fn hide_from_the_tool() {
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    // SAFETY: a static terminated string.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"fairlead-init".as_ptr()) };
}

/// Ends, since its rights could not be given up. The kernel kills everybody with it before the supervisor sees its end,
/// which is therefore theirs too; nothing is told before, and no right is needed for it.
pub(crate) fn give_up() -> ! {
    // SAFETY: _exit takes a number and runs nothing of ours.
    unsafe { libc::_exit(127) }
}

/// Has itself killed, and so everybody, when the supervisor dies: where that is not the first process of a PID namespace
/// itself, nobody else would end what runs (PR_SET_PDEATHSIG(2const)). A change of user or capabilities takes it back, so
/// it comes after them.
///
/// # Errors
/// ESRCH when the supervisor is dead already: nobody holds the other end of the report's pipe, of which the child's own copy
/// was closed before anything else.
pub(crate) fn die_with_the_supervisor(report: RawFd) -> Result<(), i32> {
    // SAFETY: numbers only.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) } < 0 {
        return Err(os::errno(&std::io::Error::last_os_error()));
    }
    let mut pipe = libc::pollfd {
        fd: report,
        events: 0,
        revents: 0,
    };
    // SAFETY: one valid pollfd that outlives the call, which does not wait.
    unsafe { libc::poll(&raw mut pipe, 1, 0) };
    if pipe.revents & libc::POLLERR == 0 {
        Ok(())
    } else {
        Err(libc::ESRCH)
    }
}

/// Waits until nobody is left; reports the end of `leader`.
pub(crate) fn serve(report: RawFd, leader: i32) -> ! {
    loop {
        match os::wait_any() {
            Some(dead) if dead.pid == leader => {
                let bytes = encode(&dead);
                // SAFETY: the pointer and length describe `bytes`. A supervisor that is gone cannot be told.
                unsafe { libc::write(report, bytes.as_ptr().cast(), bytes.len()) };
            }
            Some(_) => {}
            // SAFETY: _exit takes a number and runs nothing of ours.
            None => unsafe { libc::_exit(0) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_comes_back() {
        let dead = Reaped {
            pid: 7,
            status: 3 << 8,
            user_us: 1,
            system_us: u64::MAX,
            max_rss_kib: 3,
        };
        assert_eq!(decode(7, &encode(&dead)), dead);
    }
}

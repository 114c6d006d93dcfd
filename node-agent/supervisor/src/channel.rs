//! One record and its descriptors over a `SOCK_SEQPACKET` socket (`unix(7)`, `SCM_RIGHTS`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::sys;
use crate::wire::{MAX_FDS, RECORD_LEN};

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the layout of control messages below is the kernel's for 64-bit targets");

/// Bytes of the kernel's `cmsghdr` on 64-bit targets: length (8), level (4), type (4).
const HEADER: usize = 16;
const CONTROL_WORDS: usize = (HEADER + MAX_FDS * 4).div_ceil(8);
const CONTROL_LEN: usize = CONTROL_WORDS * 8;

/// Descriptors that came with a record, in the order they were sent. Those not taken are closed.
#[derive(Debug, Default)]
pub struct Received {
    fds: [Option<OwnedFd>; MAX_FDS],
    len: usize,
}

impl Received {
    /// How many came.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none came.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes the descriptor at `index`, once.
    pub fn take(&mut self, index: usize) -> Option<OwnedFd> {
        self.fds.get_mut(index).and_then(Option::take)
    }
}

/// The control buffer, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

/// Sends one record with up to [`MAX_FDS`] descriptors. All or nothing; never raises SIGPIPE.
///
/// # Errors
/// `WouldBlock` if the peer's queue is full, EPIPE or ECONNRESET if the peer is gone, `InvalidInput` for
/// too many descriptors.
pub fn send(socket: BorrowedFd<'_>, record: &[u8; RECORD_LEN], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if fds.len() > MAX_FDS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut control = Control([0; CONTROL_LEN]);
    let used = HEADER + fds.len() * 4;
    control.0[..8].copy_from_slice(&(used as u64).to_ne_bytes());
    control.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
    control.0[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
    for (index, fd) in fds.iter().enumerate() {
        let at = HEADER + index * 4;
        control.0[at..at + 4].copy_from_slice(&fd.as_raw_fd().to_ne_bytes());
    }
    let mut iov = libc::iovec {
        iov_base: record.as_ptr().cast_mut().cast(),
        iov_len: RECORD_LEN,
    };
    let mut message = empty_message(&mut iov);
    if !fds.is_empty() {
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = used.div_ceil(8) as _;
        message.msg_controllen *= 8;
    }
    loop {
        // SAFETY: `message` points to `iov` and `control`, which live until after the call; sendmsg only
        // reads through them.
        match sys::check_len(unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) }) {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Receives one record into `record`. Returns its length (0 = the peer closed) and its descriptors,
/// which are close-on-exec. A longer record is cut, which shows in a wrong length.
///
/// # Errors
/// `WouldBlock` if there is none, `InvalidData` if descriptors were lost, else those of `recvmsg(2)`.
pub fn recv(socket: BorrowedFd<'_>, record: &mut [u8; RECORD_LEN]) -> io::Result<(usize, Received)> {
    let mut control = Control([0; CONTROL_LEN]);
    let mut iov = libc::iovec {
        iov_base: record.as_mut_ptr().cast(),
        iov_len: RECORD_LEN,
    };
    let mut message = empty_message(&mut iov);
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_LEN as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_TRUNC;
    let len = loop {
        // SAFETY: `message` points to `iov` and `control`, which live until after the call and are
        // exclusively ours.
        match sys::check_len(unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) }) {
            Ok(n) => break n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    };
    let received = take_fds(&control, control_len(&message));
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((len, received))
}

/// The C libraries differ in the type of this field.
#[allow(clippy::unnecessary_cast, reason = "size_t with glibc, socklen_t with musl")]
fn control_len(message: &libc::msghdr) -> usize {
    message.msg_controllen as usize
}

fn empty_message(iov: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: msghdr is plain data for which all zeros is the valid empty value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov;
    message.msg_iovlen = 1;
    message
}

/// Reads the one control message our peers send.
fn take_fds(control: &Control, controllen: usize) -> Received {
    let mut received = Received::default();
    if controllen < HEADER {
        return received;
    }
    let word = |at: usize| {
        let mut bytes = [0u8; 4];
        bytes.copy_from_slice(&control.0[at..at + 4]);
        i32::from_ne_bytes(bytes)
    };
    let mut len_bytes = [0u8; 8];
    len_bytes.copy_from_slice(&control.0[..8]);
    let used = (u64::from_ne_bytes(len_bytes) as usize).min(controllen);
    if word(8) != libc::SOL_SOCKET || word(12) != libc::SCM_RIGHTS || used < HEADER {
        return received;
    }
    for index in 0..((used - HEADER) / 4).min(MAX_FDS) {
        let fd: RawFd = word(HEADER + index * 4);
        received.fds[index] = Some(sys::own(fd));
        received.len = index + 1;
    }
    received
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn records_and_descriptors_arrive_together_and_in_order() {
        let (a, b) = sys::record_pair().expect("pair");
        let (read, write) = sys::pipe(0).expect("pipe");
        let record = [7u8; RECORD_LEN];
        send(a.as_fd(), &record, &[read.as_fd(), write.as_fd()]).expect("send");
        send(a.as_fd(), &[9u8; RECORD_LEN], &[]).expect("send");
        let mut got = [0u8; RECORD_LEN];
        let (len, mut fds) = recv(b.as_fd(), &mut got).expect("recv");
        assert_eq!((len, got, fds.len()), (RECORD_LEN, record, 2));
        let (read2, write2) = (fds.take(0).expect("first"), fds.take(1).expect("second"));
        assert!(fds.take(0).is_none() && fds.take(7).is_none());
        std::io::Write::write_all(&mut std::fs::File::from(write2), b"x").expect("write");
        let mut byte = [0u8; 1];
        std::io::Read::read_exact(&mut std::fs::File::from(read2), &mut byte).expect("read");
        let (len, fds) = recv(b.as_fd(), &mut got).expect("recv");
        assert_eq!((len, got[0], fds.is_empty()), (RECORD_LEN, 9, true));
        assert_eq!(
            recv(b.as_fd(), &mut got).map(|_| ()).map_err(|e| e.kind()),
            Err(io::ErrorKind::WouldBlock)
        );
        drop(a);
        assert_eq!(recv(b.as_fd(), &mut got).expect("end").0, 0);
    }

    #[test]
    fn a_full_queue_and_a_gone_peer_are_errors_not_waits() {
        let (a, b) = sys::record_pair().expect("pair");
        let record = [0u8; RECORD_LEN];
        let mut sent = 0;
        let error = loop {
            match send(a.as_fd(), &record, &[]) {
                Ok(()) => sent += 1,
                Err(e) => break e,
            }
            assert!(sent < 1_000_000, "the queue has no bound");
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(b);
        let gone = send(a.as_fd(), &record, &[]).expect_err("peer is gone");
        assert!(
            matches!(gone.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)),
            "{gone}"
        );
    }
}

//! The agent's end of the protocol.
//!
//! The socket is non-blocking and close-on-exec; no call here waits unless it says so. An agent that uses
//! an event loop registers [`Client::as_fd`] for reading and calls [`Client::recv`] until `WouldBlock`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::channel;
use crate::sys;
use crate::wire::{ENV_FD, Event, FLAG_CGROUP, FLAG_HOME, FLAG_SEPARATE_STDERR, RECORD_LEN, Request, Spawn};

/// The descriptors of a Spawn. The supervisor gets copies; the caller keeps and may close its own.
#[derive(Clone, Copy, Debug)]
pub struct SpawnFds<'a> {
    /// Directory of the attempt's cgroup; absent with the process-group backend.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// The attempt's slot file, open for reading and writing.
    pub slot: BorrowedFd<'a>,
    /// The block of [`crate::command::command_memfd`].
    pub command: BorrowedFd<'a>,
    /// Standard input of the tool.
    pub stdin: BorrowedFd<'a>,
    /// Spool file of stdout, open for writing and not `O_APPEND`.
    pub stdout: BorrowedFd<'a>,
    /// Spool file of stderr; absent: stderr shares the pipe of stdout, so that their order is real.
    pub stderr: Option<BorrowedFd<'a>>,
    /// Home directory of the run, owned by its user.
    pub home: Option<BorrowedFd<'a>>,
}

/// A connection to the supervisor that started this process.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
}

impl Client {
    /// Takes over the descriptor named by [`ENV_FD`]. Call it once, early, before other code opens files.
    ///
    /// # Errors
    /// `NotFound` if the variable is not set (the process was not started by a supervisor),
    /// `InvalidInput` if it is no descriptor number or that descriptor is not a socket.
    pub fn from_env() -> io::Result<Client> {
        let text = std::env::var(ENV_FD).map_err(|_| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("{ENV_FD} is not set: start me by fairlead-supervisor"),
            )
        })?;
        let bad = || {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{ENV_FD}={text:?} names no record socket"),
            )
        };
        let fd: RawFd = text.parse().ok().filter(|fd| *fd > 2).ok_or_else(bad)?;
        if socket_type(fd) != Some(libc::SOCK_SEQPACKET) {
            return Err(bad());
        }
        // SAFETY: the supervisor left this open descriptor to this process for exactly this use, it was
        // just seen to be a record socket, and nothing else in the process knows its number.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Client::from_fd(socket)
    }

    /// Wraps one end of a record pair.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    pub fn from_fd(socket: OwnedFd) -> io::Result<Client> {
        sys::set_cloexec(socket.as_fd(), true)?;
        sys::set_nonblocking(socket.as_fd())?;
        Ok(Client { socket })
    }

    /// Sends a request that carries no descriptors.
    ///
    /// # Errors
    /// `WouldBlock` if the supervisor's queue is full: read events, then try again. EPIPE or ECONNRESET if
    /// it is gone.
    pub fn send(&self, request: &Request) -> io::Result<()> {
        channel::send(self.socket.as_fd(), &request.encode(), &[])
    }

    /// Sends a Spawn with its descriptors. The flags that say which are there are set from `fds`; all others
    /// are taken from `spawn.flags`.
    ///
    /// # Errors
    /// As [`Client::send`]; then nothing was requested.
    pub fn spawn(&self, spawn: &Spawn, fds: &SpawnFds<'_>) -> io::Result<()> {
        let optional = [
            (fds.cgroup.is_some(), FLAG_CGROUP),
            (fds.stderr.is_some(), FLAG_SEPARATE_STDERR),
            (fds.home.is_some(), FLAG_HOME),
        ];
        let mut spawn = *spawn;
        for (present, flag) in optional {
            spawn.flags = if present {
                spawn.flags | flag
            } else {
                spawn.flags & !flag
            };
        }
        let order = [
            fds.cgroup,
            Some(fds.slot),
            Some(fds.command),
            Some(fds.stdin),
            Some(fds.stdout),
            fds.stderr,
            fds.home,
        ];
        let list: Vec<BorrowedFd<'_>> = order.into_iter().flatten().collect();
        channel::send(self.socket.as_fd(), &Request::Spawn(spawn).encode(), &list)
    }

    /// The next event; `None` when the supervisor closed its end.
    ///
    /// # Errors
    /// `WouldBlock` if there is none now; `InvalidData` for a record of another version.
    pub fn recv(&self) -> io::Result<Option<Event>> {
        let mut record = [0u8; RECORD_LEN];
        match channel::recv(self.socket.as_fd(), &mut record) {
            Ok((0, _)) => Ok(None),
            Ok((len, _)) => Ok(Some(Event::decode(record.get(..len).unwrap_or(&record))?)),
            Err(e) if e.raw_os_error() == Some(libc::ECONNRESET) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Waits at most `timeout` for the next event; `None` when the supervisor closed its end.
    ///
    /// # Errors
    /// `TimedOut`, or as [`Client::recv`].
    pub fn recv_timeout(&self, timeout: Duration) -> io::Result<Option<Event>> {
        let end = Instant::now() + timeout;
        loop {
            match self.recv() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            sys::wait_readable(self.socket.as_fd(), left)?;
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Client {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn socket_type(fd: RawFd) -> Option<libc::c_int> {
    let mut kind: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let out = (&raw mut kind).cast();
    // SAFETY: `out` and `len` describe the local `kind`; a bad `fd` only makes the call fail.
    sys::check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, out, &mut len) })
        .ok()
        .map(|_| kind)
}

//! The pump: a small process of the supervisor that moves output from pipes to spool files.
//!
//! Regular files cannot be polled and a disk may be slow, so this is not done by the process that must
//! kill in time. The supervisor keeps the reading ends; a pump that dies is replaced, and the new one goes
//! on at the length of the spool file. Bytes are moved with `splice(2)`, so they are either in the pipe or
//! in the file, and nothing is held here; where a file system cannot, and beyond the quota, they pass through a buffer, of
//! which a kill of the pump loses at most one filling. Beyond the quota, or where the file takes no more, bytes go to
//! the tail ring of the slot and are counted: the tool is never stopped by us.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use fairlead_supervisor::slot::{self, Output, RING_LEN, Stream, StreamOutput};
use fairlead_supervisor::{channel, sys};

use crate::os::{self, errno};
use crate::os_poll::{self, Poller};
use crate::pump_wire::{Add, FromPump, ToPump};
use crate::table::MAX_ENTRIES;

/// Bytes moved for one stream before the next has its turn.
const TURN_BYTES: usize = 256 * 1024;
const SOCKET: u64 = u64::MAX;
/// After so long a time of work without a look at the socket it says by itself that it lives.
const ALIVE_MS: u64 = 500;

struct Flow {
    pipe: OwnedFd,
    spool: OwnedFd,
    account: StreamOutput,
    /// The file system does not splice: copy through a buffer.
    copy: bool,
}

struct Pair {
    generation: u32,
    quota: u64,
    slot: OwnedFd,
    stdout: Flow,
    stderr: Option<Flow>,
}

struct Pump {
    socket: OwnedFd,
    poller: Poller,
    pairs: Vec<Option<Pair>>,
    buffer: Vec<u8>,
    alive_said_ms: u64,
}

/// Runs until the supervisor closes its end.
///
/// # Errors
/// Those of epoll and of the socket; the supervisor then starts another pump.
pub(crate) fn run(socket: OwnedFd) -> io::Result<()> {
    let poller = Poller::new()?;
    poller.add(socket.as_fd(), libc::EPOLLIN, SOCKET)?;
    let mut pump = Pump {
        socket,
        poller,
        // Reserved, and resident only as far as it is used.
        pairs: Vec::with_capacity(MAX_ENTRIES),
        buffer: vec![0; RING_LEN],
        alive_said_ms: 0,
    };
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
    loop {
        let count = pump.poller.wait(&mut events)?;
        for event in &events[..count] {
            match event.u64 {
                SOCKET => {
                    if !pump.requests()? {
                        return Ok(());
                    }
                }
                token => {
                    pump.turn((token >> 1) as usize, token & 1 == 1)?;
                    if pump.alive_said_ms + ALIVE_MS <= sys::boottime_ms() {
                        pump.say_alive()?;
                    }
                }
            }
        }
    }
}

impl Pump {
    /// Takes what the supervisor asks. `Ok(false)` = it is gone.
    fn requests(&mut self) -> io::Result<bool> {
        loop {
            let mut record = [0u8; fairlead_supervisor::wire::RECORD_LEN];
            let (len, fds) = match channel::recv(self.socket.as_fd(), &mut record) {
                Ok((0, _)) => return Ok(false),
                // It ended with words of ours unread.
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                other => other?,
            };
            match ToPump::decode(&record[..len.min(record.len())]) {
                Some(ToPump::Add(add)) => self.add(add, fds)?,
                Some(ToPump::Remove { index, generation }) => self.remove(index, generation),
                Some(ToPump::Ping) => self.say_alive()?,
                None => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    fn say_alive(&mut self) -> io::Result<()> {
        self.alive_said_ms = sys::boottime_ms();
        match channel::send(self.socket.as_fd(), &FromPump::Alive.encode(), &[]) {
            // Words of ours that are not read yet say it as well.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }

    fn add(&mut self, add: Add, mut fds: channel::Received) -> io::Result<()> {
        let mut take = |at| fds.take(at).ok_or(io::Error::from(io::ErrorKind::InvalidData));
        let (slot, pipe, spool) = (take(0)?, take(1)?, take(2)?);
        let stderr = if add.separate {
            Some((take(3)?, take(4)?))
        } else {
            None
        };
        let known = slot::read_journal(slot.as_raw_fd())
            .ok()
            .and_then(|j| j.output)
            .unwrap_or_default();
        let stdout = flow(pipe, spool, known.stdout);
        let stderr = stderr.map(|(pipe, spool)| flow(pipe, spool, known.stderr));
        let index = add.index as usize;
        if index >= MAX_ENTRIES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if self.pairs.len() <= index {
            self.pairs.resize_with(index + 1, || None);
        }
        let token = (index as u64) << 1;
        // A stream that a former pump saw end is not waited for again.
        if !stdout.account.ended {
            self.poller.add(stdout.pipe.as_fd(), libc::EPOLLIN, token)?;
        }
        if let Some(flow) = stderr.as_ref().filter(|flow| !flow.account.ended) {
            self.poller.add(flow.pipe.as_fd(), libc::EPOLLIN, token | 1)?;
        }
        self.pairs[index] = Some(Pair {
            generation: add.generation,
            quota: add.quota,
            slot,
            stdout,
            stderr,
        });
        self.tell_if_ended(index)
    }

    fn remove(&mut self, index: u32, generation: u32) {
        let Some(place) = self.pairs.get_mut(index as usize) else {
            return;
        };
        let Some(pair) = place.take_if(|pair| pair.generation == generation) else {
            return;
        };
        self.poller.close(pair.stdout.pipe);
        if let Some(flow) = pair.stderr {
            self.poller.close(flow.pipe);
        }
    }

    /// One stream is readable or ended.
    fn turn(&mut self, index: usize, stderr: bool) -> io::Result<()> {
        let Some(pair) = self.pairs.get_mut(index).and_then(Option::as_mut) else {
            return Ok(());
        };
        let stream = if stderr { Stream::Stderr } else { Stream::Stdout };
        let Some(flow) = (if stderr {
            pair.stderr.as_mut()
        } else {
            Some(&mut pair.stdout)
        }) else {
            return Ok(());
        };
        let before = flow.account;
        let ring = Ring {
            slot: pair.slot.as_fd(),
            stream,
        };
        flow.advance(&ring, pair.quota, &mut self.buffer);
        let (after, ended) = (flow.account, flow.account.ended);
        if ended {
            self.poller.remove(flow.pipe.as_fd());
        }
        if ended || after.dropped() != before.dropped() || after.errno != before.errno {
            let output = Output {
                stdout: pair.stdout.account,
                stderr: pair.stderr.as_ref().map(|flow| flow.account).unwrap_or_default(),
            };
            // The slot is preallocated; an error here is an I/O error of the disk, and the spool file's
            // length still says what was stored.
            let _ = slot::write_output(pair.slot.as_raw_fd(), &output);
        }
        if ended { self.tell_if_ended(index) } else { Ok(()) }
    }

    /// Both streams ended: say so and let go.
    fn tell_if_ended(&mut self, index: usize) -> io::Result<()> {
        let Some(place) = self.pairs.get_mut(index) else {
            return Ok(());
        };
        let ended = |pair: &mut Pair| {
            pair.stdout.account.ended && pair.stderr.as_ref().is_none_or(|flow| flow.account.ended)
        };
        let Some(pair) = place.take_if(ended) else {
            return Ok(());
        };
        let told = FromPump::Drained {
            index: index as u32,
            generation: pair.generation,
        };
        loop {
            match channel::send(self.socket.as_fd(), &told.encode(), &[]) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    os_poll::wait_writable(self.socket.as_fd())?
                }
                other => return other,
            }
        }
    }
}

fn flow(pipe: OwnedFd, spool: OwnedFd, known: StreamOutput) -> Flow {
    let mut account = known;
    // The account is written only at certain moments; the file itself says how many bytes are stored.
    let stored = os::file_len(spool.as_fd()).unwrap_or(known.stored);
    account.total = known.dropped() + stored;
    account.stored = stored;
    Flow {
        pipe,
        spool,
        account,
        copy: false,
    }
}

/// Where the overflow of one stream goes.
struct Ring<'a> {
    slot: BorrowedFd<'a>,
    stream: Stream,
}

impl Ring<'_> {
    /// Puts bytes behind those that were dropped before; at most a whole ring.
    fn put(&self, dropped: u64, bytes: &[u8]) {
        let at = (dropped % RING_LEN as u64) as usize;
        let (first, second) = bytes.split_at(bytes.len().min(RING_LEN - at));
        let base = self.stream.ring_offset();
        // The ring is preallocated. An error here is an I/O error of the disk; the count stays right.
        let _ = sys::pwrite_all(self.slot.as_raw_fd(), first, base + at as u64);
        let _ = sys::pwrite_all(self.slot.as_raw_fd(), second, base);
    }
}

impl Flow {
    fn advance(&mut self, ring: &Ring<'_>, quota: u64, buffer: &mut [u8]) {
        let room = quota.saturating_sub(self.account.stored);
        let len = room.min(TURN_BYTES as u64) as usize;
        let result = if room == 0 || self.account.errno != 0 {
            self.discard(ring, buffer)
        } else if self.copy {
            self.copy(ring, len, buffer)
        } else {
            self.splice(len)
        };
        match result {
            Ok(0) => self.account.ended = true,
            Ok(_) => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // What is still in the pipe goes to the ring from now on.
            Err(e) if self.account.errno == 0 => self.account.errno = errno(&e),
            // Not even the pipe can be read: nothing more will come of it.
            Err(_) => self.account.ended = true,
        }
    }

    fn splice(&mut self, len: usize) -> io::Result<usize> {
        match os::splice(self.pipe.as_fd(), self.spool.as_fd(), self.account.stored, len) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                self.copy = true;
                Err(io::ErrorKind::WouldBlock.into())
            }
            Ok(n) => {
                self.account.stored += n as u64;
                self.account.total += n as u64;
                Ok(n)
            }
            Err(e) => Err(e),
        }
    }

    /// For file systems without splice.
    fn copy(&mut self, ring: &Ring<'_>, len: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let len = len.min(buffer.len());
        let got = os::read(self.pipe.as_fd(), &mut buffer[..len])?;
        let result = sys::pwrite_all(self.spool.as_raw_fd(), &buffer[..got], self.account.stored);
        let written = match &result {
            Ok(()) => got,
            // The file says how much of it was taken before it failed.
            Err(_) => os::file_len(self.spool.as_fd()).map_or(0, |len| {
                let written = len.saturating_sub(self.account.stored);
                usize::try_from(written).unwrap_or(got).min(got)
            }),
        };
        if written < got {
            ring.put(self.account.dropped(), &buffer[written..got]);
        }
        self.account.stored += written as u64;
        self.account.total += got as u64;
        result.map(|()| got)
    }

    fn discard(&mut self, ring: &Ring<'_>, buffer: &mut [u8]) -> io::Result<usize> {
        let got = os::read(self.pipe.as_fd(), buffer)?;
        ring.put(self.account.dropped(), &buffer[..got]);
        self.account.total += got as u64;
        Ok(got)
    }
}

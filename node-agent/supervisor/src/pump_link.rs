//! The supervisor's side of the pump: starting it, telling it what to take over, hearing what ended.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use fairlead_supervisor::channel;
use fairlead_supervisor::sys;
use fairlead_supervisor::wire::RECORD_LEN;

use crate::log;
use crate::os;
use crate::pump;
use crate::pump_wire::{Add, FromPump, ToPump};
use crate::supervisor::{Source, Supervisor, token};
use crate::table::{Entry, PumpWish, TELL_DRAINED};

const RESTART_MS: u64 = 100;
/// Pause between two pings while there is output to move.
const PING_MS: u64 = 1_000;
/// A pump that says nothing for so long is killed. Shorter than an ended call waits for its last bytes, so that its
/// successor still brings them. One that waits for a dead disk cannot be killed; then that wait is the bound.
const SILENT_MS: u64 = 3_000;

/// The running pump, or the wish for one.
pub(crate) struct PumpLink {
    pid: i32,
    socket: OwnedFd,
    start_at_ms: u64,
    blocked: bool,
    /// When it was last heard of, or began to be watched; 0 = there is nothing it has to do.
    heard_ms: u64,
    ping_at_ms: u64,
    killed: bool,
}

impl PumpLink {
    /// Forks the pump.
    ///
    /// # Errors
    /// Those of `socketpair(2)` and `fork(2)`.
    pub(crate) fn start() -> io::Result<PumpLink> {
        let (ours, theirs) = sys::record_pair()?;
        let parent = std::process::id();
        let pid = os::fork()?;
        if pid != 0 {
            return Ok(PumpLink {
                pid,
                socket: ours,
                start_at_ms: 0,
                blocked: false,
                heard_ms: 0,
                ping_at_ms: 0,
                killed: false,
            });
        }
        // The child: everything of the parent is a copy that nobody owns here but the one socket.
        os::close_all_except(theirs.as_raw_fd());
        std::mem::forget(ours);
        os::set_name(c"fairlead-pump");
        let orphaned =
            os::die_with_parent(libc::SIGKILL).is_err() || std::os::unix::process::parent_id() != parent;
        let code = match pump::run(theirs) {
            _ if orphaned => 1,
            Ok(()) => 0,
            Err(e) => {
                log::warn(format_args!("pump: {e}"));
                1
            }
        };
        os::exit_now(code)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn due_ms(&self) -> u64 {
        match self.start_at_ms {
            0 if self.heard_ms == 0 || self.killed => u64::MAX,
            0 => self.ping_at_ms.min(self.silent_at_ms()),
            at => at,
        }
    }

    fn silent_at_ms(&self) -> u64 {
        self.heard_ms + SILENT_MS
    }

    /// It was heard of; or this process did not run for a while, and so perhaps the pump neither.
    pub(crate) fn begin_time_anew(&mut self, now: u64) {
        if self.heard_ms != 0 {
            self.heard_ms = now;
        }
    }

    fn kill(&mut self, now: u64) {
        log::warn(format_args!(
            "pump {} was silent for {SILENT_MS} ms: killing it",
            self.pid
        ));
        // It is our child and not reaped, so the number is its own.
        match os::pidfd_open(self.pid).and_then(|fd| os::pidfd_signal(fd.as_fd(), libc::SIGKILL)) {
            Ok(()) => self.killed = true,
            Err(e) => {
                log::warn(format_args!("kill pump {}: {e}", self.pid));
                self.heard_ms = now;
            }
        }
    }
}

impl Supervisor {
    pub(crate) fn pump_died(&mut self, status: i32, now: u64) {
        log::warn(format_args!(
            "pump {} ended with wait status {status:#x}: starting another",
            self.pump.pid
        ));
        self.poller.remove(self.pump.socket());
        (self.pump.pid, self.pump.start_at_ms) = (0, now + RESTART_MS);
    }

    /// Kills a pump that is silent while there is something to move, and asks the others whether they live.
    fn watch_over_pump(&mut self, now: u64) {
        if self.table.iter().all(|entry| entry.stdout.is_none()) {
            self.pump.heard_ms = 0;
            return;
        }
        if self.pump.killed {
            return;
        }
        if self.pump.heard_ms == 0 {
            (self.pump.heard_ms, self.pump.ping_at_ms) = (now, now);
        }
        if self.pump.silent_at_ms() <= now {
            // If it was this process that was late, the pump's words are waiting in the socket.
            self.pump_ready();
        }
        // Those words may have been its last ones.
        if self.pump.heard_ms != 0 && self.pump.silent_at_ms() <= now {
            return self.pump.kill(now);
        }
        if self.pump.ping_at_ms <= now {
            self.pump.ping_at_ms = now + PING_MS;
            // Where it takes no more words, it has some to answer; where it is dead, its end is handled as such.
            let _ = channel::send(self.pump.socket(), &ToPump::Ping.encode(), &[]);
        }
    }

    /// Watches over the pump, and starts one in place of a dead one; that gets every pipe that is not drained.
    pub(crate) fn pump_due(&mut self, now: u64) {
        if self.pump.start_at_ms == 0 {
            return self.watch_over_pump(now);
        }
        if self.pump.start_at_ms > now {
            return;
        }
        let started = PumpLink::start().and_then(|link| {
            self.poller
                .add(link.socket(), libc::EPOLLIN, token(Source::Pump, 0, 0))?;
            Ok(link)
        });
        match started {
            Ok(link) => self.pump = link,
            Err(e) => {
                log::warn(format_args!("start the pump: {e}"));
                self.pump.start_at_ms = now + RESTART_MS;
                return;
            }
        }
        for entry in self.table.iter_mut().filter(|entry| entry.stdout.is_some()) {
            entry.pump = PumpWish::Add;
        }
        for index in self.table.indexes() {
            self.free_if_over(index);
        }
    }

    /// The pump's socket is readable, or writable again.
    pub(crate) fn pump_ready(&mut self) {
        if self.pump.blocked {
            self.pump.blocked = false;
            self.watch_pump(libc::EPOLLIN);
        }
        loop {
            let mut record = [0u8; RECORD_LEN];
            match channel::recv(self.pump.socket(), &mut record) {
                Ok((len, _)) if len > 0 => {
                    self.pump.begin_time_anew(sys::boottime_ms());
                    if let Some(FromPump::Drained { index, generation }) =
                        FromPump::decode(record.get(..len).unwrap_or(&record))
                    {
                        self.drained(index as usize, generation);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // It is dead: its end is handled when it is reaped.
                _ => return self.poller.remove(self.pump.socket()),
            }
        }
    }

    fn drained(&mut self, index: usize, generation: u32) {
        let Some(entry) = self.table.get_same(index, generation) else {
            return;
        };
        (entry.state.drained, entry.drained_ms) = (true, sys::boottime_ms());
        (entry.stdout, entry.stderr) = (None, None);
        entry.tell |= TELL_DRAINED;
        if entry.pump == PumpWish::Remove {
            entry.pump = PumpWish::None;
        }
        self.free_if_over(index);
    }

    /// Tells the pump what it does not know yet, until its socket is full.
    pub(crate) fn flush_pump(&mut self) {
        if self.pump.blocked || self.pump.pid == 0 {
            return;
        }
        for index in self.table.indexes() {
            let Some(entry) = self.table.get(index).filter(|entry| entry.pump != PumpWish::None) else {
                continue;
            };
            let wish = entry.pump;
            match send_wish(self.pump.socket.as_fd(), index as u32, entry) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.pump.blocked = true;
                    return self.watch_pump(libc::EPOLLIN | libc::EPOLLOUT);
                }
                // It is dead; its successor is told.
                Err(_) => return,
            }
            if wish == PumpWish::Remove {
                self.table.take(index);
            } else {
                entry.pump = PumpWish::None;
                self.free_if_over(index);
            }
        }
    }

    fn watch_pump(&self, events: libc::c_int) {
        if let Err(e) = self
            .poller
            .modify(self.pump.socket(), events, token(Source::Pump, 0, 0))
        {
            log::warn(format_args!("watch the pump's socket: {e}"));
        }
    }
}

fn send_wish(socket: BorrowedFd<'_>, index: u32, entry: &Entry) -> io::Result<()> {
    let generation = entry.generation;
    let (Some(slot), Some(stdout), PumpWish::Add) = (&entry.slot, &entry.stdout, entry.pump) else {
        return channel::send(socket, &ToPump::Remove { index, generation }.encode(), &[]);
    };
    let add = Add {
        index,
        generation,
        quota: entry.store_max_bytes,
        separate: entry.stderr.is_some(),
    };
    let record = ToPump::Add(add).encode();
    let (slot, pipe, spool) = (slot.as_fd(), stdout.pipe.as_fd(), stdout.spool.as_fd());
    match &entry.stderr {
        None => channel::send(socket, &record, &[slot, pipe, spool]),
        Some(stderr) => channel::send(
            socket,
            &record,
            &[slot, pipe, spool, stderr.pipe.as_fd(), stderr.spool.as_fd()],
        ),
    }
}

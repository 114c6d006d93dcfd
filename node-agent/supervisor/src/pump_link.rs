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

/// The running pump, or the wish for one.
pub(crate) struct PumpLink {
    pid: i32,
    socket: OwnedFd,
    start_at_ms: u64,
    blocked: bool,
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
        if self.start_at_ms == 0 {
            u64::MAX
        } else {
            self.start_at_ms
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

    /// Starts a pump in place of a dead one; it gets every pipe that is not drained.
    pub(crate) fn pump_due(&mut self, now: u64) {
        if self.pump.start_at_ms == 0 || self.pump.start_at_ms > now {
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
                    if let Some(told) = FromPump::decode(record.get(..len).unwrap_or(&record)) {
                        self.drained(told);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // It is dead: its end is handled when it is reaped.
                _ => return self.poller.remove(self.pump.socket()),
            }
        }
    }

    fn drained(&mut self, told: FromPump) {
        let index = told.index as usize;
        let Some(entry) = self.table.get_same(index, told.generation) else {
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

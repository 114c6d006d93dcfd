//! The agent's side of the loop: reading its requests, telling it what it does not know yet.

use std::io;

use fairlead_supervisor::channel::{self, Received};
use fairlead_supervisor::step::Step;
use fairlead_supervisor::sys;
use fairlead_supervisor::wire::{Cause, EntryPhase, Event, Key, RECORD_LEN, Request, Spawn};

use crate::log;
use crate::spawn::Fds;
use crate::supervisor::{Source, Stop, Supervisor, token};
use crate::table::{Entry, PumpWish, TELL_STATE};

/// Requests read before other sources have their turn.
const TURN: usize = 64;

impl Supervisor {
    /// The agent's socket is readable, or writable again.
    pub(crate) fn agent_ready(&mut self) {
        if self.blocked {
            self.blocked = false;
            self.watch_agent(libc::EPOLLIN);
        }
        for _ in 0..TURN {
            self.flush_agent();
            if self.blocked || !self.read_request() {
                return;
            }
        }
    }

    /// Reads and does one request. `false` = there is none.
    fn read_request(&mut self) -> bool {
        let Some(socket) = self.agent.socket() else {
            return false;
        };
        let mut record = [0u8; RECORD_LEN];
        let (request, fds) = match channel::recv(socket, &mut record) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
            Ok((len, fds)) if len > 0 => (Request::decode(record.get(..len).unwrap_or(&record)), fds),
            Ok(_) => return self.drop_agent("it closed its socket"),
            Err(e) => {
                log::warn(format_args!("receive from the agent: {e}"));
                return self.drop_agent("its socket failed");
            }
        };
        match request {
            Ok(request) => self.request(request, fds),
            Err(e) => {
                log::warn(format_args!("request of the agent: {e}"));
                return self.drop_agent("it does not speak our protocol");
            }
        }
        true
    }

    fn drop_agent(&mut self, why: &str) -> bool {
        if let Some(socket) = self.agent.socket() {
            self.poller.remove(socket);
        }
        self.agent.kill(why, sys::boottime_ms());
        false
    }

    fn request(&mut self, request: Request, fds: Received) {
        let now = sys::boottime_ms();
        let Some(running) = &mut self.agent.running else {
            return;
        };
        running.heard_ms = now;
        if let Request::Hello { agent_pid } = request {
            running.hello = true;
            (self.hello_due, self.answer) = (true, None);
            for entry in self.table.iter_mut() {
                entry.tell = TELL_STATE;
            }
            log::info(format_args!("agent {agent_pid} said hello"));
            return;
        }
        if !running.hello && request == Request::Heartbeat {
            return;
        }
        if !running.hello {
            return log::warn(format_args!("request before Hello is ignored"));
        }
        match request {
            Request::Hello { .. } => {}
            // Not Hello itself: an agent that dies soon after it, again and again, is none.
            Request::Heartbeat if running.serves() => {
                self.agent.absent_ms = 0;
                self.lost_done = false;
            }
            Request::Heartbeat => {}
            Request::Spawn(spawn) => self.spawn(&spawn, fds, now),
            Request::Signal { key, signo } => self.signal(key, signo),
            Request::Kill { key } => {
                if let Some(index) = self.known(key) {
                    self.begin_kill(index, Cause::Requested, now);
                }
            }
            Request::SetDeadline { key, deadline_ms } => {
                if let Some(index) = self.known(key)
                    && let Some(entry) = self.table.get(index)
                    && !entry.state.emptied
                {
                    entry.deadline_ms = deadline_ms;
                }
            }
            Request::Forget { key } => {
                if let Some(index) = self.table.find(&key) {
                    if let Some(entry) = self.table.get(index) {
                        entry.forget = true;
                    }
                    self.free_if_over(index);
                }
            }
        }
    }

    /// The entry, or the answer that there is none.
    fn known(&mut self, key: Key) -> Option<usize> {
        let index = self.table.find(&key);
        if index.is_none() {
            self.answer = Some(Event::Unknown { key });
        }
        index
    }

    fn signal(&mut self, key: Key, signo: u32) {
        let Some(index) = self.known(key) else { return };
        let Some(entry) = self.table.get(index) else {
            return;
        };
        let signal = i32::try_from(signo).ok().filter(|s| (1..=64).contains(s));
        if let (Some(hold), Some(signal)) = (&entry.hold, signal)
            && let Err(e) = self.signaller.send(hold, signal)
        {
            log::warn(format_args!("signal {signo} to {key}: {e}"));
        }
    }

    fn spawn(&mut self, spawn: &Spawn, mut received: Received, now: u64) {
        let key = spawn.key;
        if let Some(entry) = self.table.find(&key).and_then(|index| self.table.get(index)) {
            entry.tell |= TELL_STATE;
            return;
        }
        let refused = |step, errno| Some(Event::Refused { key, step, errno });
        let Some(place) = self.table.free_place() else {
            self.answer = refused(Step::Table, libc::ENOSPC);
            return;
        };
        let Some((slot, fds)) = Fds::take(spawn.flags, &mut received) else {
            self.answer = refused(Step::Request, libc::EBADF);
            return;
        };
        let mut entry = Entry::new(key);
        entry.slot = Some(slot);
        entry.deadline_ms = spawn.deadline_ms;
        entry.grace_ms = spawn.grace_ms.into();
        entry.store_max_bytes = spawn.store_max_bytes;
        // The last look before the clone: a request of a dead agent is not done.
        let sender_lives = self.stop == Stop::Not && self.agent.running.as_ref().is_some_and(|r| r.alive());
        let result = if sender_lives {
            self.spawner.start(spawn, fds)
        } else {
            Err((Step::Sender, libc::ECANCELED))
        };
        match result {
            Err((step, errno)) => {
                entry.refuse(step, errno);
                (entry.reaped, entry.state.emptied, entry.state.emptied_ms) = (true, true, now);
                (entry.state.drained, entry.drained_ms) = (true, now);
                self.table.put(place, entry);
            }
            Ok(started) => self.adopt(place, entry, started),
        }
    }

    /// Says everything that is not said yet, until the socket is full.
    pub(crate) fn flush_agent(&mut self) {
        if self.blocked || !self.agent.running.as_ref().is_some_and(|running| running.hello) {
            return;
        }
        if self.hello_due {
            let told = self
                .table
                .iter()
                .filter(|entry| entry.tell & TELL_STATE != 0)
                .count();
            let ack = Event::HelloAck {
                epoch: self.epoch,
                count: told as u32,
                backend: self.backend,
            };
            if !self.tell(&ack) {
                return;
            }
            self.hello_due = false;
        }
        if let Some(answer) = self.answer {
            if !self.tell(&answer) {
                return;
            }
            self.answer = None;
        }
        for index in self.table.indexes() {
            while let Some((bit, event)) = self.table.get(index).and_then(|entry| entry.next_event()) {
                if !self.tell(&event) {
                    return;
                }
                if let Some(entry) = self.table.get(index) {
                    // The whole state includes everything else there was to tell.
                    entry.tell = if bit == TELL_STATE { 0 } else { entry.tell & !bit };
                }
                if bit == TELL_STATE {
                    self.free_if_over(index);
                }
            }
        }
    }

    /// The peer's heartbeat; where the socket is full there is enough to read already.
    pub(crate) fn send_heartbeat(&mut self, now: u64) {
        let ready = !self.blocked && !self.hello_due && self.agent.running.as_ref().is_some_and(|r| r.hello);
        if ready {
            self.tell(&Event::Heartbeat { boottime_ms: now });
        }
    }

    /// Sends one event. `false` = not now; the loop comes back when the socket takes more.
    fn tell(&mut self, event: &Event) -> bool {
        let Some(socket) = self.agent.socket() else {
            return false;
        };
        match channel::send(socket, &event.encode(), &[]) {
            Ok(()) => true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.blocked = true;
                self.watch_agent(libc::EPOLLOUT);
                false
            }
            // It is dead or dying: its successor is told.
            Err(_) => false,
        }
    }

    fn watch_agent(&self, events: libc::c_int) {
        if let Some(socket) = self.agent.socket()
            && let Err(e) = self.poller.modify(socket, events, token(Source::Agent, 0, 0))
        {
            log::warn(format_args!("watch the agent's socket: {e}"));
        }
    }

    /// Drops an entry that is forgotten and over. Where the pump still has its pipes it is told first.
    pub(crate) fn free_if_over(&mut self, index: usize) {
        let Some(entry) = self.table.get(index) else {
            return;
        };
        debug_assert!(entry.state.phase != EntryPhase::Starting || entry.status.is_some());
        // One that was promised to an agent is told first: it waits for as many states as it was announced.
        if !entry.forget || !entry.over() || entry.tell & TELL_STATE != 0 {
            return;
        }
        if entry.state.drained || entry.pump == PumpWish::Add {
            self.table.take(index);
        } else {
            entry.pump = PumpWish::Remove;
        }
    }
}

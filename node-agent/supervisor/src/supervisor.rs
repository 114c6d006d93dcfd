//! The loop: one thread, one epoll, no wait without an end but for the file system: three small writes for each attempt
//! go into blocks of its slot that are there already, which the page cache takes at once unless its disk's journal is
//! stuck. An agent that hears nothing any more then lets its node's Lease lapse.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use fairlead_supervisor::sys;
use fairlead_supervisor::wire::{Backend, Cause, Event, HEARTBEAT_SECONDS};

use crate::agent::Agent;
use crate::config::Config;
use crate::hold::Signaller;
use crate::log;
use crate::os;
use crate::os_poll::{Poller, Timer};
use crate::os_signal;
use crate::pump_link::PumpLink;
use crate::setup::Groups;
use crate::spawn::Spawner;
use crate::table::Table;

/// Longest wait at the end for killed groups to become empty.
const STOP_BOUND_MS: u64 = 5_000;
/// Woken this much too late, the process was stopped, or the machine asleep.
const GAP_MS: u64 = 1_000;
const HEARTBEAT_MS: u64 = HEARTBEAT_SECONDS * 1_000;

/// What a readable descriptor is, in the highest byte of its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Signals,
    Timer,
    Agent,
    Pump,
    /// Status pipe of an entry; generation and index follow.
    Status,
    /// Pipe of an entry's init.
    Report,
    /// `cgroup.events` of an entry.
    Group,
}

const SOURCES: [Source; 7] = [
    Source::Signals,
    Source::Timer,
    Source::Agent,
    Source::Pump,
    Source::Status,
    Source::Report,
    Source::Group,
];

/// Packs a source with the entry it belongs to.
pub(crate) fn token(source: Source, index: usize, generation: u32) -> u64 {
    (source as u64) << 56 | u64::from(generation & 0xff_ffff) << 32 | index as u64 & 0xffff_ffff
}

fn untoken(token: u64) -> Option<(Source, usize, u32)> {
    let source = SOURCES.get((token >> 56) as usize)?;
    Some((
        *source,
        (token & 0xffff_ffff) as usize,
        ((token >> 32) & 0xff_ffff) as u32,
    ))
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Not at all.
    Not,
    /// The agent was asked to end; it has until then (absolute boottime milliseconds).
    Draining(u64),
    /// All groups are killed; they have until then to become empty, and their output to be in its files.
    Killing(u64),
}

/// All state of the process.
pub(crate) struct Supervisor {
    pub(crate) config: Config,
    pub(crate) epoch: u32,
    pub(crate) backend: Backend,
    pub(crate) groups: Option<Groups>,
    pub(crate) poller: Poller,
    pub(crate) table: Table,
    pub(crate) agent: Agent,
    pub(crate) pump: PumpLink,
    pub(crate) spawner: Spawner,
    pub(crate) signaller: Signaller,
    /// An answer that belongs to no entry; no request is read while it waits.
    pub(crate) answer: Option<Event>,
    pub(crate) hello_due: bool,
    /// The agent's socket takes nothing now: nothing is read from it either.
    pub(crate) blocked: bool,
    pub(crate) stop: Stop,
    pub(crate) lost_done: bool,
    heartbeat_at_ms: u64,
    signals: OwnedFd,
    timer: Timer,
}

impl Supervisor {
    /// Makes everything that is made once. Signals are blocked already.
    ///
    /// # Errors
    /// Those of the descriptors of the loop and of forking the pump.
    pub(crate) fn new(
        config: Config,
        epoch: u32,
        groups: Option<Groups>,
        hide: Vec<std::ffi::CString>,
    ) -> io::Result<Supervisor> {
        let pump = PumpLink::start()?;
        let (poller, timer, signals) = (Poller::new()?, Timer::new()?, os_signal::signal_fd()?);
        poller.add(signals.as_fd(), libc::EPOLLIN, token(Source::Signals, 0, 0))?;
        poller.add(timer.fd(), libc::EPOLLIN, token(Source::Timer, 0, 0))?;
        poller.add(pump.socket(), libc::EPOLLIN, token(Source::Pump, 0, 0))?;
        let backend = if groups.is_some() {
            Backend::CgroupV2
        } else {
            Backend::ProcessGroup
        };
        let now = sys::boottime_ms();
        Ok(Supervisor {
            spawner: Spawner::new(backend, config.uid_first..=config.uid_last, hide),
            config,
            epoch,
            backend,
            groups,
            poller,
            table: Table::new(),
            agent: Agent::new(now),
            pump,
            signaller: Signaller::new(),
            answer: None,
            hello_due: false,
            blocked: false,
            stop: Stop::Not,
            lost_done: false,
            heartbeat_at_ms: now,
            signals,
            timer,
        })
    }

    /// Runs until told to stop and everything is killed.
    ///
    /// # Errors
    /// Those of epoll and the timer; nothing can go on then.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        loop {
            let now = sys::boottime_ms();
            self.timers(now);
            self.flush_agent();
            self.flush_pump();
            if self.stopped(now) {
                break;
            }
            let due = self.due_ms();
            self.timer.set(due)?;
            let count = self.poller.wait(&mut events)?;
            let now = sys::boottime_ms();
            if now.saturating_sub(due) > GAP_MS {
                // This process did not run, and so perhaps nobody did: the others' time begins anew.
                self.pump.begin_time_anew(now);
                if let Some(running) = &mut self.agent.running {
                    running.heard_ms = now;
                }
            }
            for event in &events[..count] {
                self.dispatch(event.u64);
            }
        }
        log::info(format_args!("all groups are killed: leaving"));
        if let Some(groups) = self.groups.take() {
            groups.remove();
        }
        Ok(())
    }

    fn dispatch(&mut self, token: u64) {
        match untoken(token) {
            Some((Source::Signals, ..)) => self.signals(),
            Some((Source::Agent, ..)) => self.agent_ready(),
            Some((Source::Pump, ..)) => self.pump_ready(),
            Some((Source::Status, index, generation)) => {
                if self.table.get_same(index, generation).is_some() {
                    self.read_status(index);
                }
            }
            Some((Source::Report, index, generation)) => {
                if self.table.get_same(index, generation).is_some() {
                    self.read_report(index);
                }
            }
            Some((Source::Group, index, generation)) => {
                if self.table.get_same(index, generation).is_some() {
                    self.check_empty(index);
                }
            }
            // The timer only ends the wait; setting it again clears it.
            Some((Source::Timer, ..)) | None => {}
        }
    }

    fn signals(&mut self) {
        while let Some(signal) = os_signal::next_signal(self.signals.as_fd()) {
            if signal == libc::SIGTERM as u32 || signal == libc::SIGINT as u32 {
                self.begin_stop();
            }
        }
        while let Some(dead) = os::reap() {
            let now = sys::boottime_ms();
            if self
                .agent
                .running
                .as_ref()
                .is_some_and(|running| running.pid == dead.pid)
            {
                self.agent_died(dead.status, now);
            } else if dead.pid == self.pump.pid() {
                self.pump_died(dead.status, now);
            } else if let Some(index) = self.table.find_pid(dead.pid) {
                self.first_died(index, &dead);
            }
            // Anybody else was an orphan of a tool.
        }
    }

    fn begin_stop(&mut self) {
        if self.stop != Stop::Not {
            return;
        }
        log::info(format_args!(
            "told to stop: the agent has {} ms",
            self.config.drain_ms
        ));
        self.stop = Stop::Draining(sys::boottime_ms() + self.config.drain_ms);
        self.agent.start_at_ms = 0;
        if let Some(running) = &self.agent.running {
            running.signal(libc::SIGTERM);
        }
    }

    fn agent_died(&mut self, status: i32, now: u64) {
        if let Some(socket) = self.agent.socket() {
            self.poller.remove(socket);
        }
        self.agent.ended(status, now);
        (self.blocked, self.hello_due, self.answer) = (false, false, None);
        if self.stop != Stop::Not {
            self.agent.start_at_ms = 0;
        }
    }

    /// Everything that is due by now.
    fn timers(&mut self, now: u64) {
        for index in self.table.indexes() {
            if self.table.get(index).is_some_and(|entry| entry.due_ms() <= now) {
                self.entry_due(index, now);
            }
        }
        self.pump_due(now);
        if self.agent.start_at_ms != 0 && self.agent.start_at_ms <= now {
            self.start_agent(now);
        }
        self.judge_agent(now);
        if self.heartbeat_at_ms <= now {
            self.heartbeat_at_ms = now + HEARTBEAT_MS;
            self.send_heartbeat(now);
        }
        if let Stop::Draining(until) = self.stop
            && (self.agent.running.is_none() || until <= now)
        {
            self.agent.kill("it did not end in time", now);
            self.stop = Stop::Killing(now + STOP_BOUND_MS);
            self.kill_all(Cause::Shutdown, now);
        }
    }

    /// Whether the agent is silent or missing for too long.
    fn judge_agent(&mut self, now: u64) {
        let silent = |this: &Supervisor| {
            this.agent
                .running
                .as_ref()
                .is_some_and(|r| r.silent_at_ms(this.config.heartbeat_ms) <= now)
        };
        if silent(self) || self.lost_at_ms() <= now {
            // If it was this process that did not run, the agent's words are waiting in the socket.
            self.agent_ready();
        }
        if silent(self) {
            self.agent.kill("it was silent for too long", now);
        }
        if self.lost_at_ms() <= now {
            self.lost_done = true;
            let bound = self.config.adopt_ms;
            log::warn(format_args!(
                "no agent said Hello and then that it lives within {bound} ms: killing all groups"
            ));
            self.kill_all(Cause::AgentLost, now);
        }
    }

    fn start_agent(&mut self, now: u64) {
        self.agent
            .start(&self.config, self.groups.as_ref(), self.epoch, now);
        if let Some(socket) = self.agent.socket()
            && let Err(e) = self.poller.add(socket, libc::EPOLLIN, token(Source::Agent, 0, 0))
        {
            log::warn(format_args!("watch the agent's socket: {e}"));
        }
    }

    fn lost_at_ms(&self) -> u64 {
        let never = self.lost_done || self.agent.absent_ms == 0 || self.table.iter().all(|e| e.state.emptied);
        if never {
            u64::MAX
        } else {
            self.agent.absent_ms + self.config.adopt_ms
        }
    }

    fn kill_all(&mut self, cause: Cause, now: u64) {
        for index in self.table.indexes() {
            self.begin_kill(index, cause, now);
        }
    }

    fn stopped(&self, now: u64) -> bool {
        let Stop::Killing(until) = self.stop else {
            return false;
        };
        until <= now
            || (self.agent.running.is_none()
                && self.table.iter().all(|entry| entry.over() && entry.state.drained))
    }

    fn due_ms(&self) -> u64 {
        let entries = self
            .table
            .iter()
            .map(|entry| entry.due_ms())
            .min()
            .unwrap_or(u64::MAX);
        let start = if self.agent.start_at_ms == 0 {
            u64::MAX
        } else {
            self.agent.start_at_ms
        };
        let silent = self
            .agent
            .running
            .as_ref()
            .map_or(u64::MAX, |r| r.silent_at_ms(self.config.heartbeat_ms));
        let stop = match self.stop {
            Stop::Not => u64::MAX,
            Stop::Draining(until) | Stop::Killing(until) => until,
        };
        let all = [
            entries,
            start,
            silent,
            stop,
            self.lost_at_ms(),
            self.heartbeat_at_ms,
            self.pump.due_ms(),
        ];
        all.into_iter().min().unwrap_or(self.heartbeat_at_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_apart_again() {
        for source in SOURCES {
            assert_eq!(
                untoken(token(source, 1_023, 0xff_ffff)),
                Some((source, 1_023, 0xff_ffff))
            );
        }
        assert_eq!(untoken(u64::MAX), None);
    }
}

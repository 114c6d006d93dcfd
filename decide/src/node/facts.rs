//! How what became known changes one attempt and its process.

use super::types::*;
use super::world::*;
use fairlead_crds::ToolExecution;
use std::sync::Arc;

/// First pause after a write that failed for the moment; it doubles up to [`BACKOFF_MAX_MS`].
const BACKOFF_MS: u64 = 500;
const BACKOFF_MAX_MS: u64 = 30_000;
/// Pause after every way to write the end was refused, before the round begins anew: rights may return.
const REFUSED_PAUSE_MS: u64 = 60_000;
/// Pause between two tries to clean up.
pub(super) const CLEAN_PAUSE_MS: u64 = 15_000;
/// Pause before a kill is asked for again that could not be sent: sending has waited for the supervisor already.
pub(super) const UNSENT_PAUSE_MS: u64 = 5_000;
/// Pause between two tries to read an object back.
pub(super) const READ_PAUSE_MS: u64 = 2_000;
/// Pause between two looks at the output of a leader's descendants.
pub(super) const MEASURE_PAUSE_MS: u64 = 250;
/// Ways to write the end, each tried once a round: whole, without output, as a condition.
const WAYS_TO_WRITE: u32 = 3;

impl Attempt {
    pub(super) fn is_live(&self) -> bool {
        matches!(self.presence, Presence::Live(_))
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.presence, Presence::Gone)
    }

    pub(super) fn update(&mut self, object: Arc<ToolExecution>) {
        match &self.presence {
            Presence::Gone => {}
            Presence::Ended(_) => {
                let failed = super::status::with_failed_clean_up(&object);
                if self.is_clean() && self.written.is_none() && failed.is_some() {
                    self.written = failed.map(Box::new);
                }
            }
            Presence::Live(known) if version_of(&object) < version_of(known) => {}
            Presence::Live(_) if has_ended(&object) => {
                self.presence = Presence::Ended(ref_of(&object));
                // By another, or by us with the answer lost: the supervisor is told, and nothing more is written.
                self.clean = false;
                self.collected = None;
            }
            Presence::Live(_) => self.presence = Presence::Live(object),
        }
    }

    /// Remembers why it is told to end, the first time.
    pub(super) fn told_to_end(&mut self, draining: bool) {
        let process = &mut self.process;
        if process.term_at.is_none() && process.kill_at.is_none() && process.deadline_reached.is_none() {
            let cancelled =
                matches!(&self.presence, Presence::Live(object) if super::attempt::is_cancelled(object));
            process.drained_away = draining && !cancelled;
        }
    }

    pub(super) fn start_ended(&mut self, at: Moment, result: Result<(), StartFailure>) {
        self.doing = None;
        match result {
            Ok(()) => {
                self.process.requested.get_or_insert(at);
            }
            Err(failure) => {
                // What the failed start could not take back is cleaned up like what an execution leaves.
                self.clean = !failure.leaves;
                self.process.start_failed = Some(failure);
            }
        }
    }

    pub(super) fn collect_ended(&mut self, at: Moment, collected: Box<Collected>) {
        self.doing = None;
        self.clean = collected.clean_up.is_ok();
        if !self.clean {
            self.clean_at = at.boot_ms + CLEAN_PAUSE_MS;
        }
        self.collected = Some(collected);
    }

    pub(super) fn report_ended(&mut self, at: Moment, level: Level, result: Result<(), ReportFailure>) {
        self.doing = None;
        match result {
            Ok(()) => self.reported(at, level),
            Err(failure) => {
                let ends = matches!(level, Level::Final | Level::Minimal);
                if ends {
                    self.written = None;
                }
                self.report_failed(at, level, &failure);
            }
        }
    }

    pub(super) fn reported(&mut self, at: Moment, level: Level) {
        self.failures = 0;
        match level {
            Level::Running => self.running_settled = true,
            Level::Condition => {
                self.refusals = 0;
                self.report_at = at.boot_ms + REFUSED_PAUSE_MS;
            }
            Level::CleanedUp => self.written = None,
            Level::Final | Level::Minimal => {
                if let Presence::Live(object) = &self.presence {
                    self.presence = Presence::Ended(ref_of(object));
                }
                self.unsure = false;
                self.collected = None;
            }
        }
    }

    pub(super) fn report_failed(&mut self, at: Moment, level: Level, failure: &ReportFailure) {
        match failure {
            ReportFailure::Transient | ReportFailure::Forbidden => {
                self.unsure |= *failure == ReportFailure::Forbidden;
                let pause = BACKOFF_MS << self.failures.min(6);
                self.report_at = at.boot_ms + pause.min(BACKOFF_MAX_MS);
                self.failures = self.failures.saturating_add(1);
            }
            ReportFailure::NotFound => {
                self.unsure = true;
                self.report_at = at.boot_ms + BACKOFF_MS;
            }
            ReportFailure::Refused => {
                self.unsure = true;
                match level {
                    Level::Running => self.running_settled = true,
                    Level::CleanedUp => self.written = None,
                    Level::Final | Level::Minimal | Level::Condition => {
                        self.refusals += 1;
                        if self.refusals >= WAYS_TO_WRITE {
                            self.refusals = 0;
                            self.report_at = at.boot_ms + REFUSED_PAUSE_MS;
                        }
                    }
                }
            }
        }
    }

    pub(super) fn clean_up_ended(&mut self, at: Moment, result: &Result<(), String>) {
        self.doing = None;
        match result {
            Ok(()) => {
                self.clean = true;
                self.process.emptied.get_or_insert(at);
                // Without the status that said otherwise, as after a restart, it is read back to be corrected.
                self.unsure |= self.written.is_none();
            }
            Err(_) => self.clean_at = at.boot_ms + CLEAN_PAUSE_MS,
        }
    }
}

impl Process {
    /// Adds one fact. What is known already stays.
    pub(super) fn learn(&mut self, fact: ProcessFact) {
        match fact {
            ProcessFact::Spawned(at) => {
                self.requested.get_or_insert(at);
                self.spawned.get_or_insert(at);
            }
            ProcessFact::Refused(refused) => {
                self.requested.get_or_insert(Moment::default());
                self.refused.get_or_insert(refused);
            }
            ProcessFact::Exited(exit) => {
                self.requested.get_or_insert(exit.at);
                self.exited.get_or_insert(exit);
            }
            ProcessFact::Emptied(at) => {
                self.emptied.get_or_insert(at);
            }
            ProcessFact::Drained => self.drained = true,
            ProcessFact::DeadlineReached(at) => {
                self.deadline_reached.get_or_insert(at);
            }
            ProcessFact::NoEntry(at) => {
                if self.exited.is_none() && self.refused.is_none() && self.start_failed.is_none() {
                    self.lost = true;
                }
                self.drained = true;
                // When it became empty nobody knows any more; not before its leader ended.
                self.emptied.get_or_insert(self.exited.map_or(at, |exit| exit.at));
            }
        }
    }

    pub(super) fn kill_begun(&mut self, at: Moment) {
        self.kill_at.get_or_insert(at.boot_ms);
        self.kill_again_at = None;
        let by_itself = self.exited.is_some_and(|exit| exit.cause == Cause::None);
        self.leftovers = by_itself && self.term_at.is_none() && self.deadline_reached.is_none();
    }

    /// Whether descendants of a leader that had ended by itself were killed, by us or by the supervisor at the hard
    /// timeout, which it does not reach with an empty group.
    pub(super) fn left_some_behind(&self) -> bool {
        let outlived = |exit: Exit| {
            let reached = self.deadline_reached;
            exit.cause == Cause::None && reached.is_some_and(|at| at.boot_ms > exit.at.boot_ms)
        };
        self.leftovers || self.exited.is_some_and(outlived)
    }

    pub(super) fn measured(&mut self, at: Moment, bytes: u64) {
        let since = match self.output {
            Some((known, since)) if known >= bytes => since,
            Some(_) => at.boot_ms,
            None => self.exited.map_or(at.boot_ms, |exit| exit.at.boot_ms),
        };
        self.output = Some((bytes, since));
    }
}

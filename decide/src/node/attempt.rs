//! What to do next about one key.

use super::facts::CLEAN_PAUSE_MS;
use super::status;
use super::types::*;
use super::verdict;
use super::world::*;
use fairlead_crds::{ExecutionPhase, IsolationBackend, ToolExecution};
use std::sync::Arc;

/// An execution that runs this long is said to be `Running`; a shorter one costs no such write.
const LAZY_RUNNING_MS: u64 = 1_000;
/// How long the supervisor may take to answer for a spawn.
const SPAWN_BOUND_MS: u64 = 30_000;
/// How long a killed group may take to be empty before its end is written with a failed clean-up.
const KILL_BOUND_MS: u64 = 30_000;
/// How long the last bytes may take after the group is empty.
const DRAIN_BOUND_MS: u64 = 5_000;
/// When to look again although something is under way: its result wakes the key before.
const PROGRESS_BOUND_MS: u64 = 60_000;
/// Pause before a condition without an event of its own is looked at again.
const PAUSE_MS: u64 = 1_000;
/// Pause between a leader's end and the first look at the output of its descendants.
const FIRST_MEASURE_MS: u64 = 250;
const SIGTERM: u32 = 15;

/// What to do about `key`, seen from `now`. Changes nothing: the same world and time give the same decision.
pub fn decide(world: &World, key: &Key, now: Moment) -> Decision {
    let mut decision = Decision::default();
    match key {
        Key::Attempt(key) => {
            if let Some(attempt) = world.attempts.get(key) {
                View {
                    world,
                    key,
                    attempt,
                    now,
                }
                .decide(&mut decision);
            }
        }
        Key::Run(key) => decide_run(world, key, now, &mut decision),
    }
    decision
}

fn decide_run(world: &World, key: &RunKey, now: Moment, decision: &mut Decision) {
    let Some(run) = world.runs.get(key).filter(|run| run.attempts.is_empty()) else {
        return;
    };
    if run.removing {
        decision.wait(Because::InProgress("RemoveRun"), now.boot_ms + PROGRESS_BOUND_MS);
    } else if now.boot_ms < run.retry_at {
        decision.wait(Because::Backoff("RemoveRun"), run.retry_at);
    } else {
        decision.actions.push(Action::RemoveRun { run: key.clone() });
    }
}

impl Decision {
    fn wait(&mut self, because: Because, until: u64) {
        self.because.push(because);
        self.wake = Some(self.wake.map_or(until, |wake| wake.min(until)));
    }
}

struct View<'a> {
    world: &'a World,
    key: &'a AttemptKey,
    attempt: &'a Attempt,
    now: Moment,
}

impl View<'_> {
    fn decide(&self, decision: &mut Decision) {
        let attempt = self.attempt;
        let boot_ms = self.now.boot_ms;
        if self.world.is_unreadable(self.key, attempt) {
            return decision.wait(Because::Unreadable, boot_ms + PROGRESS_BOUND_MS);
        }
        if attempt.doing != Some(Doing::Start) {
            self.control(decision);
        }
        if let Some(doing) = attempt.doing {
            return decision.wait(Because::InProgress(doing.name()), boot_ms + PROGRESS_BOUND_MS);
        }
        if attempt.unsure
            && let Some(object) = self.object_ref()
        {
            return self.read_back(object, decision);
        }
        match &attempt.presence {
            Presence::Gone => self.gone(decision),
            Presence::Ended(object) => self.ended(object, decision),
            Presence::Live(object) => self.live(object, decision),
        }
    }

    fn object_ref(&self) -> Option<ObjectRef> {
        match &self.attempt.presence {
            Presence::Live(object) => Some(ref_of(object)),
            Presence::Ended(object) => Some(object.clone()),
            Presence::Gone => None,
        }
    }

    fn read_back(&self, object: ObjectRef, decision: &mut Decision) {
        if self.attempt.reading {
            decision.wait(Because::InProgress("Read"), self.now.boot_ms + PROGRESS_BOUND_MS);
        } else if self.now.boot_ms < self.attempt.read_at {
            decision.wait(Because::Backoff("Read"), self.attempt.read_at);
        } else {
            decision.actions.push(Action::Read {
                uid: self.key.uid.clone(),
                object,
            });
        }
    }

    /// Killed so long ago that an empty group is not waited for any more.
    fn given_up(&self) -> bool {
        self.attempt
            .process
            .kill_at
            .is_some_and(|at| self.now.boot_ms >= at + KILL_BOUND_MS)
    }

    fn may_run(&self) -> bool {
        self.attempt.process.alive() && !self.given_up()
    }

    // --- Signals and kills -----------------------------------------------------------------------------------------

    /// What the processes themselves need, whatever else is under way.
    fn control(&self, decision: &mut Decision) {
        let process = &self.attempt.process;
        if !self.may_run() {
            return;
        }
        if let Some(at) = process.kill_at {
            if let Some(again) = process.kill_again_at {
                if self.now.boot_ms >= again {
                    return self.kill(decision);
                }
                decision.wait(Because::Emptying, again);
            }
            return decision.wait(Because::Emptying, at + KILL_BOUND_MS);
        }
        match &self.attempt.presence {
            Presence::Gone | Presence::Ended(_) => self.kill(decision),
            Presence::Live(object) => self.control_live(object, decision),
        }
    }

    fn kill(&self, decision: &mut Decision) {
        decision.actions.push(Action::Kill {
            key: self.key.clone(),
        });
    }

    /// Kills at `at`, or says why it waits until then.
    fn kill_at(&self, at: u64, because: Because, decision: &mut Decision) {
        if self.now.boot_ms >= at {
            self.kill(decision)
        } else {
            decision.wait(because, at)
        }
    }

    fn control_live(&self, object: &ToolExecution, decision: &mut Decision) {
        let process = &self.attempt.process;
        let grace = grace_ms(object);
        let draining = self.world.draining;
        if let Some(at) = process.term_at {
            let end = draining.map_or(at + grace, |kill_at| kill_at.min(at + grace));
            return self.kill_at(end, Because::Grace, decision);
        }
        if is_cancelled(object) || draining.is_some() {
            let late = draining.is_some_and(|kill_at| self.now.boot_ms >= kill_at);
            if grace == 0 || late || process.spawned.is_none() {
                return self.kill(decision);
            }
            let signal = Action::Signal {
                key: self.key.clone(),
                signal: SIGTERM,
            };
            return decision.actions.push(signal);
        }
        let stopped_by_supervisor = process.exited.is_some_and(|exit| exit.cause != Cause::None);
        match (process.deadline_reached, process.exited) {
            // The supervisor stops it; this is for one that does not.
            (Some(at), _) => self.kill_at(at.boot_ms + grace + KILL_BOUND_MS, Because::Grace, decision),
            (None, Some(exit)) if stopped_by_supervisor => {
                self.kill_at(exit.at.boot_ms + KILL_BOUND_MS, Because::Emptying, decision);
            }
            (None, Some(exit)) => self.descendants(exit.at.boot_ms, grace, decision),
            (None, None) if process.spawned.is_none() => {
                let since = process.requested.map_or(self.now.boot_ms, |at| at.boot_ms);
                self.kill_at(since + SPAWN_BOUND_MS, Because::AwaitingSpawn, decision);
            }
            (None, None) if self.attempt.deadline_ms > 0 => {
                let at = self.attempt.deadline_ms + grace + KILL_BOUND_MS;
                self.kill_at(at, Because::Running, decision);
            }
            (None, None) => decision.wait(Because::Running, self.now.boot_ms + PROGRESS_BOUND_MS),
        }
    }

    /// The leader ended by itself: its descendants have the grace, anew whenever their output grows. The hard timeout
    /// bounds even those that never stop writing.
    fn descendants(&self, exited_at: u64, grace: u64, decision: &mut Decision) {
        let process = &self.attempt.process;
        let idle_since = process
            .output
            .map_or(exited_at, |(_, since)| since.max(exited_at));
        let end = idle_since + grace;
        if self.now.boot_ms >= end {
            return self.kill(decision);
        }
        let measure_at = process.measure_at.max(exited_at + FIRST_MEASURE_MS);
        if self.now.boot_ms >= measure_at {
            decision.actions.push(Action::Measure {
                key: self.key.clone(),
            });
            decision.wait(Because::Descendants, end);
        } else {
            decision.wait(Because::Descendants, end.min(measure_at));
        }
    }

    // --- The object is gone, or its end is stored -------------------------------------------------------------------

    fn gone(&self, decision: &mut Decision) {
        if self.may_run() || self.cannot_look(decision) {
            return;
        }
        if self.now.boot_ms < self.attempt.clean_at {
            return decision.wait(Because::Backoff("Discard"), self.attempt.clean_at);
        }
        decision.actions.push(Action::Discard {
            key: self.key.clone(),
            epoch: self.attempt.epoch,
        });
    }

    /// Without a group only the supervisor knows whether processes are left. It goes on killing them, and tells when
    /// nobody is left; until then nothing of the attempt is confirmed or given to another.
    fn cannot_look(&self, decision: &mut Decision) -> bool {
        let grouped = self.world.node.backend == IsolationBackend::CgroupV2;
        let unknown = !grouped && self.attempt.process.alive();
        if unknown {
            decision.wait(Because::Emptying, self.now.boot_ms + CLEAN_PAUSE_MS);
        }
        unknown
    }

    fn ended(&self, object: &ObjectRef, decision: &mut Decision) {
        let attempt = self.attempt;
        if self.may_run() {
            return;
        }
        if !attempt.is_clean() {
            if self.cannot_look(decision) {
                return;
            }
            if self.now.boot_ms < attempt.clean_at {
                return decision.wait(Because::Backoff("CleanUp"), attempt.clean_at);
            }
            return decision.actions.push(Action::CleanUp {
                key: self.key.clone(),
                epoch: attempt.epoch,
            });
        }
        match &attempt.written {
            None => decision.because.push(Because::Kept),
            Some(_) if self.now.boot_ms < attempt.report_at => {
                decision.wait(Because::Backoff("Report"), attempt.report_at);
            }
            Some(written) => {
                let status = status::cleaned_up(written, self.now);
                self.report(object.clone(), Level::CleanedUp, status, decision);
            }
        }
    }

    // --- The object is live -----------------------------------------------------------------------------------------

    fn live(&self, object: &Arc<ToolExecution>, decision: &mut Decision) {
        let process = &self.attempt.process;
        if !process.begun() {
            return self.admit(object, decision);
        }
        if self.may_run() {
            return self.say_running(object, decision);
        }
        if let Some(until) = self.last_bytes_until()
            && self.now.boot_ms < until
        {
            return decision.wait(Because::Draining, until);
        }
        if self.attempt.collected.is_none() && process.start_failed.is_none() {
            return decision.actions.push(Action::Collect {
                key: self.key.clone(),
                name: object.metadata.name.clone().unwrap_or_default(),
                max_bytes: output_max_bytes(object),
                populated: process.alive(),
            });
        }
        self.report_end(object, verdict::at_the_end(object, self.attempt), decision);
    }

    /// Until when the supervisor may still have something to say of an empty group.
    fn last_bytes_until(&self) -> Option<u64> {
        let process = &self.attempt.process;
        // What was refused wrote nothing that could still be on its way.
        let heard_all =
            process.refused.is_some() || process.drained && (process.exited.is_some() || process.lost);
        let emptied = process.emptied.filter(|_| !heard_all)?;
        Some(emptied.boot_ms + DRAIN_BOUND_MS)
    }

    fn admit(&self, object: &Arc<ToolExecution>, decision: &mut Decision) {
        if let Some(refusal) = verdict::before_the_start(&self.world.node, object) {
            return self.report_end(object, refusal, decision);
        }
        let later = self.now.boot_ms + PAUSE_MS;
        if object.metadata.deletion_timestamp.is_some() {
            return decision.wait(Because::Leaving, later);
        }
        if self.world.draining.is_some() {
            return decision.wait(Because::NodeDraining, later);
        }
        let run = run_of(object);
        if self.world.runs.get(&run).is_some_and(|run| run.removing) {
            return decision.wait(Because::RunLeaving, later);
        }
        let Some(user) = self.world.user_for(&run) else {
            return decision.wait(Because::NoFreeUser, later);
        };
        let hard_ms = timeouts(object).map_or(0, |timeouts| timeouts.0);
        decision.actions.push(Action::Start(Box::new(Start {
            key: self.key.clone(),
            run,
            user,
            deadline_ms: self.now.boot_ms + hard_ms,
            object: Arc::clone(object),
        })));
    }

    fn say_running(&self, object: &ToolExecution, decision: &mut Decision) {
        let process = &self.attempt.process;
        let Some(spawned) = process.spawned.filter(|_| process.exited.is_none()) else {
            return;
        };
        let said = object.status.as_ref().and_then(|status| status.phase) == Some(ExecutionPhase::Running);
        if said || self.attempt.running_settled {
            return;
        }
        let due = (spawned.boot_ms + LAZY_RUNNING_MS).max(self.attempt.report_at);
        if self.now.boot_ms < due {
            return decision.wait(Because::Running, due);
        }
        let status = status::running(self.world, self.key, self.attempt, object);
        self.report(ref_of(object), Level::Running, status, decision);
    }

    fn report_end(&self, object: &ToolExecution, verdict: verdict::Verdict, decision: &mut Decision) {
        if self.now.boot_ms < self.attempt.report_at {
            return decision.wait(Because::Backoff("Report"), self.attempt.report_at);
        }
        let level = match self.attempt.refusals {
            0 => Level::Final,
            1 => Level::Minimal,
            _ => Level::Condition,
        };
        let status = status::end(
            self.world,
            self.key,
            self.attempt,
            object,
            &verdict,
            level,
            self.now,
        );
        self.report(ref_of(object), level, status, decision);
    }

    fn report(
        &self,
        object: ObjectRef,
        level: Level,
        status: fairlead_crds::ToolExecutionStatus,
        decision: &mut Decision,
    ) {
        let report = Report {
            key: self.key.clone(),
            object,
            level,
            status,
        };
        decision.actions.push(Action::Report(Box::new(report)));
    }
}

impl Doing {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "Start",
            Self::Collect => "Collect",
            Self::Report(_) => "Report",
            Self::CleanUp => "CleanUp",
            Self::Discard => "Discard",
        }
    }
}

/// Whether its author wants it stopped.
pub(super) fn is_cancelled(object: &ToolExecution) -> bool {
    object.spec.desired_state.is_some()
}

/// Hard timeout and grace of the plan, in milliseconds.
fn timeouts(object: &ToolExecution) -> Option<(u64, u64)> {
    let timeouts = &object.spec.binding.as_ref()?.plan.timeouts;
    let millis = |seconds: i64| u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000);
    Some((millis(timeouts.hard_seconds), millis(timeouts.grace_seconds)))
}

fn grace_ms(object: &ToolExecution) -> u64 {
    timeouts(object).map_or(0, |timeouts| timeouts.1)
}

fn output_max_bytes(object: &ToolExecution) -> usize {
    let bytes = object
        .spec
        .binding
        .as_ref()
        .map_or(0, |binding| binding.plan.output_max_bytes);
    usize::try_from(bytes).unwrap_or(0).min(OUTPUT_CAP)
}

/// Most bytes of canonical output, whatever a plan says.
const OUTPUT_CAP: usize = 262_144;

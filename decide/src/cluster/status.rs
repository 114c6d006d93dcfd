//! A run's status: what of it follows from its turns, and when it is worth a write.

use super::types::Action;
use super::world::{RunState, phase_of};
use super::writes::{Subject, Writes};
use fairlead_crds::conditions::{self, kind};
use fairlead_crds::values::Time;
use fairlead_crds::{AgentRun, AgentRunStatus, Answer, Failure, RunPhase, RunUsage, Transition, TurnPhase};
use std::sync::Arc;

const ANSWER_MAX: usize = 65_536;
const TRANSITIONS_MAX: usize = 20;

/// The status a run has in `phase`, its counts taken from the turns.
pub fn in_phase(
    state: &RunState,
    run: &AgentRun,
    phase: RunPhase,
    reason: &str,
    now: Time,
) -> AgentRunStatus {
    let mut status = run.status.clone().unwrap_or_default();
    count(state, &mut status);
    status.observed_generation = run.metadata.generation;
    let first = state
        .turns
        .values()
        .next()
        .and_then(|t| t.status.as_ref()?.start_time);
    status.start_time = status.start_time.or(first).or(Some(now));
    if status.phase != Some(phase) {
        let n = status.transitions.last().map_or(1, |t| t.n.saturating_add(1));
        status.transitions.push(Transition {
            n,
            phase,
            reason: reason.to_owned(),
            at: now,
        });
        let excess = status.transitions.len().saturating_sub(TRANSITIONS_MAX);
        status.transitions.drain(..excess);
    }
    status.phase = Some(phase);
    status
}

/// Turns, calls, usage, the current turn and the last activity.
fn count(state: &RunState, status: &mut AgentRunStatus) {
    let ended = state.turns.values().filter(|t| phase_of(t).is_terminal());
    let mut usage = RunUsage::default();
    let (mut turns, mut calls) = (0, 0);
    for turn in ended {
        let Some(end) = &turn.status else { continue };
        match phase_of(turn) {
            TurnPhase::Completed => {
                turns += 1;
                calls = i64::try_from(end.tool_calls.len())
                    .unwrap_or(i64::MAX)
                    .saturating_add(calls);
                usage.requests += 1;
            }
            _ => usage.unknown_requests += 1,
        }
        if let Some(used) = &end.usage {
            usage.input_tokens = usage.input_tokens.saturating_add(used.input_tokens);
            usage.output_tokens = usage.output_tokens.saturating_add(used.output_tokens);
            usage.cached_tokens = usage.cached_tokens.saturating_add(used.cached_tokens);
        }
        status.last_activity_time = status.last_activity_time.max(end.completion_time);
    }
    usage.total_tokens = usage.input_tokens.saturating_add(usage.output_tokens);
    status.turns = turns;
    status.tool_calls = calls;
    status.usage = Some(usage);
    status.current_turn = state
        .turns
        .values()
        .next_back()
        .and_then(|t| t.metadata.name.clone());
}

/// Tool calls of all completed turns.
pub fn tool_calls(state: &RunState) -> i64 {
    let completed = state
        .turns
        .values()
        .filter(|t| phase_of(t) == TurnPhase::Completed);
    let calls: usize = completed
        .filter_map(|t| t.status.as_ref())
        .map(|s| s.tool_calls.len())
        .sum();
    i64::try_from(calls).unwrap_or(i64::MAX)
}

/// Puts the end into a status: answer or failure, completion time, conditions.
pub fn end(status: &mut AgentRunStatus, run: &AgentRun, end: &End, unclean: Option<&str>, now: Time) {
    status.completion_time = status.completion_time.or(Some(now));
    let generation = run.metadata.generation;
    status.answer.clone_from(&end.answer);
    status.failure.clone_from(&end.failure);
    conditions::set(
        &mut status.conditions,
        kind::SUCCEEDED,
        end.phase == RunPhase::Succeeded,
        &end.reason,
        &end.message,
        generation,
        now,
    );
    cleaned_up(status, generation, unclean, now);
}

/// Puts the CleanedUp condition into a status; `unclean` says what could not be verified.
pub fn cleaned_up(status: &mut AgentRunStatus, generation: Option<i64>, unclean: Option<&str>, now: Time) {
    let (reason, message) = match unclean {
        None => (
            conditions::reason::CONFIRMED,
            "Every execution was verified gone.",
        ),
        Some(what) => (conditions::reason::CLEAN_UP_FAILED, what),
    };
    conditions::set(
        &mut status.conditions,
        kind::CLEANED_UP,
        unclean.is_none(),
        reason,
        message,
        generation,
        now,
    );
}

/// How and why a run ends.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// The terminal phase.
    pub phase: RunPhase,
    /// One word for machines.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// The answer, on success.
    pub answer: Option<Answer>,
    /// The failure, on a failure.
    pub failure: Option<Failure>,
}

impl End {
    /// A failure.
    pub fn failed(failure: Failure) -> Self {
        Self {
            phase: RunPhase::Failed,
            reason: failure.reason.clone(),
            message: failure.message.clone(),
            answer: None,
            failure: Some(failure),
        }
    }

    /// An answer, cut to what the status holds.
    pub fn answered(text: &str, turn: &str) -> Self {
        let kept = text
            .get(..text.floor_char_boundary(ANSWER_MAX))
            .unwrap_or_default();
        Self {
            phase: RunPhase::Succeeded,
            reason: conditions::reason::ANSWERED.to_owned(),
            message: "The model gave its answer.".to_owned(),
            answer: Some(Answer {
                text: kept.to_owned(),
                truncated: kept.len() < text.len(),
                turn_ref: turn.to_owned(),
            }),
            failure: None,
        }
    }

    /// A cancel.
    pub fn cancelled() -> Self {
        Self {
            phase: RunPhase::Cancelled,
            reason: conditions::reason::CANCELLED.to_owned(),
            message: "spec.desiredState asked for it.".to_owned(),
            answer: None,
            failure: None,
        }
    }
}

/// The write of `status`, if it says more than what is stored and no other write is on its way.
///
/// Worth a write are a phase, a count of turns, a condition; the rest comes along.
pub fn publish(writes: &Writes, run: &Arc<AgentRun>, status: AgentRunStatus, now: Time) -> Option<Action> {
    let stored = run.status.clone().unwrap_or_default();
    let same = stored.phase == status.phase
        && stored.turns == status.turns
        && stored.conditions == status.conditions
        && stored.completion_time == status.completion_time;
    let uid = run.metadata.uid.clone().unwrap_or_default();
    if same || writes.blocked(&Subject::Run(uid), now).is_some() {
        return None;
    }
    Some(Action::WriteRun {
        run: Arc::clone(run),
        status: Box::new(status),
    })
}

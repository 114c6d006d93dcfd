//! The status documents of a node agent.
//!
//! An apply that leaves out a field which its manager held removes it, so each document repeats all that the agent
//! ever wrote of the attempt.

use super::types::*;
use super::verdict::Verdict;
use super::world::{Attempt, Process, World};
use fairlead_crds::conditions::{self, kind, reason};
use fairlead_crds::values::Time;
use fairlead_crds::{
    Attempt as AttemptStatus, Cleanup, ExecutionPhase, ExecutionResult, ExecutionUsage, Isolation,
    IsolationBackend, StoredOutput, ToolExecution, ToolExecutionStatus,
};

/// Most bytes of a status message.
const MESSAGE_MAX: usize = 4_096;

/// What is said of an attempt that runs.
pub(super) fn running(
    world: &World,
    key: &AttemptKey,
    attempt: &Attempt,
    object: &ToolExecution,
) -> ToolExecutionStatus {
    let start_time = start_time(attempt, object);
    ToolExecutionStatus {
        phase: Some(ExecutionPhase::Running),
        start_time,
        isolation: isolation(&world.node, key, attempt),
        attempts: vec![AttemptStatus {
            n: i64::from(key.attempt),
            start_time,
            end_time: None,
            reason: None,
            outcome: None,
        }],
        ..frame(&world.node, object)
    }
}

/// What is said of an attempt that has ended.
pub(super) fn end(
    world: &World,
    key: &AttemptKey,
    attempt: &Attempt,
    object: &ToolExecution,
    verdict: &Verdict,
    level: Level,
    now: Moment,
) -> ToolExecutionStatus {
    if level == Level::Condition {
        return only_a_condition(world, key, attempt, object, verdict, now);
    }
    let start_time = start_time(attempt, object);
    let completion = completion_time(attempt, start_time, now);
    let minimal = level == Level::Minimal;
    let reason = if minimal {
        reason::STATUS_REFUSED
    } else {
        verdict.reason
    };
    let message = message(attempt, verdict, minimal);
    let begun = attempt.process.requested.is_some() || attempt.process.lost;
    let mut status = ToolExecutionStatus {
        phase: Some(verdict.phase),
        reason: Some(reason.to_owned()),
        message: Some(message.clone()),
        error_class: verdict.class,
        outcome: Some(verdict.outcome),
        start_time,
        completion_time: Some(completion),
        output: attempt
            .collected
            .as_ref()
            .filter(|_| !minimal)
            .map(|collected| collected.output.clone()),
        stored: attempt.collected.as_ref().map(|_| StoredOutput {
            node_name: world.node.name.clone(),
            id: key.to_string(),
        }),
        result: result(attempt),
        usage: Some(usage(attempt, object, start_time, completion)),
        isolation: isolation(&world.node, key, attempt).filter(|_| begun),
        attempts: vec![AttemptStatus {
            n: i64::from(key.attempt),
            start_time,
            end_time: Some(completion),
            reason: Some(reason.to_owned()),
            outcome: Some(verdict.outcome),
        }],
        ..frame(&world.node, object)
    };
    let succeeded = verdict.phase == ExecutionPhase::Succeeded;
    let now = time(now);
    conditions::set(
        &mut status.conditions,
        kind::SUCCEEDED,
        succeeded,
        reason,
        &message,
        None,
        now,
    );
    clean_up(&mut status, attempt, verdict.looked, now);
    status
}

/// The end that was written, with its clean-up confirmed.
pub(super) fn cleaned_up(written: &ToolExecutionStatus, now: Moment) -> ToolExecutionStatus {
    let mut status = written.clone();
    status.cleanup = Some(Cleanup::Confirmed);
    confirm(&mut status, time(now));
    status
}

/// The agent's part of a stored end whose clean-up had failed, if it is one.
pub(super) fn with_failed_clean_up(object: &ToolExecution) -> Option<ToolExecutionStatus> {
    let status = object
        .status
        .as_ref()
        .filter(|status| status.cleanup == Some(Cleanup::Failed))?;
    let binding = object.spec.binding.as_ref()?;
    let n = binding.attempt;
    if status.fence.as_ref() != Some(&binding.fence) {
        return None;
    }
    let ours = [kind::SUCCEEDED, kind::CLEANED_UP];
    let status = status.clone();
    // Named one by one: a field of another's, applied as ours, would be ours from then on.
    Some(ToolExecutionStatus {
        fence: status.fence,
        phase: status.phase,
        reason: status.reason,
        message: status.message,
        error_class: status.error_class,
        outcome: status.outcome,
        start_time: status.start_time,
        completion_time: status.completion_time,
        node_name: status.node_name,
        incarnation: status.incarnation,
        output: status.output,
        stored: status.stored,
        result: status.result,
        usage: status.usage,
        isolation: status.isolation,
        attempts: status.attempts.into_iter().filter(|one| one.n == n).collect(),
        cleanup: status.cleanup,
        conditions: status
            .conditions
            .into_iter()
            .filter(|condition| ours.contains(&condition.type_.as_str()))
            .collect(),
        ..ToolExecutionStatus::default()
    })
}

/// For an end that the server refuses in every form: that it is so, beside what was written before.
fn only_a_condition(
    world: &World,
    key: &AttemptKey,
    attempt: &Attempt,
    object: &ToolExecution,
    verdict: &Verdict,
    now: Moment,
) -> ToolExecutionStatus {
    let said = object.status.as_ref().and_then(|status| status.phase) == Some(ExecutionPhase::Running);
    let mut status = if said {
        running(world, key, attempt, object)
    } else {
        frame(&world.node, object)
    };
    let message = format!(
        "it ended ({}: {}), but the server refuses that status",
        verdict.phase, verdict.message
    );
    let list = &mut status.conditions;
    conditions::set(
        list,
        kind::SUCCEEDED,
        false,
        reason::STATUS_REFUSED,
        &message,
        None,
        time(now),
    );
    status
}

fn frame(node: &Node, object: &ToolExecution) -> ToolExecutionStatus {
    ToolExecutionStatus {
        fence: object.spec.binding.as_ref().map(|binding| binding.fence.clone()),
        node_name: Some(node.name.clone()),
        incarnation: Some(node.incarnation.clone()),
        ..ToolExecutionStatus::default()
    }
}

fn clean_up(status: &mut ToolExecutionStatus, attempt: &Attempt, looked: bool, now: Time) {
    let failed = attempt
        .collected
        .as_ref()
        .and_then(|collected| collected.clean_up.as_ref().err().map(String::as_str));
    let left = attempt
        .process
        .start_failed
        .as_ref()
        .filter(|failure| failure.leaves);
    let left = left.map(|_| "what a failed start had made could not all be removed");
    match failed.or(left) {
        None if looked => {
            status.cleanup = Some(Cleanup::Confirmed);
            confirm(status, now);
        }
        None => status.cleanup = Some(Cleanup::Unconfirmed),
        Some(detail) => {
            status.cleanup = Some(Cleanup::Failed);
            let list = &mut status.conditions;
            conditions::set(
                list,
                kind::CLEANED_UP,
                false,
                reason::CLEAN_UP_FAILED,
                detail,
                None,
                now,
            );
        }
    }
}

fn confirm(status: &mut ToolExecutionStatus, now: Time) {
    let list = &mut status.conditions;
    conditions::set(
        list,
        kind::CLEANED_UP,
        true,
        reason::CONFIRMED,
        "nothing of it is left on the node",
        None,
        now,
    );
}

fn message(attempt: &Attempt, verdict: &Verdict, minimal: bool) -> String {
    let mut text = verdict.message.clone();
    if minimal {
        text.push_str("; the server refused the status with its output, so it is without");
    }
    if let Some(note) = attempt
        .collected
        .as_ref()
        .and_then(|collected| collected.output_note.as_ref())
    {
        text.push_str("; ");
        text.push_str(note);
    }
    text.truncate(text.floor_char_boundary(MESSAGE_MAX));
    text
}

fn result(attempt: &Attempt) -> Option<ExecutionResult> {
    let exit = attempt.process.exited?;
    let (exit_code, signal) = match exit.wait {
        Wait::Code(code) => (Some(code), None),
        Wait::Signal(signal) => (None, Some(signal)),
    };
    let oom_kills = attempt
        .collected
        .as_ref()
        .map_or(0, |collected| collected.oom_kills);
    Some(ExecutionResult {
        exit_code,
        signal,
        oom_kills,
    })
}

fn usage(attempt: &Attempt, object: &ToolExecution, start: Option<Time>, end: Time) -> ExecutionUsage {
    let collected = attempt.collected.as_deref();
    let binding = object.spec.binding.as_ref();
    let admitted = binding.map(|binding| binding.admitted_at);
    let queued = binding.and_then(|binding| binding.queued_at);
    let boot = |at: Moment| i64::try_from(at.boot_ms).unwrap_or(i64::MAX);
    let wall_millis = match (attempt.process.spawned, ended_at(&attempt.process)) {
        // The clock that nobody sets.
        (Some(spawned), Some(end)) => boot(end) - boot(spawned),
        _ => start.map_or(0, |start| crate::time::millis_between(start, end)),
    };
    ExecutionUsage {
        cpu_millis: collected.and_then(|collected| collected.cpu_millis),
        memory_peak_bytes: collected.and_then(|collected| collected.memory_peak_bytes),
        pids_peak: collected.and_then(|collected| collected.pids_peak),
        wall_millis: wall_millis.max(0),
        queued_millis: queued
            .zip(admitted)
            .map(|(from, to)| crate::time::millis_between(from, to).max(0)),
    }
}

fn isolation(node: &Node, key: &AttemptKey, attempt: &Attempt) -> Option<Isolation> {
    let grouped = node.backend == IsolationBackend::CgroupV2;
    Some(Isolation {
        backend: node.backend,
        missing_controllers: node.missing_controllers.clone(),
        group: grouped.then(|| format!("payload-{}/tx-{key}", attempt.epoch)),
    })
}

/// The start as it was said before, else as the supervisor saw it.
fn start_time(attempt: &Attempt, object: &ToolExecution) -> Option<Time> {
    let said = object.status.as_ref().and_then(|status| status.start_time);
    said.or_else(|| attempt.process.spawned.map(time))
}

/// When the last of its processes was gone, as far as that was seen: what the leader left behind is part of it.
fn ended_at(process: &Process) -> Option<Moment> {
    let exited = process.exited.filter(|_| !process.lost).map(|exit| exit.at);
    exited
        .into_iter()
        .chain(process.emptied)
        .max_by_key(|at| at.boot_ms)
}

/// The end of its last process, else now; never before the start.
fn completion_time(attempt: &Attempt, start: Option<Time>, now: Moment) -> Time {
    let end = time(ended_at(&attempt.process).unwrap_or(now));
    start.map_or(end, |start| end.max(start))
}

fn time(at: Moment) -> Time {
    Time::from_millisecond(at.unix_ms).unwrap_or(Time::UNIX_EPOCH)
}

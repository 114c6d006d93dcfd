//! What to do about a user's own execution, and the writes that concern any.

use super::bounds::{of_execution, overdue};
use super::guard::{Call, Refusal, authorize};
use super::types::{Action, Because, Decision, ObjectKey};
use super::world::{Waiter, World, has_ended, key_of};
use super::writes::Subject;
use crate::time::{millis_between, plus_millis, plus_seconds, until};
use fairlead_crds::conditions::{self, kind, reason, refusal};
use fairlead_crds::values::Time;
use fairlead_crds::{
    Attempt, Cleanup, ErrorClass, ExecutionPhase, ExecutionUsage, GuardDecision, Outcome, ToolExecution,
    ToolExecutionStatus,
};
use std::sync::Arc;

/// Decides about a user's own execution. Those of runs are decided with their run.
pub fn decide(world: &World, key: &ObjectKey, now: Time) -> Decision {
    let Some(execution) = world.executions.get(key) else {
        return Decision::default();
    };
    if execution.spec.run_ref.is_some() {
        return Decision::default();
    }
    if execution.metadata.deletion_timestamp.is_some() {
        return Decision::because(Because::Deleting);
    }
    if has_ended(execution) {
        return match world.writes.blocked(&Subject::Execution(key.clone()), now) {
            Some((because, at)) => held_up(because, at),
            None => retain(execution, now),
        };
    }
    let bound = of_execution(world, execution).filter(|at| *at > now);
    let mut decision = proceed(world, key, execution, now);
    bound.into_iter().for_each(|at| decision.wake_by(at));
    decision
}

fn held_up(because: Because, at: Option<Time>) -> Decision {
    Decision {
        because: vec![because],
        wake: at,
        actions: Vec::new(),
    }
}

/// The next step of one that has not ended.
fn proceed(world: &World, key: &ObjectKey, execution: &Arc<ToolExecution>, now: Time) -> Decision {
    if let Some((because, at)) = world.writes.blocked(&Subject::Execution(key.clone()), now) {
        return held_up(because, at);
    }
    if let Some(binding) = &execution.spec.binding {
        let (action, wake) = overdue(world, execution, now);
        return Decision {
            actions: action.into_iter().collect(),
            wake,
            because: vec![Because::OnNode {
                node: binding.node_name.clone(),
            }],
        };
    }
    if execution.spec.desired_state.is_some() {
        let message = "spec.desiredState asked for it.";
        return Decision::act(stop(execution, reason::CANCELLED, message, now));
    }
    let too_long = of_execution(world, execution).is_some_and(|at| at <= now);
    match authorize(world, call(execution)) {
        Ok(_) if too_long => Decision::act(waited_too_long(world.settings.queue_seconds, execution, now)),
        Ok(_) => queue(world, execution, now),
        Err(refusal) => refuse(world, execution, &refusal, now),
    }
}

/// What a user's own execution asks for.
pub fn call(execution: &ToolExecution) -> Call<'_> {
    Call {
        namespace: execution.metadata.namespace.as_deref().unwrap_or_default(),
        tool: &execution.spec.tool.tool_ref.name,
        frozen: None,
        arguments: &execution.spec.arguments,
        timeout_seconds: execution.spec.timeout_seconds,
    }
}

fn created(execution: &ToolExecution, now: Time) -> Time {
    execution
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(now, |t| t.0)
}

/// What a call waits for whose refusal may still pass.
fn waiting_for(refusal: &Refusal) -> &'static str {
    match refusal.reason {
        refusal::TOOL_NOT_ACCEPTED => reason::TOOL_NOT_ACCEPTED,
        _ => reason::TOOL_NOT_FOUND,
    }
}

/// Since when an execution waits. The server's creation time has whole seconds only: within the first, it is now.
fn waits_since(execution: &ToolExecution, now: Time) -> Time {
    let created = created(execution, now);
    if millis_between(created, now) < 1000 {
        now
    } else {
        created
    }
}

fn queue(world: &World, execution: &Arc<ToolExecution>, now: Time) -> Decision {
    let key = key_of(&execution.metadata);
    if world.waiting.contains_key(&key) {
        return Decision::because(Because::Queued {
            count: 1,
            reason: reason::CONCURRENCY_LIMIT,
        });
    }
    let waiter = Waiter {
        run: None,
        call: None,
        since: waits_since(execution, now),
    };
    Decision::act(Action::Want {
        waiters: vec![(key, waiter)],
    })
}

/// A refused call ends as `Denied`; what may still appear is waited for first.
fn refuse(world: &World, execution: &Arc<ToolExecution>, refusal: &Refusal, now: Time) -> Decision {
    let begun = created(execution, now);
    let grace_ends = plus_seconds(begun, world.settings.dependency_grace_seconds);
    if !refusal.may_pass || grace_ends <= now {
        return Decision::act(denied(execution, refusal, now));
    }
    let because = Because::Missing {
        reason: refusal.reason.to_owned(),
        message: refusal.message.clone(),
    };
    let mut decision = Decision::wait(because, grace_ends);
    let visible_at = plus_millis(begun, world.settings.visible_after_millis);
    if visible_at > now {
        decision.wake_by(visible_at);
    } else if execution.status.as_ref().and_then(|s| s.phase).is_none() {
        decision.actions.push(queued(
            execution,
            waiting_for(refusal),
            &until(&refusal.message, grace_ends),
        ));
    }
    decision
}

fn retain(execution: &Arc<ToolExecution>, now: Time) -> Decision {
    let completed = execution.status.as_ref().and_then(|s| s.completion_time);
    let Some((ttl, completed)) = execution.spec.ttl_seconds_after_finished.zip(completed) else {
        return Decision::because(Because::Ended);
    };
    let expires = plus_seconds(completed, ttl);
    if expires > now {
        return Decision::wait(Because::Retained, expires);
    }
    Decision::act(Action::DeleteExecution {
        execution: Arc::clone(execution),
    })
}

fn write(execution: &Arc<ToolExecution>, status: ToolExecutionStatus) -> Action {
    Action::WriteExecution {
        execution: Arc::clone(execution),
        status: Box::new(status),
    }
}

fn bounded(message: &str) -> String {
    message
        .get(..message.floor_char_boundary(4096))
        .unwrap_or_default()
        .to_owned()
}

/// What this manager wrote before and still stands: an apply that leaves it out would take it away.
fn held(execution: &ToolExecution) -> ToolExecutionStatus {
    let Some(status) = &execution.status else {
        return ToolExecutionStatus::default();
    };
    let ours = [kind::ADMITTED, kind::BACKGROUNDED];
    let conditions = status
        .conditions
        .iter()
        .filter(|c| ours.contains(&c.type_.as_str()));
    let mut held = ToolExecutionStatus {
        conditions: conditions.cloned().collect(),
        ..ToolExecutionStatus::default()
    };
    if execution.spec.binding.is_none() {
        (held.phase, held.reason, held.message) =
            (status.phase, status.reason.clone(), status.message.clone());
    }
    held
}

fn ended(
    execution: &ToolExecution,
    phase: ExecutionPhase,
    why: &str,
    message: &str,
    now: Time,
) -> ToolExecutionStatus {
    let mut status = ToolExecutionStatus {
        phase: Some(phase),
        reason: Some(why.to_owned()),
        message: Some(bounded(message)),
        outcome: Some(Outcome::NotStarted),
        completion_time: Some(now),
        usage: execution.spec.binding.is_none().then(|| ExecutionUsage {
            queued_millis: Some(millis_between(created(execution, now), now).max(0)),
            ..ExecutionUsage::default()
        }),
        ..held(execution)
    };
    conditions::set(
        &mut status.conditions,
        kind::SUCCEEDED,
        false,
        why,
        message,
        execution.metadata.generation,
        now,
    );
    status
}

/// The write that makes a call visible as waiting.
pub fn queued(execution: &Arc<ToolExecution>, why: &str, message: &str) -> Action {
    let status = ToolExecutionStatus {
        phase: Some(ExecutionPhase::Queued),
        reason: Some(why.to_owned()),
        message: Some(bounded(message)),
        ..held(execution)
    };
    write(execution, status)
}

/// The end of a call that a check refused.
pub fn denied(execution: &Arc<ToolExecution>, refusal: &Refusal, now: Time) -> Action {
    // The reason stands in its own field, and whoever tells both puts it before the message.
    let mut status = ended(
        execution,
        ExecutionPhase::Denied,
        refusal.reason,
        &refusal.message,
        now,
    );
    status.error_class = Some(ErrorClass::InvalidArgument);
    status.decisions = vec![GuardDecision {
        check: refusal.check,
        allowed: false,
        reason: Some(refusal.reason.to_owned()),
    }];
    let generation = execution.metadata.generation;
    conditions::set(
        &mut status.conditions,
        kind::ADMITTED,
        false,
        refusal.reason,
        &refusal.message,
        generation,
        now,
    );
    write(execution, status)
}

/// Stops an execution: by its node where it has one, and at once where it has none.
pub fn stop(execution: &Arc<ToolExecution>, why: &str, message: &str, now: Time) -> Action {
    if execution.spec.binding.is_some() {
        return Action::Cancel {
            execution: Arc::clone(execution),
        };
    }
    write(
        execution,
        ended(execution, ExecutionPhase::Cancelled, why, message, now),
    )
}

/// The end of a user's own execution that got no place in time.
fn waited_too_long(seconds: i64, execution: &Arc<ToolExecution>, now: Time) -> Action {
    let last = execution.status.as_ref().and_then(|s| s.reason.as_deref());
    let last = last.map_or_else(String::new, |why| format!(" (at last: {why})"));
    let message = format!(
        "It got no place on a node within the operator's queueTimeoutSeconds ({seconds}) and was not started{last}. Create \
         it again when there is room, or raise that bound."
    );
    let mut status = ended(
        execution,
        ExecutionPhase::TimedOut,
        reason::QUEUE_TIMEOUT,
        &message,
        now,
    );
    status.error_class = Some(ErrorClass::Local);
    write(execution, status)
}

/// Marks an execution that its run goes on without, once.
pub fn background(execution: &Arc<ToolExecution>, now: Time) -> Option<Action> {
    let mut status = held(execution);
    if conditions::find(&status.conditions, kind::BACKGROUNDED).is_some() {
        return None;
    }
    let message = "The run's toolWaitSeconds passed; it went on, and the execution goes on too.";
    conditions::set(
        &mut status.conditions,
        kind::BACKGROUNDED,
        true,
        reason::WAIT_ELAPSED,
        message,
        execution.metadata.generation,
        now,
    );
    Some(write(execution, status))
}

/// The end of an execution whose node is gone: how it ended is not known, and it is not repeated.
pub fn orphaned(execution: &Arc<ToolExecution>, now: Time) -> Action {
    let message = format!(
        "The Lease of node {:?} stopped moving. Whether the call had its effect is not known, so it is not repeated.",
        node_of(execution)
    );
    given_up(execution, reason::NODE_LOST, &message, now)
}

/// The end of an execution of which its node, although it is alive, tells no end.
pub fn unreported(execution: &Arc<ToolExecution>, now: Time) -> Action {
    let message = format!(
        "Node {:?} is alive, but its agent told no end of the call, also not when it was asked to stop. Whether the call \
         had its effect is not known, so it is not repeated.",
        node_of(execution)
    );
    given_up(execution, reason::NOT_REPORTED, &message, now)
}

fn node_of(execution: &ToolExecution) -> &str {
    let binding = execution.spec.binding.as_ref();
    binding.map_or("", |b| b.node_name.as_str())
}

fn given_up(execution: &Arc<ToolExecution>, why: &str, message: &str, now: Time) -> Action {
    let binding = execution.spec.binding.as_ref();
    let start_time = execution.status.as_ref().and_then(|s| s.start_time);
    let mut status = ended(execution, ExecutionPhase::Orphaned, why, message, now);
    status.outcome = Some(Outcome::Unknown);
    status.error_class = Some(ErrorClass::Local);
    status.cleanup = Some(Cleanup::Unconfirmed);
    status.start_time = start_time;
    status.attempts = binding
        .map(|b| Attempt {
            n: b.attempt,
            start_time,
            end_time: Some(now),
            reason: Some(why.to_owned()),
            outcome: Some(Outcome::Unknown),
        })
        .into_iter()
        .collect();
    conditions::set(
        &mut status.conditions,
        kind::CLEANED_UP,
        false,
        why,
        "Nobody could look at what is left on the node.",
        execution.metadata.generation,
        now,
    );
    write(execution, status)
}

//! How long each phase may last, from the one table in `fairlead_crds::phase`, and what ends an execution whose node
//! lives and says nothing.

use super::execution::{stop, unreported};
use super::types::Action;
use super::world::{Settings, World, has_ended};
use crate::time::plus_seconds;
use fairlead_crds::conditions::reason;
use fairlead_crds::values::Time;
use fairlead_crds::{AgentRun, Bound, ExecutionPhase, RunPhase, ToolExecution};
use std::sync::Arc;

/// When the present phase of a run is over at the latest; nothing once it has ended. A run without a time of creation,
/// which no server gives, counts from `now`.
pub fn of_run(settings: &Settings, run: &AgentRun, now: Time) -> Option<Time> {
    let status = run.status.as_ref();
    match status.and_then(|s| s.phase).unwrap_or(RunPhase::Pending).bound() {
        Bound::Final => None,
        Bound::CleanUp => {
            let began = status?
                .transitions
                .iter()
                .rfind(|t| t.phase == RunPhase::Finishing)?
                .at;
            Some(plus_seconds(began, settings.clean_up_seconds))
        }
        Bound::RunDeadline | Bound::Queue | Bound::ToolTimeout => {
            let created = run.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
            Some(plus_seconds(created, run.spec.limits.deadline_seconds))
        }
    }
}

/// When an execution that has a node is over at the latest: its hard timeout and grace from its start, or from its
/// binding while no start is told, and as long again as a node may be away before it is given up. One that has no node
/// waits as long as its run lets it, and a user's own as long as any may while one operator leads. Nothing for one that
/// has ended.
pub fn of_execution(world: &World, execution: &ToolExecution) -> Option<Time> {
    let settings = &world.settings;
    let status = execution.status.as_ref();
    let phase = status.and_then(|s| s.phase);
    if phase.map(ExecutionPhase::bound) == Some(Bound::Final) {
        return None;
    }
    let Some(binding) = &execution.spec.binding else {
        let own = execution.spec.run_ref.is_none();
        let created = execution.metadata.creation_timestamp.as_ref().filter(|_| own)?;
        return Some(plus_seconds(created.0.max(world.since), settings.queue_seconds));
    };
    let began = status.and_then(|s| s.start_time).unwrap_or(binding.admitted_at);
    let timeouts = &binding.plan.timeouts;
    let seconds = timeouts.hard_seconds.saturating_add(timeouts.grace_seconds);
    Some(plus_seconds(
        began,
        seconds.saturating_add(settings.orphan_after_seconds),
    ))
}

/// What is to be done about an execution whose node has it, and when to look again.
///
/// Its agent may still start it, or may have started it and be unable to say so. So it is first asked to stop, which an
/// agent that sees it obeys before any start; and only if no answer comes within the bound of a clean-up is the end
/// written, with an outcome that is not known.
pub(super) fn overdue(
    world: &World,
    execution: &Arc<ToolExecution>,
    now: Time,
) -> (Option<Action>, Option<Time>) {
    let settings = &world.settings;
    let Some(bound) = of_execution(world, execution).filter(|_| !has_ended(execution)) else {
        return (None, None);
    };
    let last = plus_seconds(bound, settings.clean_up_seconds);
    if now < bound {
        (None, Some(bound))
    } else if now < last {
        let ask = execution.spec.desired_state.is_none();
        let message = "Its node has not told its end in time.";
        (
            ask.then(|| stop(execution, reason::NOT_REPORTED, message, now)),
            Some(last),
        )
    } else {
        (Some(unreported(execution, now)), None)
    }
}

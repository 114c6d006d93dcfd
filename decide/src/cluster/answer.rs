//! From a model's answer to the end of a turn: ids made unique, arguments read, calls judged and put into stages.

use super::failure::{failure, of_model};
use super::stage::View;
use super::world::{RunState, World};
use crate::model::{ModelError, ModelResponse, RawCall};
use crate::time::millis_between;
use crate::tool_check::too_deep;
use fairlead_crds::conditions::{reason, refusal};
use fairlead_crds::names::execution_name;
use fairlead_crds::reading::levels;
use fairlead_crds::values::{MAX_NESTING, OpenObject, Time};
use fairlead_crds::{
    AgentRun, AgentTurn, AgentTurnStatus, CallError, FailureClass, FrozenTool, FrozenToolKind, ToolCall,
    TurnPhase,
};
use serde_json::Value;
use std::collections::BTreeSet;

/// Most calls of one turn.
pub const CALLS_MAX: usize = 64;
/// Most bytes of a turn's status.
pub const TURN_MAX_BYTES: usize = 512 * 1024;
const ID_MAX: usize = 128;
const TEXT_MAX: usize = 4096;
/// Bytes that are kept of arguments which are nested too deep to be stored.
const SHOWN_MAX: usize = 512;

/// How a turn ends that failed.
///
/// `tries` were made since `begun`.
pub fn failed(error: &ModelError, tries: u32, begun: Time, sent_at: Time, now: Time) -> AgentTurnStatus {
    AgentTurnStatus {
        phase: Some(TurnPhase::Failed),
        start_time: Some(sent_at),
        completion_time: Some(now),
        latency_millis: Some(millis_between(sent_at, now).max(0)),
        failure: Some(of_model(error, tries, millis_between(begun, now))),
        ..AgentTurnStatus::default()
    }
}

/// How a turn ends that is given up, and why.
pub fn abandoned(why: &str, message: &str, now: Time) -> AgentTurnStatus {
    AgentTurnStatus {
        phase: Some(TurnPhase::Abandoned),
        completion_time: Some(now),
        failure: Some(failure(FailureClass::Automatic, why, message)),
        ..AgentTurnStatus::default()
    }
}

/// How a turn ends that was answered.
pub fn completed(
    world: &World,
    state: &RunState,
    run: &AgentRun,
    turn: &AgentTurn,
    response: &ModelResponse,
    sent_at: Time,
    now: Time,
) -> AgentTurnStatus {
    let tools = super::request::tools_of(state, turn);
    let view = View {
        world,
        state,
        run,
        turn,
        tools,
    };
    let status = AgentTurnStatus {
        phase: Some(TurnPhase::Completed),
        start_time: Some(sent_at),
        completion_time: Some(now),
        message: response.text.clone().filter(|t| !t.is_empty()),
        tool_calls: calls(&view, &response.calls),
        finish_reason: response.finish_reason.as_ref().map(|r| bounded(r, 64)),
        usage: response.usage,
        latency_millis: Some(response.latency_millis),
        first_delta_millis: response.first_delta_millis,
        provider_request_id: response.request_id.as_ref().map(|r| bounded(r, 256)),
        failure: None,
    };
    let size = serde_json::to_vec(&status).map_or(usize::MAX, |bytes| bytes.len());
    if let Some(message) = too_large(response.calls.len(), size) {
        let failure = failure(FailureClass::Terminal, reason::ANSWER_TOO_LARGE, &message);
        return AgentTurnStatus {
            phase: Some(TurnPhase::Failed),
            message: None,
            tool_calls: Vec::new(),
            failure: Some(failure),
            ..status
        };
    }
    status
}

/// Why an answer of so many calls, and so many bytes in all, is more than a turn holds.
fn too_large(calls: usize, size: usize) -> Option<String> {
    let fix = if calls > CALLS_MAX {
        "Ask for less at once, or switch parallel calls off in spec.model.parameters where the provider can."
    } else if size > TURN_MAX_BYTES {
        "Lower spec.model.maxOutputTokens, or ask for less at once."
    } else {
        return None;
    };
    Some(format!(
        "The model answered with {calls} calls and {size} bytes; a turn holds at most {CALLS_MAX} calls and \
         {TURN_MAX_BYTES} bytes. {fix}"
    ))
}

fn calls(view: &View<'_>, raw: &[RawCall]) -> Vec<ToolCall> {
    let mut used: BTreeSet<String> = earlier_ids(view.state);
    let mut stages = Stages::default();
    raw.iter()
        .enumerate()
        .map(|(n, call)| {
            let call_id = unique_id(view.turn.spec.index, n, &call.id, &mut used);
            let frozen = view.tools.iter().find(|t| t.name == call.name);
            let (arguments, error) = judge(view, call, frozen);
            let stage = stages.next(error.is_some() || frozen.is_some_and(|t| t.parallel_safe));
            let runs = error.is_none() && frozen.is_some_and(|t| t.kind == FrozenToolKind::Tool);
            let uid = view.run.metadata.uid.as_deref().unwrap_or_default();
            let name = view.run.metadata.name.as_deref().unwrap_or_default();
            ToolCall {
                original_call_id: (call_id != call.id).then(|| bounded(&call.id, 256)),
                execution_name: runs.then(|| execution_name(name, uid, view.turn.spec.index, &call_id)),
                call_id,
                tool: bounded(&call.name, 256),
                arguments,
                stage,
                error,
            }
        })
        .collect()
}

fn earlier_ids(state: &RunState) -> BTreeSet<String> {
    let statuses = state.turns.values().filter_map(|t| t.status.as_ref());
    statuses
        .flat_map(|s| s.tool_calls.iter().map(|c| c.call_id.clone()))
        .collect()
}

/// The model's own id where it is usable and was not used in this run, or else one made from turn and place.
fn unique_id(turn: i64, place: usize, id: &str, used: &mut BTreeSet<String>) -> String {
    let usable = !id.is_empty() && id.len() <= ID_MAX && id.chars().all(|c| c.is_ascii_graphic());
    let mut candidate = if usable {
        id.to_owned()
    } else {
        format!("call_{turn}_{}", place + 1)
    };
    let mut n = 1;
    while !used.insert(candidate.clone()) {
        candidate = format!("call_{turn}_{}_{n}", place + 1);
        n += 1;
    }
    candidate
}

/// The arguments of a call, and why it becomes no execution, if that is so.
fn judge(view: &View<'_>, call: &RawCall, frozen: Option<&FrozenTool>) -> (OpenObject, Option<CallError>) {
    let refuse = |reason: &str, text: String| {
        Some(CallError {
            reason: reason.to_owned(),
            text: bounded(&format!("{reason}: {text}"), TEXT_MAX),
        })
    };
    let text = if call.arguments.trim().is_empty() {
        "{}"
    } else {
        call.arguments.as_str()
    };
    // Before it is read: the reader has a bound of its own, and what was read must be small enough to be stored.
    if levels(text) > MAX_NESTING {
        let fix = "call it again with less structure, or pass the inner part as text";
        let told = format!(
            "{}. They began with: {}",
            too_deep("the arguments", fix),
            bounded(text, SHOWN_MAX)
        );
        return (OpenObject::new(), refuse(refusal::INVALID_ARGUMENT, told));
    }
    let arguments = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(map)) => map,
        Ok(_) => {
            let told = "the arguments must be a JSON object; write them as {\"name\": value}.".to_owned();
            return (OpenObject::new(), refuse(refusal::INVALID_ARGUMENT, told));
        }
        Err(fault) => {
            let told =
                format!("the arguments are not valid JSON ({fault}); write them again as one JSON object.");
            return (OpenObject::new(), refuse(refusal::INVALID_ARGUMENT, told));
        }
    };
    let Some(frozen) = frozen else {
        let offered: Vec<_> = view.tools.iter().map(|t| t.name.as_str()).collect();
        let fix = if offered.is_empty() {
            "this run offers none, so answer without".to_owned()
        } else {
            format!("use one of: {}", offered.join(", "))
        };
        let told = format!("there is no tool {:?}; {fix}.", bounded(&call.name, 64));
        return (arguments, refuse(refusal::TOOL_NOT_FOUND, told));
    };
    if frozen.kind == FrozenToolKind::Executions {
        return (arguments, None);
    }
    let probe = ToolCall {
        call_id: String::new(),
        original_call_id: None,
        tool: call.name.clone(),
        arguments,
        execution_name: None,
        stage: 0,
        error: None,
    };
    let verdict = view.guard(&probe, Some(frozen));
    match verdict {
        Err(refused) if refused.is_premature() => (probe.arguments, None),
        Err(refused) => (kept(probe.arguments), refuse(refused.reason, refused.message)),
        Ok(_) => (probe.arguments, None),
    }
}

/// Arguments of a refused call are kept for the conversation, unless they are too large to keep.
fn kept(arguments: OpenObject) -> OpenObject {
    let size = serde_json::to_vec(&arguments).map_or(usize::MAX, |bytes| bytes.len());
    if size > 64 * 1024 {
        OpenObject::new()
    } else {
        arguments
    }
}

fn bounded(text: &str, max: usize) -> String {
    text.get(..text.floor_char_boundary(max))
        .unwrap_or_default()
        .to_owned()
}

/// Numbers the stages: consecutive calls that may run beside each other share one.
#[derive(Default)]
struct Stages {
    current: i64,
    open: bool,
}

impl Stages {
    fn next(&mut self, parallel: bool) -> i64 {
        if !(parallel && self.open) {
            self.current += 1;
        }
        self.open = parallel;
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_parallel_calls_share_a_stage() {
        let mut stages = Stages::default();
        let numbers: Vec<_> = [true, true, false, true, true, false, false]
            .map(|p| stages.next(p))
            .into();
        assert_eq!(numbers, [1, 1, 2, 3, 3, 4, 5]);
    }

    #[test]
    fn an_answer_beyond_either_bound_is_told_both_and_what_to_do() {
        assert_eq!(too_large(CALLS_MAX, TURN_MAX_BYTES), None);
        for (calls, size, fix) in [(65, 1, "parallel calls off"), (1, 600_000, "maxOutputTokens")] {
            let message = too_large(calls, size).unwrap_or_default();
            assert!(message.contains("at most 64 calls and 524288 bytes"), "{message}");
            assert!(message.contains(fix), "{message}");
        }
    }

    #[test]
    fn ids_are_made_unique_and_usable() {
        let mut used = BTreeSet::new();
        assert_eq!(unique_id(1, 0, "a", &mut used), "a");
        assert_eq!(unique_id(1, 1, "a", &mut used), "call_1_2_1");
        assert_eq!(unique_id(2, 0, "", &mut used), "call_2_1");
        assert_eq!(unique_id(2, 1, "with space", &mut used), "call_2_2");
    }
}

//! The request of a turn, derived from stored objects alone: the input, the completed turns with what was observed,
//! and the canonical output of their executions.

use super::builtin::{definition, handle, result_text};
use super::stage::{CallState, View};
use super::world::{RunState, World, has_ended, phase_of, turn_at};
use crate::model::{Message, MessageCall, ModelRequest};
use crate::output::cut;
use fairlead_crds::canonical::digest;
use fairlead_crds::values::Time;
use fairlead_crds::{AgentRun, AgentTurn, FrozenTool, Observation, ToolCall, TurnPhase};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The tools offered in a turn, wherever they stand.
pub fn tools_of<'a>(state: &'a RunState, turn: &'a AgentTurn) -> &'a [FrozenTool] {
    match &turn.spec.tools_from {
        None => &turn.spec.tools,
        Some(name) => state
            .turns
            .values()
            .find(|t| t.metadata.name.as_ref() == Some(name))
            .map_or(&[], |t| t.spec.tools.as_slice()),
    }
}

/// Most bytes of what is told in a turn about calls of the one before it: a turn is stored in one object.
const OBSERVED_MAX_BYTES: usize = 131_072;
/// A handle is of no use when it is cut.
const NEVER_CUT_BYTES: usize = 1024;

/// What the model is told, in the turn after `view.turn`, about calls whose text does not follow from their execution's
/// end: those in progress, those answered by the operator, and those that became no execution after all.
pub fn observe(view: &View<'_>, now: Time) -> Vec<Observation> {
    let calls = view
        .turn
        .status
        .as_ref()
        .map_or(&[][..], |s| s.tool_calls.as_slice());
    let limit = usize::try_from(view.run.spec.limits.max_turn_output_bytes).unwrap_or(0);
    let mut left = limit.min(OBSERVED_MAX_BYTES);
    calls
        .iter()
        .filter(|call| call.error.is_none())
        .filter_map(|call| {
            let text = match view.state_of(call) {
                CallState::Execution(execution) if has_ended(execution) => return None,
                CallState::Execution(execution) => handle(execution, now),
                CallState::Builtin(builtin) => builtin.text(now),
                CallState::Refused(text) => text,
                CallState::Absent => "The call was not made.".to_owned(),
            };
            let total = u64::try_from(text.len()).unwrap_or(u64::MAX);
            let text = match text.len() {
                0..=NEVER_CUT_BYTES => text,
                _ => cut(
                    &text,
                    left,
                    total,
                    call.execution_name.as_deref().unwrap_or(&call.call_id),
                ),
            };
            left = left.saturating_sub(text.len());
            Some(Observation {
                call_id: call.call_id.clone(),
                text,
            })
        })
        .collect()
}

/// The messages up to and including the results of turn `index - 1`; `observations` are those of turn `index`.
pub fn messages(
    world: &World,
    state: &RunState,
    run: &AgentRun,
    index: i64,
    observations: &[Observation],
) -> Vec<Message> {
    let mut messages = Vec::new();
    if let Some(text) = run.spec.system_prompt.clone().filter(|t| !t.is_empty()) {
        messages.push(Message::System { text });
    }
    messages.push(Message::User {
        text: run.spec.input.clone(),
    });
    let indexes: BTreeSet<i64> = state.turns.keys().map(|(at, _)| *at).collect();
    for past in indexes.into_iter().filter(|past| *past < index) {
        let Some(turn) = turn_at(state, past).filter(|t| phase_of(t) == TurnPhase::Completed) else {
            continue;
        };
        let after = past.saturating_add(1);
        let told = match turn_at(state, after) {
            Some(next) if after < index => next.spec.observations.as_slice(),
            _ => observations,
        };
        let view = View {
            world,
            state,
            run,
            turn,
            tools: tools_of(state, turn),
        };
        round(&view, told, &mut messages);
    }
    messages
}

/// What the model said in one turn, and the results of its calls in its own order.
fn round(view: &View<'_>, told: &[Observation], messages: &mut Vec<Message>) {
    let Some(status) = &view.turn.status else { return };
    let calls = status
        .tool_calls
        .iter()
        .map(|c| MessageCall {
            id: c.call_id.clone(),
            name: c.tool.clone(),
            arguments: c.arguments.clone(),
        })
        .collect();
    messages.push(Message::Assistant {
        text: status.message.clone(),
        calls,
    });
    let mut left = usize::try_from(view.run.spec.limits.max_turn_output_bytes).unwrap_or(0);
    for call in &status.tool_calls {
        let observed = told.iter().find(|o| o.call_id == call.call_id);
        // What was observed fits its own budget already, and a handle must stay whole.
        let text = match observed {
            Some(observed) => observed.text.clone(),
            None => result(view, call, left),
        };
        left = left.saturating_sub(text.len());
        messages.push(Message::Tool {
            call_id: call.call_id.clone(),
            name: call.tool.clone(),
            text,
        });
    }
}

/// The result of a call that was not observed otherwise, at most `left` bytes of it.
fn result(view: &View<'_>, call: &ToolCall, left: usize) -> String {
    let name = call.execution_name.as_deref().unwrap_or(&call.call_id);
    let execution = view.world.executions.get(&view.key(name));
    let (text, total) = match (&call.error, execution) {
        (Some(error), _) => (error.text.clone(), error.text.len() as u64),
        (None, Some(execution)) => {
            let text = result_text(execution);
            let output = execution.status.as_ref().and_then(|s| s.output.as_ref());
            let total = output.map_or(0, |o| u64::try_from(o.total_bytes).unwrap_or(0));
            let total = total.max(text.len() as u64);
            (text, total)
        }
        (None, None) => {
            let text = "The result of this call is not stored any more.".to_owned();
            let total = text.len() as u64;
            (text, total)
        }
    };
    cut(&text, left, total, name)
}

/// The request of a turn that was stored.
pub fn of_turn(world: &World, state: &RunState, run: &Arc<AgentRun>, turn: &AgentTurn) -> ModelRequest {
    ModelRequest {
        turn: turn.spec.index,
        model: turn.spec.model.clone(),
        messages: messages(world, state, run, turn.spec.index, &turn.spec.observations),
        tools: tools_of(state, turn).iter().map(definition).collect(),
        parameters: turn.spec.parameters.clone(),
        max_output_tokens: turn.spec.max_output_tokens,
    }
}

/// Digest of what a request says: messages and tools, in canonical form.
pub fn request_digest(messages: &[Message], tools: &[FrozenTool]) -> String {
    let tools: Vec<_> = tools.iter().map(definition).collect();
    digest(&json!({"messages": messages, "tools": tools}))
}

/// The same of a request that is about to be sent.
pub fn digest_of(request: &ModelRequest) -> String {
    digest(&json!({"messages": request.messages, "tools": request.tools}))
}

//! The Executions set: looking at, waiting for and cancelling a run's own executions. Answered by the operator; what
//! the model was told is kept as an observation of the next turn.

use super::stage::View;
use super::world::has_ended;
use crate::model::ToolDefinition;
use crate::time::{millis_between, plus_seconds};
use fairlead_crds::values::{OpenObject, Time};
use fairlead_crds::{ExecutionPhase, FrozenTool, FrozenToolKind, SideEffect, ToolCall, ToolExecution};
use serde_json::{Value, json};
use std::sync::Arc;

/// Name of the built-in that looks.
pub const GET: &str = "get_tool_execution";
/// Name of the built-in that waits.
pub const WAIT: &str = "wait_tool_execution";
/// Name of the built-in that cancels.
pub const CANCEL: &str = "cancel_tool_execution";
/// Longest wait of one call, in seconds.
pub const WAIT_MAX_SECONDS: i64 = 120;
/// Wait of a call that names none, in seconds.
const WAIT_DEFAULT_SECONDS: i64 = 30;

/// A call of a built-in, resolved.
pub struct Builtin<'a> {
    what: What,
    target: &'a Arc<ToolExecution>,
}

enum What {
    Get,
    Wait { seconds: i64 },
    Cancel,
}

/// The set, as it is frozen into a turn.
pub fn frozen() -> Vec<FrozenTool> {
    let id =
        json!({"type": "string", "description": "The execution_id that was given when the call went on."});
    let mut seconds = json!({"type": "integer", "minimum": 0, "maximum": WAIT_MAX_SECONDS});
    seconds["description"] = format!("Longest wait; {WAIT_DEFAULT_SECONDS} if left out.").into();
    let tool = |name: &str, description: &str, properties: Value, side_effect, parallel_safe| FrozenTool {
        name: name.to_owned(),
        kind: FrozenToolKind::Executions,
        object: None,
        uid: None,
        generation: None,
        description: description.to_owned(),
        schema: object(
            json!({"type": "object", "properties": properties, "required": ["execution_id"],
            "additionalProperties": false}),
        ),
        side_effect,
        parallel_safe,
    };
    vec![
        tool(
            GET,
            "Tells the state of a tool execution of this run, and its result once it has ended.",
            json!({"execution_id": id}),
            SideEffect::Read,
            true,
        ),
        tool(
            WAIT,
            "Waits for a tool execution of this run to end and gives its result, or its state when the wait is over.",
            json!({"execution_id": id, "timeout_seconds": seconds}),
            SideEffect::Read,
            true,
        ),
        tool(
            CANCEL,
            "Stops a tool execution of this run, with all its processes.",
            json!({"execution_id": id}),
            SideEffect::Write,
            false,
        ),
    ]
}

fn object(value: Value) -> OpenObject {
    match value {
        Value::Object(map) => map,
        _ => OpenObject::new(),
    }
}

/// The definition given to the model.
pub fn definition(tool: &FrozenTool) -> ToolDefinition {
    ToolDefinition {
        name: tool.name.clone(),
        description: tool.description.clone(),
        schema: tool.schema.clone(),
    }
}

/// Reads a call of a built-in; an error is what the model is told.
pub fn of_call<'a>(view: &View<'a>, call: &ToolCall) -> Result<Builtin<'a>, String> {
    if let Some(unknown) = call
        .arguments
        .keys()
        .find(|k| *k != "execution_id" && *k != "timeout_seconds")
    {
        return Err(format!(
            "INVALID_ARGUMENT: there is no parameter {unknown:?}; leave it out."
        ));
    }
    let id = call.arguments.get("execution_id").and_then(Value::as_str);
    let id = id
        .ok_or("INVALID_ARGUMENT: execution_id must be a string; give the id of an execution of this run.")?;
    let target = view.world.executions.get(&view.key(id)).filter(|x| {
        x.spec
            .run_ref
            .as_ref()
            .is_some_and(|r| Some(&r.uid) == view.run.metadata.uid.as_ref())
    });
    let target = target.ok_or_else(|| {
        format!(
            "TOOL_NOT_FOUND: this run has no execution {id:?}; give an execution_id that a tool result named."
        )
    })?;
    let what = match call.tool.as_str() {
        GET => What::Get,
        WAIT => What::Wait {
            seconds: wait_seconds(call)?,
        },
        _ => What::Cancel,
    };
    Ok(Builtin { what, target })
}

fn wait_seconds(call: &ToolCall) -> Result<i64, String> {
    match call.arguments.get("timeout_seconds") {
        None => Ok(WAIT_DEFAULT_SECONDS),
        Some(value) => value
            .as_i64()
            .filter(|s| (0..=WAIT_MAX_SECONDS).contains(s))
            .ok_or_else(|| {
                format!("INVALID_ARGUMENT: timeout_seconds must be an integer from 0 to {WAIT_MAX_SECONDS}.")
            }),
    }
}

impl<'a> Builtin<'a> {
    /// Whether there is nothing to wait for.
    pub fn is_over(&self) -> bool {
        matches!(self.what, What::Get) || has_ended(self.target)
    }

    /// When the call is settled, the time it began and the end of its stage's wait given.
    pub fn settles(&self, begun: Time, wait_over: Time) -> Time {
        let bound = match self.what {
            What::Get => begun,
            What::Wait { seconds } => plus_seconds(begun, seconds),
            What::Cancel => wait_over,
        };
        let end = self.target.status.as_ref().and_then(|s| s.completion_time);
        end.map_or(bound, |end| end.min(bound)).max(begun)
    }

    /// The execution that is to be asked to stop, if that is not done yet.
    pub fn to_cancel(&self) -> Option<&'a Arc<ToolExecution>> {
        let asked = self.target.spec.desired_state.is_some() || has_ended(self.target);
        (matches!(self.what, What::Cancel) && !asked).then_some(self.target)
    }

    /// What the model is told at `now`.
    pub fn text(&self, now: Time) -> String {
        if has_ended(self.target) {
            return format!("{}\n{}", handle(self.target, now), result_text(self.target));
        }
        handle(self.target, now)
    }
}

/// The result of an execution that has ended, as the model reads it: the canonical output as it is stored, and on any
/// end but success a last line that says how it ended.
pub fn result_text(execution: &ToolExecution) -> String {
    let status = execution.status.clone().unwrap_or_default();
    let mut text = status.output.map(|o| o.text).unwrap_or_default();
    if status.phase == Some(ExecutionPhase::Succeeded) {
        return text;
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let phase = status.phase.map_or("Unknown", ExecutionPhase::as_str);
    let reason = status.reason.unwrap_or_default();
    let message = status.message.unwrap_or_default();
    text.push_str(&format!("[{phase}: {reason}] {message}"));
    text
}

/// What the model is told of an execution that it may come back to.
pub fn handle(execution: &ToolExecution, now: Time) -> String {
    let name = execution.metadata.name.as_deref().unwrap_or_default();
    let status = execution.status.as_ref();
    let phase = status.and_then(|s| s.phase);
    let began = status
        .and_then(|s| s.start_time)
        .or_else(|| execution.spec.binding.as_ref().map(|b| b.admitted_at))
        .unwrap_or(now);
    let until = status.and_then(|s| s.completion_time).unwrap_or(now);
    let state = phase.map_or(
        if execution.spec.binding.is_some() {
            "Running"
        } else {
            "Queued"
        },
        ExecutionPhase::as_str,
    );
    let mut told = json!({
        "execution_id": name,
        "tool": execution.spec.tool.tool_ref.name,
        "state": state,
        "elapsed_seconds": millis_between(began, until).max(0) / 1000,
    });
    let speaks = phase.is_some_and(|p| p == ExecutionPhase::Queued || p.is_terminal());
    if let Some(reason) = status.and_then(|s| s.reason.as_deref()).filter(|_| speaks) {
        told["reason"] = reason.into();
    }
    if !phase.is_some_and(ExecutionPhase::is_terminal) {
        told["note"] = format!("It goes on. Use {WAIT}, {GET} or {CANCEL} with this execution_id.").into();
    }
    told.to_string()
}

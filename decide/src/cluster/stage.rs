//! How far the calls of a completed turn are: stage by stage, each a barrier with a bounded wait.
//!
//! Everything follows from stored objects and the time, so another operator reaches the same conclusion.

use super::builtin::{self, Builtin};
use super::guard::{Call, Refusal, authorize};
use super::types::ObjectKey;
use super::world::{RunState, Waiter, World, has_ended};
use crate::time::plus_seconds;
use fairlead_crds::values::Time;
use fairlead_crds::{AgentRun, AgentTurn, FrozenTool, FrozenToolKind, ToolCall, ToolExecution};
use std::sync::Arc;

/// Where the calls of a turn stand.
#[derive(Debug, Default)]
pub struct Progress {
    /// When all stages were settled, if they are.
    pub settled_at: Option<Time>,
    /// When the first stage that is not settled will be, at the latest.
    pub settles_by: Option<Time>,
    /// When the first stage that is not settled began.
    pub stage_began: Option<Time>,
    /// Calls to be put into the queue.
    pub wanted: Vec<(ObjectKey, Waiter)>,
    /// Executions that are asked to stop by a call of the model.
    pub to_cancel: Vec<Arc<ToolExecution>>,
    /// Executions in progress that the run goes on without.
    pub left_behind: Vec<Arc<ToolExecution>>,
    /// Executions in progress.
    pub live: usize,
}

/// A run with the turn that is looked at.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The world.
    pub world: &'a World,
    /// The run's state.
    pub state: &'a RunState,
    /// The run.
    pub run: &'a AgentRun,
    /// A completed turn of it.
    pub turn: &'a AgentTurn,
    /// The tools that were offered in that turn.
    pub tools: &'a [FrozenTool],
}

/// What a call of the model came to.
pub enum CallState<'a> {
    /// It became no execution; the model is told why.
    Refused(String),
    /// It has no execution yet.
    Absent,
    /// It has one.
    Execution(&'a Arc<ToolExecution>),
    /// It is answered by the operator.
    Builtin(Builtin<'a>),
}

impl<'a> View<'a> {
    /// What a call came to.
    pub fn state_of(&self, call: &'a ToolCall) -> CallState<'a> {
        if let Some(error) = &call.error {
            return CallState::Refused(error.text.clone());
        }
        let frozen = self.tools.iter().find(|t| t.name == call.tool);
        if frozen.is_some_and(|t| t.kind == FrozenToolKind::Executions) {
            return builtin::of_call(self, call).map_or_else(CallState::Refused, CallState::Builtin);
        }
        let Some(name) = &call.execution_name else {
            return CallState::Refused("The call has no execution.".into());
        };
        match self.world.executions.get(&self.key(name)) {
            Some(execution) if self.is_of(execution, call) => return CallState::Execution(execution),
            Some(_) => {
                return CallState::Refused(format!(
                    "The call could not be recorded, so it was not made: the name {name:?} is taken."
                ));
            }
            None => {}
        }
        if let Some(message) = self.state.refused.get(&call.call_id) {
            return CallState::Refused(message.clone());
        }
        // Whether the guard still lets it through is not asked here: its execution may just be on its way, and then it
        // would be told that a call was not made that is. The queue asks, and the refusal stands on the object.
        CallState::Absent
    }

    /// Whether an execution is this call, and not somebody else's of the same name.
    fn is_of(&self, execution: &ToolExecution, call: &ToolCall) -> bool {
        let run = execution.spec.run_ref.as_ref().map(|r| &r.uid);
        run.is_some()
            && run == self.run.metadata.uid.as_ref()
            && execution.spec.call_id.as_ref() == Some(&call.call_id)
    }

    /// The guard's verdict on a call that has no execution yet.
    pub fn guard(
        &self,
        call: &ToolCall,
        frozen: Option<&FrozenTool>,
    ) -> Result<super::guard::Authorized, Refusal> {
        let object = frozen.and_then(|t| t.object.as_deref()).unwrap_or(&call.tool);
        let namespace = self.run.metadata.namespace.as_deref().unwrap_or_default();
        authorize(
            self.world,
            Call {
                namespace,
                tool: object,
                frozen,
                arguments: &call.arguments,
                timeout_seconds: None,
            },
        )
    }

    /// Key of an object of the run's namespace.
    pub fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(self.run.metadata.namespace.clone().unwrap_or_default(), name)
    }

    fn calls(&self) -> &'a [ToolCall] {
        self.turn.status.as_ref().map_or(&[], |s| s.tool_calls.as_slice())
    }

    /// Where the calls of the turn stand at `now`.
    pub fn progress(&self, now: Time) -> Progress {
        let completed = self
            .turn
            .status
            .as_ref()
            .and_then(|s| s.completion_time)
            .unwrap_or(now);
        let mut progress = Progress {
            settled_at: Some(completed),
            ..Progress::default()
        };
        let stages = self.calls().iter().map(|c| c.stage).max().unwrap_or(0);
        for stage in 1..=stages {
            let Some(begun) = progress.settled_at else { break };
            self.stage(stage, begun, now, &mut progress);
        }
        progress
    }

    fn stage(&self, stage: i64, begun: Time, now: Time, progress: &mut Progress) {
        let wait_over = plus_seconds(begun, self.run.spec.tool_wait_seconds);
        let mut settled_at = Some(begun);
        let mut settles_by = begun;
        for call in self.calls().iter().filter(|c| c.stage == stage) {
            match self.state_of(call) {
                CallState::Refused(_) => {}
                CallState::Absent => {
                    progress.wanted.push(self.waiter(call, begun));
                    settled_at = None;
                    settles_by = settles_by.max(wait_over);
                }
                CallState::Execution(execution) => {
                    let end = execution
                        .status
                        .as_ref()
                        .and_then(|s| s.completion_time)
                        .filter(|_| has_ended(execution));
                    if end.is_none() {
                        progress.live += 1;
                        if execution.spec.binding.is_none() && execution.spec.desired_state.is_none() {
                            progress.wanted.push(self.waiter(call, begun));
                        }
                        if now >= wait_over {
                            progress.left_behind.push(Arc::clone(execution));
                        }
                    }
                    let at = end.unwrap_or(wait_over).min(wait_over).max(begun);
                    settled_at = settled_at
                        .filter(|_| end.is_some() || now >= wait_over)
                        .map(|t| t.max(at));
                    settles_by = settles_by.max(at);
                }
                CallState::Builtin(builtin) => {
                    if let Some(execution) = builtin.to_cancel() {
                        progress.to_cancel.push(Arc::clone(execution));
                    }
                    let at = builtin.settles(begun, wait_over);
                    settled_at = settled_at
                        .filter(|_| builtin.to_cancel().is_none() && (builtin.is_over() || now >= at))
                        .map(|t| t.max(at.min(now)));
                    settles_by = settles_by.max(at);
                }
            }
        }
        if settled_at.is_none() {
            progress.stage_began = Some(begun);
            progress.settles_by = Some(settles_by).filter(|at| *at > now);
        }
        progress.settled_at = settled_at;
    }

    fn waiter(&self, call: &ToolCall, since: Time) -> (ObjectKey, Waiter) {
        let key = self.key(call.execution_name.as_deref().unwrap_or_default());
        let run = self.run.metadata.uid.clone();
        (
            key,
            Waiter {
                run,
                call: Some((self.turn.spec.index, call.call_id.clone())),
                since,
            },
        )
    }
}

//! What becomes of the actions that were handed to the executor.

use super::failure::{may_repeat, next_try, reason_of};
use super::memory::FOR_GOOD;
use super::types::{Action, Key, ObjectKey, WriteFailure, WriteFailureKind};
use super::waiting::Told;
use super::world::{FailedTry, Request, RequestState, World, has_ended, key_of};
use super::writes::Subject;
use crate::model::{ModelError, ModelErrorKind, ModelResponse};
use fairlead_crds::values::Time;
use std::collections::BTreeSet;

impl World {
    /// A model request came to its end.
    pub(super) fn answered(
        &mut self,
        run: &str,
        turn: &str,
        sent_at: Time,
        result: Result<ModelResponse, ModelError>,
        now: Time,
        dirty: &mut BTreeSet<Key>,
    ) {
        let bound = self.transient_tries(run);
        let Some(request) = self.runs.get_mut(run).and_then(|s| s.request.as_mut()) else {
            return;
        };
        if request.turn != turn || !matches!(request.state, RequestState::Sent) {
            return;
        }
        request.state = match result {
            Err(error) if may_repeat(&error) && request.tries < bound => {
                let not_before = next_try(&error, request.tries, run, now);
                request.tries += 1;
                request.failed = Some(FailedTry {
                    reason: reason_of(error.kind),
                    message: error.message,
                    again_at: not_before,
                });
                RequestState::Idle {
                    not_before: Some(not_before),
                }
            }
            result => RequestState::Answered {
                sent_at,
                result: Box::new(result),
            },
        };
        dirty.insert(Key::Run(run.to_owned()));
    }

    fn transient_tries(&self, run: &str) -> u32 {
        self.run(run)
            .and_then(|(_, object)| {
                let namespace = object.metadata.namespace.clone().unwrap_or_default();
                let name = object.spec.model.provider_ref.name.clone();
                self.providers.get(&ObjectKey { namespace, name })
            })
            .map_or(0, |p| u32::try_from(p.object.spec.retry.transient).unwrap_or(0))
    }

    /// An action was handed to the executor.
    pub(super) fn started(&mut self, action: &Action, now: Time, dirty: &mut BTreeSet<Key>) {
        if let Some(subject) = Subject::of(action) {
            self.writes.begin(subject.clone());
            self.told_again(&subject);
        }
        match action {
            Action::CreateTurn { run, name, .. } => {
                let state = self
                    .runs
                    .entry(run.metadata.uid.clone().unwrap_or_default())
                    .or_default();
                state.request = Some(Request {
                    turn: name.clone(),
                    since: now,
                    state: RequestState::Idle { not_before: None },
                    failed: None,
                    tries: 0,
                });
            }
            Action::Ask { run, .. } => {
                if let Some(request) = self.runs.get_mut(run).and_then(|s| s.request.as_mut()) {
                    request.state = RequestState::Sent;
                }
            }
            Action::StopAsking { run, .. } => {
                if let Some(state) = self.runs.get_mut(run) {
                    state.request = None;
                }
            }
            Action::CreateExecution { run, name, spec } => {
                let key = ObjectKey::new(run.metadata.namespace.clone().unwrap_or_default(), name.clone());
                if let Some(binding) = &spec.binding {
                    self.waiting.remove(&key);
                    self.load
                        .put(&key, &binding.node_name, run.metadata.uid.as_deref());
                }
            }
            Action::Bind { execution, binding } => {
                let key = key_of(&execution.metadata);
                self.waiting.remove(&key);
                let run = execution.spec.run_ref.as_ref().map(|r| r.uid.as_str());
                self.load.put(&key, &binding.node_name, run);
            }
            Action::Want { waiters } => {
                for (key, waiter) in waiters {
                    self.waiting.insert(key.clone(), waiter.clone());
                    self.told_again(&Subject::Execution(key.clone()));
                }
                dirty.insert(Key::Queue);
            }
            _ => {}
        }
    }

    /// Notes what the object of a call says, if the call waits: it changed, or is about to.
    pub(super) fn told_again(&mut self, subject: &Subject) -> bool {
        let Subject::Execution(key) = subject else {
            return false;
        };
        let waits = self.waiting.contains_key(key);
        if waits {
            let known = !self.writes.in_flight(subject);
            let told = known.then(|| Told::of(self.executions.get(key).map(|x| &**x)));
            self.waiting.tell(key, told);
        }
        waits
    }

    /// An action came to its end.
    pub(super) fn ended(
        &mut self,
        action: &Action,
        result: Result<(), WriteFailure>,
        now: Time,
        dirty: &mut BTreeSet<Key>,
    ) {
        if let Err(failure) = &result {
            self.undo(action, failure, dirty);
        }
        let gone = match &result {
            Ok(()) => matches!(action, Action::DeleteRun { .. } | Action::DeleteExecution { .. }),
            Err(failure) => failure.kind == WriteFailureKind::Gone,
        };
        if let Some(subject) = Subject::of(action) {
            self.writes.end(&subject, result, now);
            if self.told_again(&subject) {
                dirty.insert(Key::Queue);
            }
            self.unearth(&subject);
            dirty.insert(subject.key(action));
        }
        if gone {
            self.forget(action, now, dirty);
        }
    }

    /// The object of an action is gone: the watch will say so too, but until then nothing more is to be done about it.
    fn forget(&mut self, action: &Action, now: Time, dirty: &mut BTreeSet<Key>) {
        match action {
            Action::EndTurn { turn, .. } => self.turn_gone(&key_of(&turn.metadata), now, dirty),
            Action::WriteRun { run, .. } | Action::DeleteRun { run } => {
                self.run_gone(run.metadata.uid.as_deref().unwrap_or_default(), dirty);
            }
            Action::Bind { execution, .. }
            | Action::Cancel { execution }
            | Action::WriteExecution { execution, .. }
            | Action::DeleteExecution { execution } => {
                let key = key_of(&execution.metadata);
                let known = self.executions.get(&key);
                if known.is_some_and(|x| x.metadata.uid == execution.metadata.uid) {
                    self.execution_gone(&key, dirty);
                }
            }
            Action::WriteTool { tool, .. } => {
                let key = key_of(&tool.metadata);
                let known = self.tools.get(&key);
                if known.is_some_and(|t| t.object.metadata.uid == tool.metadata.uid) {
                    self.tool_gone(&key, FOR_GOOD, dirty);
                }
            }
            Action::WriteProvider { provider, .. } => {
                let key = key_of(&provider.metadata);
                let known = self.providers.get(&key);
                if known.is_some_and(|p| p.object.metadata.uid == provider.metadata.uid) {
                    self.provider_gone(&key, FOR_GOOD);
                }
            }
            _ => {}
        }
    }

    /// A turn that the server refuses for good: its answer is replaced by the refusal, and if that is refused as well the
    /// run cannot go on.
    fn turn_refused(&mut self, run: &str, message: &str) {
        let Some(state) = self.runs.get_mut(run) else {
            return;
        };
        match state.request.as_mut().map(|r| &mut r.state) {
            Some(RequestState::Answered { result, .. }) if result.is_ok() => {
                **result = Err(ModelError {
                    kind: ModelErrorKind::TooLarge,
                    status: None,
                    retry_after_seconds: None,
                    answer_begun: true,
                    message: format!("The answer could not be stored: {message}"),
                });
            }
            _ => state.broken = Some(message.to_owned()),
        }
    }

    /// What a write that did not happen leaves to be taken back.
    fn undo(&mut self, action: &Action, failure: &WriteFailure, dirty: &mut BTreeSet<Key>) {
        use WriteFailureKind::{Conflict, Invalid};
        match action {
            Action::CreateTurn { run, name, .. } => {
                if let Some(state) = self.runs.get_mut(run.metadata.uid.as_deref().unwrap_or_default())
                    && state.request.as_ref().is_some_and(|r| r.turn == *name)
                {
                    state.request = None;
                    if failure.kind == Invalid {
                        state.broken = Some(failure.message.clone());
                    }
                }
            }
            Action::EndTurn { turn, .. } if failure.kind == Invalid => {
                self.turn_refused(&turn.spec.run_ref.uid, &failure.message);
            }
            Action::CreateExecution { run, name, spec } => {
                let key = ObjectKey::new(run.metadata.namespace.clone().unwrap_or_default(), name.clone());
                self.load.take(&key);
                let refused =
                    matches!(failure.kind, Conflict | Invalid) && !self.executions.contains_key(&key);
                if let Some(state) = self.runs.get_mut(run.metadata.uid.as_deref().unwrap_or_default())
                    && refused
                {
                    let text = format!(
                        "The call could not be recorded, so it was not made: {}",
                        failure.message
                    );
                    state
                        .refused
                        .insert(spec.call_id.clone().unwrap_or_default(), text);
                }
                self.restore_load(&key);
                dirty.insert(Key::Queue);
            }
            Action::Bind { execution, .. } => {
                let key = key_of(&execution.metadata);
                self.load.take(&key);
                self.restore_load(&key);
                dirty.insert(Key::Queue);
            }
            _ => {}
        }
    }

    /// Puts the load of an execution back that is bound, whatever a failed write of ours wanted.
    fn restore_load(&mut self, key: &ObjectKey) {
        if let Some(execution) = self.executions.get(key)
            && let Some(binding) = &execution.spec.binding
            && !has_ended(execution)
        {
            let run = execution.spec.run_ref.as_ref().map(|r| r.uid.as_str());
            self.load.put(key, &binding.node_name, run);
        }
    }
}

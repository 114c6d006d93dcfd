//! What is kept of objects, what is forgotten of those that are gone, and how their late echoes are told.

use super::absorb::version;
use super::dependents::Named;
use super::types::{Key, ObjectKey};
use super::world::{World, has_ended, is_settled, key_of, phase_of};
use super::writes::Subject;
use fairlead_crds::ToolExecution;
use fairlead_crds::values::Time;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The version up to which nothing counts of what is gone: a UID never comes back.
pub(super) const FOR_GOOD: u64 = u64::MAX;

impl World {
    pub(super) fn keep(&mut self, key: ObjectKey, execution: Arc<ToolExecution>) {
        let owner = |x: &ToolExecution| x.spec.run_ref.as_ref().map(|r| r.uid.clone());
        if self
            .executions
            .get(&key)
            .is_some_and(|old| owner(old) != owner(&execution))
        {
            self.drop_execution(&key);
        }
        if let Some(run) = &execution.spec.run_ref {
            self.executions_of
                .entry(run.uid.clone())
                .or_default()
                .insert(key.clone());
        }
        let waits = execution.spec.binding.is_none() && !has_ended(&execution);
        if execution.spec.run_ref.is_none() {
            let tool = ObjectKey::new(key.namespace.clone(), execution.spec.tool.tool_ref.name.clone());
            let names = waits.then_some(Named::Tool(tool)).into_iter().collect();
            self.dependents.set(Key::Execution(key.clone()), names);
        }
        self.executions.insert(key.clone(), execution);
        self.told_again(&Subject::Execution(key));
    }

    pub(super) fn drop_execution(&mut self, key: &ObjectKey) -> Option<Arc<ToolExecution>> {
        let execution = self.executions.remove(key)?;
        self.dependents.remove(&Key::Execution(key.clone()));
        self.bury(Subject::Execution(key.clone()), &execution.metadata, FOR_GOOD);
        if let Some(run) = &execution.spec.run_ref
            && let Some(keys) = self.executions_of.get_mut(&run.uid)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.executions_of.remove(&run.uid);
            }
        }
        Some(execution)
    }

    /// Remembers an object that is forgotten until the write about it has come to its end: the answer to that write may
    /// show it once more, and the watch would never say again that it is gone. Nothing up to version `last` counts.
    pub(super) fn bury(&mut self, subject: Subject, metadata: &ObjectMeta, last: u64) {
        if self.writes.in_flight(&subject)
            && let Some(uid) = metadata.uid.clone()
        {
            self.buried.entry(subject).or_default().insert(uid, last);
        }
    }

    pub(super) fn is_buried(&self, subject: &Subject, metadata: &ObjectMeta) -> bool {
        let last = metadata
            .uid
            .as_ref()
            .and_then(|uid| self.buried.get(subject)?.get(uid));
        self.buried_runs.contains(subject)
            || last.is_some_and(|last| version(metadata).is_none_or(|version| version <= *last))
    }

    /// A write about a subject has come to its end, and nothing more is shown by it.
    pub(super) fn unearth(&mut self, subject: &Subject) {
        self.buried.remove(subject);
        self.buried_runs.remove(subject);
    }

    /// A run that has ended needs only those of its executions whose clean-up is not confirmed.
    pub(super) fn forget_children(&mut self, uid: &str) {
        let Some(state) = self.runs.get_mut(uid) else {
            return;
        };
        state.request = None;
        let turns = std::mem::take(&mut state.turns);
        for (at, turn) in turns {
            if phase_of(&turn).is_terminal() {
                self.turn_owner.remove(&key_of(&turn.metadata));
            } else {
                // It came late and is still to be closed.
                state.turns.insert(at, turn);
            }
        }
        let settled: Vec<_> = self
            .executions_of(uid)
            .filter(|x| is_settled(x))
            .map(|x| key_of(&x.metadata))
            .collect();
        for key in settled {
            self.drop_execution(&key);
        }
        self.waiting.remove_run(uid);
    }

    pub(super) fn run_gone(&mut self, uid: &str, dirty: &mut BTreeSet<Key>) {
        self.forget_children(uid);
        self.runs.remove(uid);
        self.dependents.remove(&Key::Run(uid.to_owned()));
        for subject in [Subject::Turn(uid.to_owned()), Subject::Run(uid.to_owned())] {
            if self.writes.in_flight(&subject) {
                self.buried_runs.insert(subject);
            }
        }
        self.writes.done(&Subject::Turn(uid.to_owned()));
        self.writes.done(&Subject::Run(uid.to_owned()));
        dirty.insert(Key::Queue);
    }

    pub(super) fn turn_gone(&mut self, key: &ObjectKey, now: Time, dirty: &mut BTreeSet<Key>) {
        if let Some((uid, index, attempt)) = self.turn_owner.remove(key) {
            if let Some(state) = self.runs.get_mut(&uid) {
                state.turns.remove(&(index, attempt));
                state.torn.get_or_insert(now);
                if state.object.is_none() && state.turns.is_empty() {
                    self.runs.remove(&uid);
                }
            }
            dirty.insert(Key::Run(uid));
        }
    }

    /// A tool is gone, or its state up to version `last` is none to act on.
    pub(super) fn tool_gone(&mut self, key: &ObjectKey, last: u64, dirty: &mut BTreeSet<Key>) {
        let subject = Subject::Tool(key.clone());
        self.writes.done(&subject);
        if let Some(gone) = self.tools.remove(key) {
            self.bury(subject, &gone.object.metadata, last);
        }
        // A call that waits for another look at its tool gets its verdict now.
        if !self.waiting.is_empty() {
            dirty.insert(Key::Queue);
        }
    }

    /// As [`Self::tool_gone`], for a provider.
    pub(super) fn provider_gone(&mut self, key: &ObjectKey, last: u64) {
        let subject = Subject::Provider(key.clone());
        self.writes.done(&subject);
        if let Some(gone) = self.providers.remove(key) {
            self.bury(subject, &gone.object.metadata, last);
        }
    }

    pub(super) fn execution_gone(&mut self, key: &ObjectKey, dirty: &mut BTreeSet<Key>) {
        self.unload(key, dirty);
        self.waiting.remove(key);
        self.writes.done(&Subject::Execution(key.clone()));
        dirty.insert(Key::Queue);
        let Some(gone) = self.drop_execution(key) else {
            return;
        };
        if let Some((run, call)) = gone.spec.run_ref.as_ref().zip(gone.spec.call_id.clone()) {
            // It may have had its effect: it is not made again.
            if let Some(state) = self.runs.get_mut(&run.uid) {
                state.refused.insert(
                    call,
                    "The record of this call was deleted; what came of it is not known.".to_owned(),
                );
            }
            dirty.insert(Key::Run(run.uid.clone()));
        }
    }
}

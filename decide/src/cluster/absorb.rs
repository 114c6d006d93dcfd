//! How observations correct the world.

use super::dependents::{Named, names_of};
use super::memory::FOR_GOOD;
use super::types::{Event, Key, NodeLease, ObjectKey};
use super::world::{
    NodeState, ProviderCheck, ProviderState, ToolState, World, has_ended, is_settled, key_of, phase_of,
};
use super::writes::Subject;
use crate::tool_check::accept;
use fairlead_crds::values::Time;
use fairlead_crds::{AgentRun, AgentTurn, ModelProvider, RunPhase, Tool, ToolExecution};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeSet;
use std::sync::Arc;

impl World {
    /// Corrects the world by an observation made at `now`, and says what has to be decided again.
    pub fn absorb(&mut self, event: Event, now: Time) -> BTreeSet<Key> {
        let mut dirty = BTreeSet::new();
        match event {
            Event::Led { term } => self.led(Some(term), now, &mut dirty),
            Event::Deposed => self.led(None, now, &mut dirty),
            Event::Run(run) => self.saw_run(run, &mut dirty),
            Event::RunGone { uid } => self.run_gone(&uid, &mut dirty),
            Event::Turn(turn) => self.saw_turn(turn, &mut dirty),
            Event::TurnGone(key) => self.turn_gone(&key, now, &mut dirty),
            Event::Execution(execution) => self.saw_execution(execution, now, &mut dirty),
            Event::ExecutionGone(key) => self.execution_gone(&key, &mut dirty),
            Event::Tool(tool) => self.saw_tool(tool, &mut dirty),
            Event::ToolGone(key) => self.tool_gone(&key, FOR_GOOD, &mut dirty),
            Event::ToolUnreadable { key, version } => self.tool_gone(&key, version, &mut dirty),
            Event::Provider(provider) => self.saw_provider(provider, &mut dirty),
            Event::ProviderGone(key) => self.provider_gone(&key, FOR_GOOD),
            Event::ProviderUnreadable { key, version } => self.provider_gone(&key, version),
            Event::Node(lease) => self.saw_node(lease, now, &mut dirty),
            Event::NodeGone { name } => self.node_gone(&name, &mut dirty),
            Event::Started(action) => self.started(&action, now, &mut dirty),
            Event::Ended { action, result } => self.ended(&action, result, now, &mut dirty),
            Event::Answered {
                run,
                turn,
                term,
                sent_at,
                result,
            } => {
                if self.term == Some(term) {
                    self.answered(&run, &turn, sent_at, *result, now, &mut dirty);
                }
            }
            Event::ProviderChecked {
                key,
                generation,
                fault,
            } => {
                self.provider_checked(
                    key,
                    ProviderCheck {
                        generation,
                        at: now,
                        fault,
                    },
                    &mut dirty,
                );
            }
        }
        dirty
    }

    /// Counts an execution on its node no more. A node that has neither a Lease nor work is nothing to remember.
    pub(super) fn unload(&mut self, key: &ObjectKey, dirty: &mut BTreeSet<Key>) {
        let Some(node) = self.load.node_of(key).map(str::to_owned) else {
            return;
        };
        self.load.take(key);
        if self.load.on_node(&node) == 0 && self.nodes.get(&node).is_some_and(|n| n.lease.is_none()) {
            self.nodes.remove(&node);
        }
        dirty.insert(Key::Queue);
    }

    fn led(&mut self, term: Option<i64>, now: Time, dirty: &mut BTreeSet<Key>) {
        (self.term, self.since) = (term, now);
        // While nobody led, or we could not see, no silence of a node can be held against it.
        self.nodes.values_mut().for_each(|node| node.moved_at = now);
        self.waiting.clear();
        self.writes.forgive();
        for state in self.runs.values_mut() {
            state.request = None;
            state.broken = None;
        }
        if term.is_some() {
            dirty.extend(self.runs.keys().cloned().map(Key::Run));
            dirty.extend(self.executions.keys().cloned().map(Key::Execution));
            dirty.extend(self.tools.keys().cloned().map(Key::Tool));
            dirty.extend(self.providers.keys().cloned().map(Key::Provider));
            dirty.extend(self.nodes.keys().cloned().map(Key::Node));
            dirty.insert(Key::Queue);
        }
    }

    fn saw_run(&mut self, run: Arc<AgentRun>, dirty: &mut BTreeSet<Key>) {
        let Some(uid) = run.metadata.uid.clone() else {
            return;
        };
        if self.is_buried(&Subject::Run(uid.clone()), &run.metadata) {
            return;
        }
        let state = self.runs.entry(uid.clone()).or_default();
        if state
            .object
            .as_deref()
            .is_some_and(|old| !newer(&old.metadata, &run.metadata))
        {
            return;
        }
        let ended = run_ended(&run);
        let key = Key::Run(uid.clone());
        if ended {
            state.object = Some(Arc::new(without_texts(&run)));
            self.dependents.remove(&key);
            self.forget_children(&uid);
        } else {
            // What a run names is part of its spec.
            let same = |old: &AgentRun| old.metadata.generation == run.metadata.generation;
            if !state.object.as_deref().is_some_and(same) {
                self.dependents.set(key, names_of(&run));
            }
            state.object = Some(run);
        }
        dirty.insert(Key::Run(uid));
    }

    fn saw_turn(&mut self, turn: Arc<AgentTurn>, dirty: &mut BTreeSet<Key>) {
        let uid = turn.spec.run_ref.uid.clone();
        if self.is_buried(&Subject::Turn(uid.clone()), &turn.metadata) {
            return;
        }
        let state = self.runs.entry(uid.clone()).or_default();
        let at = (turn.spec.index, turn.spec.attempt);
        if state.object.as_deref().is_some_and(run_ended) && phase_of(&turn).is_terminal() {
            state.turns.remove(&at);
            self.turn_owner.remove(&key_of(&turn.metadata));
            dirty.insert(Key::Run(uid));
            return;
        }
        if state
            .turns
            .get(&at)
            .is_some_and(|old| !newer(&old.metadata, &turn.metadata))
        {
            return;
        }
        self.turn_owner
            .insert(key_of(&turn.metadata), (uid.clone(), at.0, at.1));
        state.turns.insert(at, turn);
        dirty.insert(Key::Run(uid));
    }

    fn saw_execution(&mut self, execution: Arc<ToolExecution>, now: Time, dirty: &mut BTreeSet<Key>) {
        let key = key_of(&execution.metadata);
        if self
            .executions
            .get(&key)
            .is_some_and(|old| !newer(&old.metadata, &execution.metadata))
            || self.is_buried(&Subject::Execution(key.clone()), &execution.metadata)
        {
            return;
        }
        let ended = has_ended(&execution);
        let run = execution.spec.run_ref.as_ref().map(|r| r.uid.clone());
        match &execution.spec.binding {
            Some(binding) if !ended => {
                self.nodes.entry(binding.node_name.clone()).or_insert(NodeState {
                    lease: None,
                    moved_at: now,
                    trusted: false,
                });
                self.load.put(&key, &binding.node_name, run.as_deref());
                dirty.insert(Key::Node(binding.node_name.clone()));
            }
            _ => {
                self.unload(&key, dirty);
            }
        }
        if execution.spec.binding.is_some() || ended {
            self.waiting.remove(&key);
        } else if self.waiting.contains_key(&key) {
            dirty.insert(Key::Queue);
        }
        match &run {
            Some(uid) => {
                let over = self
                    .runs
                    .get(uid)
                    .and_then(|s| s.object.as_deref())
                    .is_some_and(run_ended);
                if over && is_settled(&execution) {
                    self.drop_execution(&key);
                    self.bury(Subject::Execution(key), &execution.metadata, FOR_GOOD);
                } else {
                    self.keep(key, execution);
                }
                dirty.insert(Key::Run(uid.clone()));
            }
            None => {
                let kept = if ended {
                    Arc::new(without_output(&execution))
                } else {
                    execution
                };
                self.keep(key.clone(), kept);
                dirty.insert(Key::Execution(key));
            }
        }
    }

    fn saw_tool(&mut self, tool: Arc<Tool>, dirty: &mut BTreeSet<Key>) {
        let key = key_of(&tool.metadata);
        let known = self.tools.get(&key);
        if known.is_some_and(|old| !newer(&old.object.metadata, &tool.metadata))
            || self.is_buried(&Subject::Tool(key.clone()), &tool.metadata)
        {
            return;
        }
        let same = known.filter(|old| {
            old.object.metadata.generation == tool.metadata.generation
                && old.object.metadata.uid == tool.metadata.uid
        });
        let changed = same.is_none();
        let accepted = same.map_or_else(|| accept(&tool.spec), |old| old.accepted.clone());
        self.tools.insert(
            key.clone(),
            ToolState {
                object: tool,
                accepted,
            },
        );
        if changed {
            self.wake_dependents(&Named::Tool(key.clone()), dirty);
        }
        dirty.insert(Key::Tool(key));
    }

    fn saw_provider(&mut self, provider: Arc<ModelProvider>, dirty: &mut BTreeSet<Key>) {
        let key = key_of(&provider.metadata);
        let known = self.providers.get(&key);
        if known.is_some_and(|old| !newer(&old.object.metadata, &provider.metadata))
            || self.is_buried(&Subject::Provider(key.clone()), &provider.metadata)
        {
            return;
        }
        let first = known.is_none();
        let touched = known.is_some_and(|old| is_touched(&old.object.metadata, &provider.metadata));
        let mut checked = known.and_then(|old| old.checked.clone());
        // Whoever touches a faulty provider wants it looked at: a Secret it names may be there by now.
        if let Some(check) = checked.as_mut().filter(|c| touched && c.fault.is_some()) {
            check.at = Time::MIN;
        }
        self.providers.insert(
            key.clone(),
            ProviderState {
                object: provider,
                checked,
            },
        );
        if first {
            self.wake_dependents(&Named::Provider(key.clone()), dirty);
        }
        dirty.insert(Key::Provider(key));
    }

    fn provider_checked(&mut self, key: ObjectKey, check: ProviderCheck, dirty: &mut BTreeSet<Key>) {
        if let Some(state) = self.providers.get_mut(&key) {
            let known = state.checked.as_ref().map(|c| (c.generation, &c.fault));
            let changed = known != Some((check.generation, &check.fault));
            state.checked = Some(check);
            if changed {
                self.wake_dependents(&Named::Provider(key.clone()), dirty);
            }
        }
        dirty.insert(Key::Provider(key));
    }

    fn saw_node(&mut self, lease: NodeLease, now: Time, dirty: &mut BTreeSet<Key>) {
        let name = lease.name.clone();
        let next = match self
            .nodes
            .get(&name)
            .and_then(|n| n.lease.as_ref().map(|l| (n, l)))
        {
            Some((node, old)) if old.renewed == lease.renewed => NodeState {
                lease: Some(lease),
                moved_at: node.moved_at,
                trusted: node.trusted,
            },
            Some(_) => NodeState {
                lease: Some(lease),
                moved_at: now,
                trusted: true,
            },
            None => {
                let trusted = lease.looks_recent;
                NodeState {
                    lease: Some(lease),
                    moved_at: now,
                    trusted,
                }
            }
        };
        self.nodes.insert(name.clone(), next);
        dirty.insert(Key::Node(name));
        dirty.insert(Key::Queue);
    }

    fn node_gone(&mut self, name: &str, dirty: &mut BTreeSet<Key>) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.lease = None;
            node.trusted = false;
        }
        if self.load.on_node(name) == 0 {
            self.nodes.remove(name);
        }
        dirty.insert(Key::Node(name.to_owned()));
    }
}

/// Whether `new` is a later state than `old`, or another object of the same name.
///
/// The API server's resource versions of one object are integers that rise; where they are not (another storage), the
/// later arrival is believed.
fn newer(old: &ObjectMeta, new: &ObjectMeta) -> bool {
    match (version(old), version(new)) {
        (Some(a), Some(b)) => b > a,
        _ => true,
    }
}

/// Whether somebody changed an object's labels or annotations, which leaves its generation alone.
fn is_touched(old: &ObjectMeta, new: &ObjectMeta) -> bool {
    old.labels != new.labels || old.annotations != new.annotations
}

pub(super) fn version(metadata: &ObjectMeta) -> Option<u64> {
    metadata.resource_version.as_deref().and_then(|v| v.parse().ok())
}

fn run_ended(run: &AgentRun) -> bool {
    run.status
        .as_ref()
        .and_then(|s| s.phase)
        .is_some_and(RunPhase::is_terminal)
}

/// An ended run without the texts of its spec, which nobody needs any more.
fn without_texts(run: &AgentRun) -> AgentRun {
    let mut slim = run.clone();
    slim.spec.input.clear();
    slim.spec.system_prompt = None;
    slim.spec.tools.clear();
    slim.metadata.managed_fields = None;
    slim
}

/// A user's own execution that has ended, without the texts that only its reader needs.
fn without_output(execution: &ToolExecution) -> ToolExecution {
    let mut slim = execution.clone();
    slim.spec.arguments.clear();
    if let Some(status) = &mut slim.status {
        status.output = None;
    }
    slim
}

//! The operator's snapshot of the cluster, and how observations correct it.

use super::load::Load;
use super::types::{Action, Event, Key, NodeLease, ObjectKey};
use super::writes::{Subject, Writes};
use crate::model::{ModelError, ModelResponse};
use crate::tool_check::{AcceptedTool, ToolFault, accept};
use fairlead_crds::values::Time;
use fairlead_crds::{AgentRun, AgentTurn, Cleanup, ModelProvider, RunPhase, Tool, ToolExecution, TurnPhase};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bounds of the operator's own behaviour; flags of the binary.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Milliseconds a call waits in memory before it is made visible as `Queued`, and a run in a phase before that
    /// phase is written.
    pub visible_after_millis: i64,
    /// Seconds a run or execution waits for an object it names before it fails.
    pub dependency_grace_seconds: i64,
    /// Seconds without a move of its Lease after which a node gets no new work.
    pub node_fresh_seconds: i64,
    /// Seconds without a move of its Lease after which a node's executions are orphaned.
    pub orphan_after_seconds: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            visible_after_millis: 1000,
            dependency_grace_seconds: 30,
            node_fresh_seconds: 30,
            orphan_after_seconds: 330,
        }
    }
}

/// A run with what belongs to it.
#[derive(Clone, Debug, Default)]
pub struct RunState {
    /// The run as last seen; absent while only children of it were seen.
    pub object: Option<Arc<AgentRun>>,
    /// Its turns by index and attempt; empty once the run has ended.
    pub turns: BTreeMap<(i64, i64), Arc<AgentTurn>>,
    /// The model request this process drives, under its present term.
    pub request: Option<Request>,
    /// Calls whose execution the server refused for good, with what it said.
    pub refused: BTreeMap<String, String>,
}

/// A model request of this process.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name of the turn, which this process created.
    pub turn: String,
    /// Where it stands.
    pub state: RequestState,
    /// Tries that failed.
    pub tries: u32,
}

/// Where a model request stands.
#[derive(Clone, Debug)]
pub enum RequestState {
    /// To be sent, not before that time.
    Idle {
        /// Earliest time of the next try.
        not_before: Option<Time>,
        /// What the provider said to the last one.
        last_error: Option<String>,
    },
    /// In progress.
    Sent,
    /// Ended; the turn's end is to be written.
    Answered {
        /// When the request was sent.
        sent_at: Time,
        /// What came of it.
        result: Box<Result<ModelResponse, ModelError>>,
    },
}

/// A tool with the verdict on it.
#[derive(Clone, Debug)]
pub struct ToolState {
    /// As last seen.
    pub object: Arc<Tool>,
    /// Whether it can be offered.
    pub accepted: Result<AcceptedTool, Vec<ToolFault>>,
}

/// A provider with the verdict on it.
#[derive(Clone, Debug)]
pub struct ProviderState {
    /// As last seen.
    pub object: Arc<ModelProvider>,
    /// Generation last looked at, when, and what was found.
    pub checked: Option<(i64, Time, Option<(String, String)>)>,
}

/// A node agent as its Lease shows it.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// The Lease as last seen; absent when only bindings name the node.
    pub lease: Option<NodeLease>,
    /// When it was last seen to move, by our own observation.
    pub moved_at: Time,
    /// Whether it may get work: it was seen to move, or its first sight looked recent.
    pub trusted: bool,
}

/// A call that waits for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// UID of the run, for a run's call.
    pub run: Option<String>,
    /// Turn and call id, for a run's call.
    pub call: Option<(i64, String)>,
    /// Since when.
    pub since: Time,
}

/// Everything the operator knows.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// Bounds.
    pub settings: Settings,
    /// The term, while this process leads.
    pub term: Option<i64>,
    /// Runs by UID.
    pub runs: BTreeMap<String, RunState>,
    /// Executions that have not ended, and those whose run still needs them.
    pub executions: BTreeMap<ObjectKey, Arc<ToolExecution>>,
    /// Tools.
    pub tools: BTreeMap<ObjectKey, ToolState>,
    /// Providers.
    pub providers: BTreeMap<ObjectKey, ProviderState>,
    /// Nodes.
    pub nodes: BTreeMap<String, NodeState>,
    /// What is in flight where.
    pub load: Load,
    /// Calls that wait for a slot, by the name their execution has or will have.
    pub waiting: BTreeMap<ObjectKey, Waiter>,
    /// Writes on their way, and those that failed.
    pub writes: Writes,
    turn_owner: BTreeMap<ObjectKey, (String, i64, i64)>,
    executions_of: BTreeMap<String, BTreeSet<ObjectKey>>,
}

impl World {
    /// An empty world.
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Corrects the world by an observation made at `now`, and says what has to be decided again.
    pub fn absorb(&mut self, event: Event, now: Time) -> BTreeSet<Key> {
        let mut dirty = BTreeSet::new();
        match event {
            Event::Led { term } => self.led(Some(term), &mut dirty),
            Event::Deposed => self.led(None, &mut dirty),
            Event::Run(run) => self.saw_run(run, &mut dirty),
            Event::RunGone { uid } => self.run_gone(&uid, &mut dirty),
            Event::Turn(turn) => self.saw_turn(turn, &mut dirty),
            Event::TurnGone(key) => self.turn_gone(&key, &mut dirty),
            Event::Execution(execution) => self.saw_execution(execution, now, &mut dirty),
            Event::ExecutionGone(key) => self.execution_gone(&key, &mut dirty),
            Event::Tool(tool) => self.saw_tool(tool, &mut dirty),
            Event::ToolGone(key) => {
                self.tools.remove(&key);
            }
            Event::Provider(provider) => self.saw_provider(provider, &mut dirty),
            Event::ProviderGone(key) => {
                self.providers.remove(&key);
            }
            Event::Node(lease) => self.saw_node(lease, now, &mut dirty),
            Event::NodeGone { name } => self.node_gone(&name, &mut dirty),
            Event::Started(action) => self.started(&action, now, &mut dirty),
            Event::Ended { action, result } => self.ended(&action, result, now, &mut dirty),
            Event::Answered { run, turn, term, sent_at, result } => {
                if self.term == Some(term) {
                    self.answered(&run, &turn, sent_at, *result, now, &mut dirty);
                }
            }
            Event::ProviderChecked { key, generation, fault } => {
                self.writes.done(&Subject::Provider(key.clone()));
                if let Some(state) = self.providers.get_mut(&key) {
                    state.checked = Some((generation, now, fault));
                }
                dirty.insert(Key::Provider(key));
            }
        }
        dirty
    }

    /// A run as it is known, if its object was seen.
    pub fn run(&self, uid: &str) -> Option<(&RunState, &Arc<AgentRun>)> {
        let state = self.runs.get(uid)?;
        state.object.as_ref().map(|object| (state, object))
    }

    /// The executions of a run that are known.
    pub fn executions_of(&self, run: &str) -> impl Iterator<Item = &Arc<ToolExecution>> {
        self.executions_of.get(run).into_iter().flatten().filter_map(|key| self.executions.get(key))
    }

    fn keep(&mut self, key: ObjectKey, execution: Arc<ToolExecution>) {
        if let Some(run) = &execution.spec.run_ref {
            self.executions_of.entry(run.uid.clone()).or_default().insert(key.clone());
        }
        self.executions.insert(key, execution);
    }

    fn drop_execution(&mut self, key: &ObjectKey) -> Option<Arc<ToolExecution>> {
        let execution = self.executions.remove(key)?;
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

    fn led(&mut self, term: Option<i64>, dirty: &mut BTreeSet<Key>) {
        self.term = term;
        self.waiting.clear();
        self.writes = Writes::default();
        for state in self.runs.values_mut() {
            state.request = None;
            state.refused.clear();
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
        let Some(uid) = run.metadata.uid.clone() else { return };
        let state = self.runs.entry(uid.clone()).or_default();
        if state.object.as_deref().is_some_and(|old| !newer(&old.metadata, &run.metadata)) {
            return;
        }
        let ended = run.status.as_ref().and_then(|s| s.phase).is_some_and(RunPhase::is_terminal);
        state.object = Some(if ended { Arc::new(without_texts(&run)) } else { run });
        if ended {
            self.forget_children(&uid);
        }
        dirty.insert(Key::Run(uid));
    }

    /// A run that has ended needs only those of its executions whose clean-up is not confirmed.
    fn forget_children(&mut self, uid: &str) {
        let Some(state) = self.runs.get_mut(uid) else { return };
        state.request = None;
        let turns = std::mem::take(&mut state.turns);
        for turn in turns.values() {
            self.turn_owner.remove(&key_of(&turn.metadata));
        }
        let settled: Vec<_> = self.executions_of(uid).filter(|x| is_settled(x)).map(|x| key_of(&x.metadata)).collect();
        for key in settled {
            self.drop_execution(&key);
        }
        self.waiting.retain(|_, w| w.run.as_deref() != Some(uid));
    }

    fn run_gone(&mut self, uid: &str, dirty: &mut BTreeSet<Key>) {
        self.forget_children(uid);
        self.runs.remove(uid);
        self.writes.done(&Subject::Turn(uid.to_owned()));
        self.writes.done(&Subject::Run(uid.to_owned()));
        dirty.insert(Key::Queue);
    }

    fn saw_turn(&mut self, turn: Arc<AgentTurn>, dirty: &mut BTreeSet<Key>) {
        let uid = turn.spec.run_ref.uid.clone();
        let state = self.runs.entry(uid.clone()).or_default();
        if state.object.as_deref().is_some_and(run_ended) {
            return;
        }
        let at = (turn.spec.index, turn.spec.attempt);
        if state.turns.get(&at).is_some_and(|old| !newer(&old.metadata, &turn.metadata)) {
            return;
        }
        self.turn_owner.insert(key_of(&turn.metadata), (uid.clone(), at.0, at.1));
        state.turns.insert(at, turn);
        dirty.insert(Key::Run(uid));
    }

    fn turn_gone(&mut self, key: &ObjectKey, dirty: &mut BTreeSet<Key>) {
        if let Some((uid, index, attempt)) = self.turn_owner.remove(key) {
            if let Some(state) = self.runs.get_mut(&uid) {
                state.turns.remove(&(index, attempt));
                if state.object.is_none() && state.turns.is_empty() {
                    self.runs.remove(&uid);
                }
            }
            dirty.insert(Key::Run(uid));
        }
    }

    fn saw_execution(&mut self, execution: Arc<ToolExecution>, now: Time, dirty: &mut BTreeSet<Key>) {
        let key = key_of(&execution.metadata);
        if self.executions.get(&key).is_some_and(|old| !newer(&old.metadata, &execution.metadata)) {
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
                if self.load.take(&key) {
                    dirty.insert(Key::Queue);
                }
            }
        }
        if execution.spec.binding.is_some() || ended {
            self.waiting.remove(&key);
        }
        match &run {
            Some(uid) => {
                let over = self.runs.get(uid).and_then(|s| s.object.as_deref()).is_some_and(run_ended);
                if over && is_settled(&execution) {
                    self.drop_execution(&key);
                } else {
                    self.keep(key, execution);
                }
                dirty.insert(Key::Run(uid.clone()));
            }
            None => {
                let kept = if ended { Arc::new(without_output(&execution)) } else { execution };
                self.keep(key.clone(), kept);
                dirty.insert(Key::Execution(key));
            }
        }
    }

    fn execution_gone(&mut self, key: &ObjectKey, dirty: &mut BTreeSet<Key>) {
        self.load.take(key);
        self.waiting.remove(key);
        self.writes.done(&Subject::Execution(key.clone()));
        dirty.insert(Key::Queue);
        if let Some(uid) = self.drop_execution(key).and_then(|x| x.spec.run_ref.as_ref().map(|r| r.uid.clone())) {
            dirty.insert(Key::Run(uid));
        }
    }

    fn saw_tool(&mut self, tool: Arc<Tool>, dirty: &mut BTreeSet<Key>) {
        let key = key_of(&tool.metadata);
        let known = self.tools.get(&key);
        if known.is_some_and(|old| !newer(&old.object.metadata, &tool.metadata)) {
            return;
        }
        let same = known.filter(|old| {
            old.object.metadata.generation == tool.metadata.generation && old.object.metadata.uid == tool.metadata.uid
        });
        let accepted = same.map_or_else(|| accept(&tool.spec), |old| old.accepted.clone());
        self.tools.insert(key.clone(), ToolState { object: tool, accepted });
        dirty.insert(Key::Tool(key));
    }

    fn saw_provider(&mut self, provider: Arc<ModelProvider>, dirty: &mut BTreeSet<Key>) {
        let key = key_of(&provider.metadata);
        let known = self.providers.get(&key);
        if known.is_some_and(|old| !newer(&old.object.metadata, &provider.metadata)) {
            return;
        }
        let checked = known.and_then(|old| old.checked.clone());
        self.providers.insert(key.clone(), ProviderState { object: provider, checked });
        dirty.insert(Key::Provider(key));
    }

    fn saw_node(&mut self, lease: NodeLease, now: Time, dirty: &mut BTreeSet<Key>) {
        let name = lease.name.clone();
        let next = match self.nodes.get(&name).and_then(|n| n.lease.as_ref().map(|l| (n, l))) {
            Some((node, old)) if old.renewed == lease.renewed => {
                NodeState { lease: Some(lease), moved_at: node.moved_at, trusted: node.trusted }
            }
            Some(_) => NodeState { lease: Some(lease), moved_at: now, trusted: true },
            None => {
                let trusted = lease.looks_recent;
                NodeState { lease: Some(lease), moved_at: now, trusted }
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

    fn answered(
        &mut self,
        run: &str,
        turn: &str,
        sent_at: Time,
        result: Result<ModelResponse, ModelError>,
        now: Time,
        dirty: &mut BTreeSet<Key>,
    ) {
        let bound = self.transient_tries(run);
        let Some(request) = self.runs.get_mut(run).and_then(|s| s.request.as_mut()) else { return };
        if request.turn != turn || !matches!(request.state, RequestState::Sent) {
            return;
        }
        request.state = match result {
            Err(error) if super::failure::may_repeat(&error) && request.tries < bound => {
                let not_before = super::failure::next_try(&error, request.tries, run, now);
                request.tries += 1;
                RequestState::Idle { not_before: Some(not_before), last_error: Some(error.message) }
            }
            result => RequestState::Answered { sent_at, result: Box::new(result) },
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

    fn started(&mut self, action: &Action, now: Time, dirty: &mut BTreeSet<Key>) {
        if let Some(subject) = Subject::of(action) {
            self.writes.begin(subject);
        }
        match action {
            Action::CreateTurn { run, name, .. } => {
                let state = self.runs.entry(run.metadata.uid.clone().unwrap_or_default()).or_default();
                state.request = Some(Request {
                    turn: name.clone(),
                    state: RequestState::Idle { not_before: None, last_error: None },
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
                    self.load.put(&key, &binding.node_name, run.metadata.uid.as_deref());
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
                    let known = self.waiting.get(key).map_or(waiter.since, |w| w.since.min(waiter.since));
                    self.waiting.insert(key.clone(), Waiter { since: known, ..waiter.clone() });
                }
                dirty.insert(Key::Queue);
            }
            _ => {}
        }
        let _ = now;
    }

    fn ended(
        &mut self,
        action: &Action,
        result: Result<(), super::types::WriteFailure>,
        now: Time,
        dirty: &mut BTreeSet<Key>,
    ) {
        if let Err(failure) = &result {
            self.undo(action, failure, dirty);
        }
        if let Some(subject) = Subject::of(action) {
            self.writes.end(&subject, result, now);
            dirty.insert(subject.key(action));
        }
    }

    /// What a write that did not happen leaves to be taken back.
    fn undo(&mut self, action: &Action, failure: &super::types::WriteFailure, dirty: &mut BTreeSet<Key>) {
        use super::types::WriteFailureKind::{Conflict, Invalid};
        match action {
            Action::CreateTurn { run, name, .. } => {
                if let Some(state) = self.runs.get_mut(run.metadata.uid.as_deref().unwrap_or_default())
                    && state.request.as_ref().is_some_and(|r| r.turn == *name)
                {
                    state.request = None;
                }
            }
            Action::CreateExecution { run, name, spec } => {
                let key = ObjectKey::new(run.metadata.namespace.clone().unwrap_or_default(), name.clone());
                self.load.take(&key);
                let refused = matches!(failure.kind, Conflict | Invalid) && !self.executions.contains_key(&key);
                if let Some(state) = self.runs.get_mut(run.metadata.uid.as_deref().unwrap_or_default())
                    && refused
                {
                    state.refused.insert(spec.call_id.clone().unwrap_or_default(), failure.message.clone());
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

/// Namespace and name out of an object's metadata.
pub fn key_of(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> ObjectKey {
    ObjectKey::new(metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// Whether `new` is a later state than `old`, or another object of the same name.
///
/// The API server's resource versions of one object are integers that rise; where they are not (another storage), the
/// later arrival is believed.
fn newer(
    old: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    new: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
) -> bool {
    let number = |m: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        m.resource_version.as_deref().and_then(|v| v.parse::<u64>().ok())
    };
    match (number(old), number(new)) {
        (Some(a), Some(b)) => b > a,
        _ => true,
    }
}

fn run_ended(run: &AgentRun) -> bool {
    run.status.as_ref().and_then(|s| s.phase).is_some_and(RunPhase::is_terminal)
}

/// Whether an execution is in a terminal phase.
pub fn has_ended(execution: &ToolExecution) -> bool {
    execution.status.as_ref().and_then(|s| s.phase).is_some_and(fairlead_crds::ExecutionPhase::is_terminal)
}

/// Whether an execution has ended and nothing of it is left.
pub fn is_settled(execution: &ToolExecution) -> bool {
    let cleanup = execution.status.as_ref().and_then(|s| s.cleanup);
    has_ended(execution) && (cleanup.is_none() || cleanup == Some(Cleanup::Confirmed))
}

/// The completed attempt at a turn, or else the latest.
pub fn turn_at(state: &RunState, index: i64) -> Option<&Arc<AgentTurn>> {
    let mut latest = None;
    for turn in state.turns.range((index, 0)..(index + 1, 0)).map(|(_, t)| t) {
        latest = Some(turn);
        if phase_of(turn) == TurnPhase::Completed {
            break;
        }
    }
    latest
}

/// A turn's phase, `Requesting` when none was written.
pub fn phase_of(turn: &AgentTurn) -> TurnPhase {
    turn.status.as_ref().and_then(|s| s.phase).unwrap_or(TurnPhase::Requesting)
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

//! A toy API server: resource versions, optimistic locks, names that are taken, final phases, two field managers, the
//! admission policies that the cores rely on, and a log per kind that watches follow.
//!
//! It is also the first oracle: whatever must never be stored is noted in `violations` at the moment it would be.

use super::rng::{Ms, Rng};
use fairlead_crds::conditions;
use fairlead_crds::values::Time;
use fairlead_crds::*;
use fairlead_decide::cluster::{
    Action, Event, NodeLease, ObjectKey, WriteFailure, WriteFailureKind, has_ended, key_of,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time as MetaTime};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Wall clock at simulated time 0.
pub const EPOCH_MS: i64 = 1_800_000_000_000;

pub fn time(at: Ms) -> Time {
    Time::from_millisecond(EPOCH_MS + at).unwrap()
}

/// Simulated time of a wall-clock time.
pub fn ms(at: Time) -> Ms {
    at.as_millisecond() - EPOCH_MS
}

pub const KINDS: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Run,
    Turn,
    Execution,
    Tool,
    Provider,
    Node,
}

impl Kind {
    pub const ALL: [Self; KINDS] = [
        Self::Run,
        Self::Turn,
        Self::Execution,
        Self::Tool,
        Self::Provider,
        Self::Node,
    ];
}

#[derive(Clone, Debug)]
pub enum Object {
    Run(Arc<AgentRun>),
    Turn(Arc<AgentTurn>),
    Execution(Arc<ToolExecution>),
    Tool(Arc<Tool>),
    Provider(Arc<ModelProvider>),
    Node(NodeLease),
}

/// One entry of a kind's log.
#[derive(Clone, Debug)]
pub struct Change {
    pub kind: Kind,
    pub key: ObjectKey,
    pub uid: String,
    /// The object as it was stored, nothing when it was deleted.
    pub object: Option<Object>,
}

#[derive(Clone, Debug, Default)]
pub struct LeaderLease {
    pub holder: Option<(usize, u32)>,
    pub transitions: i64,
    pub renewed: Ms,
}

/// What each field manager holds of an execution's status.
#[derive(Clone, Debug, Default)]
struct Documents {
    operator: ToolExecutionStatus,
    node: ToolExecutionStatus,
}

#[derive(Debug, Default)]
pub struct Api {
    version: u64,
    uids: u64,
    pub runs: BTreeMap<ObjectKey, Arc<AgentRun>>,
    pub turns: BTreeMap<ObjectKey, Arc<AgentTurn>>,
    pub executions: BTreeMap<ObjectKey, Arc<ToolExecution>>,
    pub tools: BTreeMap<ObjectKey, Arc<Tool>>,
    pub providers: BTreeMap<ObjectKey, Arc<ModelProvider>>,
    pub nodes: BTreeMap<String, NodeLease>,
    pub leader: LeaderLease,
    documents: BTreeMap<String, Documents>,
    pub logs: [Vec<Change>; KINDS],
    /// Committed writes by what they were.
    pub writes: BTreeMap<&'static str, u64>,
    /// When the Lease of each node last moved.
    lease_moved: BTreeMap<String, Ms>,
    /// How long it had stood still before that.
    lease_stood: BTreeMap<String, Ms>,
    pub orphan_after_ms: Ms,
    /// How much an operator may be behind what happens.
    pub behind_ms: Ms,
    /// Whether no part was ever disturbed, so that promises of one process hold for the whole.
    pub calm: bool,
    pub violations: Vec<String>,
    /// Final status of executions and runs that were deleted.
    pub deleted: Vec<Arc<ToolExecution>>,
    /// Runs whose cancel was stored, with when.
    pub cancelled: BTreeMap<String, Ms>,
    /// Owners that were gone when a child was created: the garbage collector takes it.
    pub ownerless: Vec<String>,
}

type Written = (Vec<Event>, Result<(), WriteFailure>);

fn fail(kind: WriteFailureKind, message: impl Into<String>) -> WriteFailure {
    WriteFailure {
        kind,
        message: message.into(),
    }
}

/// What a node agent's write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeWrite {
    Stored,
    Refused,
    NotFound,
}

impl Api {
    pub fn new(orphan_after_ms: Ms, calm: bool) -> Self {
        Self {
            orphan_after_ms,
            calm,
            ..Self::default()
        }
    }

    fn violation(&mut self, text: String) {
        self.violations.push(text);
    }

    fn stamp(&mut self, metadata: &mut ObjectMeta) {
        self.version += 1;
        metadata.resource_version = Some(self.version.to_string());
    }

    fn fresh(&mut self, metadata: &mut ObjectMeta, now: Ms) {
        self.uids += 1;
        metadata.uid = Some(format!("uid-{}", self.uids));
        // The server's timestamps have whole seconds.
        metadata.creation_timestamp = Some(MetaTime(time(now - now.rem_euclid(1000))));
        metadata.generation = Some(1);
        self.stamp(metadata);
    }

    fn log(&mut self, kind: Kind, metadata: &ObjectMeta, object: Option<Object>) {
        let uid = metadata.uid.clone().unwrap_or_default();
        self.logs[kind as usize].push(Change {
            kind,
            key: key_of(metadata),
            uid,
            object,
        });
    }

    fn count(&mut self, what: &'static str) {
        *self.writes.entry(what).or_default() += 1;
    }

    fn put_run(&mut self, mut run: AgentRun) -> Arc<AgentRun> {
        self.stamp(&mut run.metadata);
        let run = Arc::new(run);
        self.runs.insert(key_of(&run.metadata), Arc::clone(&run));
        self.log(Kind::Run, &run.metadata, Some(Object::Run(Arc::clone(&run))));
        run
    }

    fn put_turn(&mut self, mut turn: AgentTurn) -> Arc<AgentTurn> {
        self.stamp(&mut turn.metadata);
        let turn = Arc::new(turn);
        self.turns.insert(key_of(&turn.metadata), Arc::clone(&turn));
        self.log(Kind::Turn, &turn.metadata, Some(Object::Turn(Arc::clone(&turn))));
        turn
    }

    fn put_execution(&mut self, mut execution: ToolExecution) -> Arc<ToolExecution> {
        self.stamp(&mut execution.metadata);
        let execution = Arc::new(execution);
        self.executions
            .insert(key_of(&execution.metadata), Arc::clone(&execution));
        self.log(
            Kind::Execution,
            &execution.metadata,
            Some(Object::Execution(Arc::clone(&execution))),
        );
        execution
    }

    // --- What users do ---------------------------------------------------------------------------------------------

    pub fn create_run(&mut self, mut run: AgentRun, now: Ms) {
        self.fresh(&mut run.metadata, now);
        self.put_run(run);
    }

    pub fn create_own(&mut self, mut execution: ToolExecution, now: Ms) {
        self.fresh(&mut execution.metadata, now);
        self.put_execution(execution);
    }

    /// Creates or edits a tool.
    pub fn apply_tool(&mut self, mut tool: Tool, now: Ms) {
        match self.tools.get(&key_of(&tool.metadata)) {
            None => self.fresh(&mut tool.metadata, now),
            Some(old) => {
                let generation = old.metadata.generation.unwrap_or(0) + 1;
                tool.status.clone_from(&old.status);
                tool.metadata = old.metadata.clone();
                tool.metadata.generation = Some(generation);
                self.stamp(&mut tool.metadata);
            }
        }
        self.put_tool(tool);
    }

    fn put_tool(&mut self, mut tool: Tool) -> Arc<Tool> {
        self.stamp(&mut tool.metadata);
        let tool = Arc::new(tool);
        self.tools.insert(key_of(&tool.metadata), Arc::clone(&tool));
        self.log(Kind::Tool, &tool.metadata, Some(Object::Tool(Arc::clone(&tool))));
        tool
    }

    pub fn create_provider(&mut self, mut provider: ModelProvider, now: Ms) {
        self.fresh(&mut provider.metadata, now);
        self.put_provider(provider);
    }

    fn put_provider(&mut self, mut provider: ModelProvider) -> Arc<ModelProvider> {
        self.stamp(&mut provider.metadata);
        let provider = Arc::new(provider);
        self.providers
            .insert(key_of(&provider.metadata), Arc::clone(&provider));
        self.log(
            Kind::Provider,
            &provider.metadata,
            Some(Object::Provider(Arc::clone(&provider))),
        );
        provider
    }

    pub fn cancel_run(&mut self, key: &ObjectKey, now: Ms) {
        let Some(mut run) = self.runs.get(key).map(|r| AgentRun::clone(r)) else {
            return;
        };
        if run.spec.desired_state.is_none() {
            run.spec.desired_state = Some(DesiredState::Cancelled);
            run.metadata.generation = run.metadata.generation.map(|g| g + 1);
            if !run_ended(&run) {
                self.cancelled
                    .insert(run.metadata.uid.clone().unwrap_or_default(), now);
            }
            self.put_run(run);
        }
    }

    pub fn cancel_execution(&mut self, key: &ObjectKey) -> Option<Arc<ToolExecution>> {
        let mut execution = ToolExecution::clone(self.executions.get(key)?);
        if execution.spec.desired_state.is_none() {
            execution.spec.desired_state = Some(DesiredState::Cancelled);
            execution.metadata.generation = execution.metadata.generation.map(|g| g + 1);
            return Some(self.put_execution(execution));
        }
        self.executions.get(key).cloned()
    }

    pub fn delete_run(&mut self, key: &ObjectKey) -> Option<String> {
        let run = self.runs.remove(key)?;
        self.version += 1;
        self.log(Kind::Run, &run.metadata, None);
        run.metadata.uid.clone()
    }

    pub fn delete_execution(&mut self, key: &ObjectKey) {
        if let Some(execution) = self.executions.remove(key) {
            self.version += 1;
            self.log(Kind::Execution, &execution.metadata, None);
            self.deleted.push(execution);
        }
    }

    /// What the garbage collector does once an owner is gone.
    pub fn delete_children(&mut self, uid: &str) {
        let of = |r: Option<&values::OwnedRef>| r.is_some_and(|r| r.uid == uid);
        let executions: Vec<_> = self
            .executions
            .iter()
            .filter(|(_, x)| of(x.spec.run_ref.as_ref()))
            .map(|(k, _)| k.clone())
            .collect();
        for key in executions {
            self.delete_execution(&key);
        }
        let turns: Vec<_> = self
            .turns
            .iter()
            .filter(|(_, t)| t.spec.run_ref.uid == uid)
            .map(|(k, _)| k.clone())
            .collect();
        for key in turns {
            if let Some(turn) = self.turns.remove(&key) {
                self.version += 1;
                self.log(Kind::Turn, &turn.metadata, None);
            }
        }
    }

    pub fn renew_node(&mut self, lease: NodeLease, now: Ms) {
        self.version += 1;
        let before = self.lease_moved.insert(lease.name.clone(), now).unwrap_or(0);
        self.lease_stood.insert(lease.name.clone(), now - before);
        let key = ObjectKey::new("system", lease.name.clone());
        self.logs[Kind::Node as usize].push(Change {
            kind: Kind::Node,
            key,
            uid: lease.name.clone(),
            object: Some(Object::Node(lease.clone())),
        });
        self.nodes.insert(lease.name.clone(), lease);
    }

    // --- What the operator does ------------------------------------------------------------------------------------

    /// Carries a write out, as the operator's executor and the server do together.
    pub fn write(&mut self, action: &Action, now: Ms, rng: &mut Rng) -> Written {
        match action {
            Action::CreateTurn { run, name, spec } => self.create_turn(run, name, spec, now),
            Action::EndTurn { turn, status } => self.end_turn(turn, status),
            Action::CreateExecution { run, name, spec } => self.create_execution(run, name, spec, now, rng),
            Action::Bind { execution, binding } => self.bind(execution, binding, rng),
            Action::Cancel { execution } => self.cancel(execution),
            Action::WriteExecution { execution, status } => self.write_execution(execution, status, now),
            Action::WriteRun { run, status } => self.write_run(run, status),
            Action::WriteTool { tool, status } => {
                self.count("tool status");
                let Some(mut stored) = self.tools.get(&key_of(&tool.metadata)).map(|t| Tool::clone(t)) else {
                    return gone();
                };
                stored.status = Some(ToolStatus::clone(status));
                (vec![Event::Tool(self.put_tool(stored))], Ok(()))
            }
            Action::WriteProvider { provider, status } => {
                self.count("provider status");
                let key = key_of(&provider.metadata);
                let Some(mut stored) = self.providers.get(&key).map(|p| ModelProvider::clone(p)) else {
                    return gone();
                };
                stored.status = Some(ModelProviderStatus::clone(status));
                (vec![Event::Provider(self.put_provider(stored))], Ok(()))
            }
            Action::CheckProvider { provider } => {
                let generation = provider.metadata.generation.unwrap_or(0);
                let key = key_of(&provider.metadata);
                (
                    vec![Event::ProviderChecked {
                        key,
                        generation,
                        fault: None,
                    }],
                    Ok(()),
                )
            }
            Action::DeleteRun { run } => self.retire_run(run),
            Action::DeleteExecution { execution } => self.retire_execution(execution),
            Action::Ask { .. } | Action::StopAsking { .. } | Action::Want { .. } => (Vec::new(), Ok(())),
        }
    }

    /// Deletes a run if it still is as it was decided on.
    fn retire_run(&mut self, run: &AgentRun) -> Written {
        self.count("run delete");
        let key = key_of(&run.metadata);
        let stored = self.runs.get(&key).filter(|r| r.metadata.uid == run.metadata.uid);
        let Some(stored) = stored.cloned() else {
            return gone();
        };
        if stored.metadata.resource_version != run.metadata.resource_version {
            return (vec![Event::Run(stored)], Err(modified()));
        }
        if !run_ended(&stored) {
            self.violation(format!("a run was deleted that had not ended: {key}"));
        }
        self.delete_run(&key);
        self.delete_children(run.metadata.uid.as_deref().unwrap_or_default());
        (Vec::new(), Ok(()))
    }

    /// Deletes a user's own execution if it still is as it was decided on.
    fn retire_execution(&mut self, execution: &ToolExecution) -> Written {
        self.count("execution delete");
        let key = key_of(&execution.metadata);
        let stored = self.executions.get(&key);
        let stored = stored.filter(|x| x.metadata.uid == execution.metadata.uid);
        let Some(stored) = stored.cloned() else {
            return gone();
        };
        if stored.metadata.resource_version != execution.metadata.resource_version {
            return (vec![Event::Execution(stored)], Err(modified()));
        }
        if !has_ended(&stored) {
            self.violation(format!("{key} was deleted before its end"));
        }
        self.delete_execution(&key);
        (Vec::new(), Ok(()))
    }

    fn create_turn(&mut self, run: &AgentRun, name: &str, spec: &AgentTurnSpec, now: Ms) -> Written {
        let namespace = run.metadata.namespace.clone().unwrap_or_default();
        let key = ObjectKey::new(namespace.clone(), name);
        if let Some(stored) = self.turns.get(&key) {
            let told = vec![Event::Turn(Arc::clone(stored))];
            return (told, Err(fail(WriteFailureKind::Conflict, "AlreadyExists")));
        }
        self.count("turn create");
        if self
            .runs
            .get(&key_of(&run.metadata))
            .is_none_or(|r| r.metadata.uid != run.metadata.uid)
        {
            self.ownerless.push(spec.run_ref.uid.clone());
        }
        self.check_turn_start(run, spec);
        // Longer than all pauses of a leader and delays of a watch.
        let bound = 3 * self.behind_ms + 15_000;
        if let Some(at) = self
            .cancelled
            .get(&spec.run_ref.uid)
            .filter(|at| now > **at + bound)
        {
            self.violation(format!(
                "turn {} of a run that was cancelled at {at} ms is made",
                spec.index
            ));
        }
        let mut turn = AgentTurn::new(name, spec.clone());
        turn.metadata.namespace = Some(namespace);
        self.fresh(&mut turn.metadata, now);
        (vec![Event::Turn(self.put_turn(turn))], Ok(()))
    }

    fn check_turn_start(&mut self, run: &AgentRun, spec: &AgentTurnSpec) {
        let uid = run.metadata.uid.clone().unwrap_or_default();
        let others: Vec<_> = self
            .turns
            .values()
            .filter(|t| t.spec.run_ref.uid == uid)
            .cloned()
            .collect();
        for other in others {
            if turn_phase(&other) == TurnPhase::Requesting {
                let text = format!(
                    "turn {} is created beside {}, which is not closed",
                    spec.index,
                    name(&other.metadata)
                );
                // A deposed leader's create may land late; within one undisturbed process never.
                if self.calm {
                    self.violation(text);
                }
            }
        }
    }

    fn end_turn(&mut self, turn: &AgentTurn, status: &AgentTurnStatus) -> Written {
        let key = key_of(&turn.metadata);
        let Some(stored) = self.turns.get(&key).cloned() else {
            return gone();
        };
        if stored.metadata.resource_version != turn.metadata.resource_version {
            let told = vec![Event::Turn(stored)];
            return (
                told,
                Err(fail(WriteFailureKind::Conflict, "the object has been modified")),
            );
        }
        if turn_phase(&stored).is_terminal() {
            self.violation(format!("the end of turn {key} is written again"));
            return (
                vec![Event::Turn(stored)],
                Err(fail(WriteFailureKind::Invalid, "a turn that has ended is final")),
            );
        }
        self.count("turn end");
        let mut ended = AgentTurn::clone(&stored);
        ended.status = Some(status.clone());
        if status.phase == Some(TurnPhase::Completed) {
            let twin = self.turns.values().any(|t| {
                t.spec.run_ref.uid == turn.spec.run_ref.uid
                    && t.spec.index == turn.spec.index
                    && turn_phase(t) == TurnPhase::Completed
            });
            if twin {
                self.violation(format!(
                    "turn {} of {} is completed twice",
                    turn.spec.index, turn.spec.run_ref.name
                ));
            }
        }
        (vec![Event::Turn(self.put_turn(ended))], Ok(()))
    }

    fn create_execution(
        &mut self,
        run: &AgentRun,
        name: &str,
        spec: &ToolExecutionSpec,
        now: Ms,
        rng: &mut Rng,
    ) -> Written {
        let namespace = run.metadata.namespace.clone().unwrap_or_default();
        let key = ObjectKey::new(namespace.clone(), name);
        if let Some(stored) = self.executions.get(&key) {
            let same = stored.spec.run_ref == spec.run_ref && stored.spec.call_id == spec.call_id;
            if same {
                return (vec![Event::Execution(Arc::clone(stored))], Ok(()));
            }
            return (
                Vec::new(),
                Err(fail(WriteFailureKind::Conflict, "the name is taken")),
            );
        }
        if self
            .runs
            .get(&key_of(&run.metadata))
            .is_none_or(|r| r.metadata.uid != run.metadata.uid)
        {
            self.ownerless.extend(run.metadata.uid.clone());
        }
        let ownerless = !self.ownerless.is_empty();
        if let Some(failure) = spec.binding.as_ref().and_then(|b| self.policy_of_the_term(b)) {
            return (Vec::new(), Err(failure));
        }
        self.count("execution create");
        // Of a run that is gone, its turns are gone too.
        if !ownerless {
            self.check_dispatch(run, spec, now);
        }
        let mut execution = ToolExecution::new(name, spec.clone());
        if let Some(binding) = &mut execution.spec.binding {
            binding.fence = rng.hex(16);
        }
        execution.metadata.namespace = Some(namespace);
        self.fresh(&mut execution.metadata, now);
        let stored = self.put_execution(execution);
        self.check_capacity(&stored);
        (vec![Event::Execution(stored)], Ok(()))
    }

    fn policy_of_the_term(&self, binding: &Binding) -> Option<WriteFailure> {
        let present = self.leader.transitions;
        (binding.term != present).then(|| {
            fail(
                WriteFailureKind::Transient,
                format!("the term of the leader is {present}, not {}", binding.term),
            )
        })
    }

    /// A call is made only when its turn is completed and the stages before it are settled.
    fn check_dispatch(&mut self, run: &AgentRun, spec: &ToolExecutionSpec, now: Ms) {
        let uid = run.metadata.uid.clone().unwrap_or_default();
        let call_id = spec.call_id.clone().unwrap_or_default();
        let index = spec.turn.unwrap_or(0);
        let turn = self
            .turns
            .values()
            .find(|t| {
                t.spec.run_ref.uid == uid && t.spec.index == index && turn_phase(t) == TurnPhase::Completed
            })
            .cloned();
        let Some(turn) = turn else {
            self.violation(format!(
                "call {call_id} of turn {index} is made before the turn is completed"
            ));
            return;
        };
        let status = turn.status.clone().unwrap_or_default();
        let Some(call) = status.tool_calls.iter().find(|c| c.call_id == call_id) else {
            self.violation(format!("call {call_id} is not in turn {index}"));
            return;
        };
        let waited = status
            .completion_time
            .is_some_and(|t| ms(t) + run.spec.tool_wait_seconds * 1000 <= now);
        for earlier in status
            .tool_calls
            .iter()
            .filter(|c| c.stage < call.stage && !waited)
        {
            let Some(name) = &earlier.execution_name else {
                continue;
            };
            let key = ObjectKey::new(run.metadata.namespace.clone().unwrap_or_default(), name.clone());
            if self.executions.get(&key).is_none_or(|x| !has_ended(x)) {
                self.violation(format!(
                    "call {call_id} of stage {} is made before {name} of stage {} is settled",
                    call.stage, earlier.stage
                ));
            }
        }
        if self.calm
            && self
                .runs
                .get(&key_of(&run.metadata))
                .is_some_and(|r| run_ended(r))
        {
            self.violation(format!("call {call_id} is made after its run has ended"));
        }
    }

    fn check_capacity(&mut self, execution: &ToolExecution) {
        let Some(node) = execution.spec.binding.as_ref().map(|b| b.node_name.clone()) else {
            return;
        };
        let live = self
            .executions
            .values()
            .filter(|x| !has_ended(x) && x.spec.binding.as_ref().is_some_and(|b| b.node_name == node))
            .count();
        let capacity = self.nodes.get(&node).map_or(0, |n| n.capacity);
        if self.calm && live > capacity {
            self.violation(format!(
                "{live} executions are bound to node {node}, whose capacity is {capacity}"
            ));
        }
    }

    fn bind(&mut self, execution: &ToolExecution, binding: &Binding, rng: &mut Rng) -> Written {
        let key = key_of(&execution.metadata);
        let Some(stored) = self.executions.get(&key).cloned() else {
            return gone();
        };
        if stored.metadata.resource_version != execution.metadata.resource_version {
            let told = vec![Event::Execution(stored)];
            return (
                told,
                Err(fail(WriteFailureKind::Conflict, "the object has been modified")),
            );
        }
        if let Some(failure) = self.policy_of_the_term(binding) {
            return (Vec::new(), Err(failure));
        }
        if stored.spec.binding.is_some() {
            self.violation(format!("{key} is bound again"));
            return (
                Vec::new(),
                Err(fail(
                    WriteFailureKind::Invalid,
                    "once set, changes only with a higher attempt",
                )),
            );
        }
        if has_ended(&stored) || stored.spec.desired_state.is_some() {
            self.violation(format!("{key} is bound though it has ended or is to stop"));
        }
        self.count("execution bind");
        let mut bound = ToolExecution::clone(&stored);
        bound.spec.binding = Some(Binding {
            fence: rng.hex(16),
            ..binding.clone()
        });
        bound.metadata.generation = bound.metadata.generation.map(|g| g + 1);
        let stored = self.put_execution(bound);
        self.check_capacity(&stored);
        (vec![Event::Execution(stored)], Ok(()))
    }

    fn cancel(&mut self, execution: &ToolExecution) -> Written {
        let key = key_of(&execution.metadata);
        if self
            .executions
            .get(&key)
            .is_none_or(|x| x.metadata.uid != execution.metadata.uid)
        {
            return gone();
        }
        self.count("execution cancel");
        let told = self.cancel_execution(&key).map(Event::Execution);
        (told.into_iter().collect(), Ok(()))
    }

    fn write_execution(
        &mut self,
        execution: &ToolExecution,
        status: &ToolExecutionStatus,
        now: Ms,
    ) -> Written {
        let key = key_of(&execution.metadata);
        let Some(stored) = self.executions.get(&key).cloned() else {
            return gone();
        };
        if stored.metadata.resource_version != execution.metadata.resource_version {
            let told = vec![Event::Execution(stored)];
            return (
                told,
                Err(fail(WriteFailureKind::Conflict, "the object has been modified")),
            );
        }
        if has_ended(&stored) {
            self.violation(format!(
                "the operator writes the status of {key}, which has ended"
            ));
        }
        let lost = status.reason.as_deref() == Some(fairlead_crds::conditions::reason::NODE_LOST);
        if status.phase == Some(ExecutionPhase::Orphaned) && lost {
            self.check_orphan(&stored, now);
        }
        let uid = stored.metadata.uid.clone().unwrap_or_default();
        let mut documents = self.documents.get(&uid).cloned().unwrap_or_default();
        apply(&mut documents.operator, &mut documents.node, status);
        let merged = merged(&documents);
        if let Err(failure) = self.validate(&stored, &merged) {
            return (Vec::new(), Err(fail(WriteFailureKind::Invalid, failure)));
        }
        self.count("execution status");
        self.documents.insert(uid, documents);
        let mut written = ToolExecution::clone(&stored);
        written.status = Some(merged);
        (vec![Event::Execution(self.put_execution(written))], Ok(()))
    }

    fn check_orphan(&mut self, stored: &ToolExecution, now: Ms) {
        let Some(node) = stored.spec.binding.as_ref().map(|b| b.node_name.clone()) else {
            self.violation(format!("{} is orphaned without a node", key_of(&stored.metadata)));
            return;
        };
        let moved = self.lease_moved.get(&node).copied().unwrap_or(0);
        // The last renewal may not have been seen yet.
        let before = self.lease_stood.get(&node).copied().unwrap_or(0);
        let stood = if now - moved < self.behind_ms {
            before.max(now - moved)
        } else {
            now - moved
        };
        if stood + self.behind_ms < self.orphan_after_ms {
            self.violation(format!(
                "{} is orphaned although node {node} is alive",
                key_of(&stored.metadata)
            ));
        }
    }

    fn validate(&self, stored: &ToolExecution, new: &ToolExecutionStatus) -> Result<(), String> {
        let old = stored.status.clone().unwrap_or_default();
        if let Some(phase) = old.phase.filter(|p| p.is_terminal())
            && new.phase != Some(phase)
        {
            return Err("a terminal phase is final".into());
        }
        let ended = new.phase.is_some_and(ExecutionPhase::is_terminal);
        if ended != new.completion_time.is_some() {
            return Err("completionTime: set exactly when the phase is terminal".into());
        }
        if old.completion_time.is_some()
            && (old.completion_time != new.completion_time || old.output != new.output)
        {
            return Err("completionTime and output are final".into());
        }
        if new.phase == Some(ExecutionPhase::Running) && new.start_time.is_none() {
            return Err("Running without startTime".into());
        }
        if let Some(phase) = old.phase
            && new.phase != old.phase
            && !new.phase.is_some_and(|p| phase.successors().contains(&p))
        {
            return Err(format!("{phase} is not followed by {:?}", new.phase));
        }
        Ok(())
    }

    fn write_run(&mut self, run: &AgentRun, status: &AgentRunStatus) -> Written {
        let key = key_of(&run.metadata);
        let Some(stored) = self
            .runs
            .get(&key)
            .filter(|r| r.metadata.uid == run.metadata.uid)
            .cloned()
        else {
            return gone();
        };
        let old = stored.status.clone().unwrap_or_default();
        let ended = status.phase.is_some_and(RunPhase::is_terminal);
        let reason = match old.phase.filter(|p| p.is_terminal()) {
            Some(phase) if status.phase != Some(phase) => Some("a terminal phase is final"),
            _ if ended != status.completion_time.is_some() => {
                Some("completionTime: set exactly when terminal")
            }
            _ => None,
        };
        if let Some(reason) = reason {
            return (Vec::new(), Err(fail(WriteFailureKind::Invalid, reason)));
        }
        self.count("run status");
        if ended && self.calm {
            self.check_run_end(run);
        }
        let mut written = AgentRun::clone(&stored);
        written.status = Some(status.clone());
        (vec![Event::Run(self.put_run(written))], Ok(()))
    }

    fn check_run_end(&mut self, run: &AgentRun) {
        let of =
            |x: &&Arc<ToolExecution>| x.spec.run_ref.as_ref().map(|r| &r.uid) == run.metadata.uid.as_ref();
        let live = self
            .executions
            .values()
            .filter(of)
            .find(|x| !has_ended(x))
            .map(|x| key_of(&x.metadata));
        if let Some(live) = live {
            self.violation(format!("run {} ends while {live} is live", key_of(&run.metadata)));
        }
    }

    // --- What a node agent does ------------------------------------------------------------------------------------

    pub fn node_write(
        &mut self,
        node: &str,
        key: &ObjectKey,
        uid: &str,
        status: &ToolExecutionStatus,
    ) -> NodeWrite {
        let Some(stored) = self
            .executions
            .get(key)
            .filter(|x| x.metadata.uid.as_deref() == Some(uid))
            .cloned()
        else {
            return NodeWrite::NotFound;
        };
        let Some(binding) = stored.spec.binding.as_ref().filter(|b| b.node_name == node) else {
            self.violation(format!("node {node} writes {key}, which is not bound to it"));
            return NodeWrite::Refused;
        };
        if status.fence.as_ref() != Some(&binding.fence) {
            self.violation(format!("node {node} writes {key} without the binding's fence"));
            return NodeWrite::Refused;
        }
        let mut documents = self.documents.get(uid).cloned().unwrap_or_default();
        apply(&mut documents.node, &mut documents.operator, status);
        let merged = merged(&documents);
        if self.validate(&stored, &merged).is_err() {
            return NodeWrite::Refused;
        }
        self.count("execution status");
        self.documents.insert(uid.to_owned(), documents);
        let mut written = ToolExecution::clone(&stored);
        written.status = Some(merged);
        self.put_execution(written);
        NodeWrite::Stored
    }

    /// Executions by run and call, deleted ones too: name and UID of each.
    pub fn calls(&self) -> BTreeMap<(String, String), Vec<(String, String)>> {
        let mut calls: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for execution in self.executions.values().chain(&self.deleted) {
            if let Some((run, call)) = execution
                .spec
                .run_ref
                .as_ref()
                .zip(execution.spec.call_id.clone())
            {
                let this = (
                    name(&execution.metadata),
                    execution.metadata.uid.clone().unwrap_or_default(),
                );
                calls.entry((run.uid.clone(), call)).or_default().push(this);
            }
        }
        calls
    }
}

fn modified() -> WriteFailure {
    fail(WriteFailureKind::Conflict, "the object has been modified")
}

fn gone() -> Written {
    (Vec::new(), Err(fail(WriteFailureKind::Gone, "not found")))
}

pub fn name(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}

pub fn run_ended(run: &AgentRun) -> bool {
    run.status
        .as_ref()
        .and_then(|s| s.phase)
        .is_some_and(RunPhase::is_terminal)
}

pub fn turn_phase(turn: &AgentTurn) -> TurnPhase {
    turn.status
        .as_ref()
        .and_then(|s| s.phase)
        .unwrap_or(TurnPhase::Requesting)
}

/// A forced server-side apply: the manager holds exactly what it applied, and the other loses what was taken over.
fn apply(mine: &mut ToolExecutionStatus, other: &mut ToolExecutionStatus, status: &ToolExecutionStatus) {
    *mine = status.clone();
    macro_rules! take {
        ($($field:ident),+) => { $( if status.$field.is_some() && other.$field != status.$field { other.$field = None; } )+ };
    }
    take!(
        fence,
        phase,
        reason,
        message,
        error_class,
        outcome,
        start_time,
        completion_time,
        node_name,
        incarnation,
        output
    );
    take!(stored, result, usage, isolation, cleanup);
    other
        .conditions
        .retain(|c| conditions::find(&status.conditions, &c.type_).is_none());
    other
        .attempts
        .retain(|a| !status.attempts.iter().any(|b| a.n == b.n));
}

fn merged(documents: &Documents) -> ToolExecutionStatus {
    let (a, b) = (&documents.operator, &documents.node);
    let mut status = a.clone();
    macro_rules! join {
        ($($field:ident),+) => { $( status.$field = status.$field.take().or_else(|| b.$field.clone()); )+ };
    }
    join!(
        fence,
        phase,
        reason,
        message,
        error_class,
        outcome,
        start_time,
        completion_time,
        node_name,
        incarnation,
        output
    );
    join!(stored, result, usage, isolation, cleanup);
    status.conditions.extend(b.conditions.iter().cloned());
    status.conditions.sort_by(|x, y| x.type_.cmp(&y.type_));
    status.attempts.extend(b.attempts.iter().cloned());
    status
}

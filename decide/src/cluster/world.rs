//! The operator's snapshot of the cluster, and how observations correct it.

use super::dependents::Dependents;
use super::load::Load;
use super::types::{NodeLease, ObjectKey};
use super::waiting::Waiting;
use super::writes::{Subject, Writes};
use crate::model::{ModelError, ModelResponse};
use crate::tool_check::{AcceptedTool, ToolFault};
use fairlead_crds::values::Time;
use fairlead_crds::{AgentRun, AgentTurn, Cleanup, ModelProvider, Tool, ToolExecution, TurnPhase};
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
    /// Seconds a user's own execution waits for a place on a node before it ends unstarted.
    pub queue_seconds: i64,
    /// Seconds a run that ends waits for its executions to be gone, before it ends with what could not be verified.
    pub clean_up_seconds: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            visible_after_millis: 1000,
            dependency_grace_seconds: 30,
            node_fresh_seconds: 30,
            orphan_after_seconds: 330,
            queue_seconds: 3600,
            clean_up_seconds: 450,
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
    /// Calls that have no execution and get none, by call id, with the reason: the server refused it for good, or it was
    /// deleted.
    pub refused: BTreeMap<String, String>,
    /// When a turn was seen to be deleted although the run was there: most often the run is gone too, and the news of it
    /// are on their way.
    pub torn: Option<Time>,
    /// What the server said to a write of a turn that it refuses for good: the run cannot go on.
    pub broken: Option<String>,
}

/// A model request of this process.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name of the turn, which this process created.
    pub turn: String,
    /// When this process began to make the turn.
    pub since: Time,
    /// Where it stands.
    pub state: RequestState,
    /// Tries that failed.
    pub tries: u32,
    /// The last of them.
    pub failed: Option<FailedTry>,
}

/// A try of a request that failed and is followed by another.
#[derive(Clone, Debug)]
pub struct FailedTry {
    /// The reason that its error has in [`super::failure::MODEL_ERRORS`].
    pub reason: &'static str,
    /// What the provider, or the way to it, said.
    pub message: String,
    /// Earliest time of the next try.
    pub again_at: Time,
}

/// Where a model request stands.
#[derive(Clone, Debug)]
pub enum RequestState {
    /// To be sent, not before that time.
    Idle {
        /// Earliest time of the next try.
        not_before: Option<Time>,
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
    /// The last look at it.
    pub checked: Option<ProviderCheck>,
}

/// A look at a provider.
#[derive(Clone, Debug)]
pub struct ProviderCheck {
    /// Generation that was looked at.
    pub generation: i64,
    /// When.
    pub at: Time,
    /// Why it cannot be called, as reason and message.
    pub fault: Option<(String, String)>,
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
    /// When it began to lead, or to follow: nothing was tried before.
    pub since: Time,
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
    pub waiting: Waiting,
    /// Writes on their way, and those that failed.
    pub writes: Writes,
    pub(super) dependents: Dependents,
    pub(super) turn_owner: BTreeMap<ObjectKey, (String, i64, i64)>,
    pub(super) executions_of: BTreeMap<String, BTreeSet<ObjectKey>>,
    /// What was forgotten while a write about it was on its way, by UID with the version up to which it does not count: the
    /// answer to that write may show it again.
    pub(super) buried: BTreeMap<Subject, BTreeMap<String, u64>>,
    /// Runs that were forgotten meanwhile, with all that belongs to them.
    pub(super) buried_runs: BTreeSet<Subject>,
}

impl World {
    /// An empty world.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            ..Self::default()
        }
    }

    /// A run as it is known, if its object was seen.
    pub fn run(&self, uid: &str) -> Option<(&RunState, &Arc<AgentRun>)> {
        let state = self.runs.get(uid)?;
        state.object.as_ref().map(|object| (state, object))
    }

    /// The executions of a run that are known.
    pub fn executions_of(&self, run: &str) -> impl Iterator<Item = &Arc<ToolExecution>> {
        self.executions_of
            .get(run)
            .into_iter()
            .flatten()
            .filter_map(|key| self.executions.get(key))
    }
}

/// Namespace and name out of an object's metadata.
pub fn key_of(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> ObjectKey {
    ObjectKey::new(
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

/// Whether an execution is in a terminal phase.
pub fn has_ended(execution: &ToolExecution) -> bool {
    execution
        .status
        .as_ref()
        .and_then(|s| s.phase)
        .is_some_and(fairlead_crds::ExecutionPhase::is_terminal)
}

/// Whether an execution has ended and nothing of it is left.
pub fn is_settled(execution: &ToolExecution) -> bool {
    let cleanup = execution.status.as_ref().and_then(|s| s.cleanup);
    has_ended(execution) && (cleanup.is_none() || cleanup == Some(Cleanup::Confirmed))
}

/// The completed attempt at a turn, or else the latest.
pub fn turn_at(state: &RunState, index: i64) -> Option<&Arc<AgentTurn>> {
    let mut latest = None;
    for turn in state
        .turns
        .range((index, i64::MIN)..=(index, i64::MAX))
        .map(|(_, t)| t)
    {
        latest = Some(turn);
        if phase_of(turn) == TurnPhase::Completed {
            break;
        }
    }
    latest
}

/// A turn's phase, `Requesting` when none was written.
pub fn phase_of(turn: &AgentTurn) -> TurnPhase {
    turn.status
        .as_ref()
        .and_then(|s| s.phase)
        .unwrap_or(TurnPhase::Requesting)
}

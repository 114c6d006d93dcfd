//! Words of the cluster half: what is observed, what is done, and why nothing is.

use crate::model::{ModelError, ModelRequest, ModelResponse};
use fairlead_crds::values::Time;
use fairlead_crds::{
    AgentRun, AgentRunStatus, AgentTurn, AgentTurnSpec, AgentTurnStatus, Binding, ModelProvider,
    ModelProviderStatus, Tool, ToolExecution, ToolExecutionSpec, ToolExecutionStatus, ToolStatus,
};
use std::sync::Arc;

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectKey {
    /// The key of `name` in `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What a decision is about. An event marks keys dirty, and only those are decided.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A run, by its UID.
    Run(String),
    /// A user's own execution, or the orphan rule on any.
    Execution(ObjectKey),
    /// A tool.
    Tool(ObjectKey),
    /// A provider.
    Provider(ObjectKey),
    /// A node, by name.
    Node(String),
    /// The calls that wait for a slot.
    Queue,
}

/// Something that was observed. An event corrects the world and never picks an action.
#[derive(Clone, Debug)]
pub enum Event {
    /// This process leads under `term`; the world is as good as its watches.
    Led {
        /// `spec.leaseTransitions` of the leader Lease.
        term: i64,
    },
    /// This process does not lead any more.
    Deposed,
    /// A run as stored.
    Run(Arc<AgentRun>),
    /// A run is gone.
    RunGone {
        /// Its UID.
        uid: String,
    },
    /// A turn as stored.
    Turn(Arc<AgentTurn>),
    /// A turn is gone.
    TurnGone(ObjectKey),
    /// An execution as stored.
    Execution(Arc<ToolExecution>),
    /// An execution is gone.
    ExecutionGone(ObjectKey),
    /// A tool as stored.
    Tool(Arc<Tool>),
    /// A tool is gone.
    ToolGone(ObjectKey),
    /// A tool was changed to something that cannot be read: its earlier state does not stand any more.
    ToolUnreadable {
        /// Which tool.
        key: ObjectKey,
        /// Its `resourceVersion`.
        version: u64,
    },
    /// A provider as stored.
    Provider(Arc<ModelProvider>),
    /// A provider is gone.
    ProviderGone(ObjectKey),
    /// As `ToolUnreadable`, for a provider.
    ProviderUnreadable {
        /// Which provider.
        key: ObjectKey,
        /// Its `resourceVersion`.
        version: u64,
    },
    /// The Lease of a node agent as stored.
    Node(NodeLease),
    /// The Lease of a node agent is gone.
    NodeGone {
        /// The node's name.
        name: String,
    },
    /// An action was handed to the executor.
    Started(Box<Action>),
    /// An action came to its end.
    Ended {
        /// The action.
        action: Box<Action>,
        /// What came of it.
        result: Result<(), WriteFailure>,
    },
    /// A model request came to its end.
    Answered {
        /// UID of the run.
        run: String,
        /// Name of the turn.
        turn: String,
        /// Term under which it was sent; an answer to an older one is dropped.
        term: i64,
        /// When the request was sent.
        sent_at: Time,
        /// The answer.
        result: Box<Result<ModelResponse, ModelError>>,
    },
    /// A provider was looked at.
    ProviderChecked {
        /// The provider.
        key: ObjectKey,
        /// Generation that was looked at.
        generation: i64,
        /// Why it cannot be called: reason and message.
        fault: Option<(String, String)>,
    },
}

/// What the operator reads of a node agent's Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLease {
    /// Node and Lease name.
    pub name: String,
    /// Identity of the node's memory.
    pub incarnation: String,
    /// Executions at once.
    pub capacity: usize,
    /// Highest plan version the agent understands.
    pub plan_version: i64,
    /// `spec.renewTime`, opaque: only that it moves counts.
    pub renewed: String,
    /// Whether the renewal looks recent to the observer's own clock; counts only until it is seen to move.
    pub looks_recent: bool,
}

/// Something to do. The executor carries it out and never decides.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create a turn.
    CreateTurn {
        /// The run, as owner.
        run: Arc<AgentRun>,
        /// Name of the turn.
        name: String,
        /// What it says.
        spec: Box<AgentTurnSpec>,
    },
    /// Write the end of a turn, guarded by its resourceVersion.
    EndTurn {
        /// The turn as last seen.
        turn: Arc<AgentTurn>,
        /// How it ended.
        status: Box<AgentTurnStatus>,
    },
    /// Send a model request. A long effect: its end comes as [`Event::Answered`].
    Ask {
        /// UID of the run.
        run: String,
        /// Name of the turn.
        turn: String,
        /// Namespace of both.
        namespace: String,
        /// The provider as last seen.
        provider: Arc<ModelProvider>,
        /// Tries that failed before this one.
        tries: u32,
        /// The request.
        request: Box<ModelRequest>,
    },
    /// Give a model request up, if it is still in progress.
    StopAsking {
        /// UID of the run.
        run: String,
        /// Name of the turn.
        turn: String,
    },
    /// Create an execution of a run. The executor draws `binding.fence` where there is a binding.
    CreateExecution {
        /// The run, as owner.
        run: Arc<AgentRun>,
        /// Name of the execution.
        name: String,
        /// What it says.
        spec: Box<ToolExecutionSpec>,
    },
    /// Bind an execution that exists, guarded by its resourceVersion. The executor draws `binding.fence`.
    Bind {
        /// The execution as last seen.
        execution: Arc<ToolExecution>,
        /// The binding, its fence empty.
        binding: Box<Binding>,
    },
    /// Ask an execution to stop.
    Cancel {
        /// The execution as last seen.
        execution: Arc<ToolExecution>,
    },
    /// Write an execution's status.
    WriteExecution {
        /// The execution as last seen.
        execution: Arc<ToolExecution>,
        /// All that the operator's field manager holds of the status.
        status: Box<ToolExecutionStatus>,
    },
    /// Write a run's status.
    WriteRun {
        /// The run as last seen.
        run: Arc<AgentRun>,
        /// The whole status.
        status: Box<AgentRunStatus>,
    },
    /// Write a tool's status.
    WriteTool {
        /// The tool as last seen.
        tool: Arc<Tool>,
        /// The whole status.
        status: Box<ToolStatus>,
    },
    /// Look whether a provider can be called.
    CheckProvider {
        /// The provider as last seen.
        provider: Arc<ModelProvider>,
    },
    /// Write a provider's status.
    WriteProvider {
        /// The provider as last seen.
        provider: Arc<ModelProvider>,
        /// The whole status.
        status: Box<ModelProviderStatus>,
    },
    /// Put calls into the queue. Carried out by absorbing its start alone.
    Want {
        /// The calls, by the name their execution has or will have.
        waiters: Vec<(ObjectKey, super::world::Waiter)>,
    },
    /// Delete a run with its executions and turns, in bulk.
    DeleteRun {
        /// The run as last seen.
        run: Arc<AgentRun>,
    },
    /// Delete a user's own execution.
    DeleteExecution {
        /// The execution as last seen.
        execution: Arc<ToolExecution>,
    },
}

/// Why a write did not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteFailure {
    /// What kind.
    pub kind: WriteFailureKind,
    /// What the server said.
    pub message: String,
}

/// Kinds of [`WriteFailure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFailureKind {
    /// Somebody else wrote first, or the name is taken by something that is not ours. The present object was observed.
    Conflict,
    /// The server will refuse the same write again: it is invalid or too large.
    Invalid,
    /// The object is gone.
    Gone,
    /// Anything that may pass: a missing right, a quota, a server that does not answer. The write may have happened.
    Transient,
}

/// What was decided about a key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// What to do, in this order.
    pub actions: Vec<Action>,
    /// When to look again, if nothing is observed before.
    pub wake: Option<Time>,
    /// Why nothing is done where something is desired.
    pub because: Vec<Because>,
}

impl Decision {
    /// Nothing to do, for that reason.
    pub fn because(reason: Because) -> Self {
        Self {
            because: vec![reason],
            ..Self::default()
        }
    }

    /// Do that.
    pub fn act(action: Action) -> Self {
        Self {
            actions: vec![action],
            ..Self::default()
        }
    }

    /// Nothing to do until `at`, for that reason.
    pub fn wait(reason: Because, at: Time) -> Self {
        Self {
            because: vec![reason],
            wake: Some(at),
            ..Self::default()
        }
    }

    /// Does `action` as well, unless something is written about the same subject already: what came first stands.
    pub(super) fn add(&mut self, action: Action) {
        let subject = super::writes::Subject::of(&action);
        let taken = subject.is_some()
            && self
                .actions
                .iter()
                .any(|a| super::writes::Subject::of(a) == subject);
        if !taken {
            self.actions.push(action);
        }
    }

    /// Looks again at `at` at the latest.
    pub fn wake_by(&mut self, at: Time) {
        self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
    }
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Because {
    /// This process does not lead.
    NotLeading,
    /// It has ended, and nothing is left to do.
    Ended,
    /// It is being deleted.
    Deleting,
    /// A write about it is on its way.
    WriteInFlight,
    /// A write about it failed; it is tried again.
    BackingOff {
        /// What the server said.
        message: String,
    },
    /// A model request is in progress.
    Asking,
    /// The provider asked for patience, or failed in passing.
    ProviderBackOff {
        /// What it said.
        message: String,
    },
    /// Something it names is not there or not usable yet.
    Missing {
        /// One word for machines.
        reason: String,
        /// One sentence.
        message: String,
    },
    /// Tool calls are in progress.
    ToolsRunning {
        /// How many.
        count: usize,
    },
    /// Calls wait for a slot.
    Queued {
        /// How many.
        count: usize,
        /// Why.
        reason: &'static str,
    },
    /// Executions are being stopped.
    Stopping {
        /// How many.
        count: usize,
    },
    /// Its node has it.
    OnNode {
        /// The node.
        node: String,
    },
    /// Kept until its time to live is over.
    Retained,
    /// All is as it should be.
    Settled,
}

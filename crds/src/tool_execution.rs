//! `ToolExecution`: one governed tool call.

use crate::agent_run::DesiredState;
use crate::binding::{Binding, GuardDecision};
use crate::phase::{ExecutionPhase, Outcome};
use crate::values::{LocalRef, OpenObject, OwnedRef, Time, default, open_enum, open_object};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One governed tool call: made by the operator for a run, or by a user for themselves.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "fairlead.dev",
    version = "v1alpha1",
    kind = "ToolExecution",
    namespaced,
    status = "ToolExecutionStatus",
    shortname = "tx",
    category = "fairlead",
    derive = "PartialEq",
    doc = "One governed tool call.",
    selectable = ".spec.binding.nodeName",
    selectable = ".spec.runRef.name",
    selectable = ".status.phase",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Tool", type_ = "string", json_path = ".spec.tool.toolRef.name"),
    printcolumn(name = "Run", type_ = "string", json_path = ".spec.runRef.name"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.binding.nodeName"),
    printcolumn(name = "Exit", type_ = "integer", json_path = ".status.result.exitCode"),
    printcolumn(name = "Millis", type_ = "integer", json_path = ".status.usage.wallMillis"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    validation = Rule::new("self.metadata.name.size() <= 63").message("metadata.name: at most 63 characters; choose a shorter name"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in ['Succeeded', 'Failed', 'Cancelled', 'TimedOut', 'Orphaned', 'Denied']) || (has(self.status) && has(self.status.phase) && self.status.phase == oldSelf.status.phase)").message("status.phase: a terminal phase is final"),
    validation = Rule::new("!has(self.status) || (has(self.status.phase) && self.status.phase in ['Succeeded', 'Failed', 'Cancelled', 'TimedOut', 'Orphaned', 'Denied']) == has(self.status.completionTime)").message("status.completionTime: set exactly when the phase is terminal"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.phase) || oldSelf.status.phase != 'Running' || (has(self.status) && has(self.status.phase) && self.status.phase in ['Running', 'Succeeded', 'Failed', 'Cancelled', 'TimedOut', 'Orphaned']) || (has(self.status) && has(self.status.phase) && self.status.phase == 'Queued' && has(self.status.attempts) && self.status.attempts.size() > (has(oldSelf.status.attempts) ? oldSelf.status.attempts.size() : 0))").message("status.phase: Running goes to an end, or back to Queued with one more entry in attempts"),
    validation = Rule::new("!has(self.status) || !has(self.status.phase) || self.status.phase != 'Running' || has(self.status.startTime)").message("status.startTime: set before or with the phase Running"),
)]
#[x_kube(
    validation = Rule::new("self.tool == oldSelf.tool").message("spec.tool: immutable; create a new ToolExecution"),
    validation = Rule::new("has(self.arguments) == has(oldSelf.arguments) && (!has(self.arguments) || self.arguments == oldSelf.arguments)").message("spec.arguments: immutable; create a new ToolExecution"),
    validation = Rule::new("self.serviceAccountName == oldSelf.serviceAccountName").message("spec.serviceAccountName: immutable; create a new ToolExecution"),
    validation = Rule::new("has(self.runRef) == has(oldSelf.runRef) && (!has(self.runRef) || self.runRef == oldSelf.runRef)").message("spec.runRef: immutable"),
    validation = Rule::new("has(self.turn) == has(oldSelf.turn) && (!has(self.turn) || self.turn == oldSelf.turn)").message("spec.turn: immutable"),
    validation = Rule::new("has(self.callId) == has(oldSelf.callId) && (!has(self.callId) || self.callId == oldSelf.callId)").message("spec.callId: immutable"),
    validation = Rule::new("has(self.timeoutSeconds) == has(oldSelf.timeoutSeconds) && (!has(self.timeoutSeconds) || self.timeoutSeconds == oldSelf.timeoutSeconds)").message("spec.timeoutSeconds: immutable; create a new ToolExecution"),
    validation = Rule::new("!has(oldSelf.desiredState) || (has(self.desiredState) && self.desiredState == oldSelf.desiredState)").message("spec.desiredState: Cancelled is one-way; create a new ToolExecution"),
    validation = Rule::new("!has(oldSelf.binding) || (has(self.binding) && (self.binding == oldSelf.binding || self.binding.attempt > oldSelf.binding.attempt))").message("spec.binding: once set, changes only with a higher attempt"),
    validation = Rule::new("has(self.runRef) == has(self.turn) && has(self.runRef) == has(self.callId)").message("spec.runRef, spec.turn and spec.callId go together: set all for a run's call, none for your own"),
)]
#[serde(rename_all = "camelCase")]
pub struct ToolExecutionSpec {
    /// The tool that is called. Required; immutable.
    pub tool: ToolTarget,

    /// Arguments, an object that fits the tool's inputSchema. At most 64 KiB as JSON, integers up to 2^53 in
    /// magnitude (write larger ones as strings); an empty object by default; immutable.
    #[serde(default, skip_serializing_if = "OpenObject::is_empty")]
    #[schemars(schema_with = "open_object")]
    pub arguments: OpenObject,

    /// ServiceAccount in this namespace whose identity the call has; a run's call has the run's. Naming one other than
    /// the default needs the verb impersonate on it. 1 to 253 characters; "default" by default; immutable.
    #[serde(default = "default::service_account")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: String,

    /// The run whose call this is. Set by the operator only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_ref: Option<OwnedRef>,

    /// Number of the turn the call was made in, from 1. Set by the operator only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub turn: Option<i64>,

    /// Id of the call, unique in its run. At most 128 characters. Set by the operator only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub call_id: Option<String>,

    /// Seconds after which the call is stopped. May only shorten the tool's own timeouts.hardSeconds: the smaller of the two holds. 1 to 86,400; the
    /// tool's own by default; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_seconds: Option<i64>,

    /// Set to Cancelled to stop the call; the end is written when nothing of it is left. Mutable, one-way; left out of
    /// manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_state: Option<DesiredState>,

    /// Where and what is run, filled in by the operator only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,

    /// Seconds after the end at which a user's own execution is deleted; a run's live as long as the run. 0 to
    /// 31,536,000 (a year); mutable; without it the execution is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<i64>,
}

/// The tool that is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolTarget {
    /// A Tool in this namespace. Required.
    pub tool_ref: LocalRef,
}

/// State of an execution. While it has no binding the operator writes it; after that, its node agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("!has(oldSelf.completionTime) || (has(self.output) == has(oldSelf.output) && (!has(self.output) || self.output == oldSelf.output))").message("status.output: final once the execution has ended"),
    validation = Rule::new("!has(oldSelf.completionTime) || (has(self.completionTime) && self.completionTime == oldSelf.completionTime)").message("status.completionTime: final once set"),
)]
#[serde(rename_all = "camelCase")]
pub struct ToolExecutionStatus {
    /// The fence of the attempt this status speaks of; equals `spec.binding.fence` in every write of a node agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub fence: Option<String>,
    /// Phase; absent means not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ExecutionPhase>,
    /// One word for machines: why it is in this phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// One sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub message: Option<String>,
    /// On an end that is not a success: whose fault it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_class: Option<ErrorClass>,
    /// On an end: did anything of ours run, and is it known how it ended?
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// When the process began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it ended; set exactly when the phase is terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// The node that ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node_name: Option<String>,
    /// Identity of that node's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub incarnation: Option<String>,
    /// The canonical output: what the model, the CLI and the audit see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<ExecutionOutput>,
    /// Where every byte of the output is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredOutput>,
    /// How the command ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ExecutionResult>,
    /// What it used of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ExecutionUsage>,
    /// How it was kept apart from others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Attempts that were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["n".into()]))]
    #[schemars(length(max = 16))]
    pub attempts: Vec<Attempt>,
    /// On an end: whether the group was seen empty and was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleanup: Option<Cleanup>,
    /// The check that refused it, on a denied call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["check".into()]))]
    #[schemars(length(max = 16))]
    pub decisions: Vec<GuardDecision>,
    /// Succeeded, Admitted, Backgrounded, CleanedUp.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
}

open_enum! {
    /// Whose fault an end is that is not a success.
    ErrorClass {
        /// The caller's: the arguments do not fit.
        InvalidArgument,
        /// Fairlead's or the node's: a limit, a timeout, a start that failed.
        Local,
    }
}

open_enum! {
    /// Whether an execution's group was seen empty and was removed.
    Cleanup {
        /// Seen empty and removed.
        Confirmed,
        /// Could not be emptied or removed within the bound; tried again every 15 s.
        Failed,
        /// Nobody could look.
        Unconfirmed,
    }
}

/// The canonical output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecutionOutput {
    /// Valid UTF-8, at most the tool's output.maxBytes, the mark of a cut included.
    #[schemars(length(max = 262_144))]
    pub text: String,
    /// Whether anything was cut.
    pub truncated: bool,
    /// Bytes the tool wrote.
    pub total_bytes: i64,
    /// SHA-256 of the bytes kept on the node, as hex.
    #[schemars(length(max = 64))]
    pub sha256: String,
}

/// Where every byte of the output is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoredOutput {
    /// The node that has the bytes.
    #[schemars(length(max = 253))]
    pub node_name: String,
    /// Name of the directory in that node's spool.
    #[schemars(length(max = 128))]
    pub id: String,
}

/// How the command ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecutionResult {
    /// Exit code, where it exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Signal number, where it was ended by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Kills for memory by the kernel (memory.events oom_kill); the message of Succeeded says at whose limit.
    #[serde(default)]
    pub oom_kills: i64,
}

/// What an execution used of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecutionUsage {
    /// Milliseconds of processor time, where the kernel counts them (cpu.stat usage_usec).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<i64>,
    /// Most bytes of memory at once, where the kernel counts them (memory.peak).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<i64>,
    /// Most processes at once, where the kernel counts them (pids.peak).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids_peak: Option<i64>,
    /// Milliseconds from start to end.
    #[serde(default)]
    pub wall_millis: i64,
    /// Milliseconds the call waited for its slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_millis: Option<i64>,
}

/// How an execution was kept apart from others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Isolation {
    /// What owned its processes.
    pub backend: IsolationBackend,
    /// Controllers whose limits could not be set there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 32)))]
    pub missing_controllers: Vec<String>,
    /// Path of its group below the node's cgroup root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub group: Option<String>,
}

open_enum! {
    /// What owns the processes of an execution.
    IsolationBackend {
        /// A cgroup v2 group of its own.
        CgroupV2,
        /// A session and process group of its own.
        ProcessGroup,
    }
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Number, from 1.
    pub n: i64,
    /// When its process began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
    /// What is known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

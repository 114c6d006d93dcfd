//! `AgentRun`: one agent working on one task until an answer, a failure or a cancel.

use crate::phase::RunPhase;
use crate::values::{LocalRef, OpenObject, Time, default, open_object};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One agent working on one task. The operator calls the model, runs the tools it asks for, and repeats until the
/// model answers without a tool call, a limit is reached, or the run is cancelled.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "fairlead.dev",
    version = "v1alpha1",
    kind = "AgentRun",
    namespaced,
    status = "AgentRunStatus",
    shortname = "run",
    shortname = "runs",
    category = "fairlead",
    derive = "PartialEq",
    doc = "One agent working on one task until an answer, a failure or a cancel.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Succeeded\")].reason"),
    printcolumn(name = "Turns", type_ = "integer", json_path = ".status.turns"),
    printcolumn(name = "Tools", type_ = "integer", json_path = ".status.toolCalls"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Tokens", type_ = "integer", json_path = ".status.usage.totalTokens", priority = 1),
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.model.name", priority = 1),
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.model.providerRef.name", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Succeeded\")].message", priority = 1),
    validation = Rule::new("self.metadata.name.size() <= 52").message("metadata.name: at most 52 characters, since the names of turns and executions are made from it; choose a shorter name"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in ['Succeeded', 'Failed', 'Cancelled']) || (has(self.status) && has(self.status.phase) && self.status.phase == oldSelf.status.phase)").message("status.phase: a terminal phase is final"),
    validation = Rule::new("!has(self.status) || (has(self.status.phase) && self.status.phase in ['Succeeded', 'Failed', 'Cancelled']) == has(self.status.completionTime)").message("status.completionTime: set exactly when the phase is terminal"),
)]
#[x_kube(
    validation = Rule::new("self.input == oldSelf.input").message("spec.input: immutable; create a new AgentRun"),
    validation = Rule::new("has(self.systemPrompt) == has(oldSelf.systemPrompt) && (!has(self.systemPrompt) || self.systemPrompt == oldSelf.systemPrompt)").message("spec.systemPrompt: immutable; create a new AgentRun"),
    validation = Rule::new("self.model == oldSelf.model").message("spec.model: immutable; create a new AgentRun"),
    validation = Rule::new("has(self.tools) == has(oldSelf.tools) && (!has(self.tools) || self.tools == oldSelf.tools)").message("spec.tools: immutable; create a new AgentRun"),
    validation = Rule::new("self.serviceAccountName == oldSelf.serviceAccountName").message("spec.serviceAccountName: immutable; create a new AgentRun"),
    validation = Rule::new("self.limits == oldSelf.limits").message("spec.limits: immutable; create a new AgentRun"),
    validation = Rule::new("self.toolWaitSeconds == oldSelf.toolWaitSeconds").message("spec.toolWaitSeconds: immutable; create a new AgentRun"),
    validation = Rule::new("!has(oldSelf.desiredState) || (has(self.desiredState) && self.desiredState == oldSelf.desiredState)").message("spec.desiredState: Cancelled is one-way; create a new AgentRun"),
)]
#[serde(rename_all = "camelCase")]
pub struct AgentRunSpec {
    /// The task, given to the model as the first user message. 1 to 65,536 characters; required.
    #[schemars(length(min = 1, max = 65536))]
    pub input: String,

    /// Instructions given to the model before the input, as the system message. At most 65,536 characters; none by
    /// default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub system_prompt: Option<String>,

    /// Which model answers, and how it is asked. Required.
    pub model: ModelChoice,

    /// What is offered to the model. At most 64 entries; none by default, and then the model can only answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tools: Vec<ToolOffer>,

    /// ServiceAccount in this namespace whose identity the run's calls have. Naming one other than the default needs
    /// the verb impersonate on it. 1 to 253 characters; "default" by default.
    #[serde(default = "default::service_account")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: String,

    /// Limits of the whole run. Each has its own default.
    #[serde(default)]
    pub limits: RunLimits,

    /// How long a stage of tool calls is waited for, in seconds, before the model is told that they go on and gets
    /// their execution ids. 0 to 600; 30 by default.
    #[serde(default = "default_tool_wait")]
    #[schemars(range(min = 0, max = 600))]
    pub tool_wait_seconds: i64,

    /// Set to Cancelled to end the run: its executions are stopped and verified first. Mutable, one-way; without
    /// effect on a run that has ended; left out of manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_state: Option<DesiredState>,

    /// Seconds after the end at which the run and all that belongs to it is deleted. 0 to 31,536,000 (a year);
    /// mutable; without it the run is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<i64>,
}

fn default_tool_wait() -> i64 {
    30
}

/// Which model answers, and how it is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelChoice {
    /// The ModelProvider in this namespace. Required.
    pub provider_ref: LocalRef,

    /// Name of the model as the provider knows it. 1 to 253 characters; the provider's defaultModel by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,

    /// Further members of the request, such as temperature, sent as they are. Members that Fairlead sets itself
    /// (model, messages, tools, stream) are refused at run time. At most 16 KiB as JSON, or the run fails; none by
    /// default.
    #[serde(default, skip_serializing_if = "OpenObject::is_empty")]
    #[schemars(schema_with = "open_object")]
    pub parameters: OpenObject,

    /// Most tokens the model may answer with in one turn. 1 to 1,000,000; 4,096 by default.
    #[serde(default = "default_output_tokens")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_output_tokens: i64,
}

fn default_output_tokens() -> i64 {
    4096
}

/// One entry of what is offered to the model: a Tool or a built-in set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("has(self.toolRef) != has(self.builtin)").message("spec.tools: each entry names exactly one of toolRef and builtin; remove one or add one")
)]
#[serde(rename_all = "camelCase")]
pub struct ToolOffer {
    /// A Tool in this namespace, offered under its own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_ref: Option<LocalRef>,

    /// A set of built-in tools. Executions (get_, wait_ and cancel_tool_execution) is offered beside any Tool in any
    /// case; naming it offers it to a run without Tools as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builtin: Option<Builtin>,
}

/// Sets of built-in tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
// Without this the schema of an optional field shows this type's sentence in place of the field's own.
#[schemars(description = "")]
pub enum Builtin {
    /// Looking at, waiting for and cancelling the run's own executions.
    Executions,
}

/// Limits of a whole run. The reason of a run that fails on one names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunLimits {
    /// Most turns (model requests that completed). 1 to 1,000; 64 by default.
    #[schemars(range(min = 1, max = 1000))]
    pub max_turns: i64,

    /// Most tool calls, refused ones included. 0 to 10,000; 200 by default.
    #[schemars(range(min = 0, max = 10_000))]
    pub max_tool_calls: i64,

    /// Most seconds from creation to end. 1 to 604,800 (a week); 7,200 by default.
    #[schemars(range(min = 1, max = 604_800))]
    pub deadline_seconds: i64,

    /// Most bytes of tool results that one turn puts into the conversation; beyond it the results that follow are
    /// cut, and say so. 1,024 to 1,048,576; 200,000 by default.
    #[schemars(range(min = 1024, max = 1_048_576))]
    pub max_turn_output_bytes: i64,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            max_turns: 64,
            max_tool_calls: 200,
            deadline_seconds: 7200,
            max_turn_output_bytes: 200_000,
        }
    }
}

/// What an author may ask of a live object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
// Without this the schema of an optional field shows this type's sentence in place of the field's own.
#[schemars(description = "")]
pub enum DesiredState {
    /// Stop, verify that nothing is left, and end as Cancelled.
    Cancelled,
}

/// State of a run, written by the operator: once per turn, and at phase changes that last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentRunStatus {
    /// Phase; absent means Pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<RunPhase>,

    /// Generation of the spec this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// When the operator took the run up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// When the run ended; set exactly when the phase is terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,

    /// When the run last moved: a turn or a tool call ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity_time: Option<Time>,

    /// Completed turns.
    #[serde(default)]
    pub turns: i64,

    /// Tool calls the model made, refused ones included.
    #[serde(default)]
    pub tool_calls: i64,

    /// What the model requests used, as the provider reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<RunUsage>,

    /// The answer, on a run that succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,

    /// Name of the latest AgentTurn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_turn: Option<String>,

    /// The last 20 changes of phase, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["n".into()]))]
    #[schemars(length(max = 20))]
    pub transitions: Vec<Transition>,

    /// Why the run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,

    /// Succeeded: whether it ended well. CleanedUp: whether all executions were verified gone at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
}

/// Tokens and requests of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunUsage {
    /// Tokens sent to the model.
    #[serde(default)]
    pub input_tokens: i64,
    /// Tokens the model answered with.
    #[serde(default)]
    pub output_tokens: i64,
    /// Input tokens the provider served from its cache.
    #[serde(default)]
    pub cached_tokens: i64,
    /// Input and output tokens together.
    #[serde(default)]
    pub total_tokens: i64,
    /// Requests whose answer was received.
    #[serde(default)]
    pub requests: i64,
    /// Requests that were given up; what they used is not known.
    #[serde(default)]
    pub unknown_requests: i64,
}

/// The answer of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The model's last message, at most 65,536 bytes.
    pub text: String,
    /// Whether the text was cut; the whole stands in the turn.
    pub truncated: bool,
    /// Name of the AgentTurn that holds the answer.
    pub turn_ref: String,
}

/// A change of phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Transition {
    /// Rising number of the change, from 1.
    pub n: i64,
    /// The phase entered.
    pub phase: RunPhase,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Time,
}

/// Why something failed, and what kind of failure it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Automatic: was retried up to its bound. Manual: a human must change something. Terminal: retrying is no use.
    pub class: FailureClass,
    /// One word for machines.
    pub reason: String,
    /// One sentence for people, with the fix where there is one. At most 4,096 bytes.
    pub message: String,
}

crate::values::open_enum! {
    /// What may be done about a failure.
    FailureClass {
        /// Retried by itself, up to a bound.
        Automatic,
        /// Needs a human.
        Manual,
        /// Retrying cannot help.
        Terminal,
    }
}

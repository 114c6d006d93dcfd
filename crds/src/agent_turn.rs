//! `AgentTurn`: one model request and what it answered; the checkpoint of a run.

use crate::agent_run::Failure;
use crate::phase::TurnPhase;
use crate::tool::SideEffect;
use crate::values::{LocalRef, OpenObject, OwnedRef, Time, open_enum, open_object};
use kube_derive::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One round of a run: one model request and what it answered. The operator writes the spec before it calls the
/// model, with all that is needed to derive the same request again, and the status when the answer is complete.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "fairlead.dev",
    version = "v1alpha1",
    kind = "AgentTurn",
    namespaced,
    status = "AgentTurnStatus",
    shortname = "turn",
    shortname = "turns",
    category = "fairlead",
    derive = "PartialEq",
    doc = "One round of a run: one model request and what it answered; the checkpoint.",
    selectable = ".spec.runRef.name",
    printcolumn(name = "Run", type_ = "string", json_path = ".spec.runRef.name"),
    printcolumn(name = "Turn", type_ = "integer", json_path = ".spec.index"),
    printcolumn(name = "Attempt", type_ = "integer", json_path = ".spec.attempt"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.failure.reason"),
    printcolumn(name = "Finish", type_ = "string", json_path = ".status.finishReason"),
    printcolumn(name = "FirstCall", type_ = "string", json_path = ".status.toolCalls[0].tool"),
    printcolumn(name = "Millis", type_ = "integer", json_path = ".status.latencyMillis"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in ['Completed', 'Failed', 'Abandoned']) || (has(self.status) && self.status == oldSelf.status)").message("status: a turn that has ended is final"),
    validation = Rule::new("!has(self.status) || (has(self.status.phase) && self.status.phase in ['Completed', 'Failed', 'Abandoned']) == has(self.status.completionTime)").message("status.completionTime: set exactly when the phase is terminal"),
)]
#[x_kube(
    validation = Rule::new("self == oldSelf").message("spec: a turn is written once; it cannot be changed"),
)]
#[serde(rename_all = "camelCase")]
pub struct AgentTurnSpec {
    /// The run it belongs to, by name and UID.
    pub run_ref: OwnedRef,

    /// Number of the turn in its run, from 1.
    #[schemars(range(min = 1, max = 1000))]
    pub index: i64,

    /// Number of the attempt at this turn, from 1; a takeover abandons one and makes the next.
    #[schemars(range(min = 1, max = 1000))]
    pub attempt: i64,

    /// The ModelProvider asked.
    pub provider_ref: LocalRef,

    /// Name of the model, as resolved when the turn was made.
    #[schemars(length(min = 1, max = 253))]
    pub model: String,

    /// Further members of the request, as the run had them.
    #[serde(default, skip_serializing_if = "OpenObject::is_empty")]
    #[schemars(schema_with = "open_object")]
    pub parameters: OpenObject,

    /// Most tokens the model may answer with.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_output_tokens: i64,

    /// The tools offered in this turn, as they were when it was made; left out when `toolsFrom` says where they stand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub tools: Vec<FrozenTool>,

    /// Name of the earlier turn whose `tools` hold here unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub tools_from: Option<String>,

    /// On the first turn: the run's input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub input: Option<String>,

    /// On the first turn: the run's system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub system_prompt: Option<String>,

    /// What the model is told about calls of the turn before it that had not ended, or that became no execution.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub observations: Vec<Observation>,

    /// SHA-256, as hex, of the canonical form (RFC 8785) of the request's messages and tools. A request that is derived
    /// again and does not have it is not sent: the turn is given up, and another attempt records its own.
    #[schemars(length(min = 64, max = 64))]
    pub request_digest: String,
}

/// A tool as it was when a turn was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FrozenTool {
    /// Name the model calls it by.
    #[schemars(length(min = 1, max = 64))]
    pub name: String,
    /// What stands behind the name.
    pub kind: FrozenToolKind,
    /// Name of the Tool object, where one stands behind the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub object: Option<String>,
    /// UID of that object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub uid: Option<String>,
    /// Generation of that object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// What the model is told the tool does.
    #[schemars(length(max = 8192))]
    pub description: String,
    /// JSON Schema of its arguments.
    #[schemars(schema_with = "open_object")]
    pub schema: OpenObject,
    /// What a call may change.
    pub side_effect: SideEffect,
    /// Whether calls may run beside each other.
    pub parallel_safe: bool,
}

open_enum! {
    /// What stands behind the name of a frozen tool.
    FrozenToolKind {
        /// A Tool object.
        Tool,
        /// A built-in of the Executions set, answered by the operator.
        Executions,
    }
}

/// What the model was told about a call in place of its canonical output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// Id of the call, as rewritten.
    #[schemars(length(min = 1, max = 128))]
    pub call_id: String,
    /// The text, as sent.
    #[schemars(length(max = 262_144))]
    pub text: String,
}

/// What came of the request. Terminal is final: the server refuses any later change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentTurnStatus {
    /// Phase; absent means Requesting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<TurnPhase>,
    /// When the request was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the turn ended; set exactly when the phase is terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// The model's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 524_288))]
    pub message: Option<String>,
    /// The calls the model made, in its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["callId".into()]))]
    #[schemars(length(max = 64))]
    pub tool_calls: Vec<ToolCall>,
    /// Why the model stopped, in the provider's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub finish_reason: Option<String>,
    /// What the request used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TurnUsage>,
    /// Milliseconds from the request to the end of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_millis: Option<i64>,
    /// Milliseconds from the request to the first piece of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_delta_millis: Option<i64>,
    /// The provider's own id of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub provider_request_id: Option<String>,
    /// Why the turn failed, or was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// One call the model made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolCall {
    /// Id of the call, unique in the run.
    #[schemars(length(min = 1, max = 128))]
    pub call_id: String,
    /// Id the model gave, where it was not unique or not usable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub original_call_id: Option<String>,
    /// Name of the tool, as the model wrote it.
    #[schemars(length(max = 256))]
    pub tool: String,
    /// Arguments, where they were a JSON object.
    #[serde(default, skip_serializing_if = "OpenObject::is_empty")]
    #[schemars(schema_with = "open_object")]
    pub arguments: OpenObject,
    /// Name of the ToolExecution, where the call becomes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub execution_name: Option<String>,
    /// Number of the stage it belongs to, from 1: the calls of a stage run beside each other.
    pub stage: i64,
    /// Why the call became no execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CallError>,
}

/// Why a call became no execution, as the model is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CallError {
    /// One word for machines, such as TOOL_NOT_FOUND.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// What the model is told: the fault, and what it may do instead.
    #[schemars(length(max = 4096))]
    pub text: String,
}

/// Tokens of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnUsage {
    /// Tokens sent.
    #[serde(default)]
    pub input_tokens: i64,
    /// Tokens answered.
    #[serde(default)]
    pub output_tokens: i64,
    /// Input tokens served from the provider's cache.
    #[serde(default)]
    pub cached_tokens: i64,
}

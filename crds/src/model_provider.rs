//! `ModelProvider`: a model endpoint.

use crate::values::{OpenObject, default, open_object};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A model endpoint: how it is reached and spoken to, or a script that stands in for one.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "fairlead.dev",
    version = "v1alpha1",
    kind = "ModelProvider",
    namespaced,
    status = "ModelProviderStatus",
    shortname = "llm",
    category = "fairlead",
    derive = "PartialEq",
    doc = "A model endpoint with its protocol, credentials, time limits and retries, or a script that stands in for one.",
    printcolumn(name = "API", type_ = "string", json_path = ".spec.wireApi"),
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.defaultModel"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    )
)]
#[x_kube(
    validation = Rule::new("self.wireApi != 'ChatCompletions' || has(self.baseUrl)").message("spec.baseUrl: required with wireApi ChatCompletions; add it, for example https://models.example.com/v1"),
    validation = Rule::new("self.wireApi != 'Scripted' || (has(self.script) && self.script.size() > 0)").message("spec.script: required with wireApi Scripted; add at least one step"),
    validation = Rule::new("self.wireApi == 'Scripted' || !has(self.script)").message("spec.script: only with wireApi Scripted; remove it or change wireApi"),
    validation = Rule::new("self.wireApi != 'Scripted' || (!has(self.baseUrl) && !has(self.credentials))").message("spec.baseUrl, spec.credentials: a Scripted provider calls nothing; remove them or change wireApi"),
    validation = Rule::new("!has(self.baseUrl) || self.baseUrl.matches('^https?://[^/?#@]+(/[^?#]*)?$')").message("spec.baseUrl: must be http:// or https:// with a host and an optional path, without user, query or fragment"),
)]
#[serde(rename_all = "camelCase")]
pub struct ModelProviderSpec {
    /// The protocol it speaks: ChatCompletions (OpenAI-compatible) or Scripted (no network; answers by script). Required.
    pub wire_api: WireApi,

    /// URL below which the protocol's paths stand, such as https://models.example.com/v1. At most 2,048 characters;
    /// required with ChatCompletions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 8, max = 2048))]
    pub base_url: Option<String>,

    /// Where the API key stands; none by default, and then no key is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,

    /// Name of the model where a run names none. 1 to 253 characters; none by default, and then a run must name one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub default_model: Option<String>,

    /// Whether answers are read as a stream. Switch off for a server that cannot. True by default.
    #[serde(default = "default::yes")]
    pub stream: bool,

    /// Time limits of one request.
    #[serde(default)]
    pub timeouts: ProviderTimeouts,

    /// How often a request is tried again.
    #[serde(default)]
    pub retry: ProviderRetry,

    /// Steps of a Scripted provider; the first whose `when` matches answers. 1 to 128; required with Scripted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub script: Vec<ScriptStep>,
}

/// The protocol a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WireApi {
    /// POST {baseUrl}/chat/completions, as OpenAI-compatible servers offer it.
    ChatCompletions,
    /// No network: the script answers.
    Scripted,
}

/// Where an API key stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// The Secret in this namespace. Naming it needs the verb get on it, and the operator needs it as well; the Ready
    /// condition prints the command that grants it.
    pub secret_ref: SecretKeyRef,
}

/// A key of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret. 1 to 253 characters; required.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in its data. 1 to 253 characters; "apiKey" by default.
    #[serde(default = "default_key")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

fn default_key() -> String {
    "apiKey".to_owned()
}

/// Time limits of one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderTimeouts {
    /// Seconds to connect. 1 to 300; 10 by default.
    #[schemars(range(min = 1, max = 300))]
    pub connect_seconds: i64,
    /// Seconds from the request to the head of the answer. 1 to 3,600; 120 by default.
    #[schemars(range(min = 1, max = 3600))]
    pub first_byte_seconds: i64,
    /// Seconds without a byte while the answer is read. 1 to 3,600; 60 by default.
    #[schemars(range(min = 1, max = 3600))]
    pub idle_seconds: i64,
    /// Seconds for the whole of one try. 1 to 7,200; 600 by default.
    #[schemars(range(min = 1, max = 7200))]
    pub total_seconds: i64,
}

impl Default for ProviderTimeouts {
    fn default() -> Self {
        Self {
            connect_seconds: 10,
            first_byte_seconds: 120,
            idle_seconds: 60,
            total_seconds: 600,
        }
    }
}

/// How often a request is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderRetry {
    /// Most further tries after a connection that could not be made, a 429 (after its Retry-After) or a 5xx, and never after a piece of
    /// the answer was received. The pauses are about 1, 2, 4 s and so on, at most 30 s; after a 429 that does not say how
    /// long, from 10 s on. 0 to 10; 2 by default.
    #[schemars(range(min = 0, max = 10))]
    pub transient: i64,
}

impl Default for ProviderRetry {
    fn default() -> Self {
        Self { transient: 2 }
    }
}

/// One step of a script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScriptStep {
    /// When the step answers; all that is given must match. By default always.
    #[serde(default)]
    pub when: ScriptWhen,
    /// What it answers. Required.
    pub respond: ScriptResponse,
}

/// When a step answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScriptWhen {
    /// Number of the turn. 1 to 1,000; any turn by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub turn: Option<i64>,
    /// Name of the tool whose result is the last in the conversation. At most 64 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub last_tool: Option<String>,
    /// Regular expression that the last result's text must match somewhere; its groups can be used in the answer. At
    /// most 1,024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub result_matches: Option<String>,
}

/// What a step answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("!has(self.error) || (!has(self.text) && !has(self.toolCalls))").message("spec.script.respond: error stands alone; remove text and toolCalls or the error"),
    validation = Rule::new("has(self.error) || has(self.text) || has(self.toolCalls)").message("spec.script.respond: give text, toolCalls or error"),
)]
#[serde(rename_all = "camelCase")]
pub struct ScriptResponse {
    /// Text of the answer; {{1}} stands for the first group of resultMatches, {{0}} for the whole match. At most 65,536
    /// characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub text: Option<String>,
    /// Tool calls, in order. At most 64; without any the answer ends the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tool_calls: Vec<ScriptedCall>,
    /// Milliseconds before the answer. 0 to 600,000; 0 by default.
    #[serde(default)]
    #[schemars(range(min = 0, max = 600_000))]
    pub delay_millis: i64,
    /// An error in place of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ScriptedError>,
    /// How often the step answers in one turn before it falls through to the next that matches. 1 to 1,000; without it,
    /// always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub times: Option<i64>,
}

/// A tool call of a script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScriptedCall {
    /// Id of the call, as a model would give it. 1 to 256 characters; required.
    #[schemars(length(min = 1, max = 256))]
    pub id: String,
    /// Name of the tool. 1 to 256 characters; required.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Arguments; string values may hold {{1}} as the text may. An empty object by default.
    #[serde(default, skip_serializing_if = "OpenObject::is_empty")]
    #[schemars(schema_with = "open_object")]
    pub arguments: OpenObject,
}

/// An error of a script, as a server would give it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScriptedError {
    /// HTTP status. 400 to 599; required.
    #[schemars(range(min = 400, max = 599))]
    pub status: i32,
    /// Seconds of the Retry-After header. 0 to 3,600; no header by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub retry_after_seconds: Option<i64>,
}

/// State of a provider, written by the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelProviderStatus {
    /// Generation of the spec this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Ready: whether it can be called, as far as can be told without calling it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
}

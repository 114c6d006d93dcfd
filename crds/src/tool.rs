//! `Tool`: a command that agents may call.

use crate::values::{OpenObject, default, open_object};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A command that agents may call: what the model is told about it, what it runs, and its limits.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "fairlead.dev",
    version = "v1alpha1",
    kind = "Tool",
    namespaced,
    status = "ToolStatus",
    category = "fairlead",
    derive = "PartialEq",
    doc = "A command that agents may call: schema, side effect, runner, limits.",
    printcolumn(name = "SideEffect", type_ = "string", json_path = ".spec.sideEffect"),
    printcolumn(name = "Accepted", type_ = "string", json_path = ".status.conditions[?(@.type==\"Accepted\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Accepted\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Accepted\")].message", priority = 1),
    validation = Rule::new("self.metadata.name.size() <= 64").message("metadata.name: at most 64 characters, since it is the name the model calls; choose a shorter name"),
    validation = Rule::new("!self.metadata.name.contains('.')").message("metadata.name: no dots, since model providers refuse them in the name of a tool; use '-' instead"),
)]
#[serde(rename_all = "camelCase")]
pub struct ToolSpec {
    /// What the model is told the tool does. 1 to 8,192 characters; required.
    #[schemars(length(min = 1, max = 8192))]
    pub description: String,

    /// JSON Schema 2020-12 of the arguments, an object; without remote or recursive references. At most 64 KiB as
    /// JSON, 64 regular expressions of 64 KiB each and 256 KiB together when compiled, and 512 schemas for each element
    /// of a list or map; by default an object without parameters.
    #[serde(default = "no_parameters")]
    #[schemars(schema_with = "open_object")]
    pub input_schema: OpenObject,

    /// What a call may change: Read changes nothing and may be repeated, Write may, Irreversible may and cannot be
    /// undone. Write by default. Told to the model, and kept in each turn.
    #[serde(default)]
    pub side_effect: SideEffect,

    /// Whether consecutive calls of it may run beside each other. False by default: one after the other.
    #[serde(default)]
    pub parallel_safe: bool,

    /// What is run. Required.
    pub runner: Runner,

    /// Which network a call sees. None: a loopback device of its own and nothing else, so neither the node, the
    /// cluster nor the outside. Host: the node's; naming it needs the verb unconfined on tools. None by default.
    #[serde(default)]
    pub network: Network,

    /// How long a call may take.
    #[serde(default)]
    pub timeouts: ToolTimeouts,

    /// What a call may use of the node. A limit that is written here and cannot be set on the node fails the call.
    #[serde(default)]
    pub resources: ToolResources,

    /// What becomes of its output.
    #[serde(default)]
    pub output: ToolOutput,
}

fn no_parameters() -> OpenObject {
    let mut schema = OpenObject::new();
    schema.insert("type".into(), "object".into());
    schema
}

/// What a call of a tool may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SideEffect {
    /// Nothing: it may be repeated.
    Read,
    /// Something.
    #[default]
    Write,
    /// Something, and it cannot be undone.
    Irreversible,
}

/// Which network a call sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Network {
    /// A loopback device of its own (network_namespaces(7)).
    #[default]
    None,
    /// The node's.
    Host,
}

/// What is run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Runner {
    /// A command on the node. Required.
    pub command: CommandRunner,
}

/// A command on the node, never through a shell unless argv names one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandRunner {
    /// The program and its arguments, 1 to 64 elements of at most 4,096 characters. An element may hold {{name}} for a
    /// parameter: one element in, one out. An element that is only {{name...}} spreads a list; one whose only parameter
    /// is optional and absent is dropped. A value that begins with - is refused unless the element begins with text of
    /// its own or the element before it is "--". {{{{ stands for the text {{. Required.
    #[schemars(length(min = 1, max = 64), inner(length(max = 4096)))]
    pub argv: Vec<String>,

    /// Environment added to the clean one every call has (PATH, HOME, TMPDIR, LANG, FAIRLEAD_EXECUTION,
    /// FAIRLEAD_IDEMPOTENCY_KEY). At most 64 variables; none by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<EnvVar>,

    /// What the command reads from standard input, templated like an element of argv. At most 65,536 characters;
    /// nothing by default, and the command then reads end of file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    pub stdin: Option<String>,
}

/// One environment variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnvVar {
    /// Name: letters, digits and underscores, not beginning with a digit. At most 128 characters.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]*$"))]
    pub name: String,
    /// Value, taken as it is. At most 4,096 characters. Not for secrets: it stands in the object.
    #[schemars(length(max = 4096))]
    pub value: String,
}

/// How long a call may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ToolTimeouts {
    /// Seconds from start to the stop of a call that has not ended. 1 to 86,400; 3,600 by default.
    #[schemars(range(min = 1, max = 86_400))]
    pub hard_seconds: i64,

    /// Seconds between the polite signal and the kill, and for descendants that still write after the command ended.
    /// 0 to 60; 3 by default.
    #[schemars(range(min = 0, max = 60))]
    pub grace_seconds: i64,
}

impl Default for ToolTimeouts {
    fn default() -> Self {
        Self {
            hard_seconds: 3600,
            grace_seconds: 3,
        }
    }
}

/// What a call may use of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolResources {
    /// Bytes of memory (memory.max). 4,194,304 to 1,099,511,627,776; 2,147,483,648 by default, where the node can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 4_194_304_i64, max = 1_099_511_627_776_i64))]
    pub memory_max_bytes: Option<i64>,

    /// Thousandths of a processor (cpu.max). 10 to 1,024,000; 2,000 by default, where the node can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 1_024_000))]
    pub cpu_millicores: Option<i64>,

    /// Processes and threads (pids.max). 1 to 32,768; 256 by default, where the node can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32_768))]
    pub max_processes: Option<i64>,

    /// Whether all processes of the call die when the kernel kills one for memory (memory.oom.group). True by default.
    #[serde(default = "default::yes")]
    pub oom_group: bool,
}

impl Default for ToolResources {
    fn default() -> Self {
        Self {
            memory_max_bytes: None,
            cpu_millicores: None,
            max_processes: None,
            oom_group: true,
        }
    }
}

/// What becomes of a call's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ToolOutput {
    /// Bytes of output that the model and the status get, the mark of a cut included; the whole is kept on the node.
    /// 1,024 to 262,144; 50,000 by default.
    #[schemars(range(min = 1024, max = 262_144))]
    pub max_bytes: i64,
}

impl Default for ToolOutput {
    fn default() -> Self {
        Self { max_bytes: 50_000 }
    }
}

/// State of a tool, written by the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolStatus {
    /// Generation of the spec this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Accepted: whether its schema and templates are valid, so that it can be offered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
}

//! The binding of an execution: where it runs, under which decisions, and the plan of what runs.

use crate::tool::{CommandRunner, Network, ToolTimeouts};
use crate::values::{Time, open_enum};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Highest `planVersion` this version writes and understands.
pub const PLAN_VERSION: i64 = 1;

/// Where an attempt runs and all that its node needs to know. Only the operator writes it; a new value comes only
/// with a higher attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// The node that runs it.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// Identity of that node's memory when it was bound; under another one the attempt is not started.
    #[schemars(length(min = 1, max = 128))]
    pub incarnation: String,
    /// Number of the attempt, from 1.
    #[schemars(range(min = 1, max = 1000))]
    pub attempt: i64,
    /// 128 random bits, as hex, that every status write of this attempt repeats.
    #[schemars(length(min = 32, max = 32))]
    pub fence: String,
    /// Term of the leader that bound it.
    #[schemars(range(min = 0, max = 2_147_483_647_i64))]
    pub term: i64,
    /// Version of the plan's form; an agent refuses one it does not know.
    #[schemars(range(min = 1, max = 1000))]
    pub plan_version: i64,
    /// Since when the call waited for its slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<Time>,
    /// When the guard let it through.
    pub admitted_at: Time,
    /// SHA-256 of tool, generation and arguments in canonical form (RFC 8785), as hex.
    #[schemars(length(min = 64, max = 64))]
    pub call_digest: String,
    /// The checks it passed, in order.
    #[schemars(length(max = 16))]
    pub decisions: Vec<GuardDecision>,
    /// What runs.
    pub plan: ExecutionPlan,
}

/// The verdict of one check of the guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuardDecision {
    /// Which check.
    pub check: GuardCheck,
    /// Whether it let the call through.
    pub allowed: bool,
    /// One word for machines, on a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub reason: Option<String>,
}

open_enum! {
    /// A check of the guard.
    GuardCheck {
        /// The tool exists and is accepted.
        Resolve,
        /// The arguments fit its schema.
        Schema,
    }
}

/// What runs: the tool's runner and limits as they were when it was bound. Arguments stand only in the spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecutionPlan {
    /// Generation of the Tool this was made from.
    pub tool_generation: i64,
    /// The command, with its templates.
    pub command: CommandRunner,
    /// Timeouts, the execution's own shortening applied.
    pub timeouts: ToolTimeouts,
    /// Limits, defaults filled in.
    pub resources: PlanResources,
    /// Which network it sees.
    pub network: Network,
    /// Most bytes of canonical output.
    pub output_max_bytes: i64,
}

/// Limits of one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanResources {
    /// memory.max, bytes.
    pub memory_max_bytes: i64,
    /// cpu.max, thousandths of a processor.
    pub cpu_millicores: i64,
    /// pids.max.
    pub max_processes: i64,
    /// memory.oom.group.
    pub oom_group: bool,
    /// Controllers whose limit the tool's author asked for: without them the attempt fails. Others are set where the
    /// node can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub required: Vec<Controller>,
}

open_enum! {
    /// A cgroup v2 controller a limit needs.
    Controller {
        /// memory
        Memory,
        /// cpu
        Cpu,
        /// pids
        Pids,
    }
}

impl Controller {
    /// Name in `cgroup.controllers`.
    pub fn kernel_name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
            Self::Unknown => "unknown",
        }
    }
}

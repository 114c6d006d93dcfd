//! The plan of a call: the tool as it is now, defaults filled in.

use fairlead_crds::{Controller, ExecutionPlan, PlanResources, ToolSpec, ToolTimeouts};

/// memory.max of a tool that names none, bytes.
pub const DEFAULT_MEMORY_MAX_BYTES: i64 = 2 * 1024 * 1024 * 1024;
/// cpu.max of a tool that names none, thousandths of a processor.
pub const DEFAULT_CPU_MILLICORES: i64 = 2000;
/// pids.max of a tool that names none.
pub const DEFAULT_MAX_PROCESSES: i64 = 256;

/// The plan of a call of `tool` at `generation`.
///
/// `timeout_seconds`, the call's own, can only shorten the tool's. A limit the author wrote is required of the node;
/// a default is set where the node can.
pub fn resolve_plan(tool: &ToolSpec, generation: i64, timeout_seconds: Option<i64>) -> ExecutionPlan {
    let resources = &tool.resources;
    let required = [
        (resources.memory_max_bytes, Controller::Memory),
        (resources.cpu_millicores, Controller::Cpu),
        (resources.max_processes, Controller::Pids),
    ];
    let own = tool.timeouts.hard_seconds;
    ExecutionPlan {
        tool_generation: generation,
        command: tool.runner.command.clone(),
        timeouts: ToolTimeouts {
            hard_seconds: timeout_seconds.map_or(own, |asked| asked.clamp(1, own.max(1))),
            grace_seconds: tool.timeouts.grace_seconds,
        },
        resources: PlanResources {
            memory_max_bytes: resources.memory_max_bytes.unwrap_or(DEFAULT_MEMORY_MAX_BYTES),
            cpu_millicores: resources.cpu_millicores.unwrap_or(DEFAULT_CPU_MILLICORES),
            max_processes: resources.max_processes.unwrap_or(DEFAULT_MAX_PROCESSES),
            oom_group: resources.oom_group,
            required: required
                .into_iter()
                .filter_map(|(limit, controller)| limit.map(|_| controller))
                .collect(),
        },
        network: tool.network,
        output_max_bytes: tool.output.max_bytes,
    }
}

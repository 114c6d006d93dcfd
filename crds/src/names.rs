//! Names the parts agree on: labels, annotations, field managers, and how names of children are derived.

use crate::canonical::sha256_hex;

/// Label on turns and executions of a run: the run's UID. Bulk deletion selects by it.
pub const LABEL_RUN_UID: &str = "fairlead.dev/run-uid";
/// Annotation on turns and executions of a run: the run's name (label values end at 63 characters).
pub const ANNOTATION_RUN_NAME: &str = "fairlead.dev/run-name";

/// Field manager of the operator's writes.
pub const MANAGER_OPERATOR: &str = "fairlead-operator";
/// Field manager of a node agent's writes.
pub const MANAGER_NODE_AGENT: &str = "fairlead-node-agent";

/// Name of the operator's leader Lease in the install namespace.
pub const LEADER_LEASE: &str = "fairlead-operator";
/// The ValidatingAdmissionPolicies of the chart; each has a binding of the same name. Our parts are not ready while one
/// of them is missing.
pub const ADMISSION_POLICIES: &[&str] = &[
    "fairlead-agent-turns",
    "fairlead-execution-authors",
    "fairlead-execution-status",
    "fairlead-leader-term",
    "fairlead-node-leases",
    "fairlead-owners",
    "fairlead-run-children",
    "fairlead-secrets",
    "fairlead-service-accounts",
    "fairlead-status",
    "fairlead-unconfined",
];
/// Label on the Lease of a node agent, with this value, so that the operator can watch just these.
pub const LABEL_COMPONENT: &str = "app.kubernetes.io/component";
/// Value of [`LABEL_COMPONENT`] on node Leases.
pub const COMPONENT_NODE_AGENT: &str = "node-agent";

/// Annotations of a node Lease.
pub mod node_lease {
    /// Identity of the node's memory: boot id and spool volume. An attempt starts only under its own.
    pub const INCARNATION: &str = "fairlead.dev/incarnation";
    /// Isolation backend in use: `CgroupV2` or `ProcessGroup`.
    pub const BACKEND: &str = "fairlead.dev/isolation-backend";
    /// Comma-separated cgroup controllers that are missing, empty when none is.
    pub const MISSING_CONTROLLERS: &str = "fairlead.dev/missing-controllers";
    /// How many executions the node runs at once. A positive integer.
    pub const CAPACITY: &str = "fairlead.dev/capacity";
    /// Highest `binding.planVersion` the agent understands.
    pub const PLAN_VERSION: &str = "fairlead.dev/plan-version";
}

/// Longest name an `AgentRun` may have, so that the names of its children fit into 63 characters.
pub const RUN_NAME_MAX: usize = 52;
const STEM_MAX: usize = 34;

fn stem(run_name: &str) -> &str {
    run_name
        .get(..STEM_MAX)
        .unwrap_or(run_name)
        .trim_end_matches(['-', '.'])
}

/// Name of a turn: run, index, attempt, and a hash of the run's UID.
///
/// The UID is in it because a run of the same name may be made while the children of the last one still exist.
pub fn turn_name(run_name: &str, run_uid: &str, index: i64, attempt: i64) -> String {
    let hash = sha256_hex(format!("{run_uid}/{index}/{attempt}").as_bytes());
    format!(
        "{}-t{index}-a{attempt}-{}",
        stem(run_name),
        hash.get(..8).unwrap_or_default()
    )
}

/// Name of a run's execution. It is the idempotency key: run UID, turn index and call id, nothing else.
pub fn execution_name(run_name: &str, run_uid: &str, turn: i64, call_id: &str) -> String {
    let hash = sha256_hex(format!("{run_uid}/{turn}/{call_id}").as_bytes());
    format!("{}-{turn}-{}", stem(run_name), hash.get(..16).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_children_are_valid_and_differ_by_uid() {
        let long = "a".repeat(33) + "-" + &"b".repeat(18);
        let name = execution_name(&long, "uid-1", 1_000, "call_1");
        assert!(name.len() <= 63, "{name}");
        assert!(!name.contains("--"), "{name}");
        assert_ne!(name, execution_name(&long, "uid-2", 1_000, "call_1"));
        assert!(turn_name(&long, "u", 100_000, 1_000).len() <= 63);
    }
}

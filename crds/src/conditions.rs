//! Condition types and reasons: the only file with these strings.

use crate::values::Time;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time as MetaTime};

/// Condition types.
pub mod kind {
    /// `AgentRun`, `ToolExecution`: ended well.
    pub const SUCCEEDED: &str = "Succeeded";
    /// `AgentRun`, `ToolExecution`: nothing of it is left on a node.
    pub const CLEANED_UP: &str = "CleanedUp";
    /// `ToolExecution`: passed the guard.
    pub const ADMITTED: &str = "Admitted";
    /// `ToolExecution`: the run went on without its result.
    pub const BACKGROUNDED: &str = "Backgrounded";
    /// `Tool`: can be offered to a model.
    pub const ACCEPTED: &str = "Accepted";
    /// `ModelProvider`: can be called.
    pub const READY: &str = "Ready";
}

/// Reasons, used in conditions, in `status.reason` and in failures.
pub mod reason {
    /// An answer was given.
    pub const ANSWERED: &str = "Answered";
    /// `spec.desiredState: Cancelled`.
    pub const CANCELLED: &str = "Cancelled";
    /// `limits.maxTurns` reached.
    pub const MAX_TURNS: &str = "MaxTurnsExceeded";
    /// `limits.maxToolCalls` reached.
    pub const MAX_TOOL_CALLS: &str = "MaxToolCallsExceeded";
    /// `limits.deadlineSeconds` passed.
    pub const DEADLINE: &str = "DeadlineExceeded";
    /// The request of a turn could not be derived again as it was recorded.
    pub const REQUEST_CHANGED: &str = "RequestChanged";
    /// No request of the operator that leads belongs to the turn: another led before, or an answer was lost.
    pub const REQUEST_LOST: &str = "RequestLost";
    /// A turn of the run was deleted.
    pub const TURN_DELETED: &str = "TurnDeleted";
    /// The `ModelProvider` named does not exist.
    pub const PROVIDER_NOT_FOUND: &str = "ProviderNotFound";
    /// The `ModelProvider` cannot be called; its Ready condition says why.
    pub const PROVIDER_NOT_READY: &str = "ProviderNotReady";
    /// A tool that the run offers does not exist.
    pub const TOOL_NOT_FOUND: &str = "ToolNotFound";
    /// A tool that the run offers is not accepted; its condition says why.
    pub const TOOL_NOT_ACCEPTED: &str = "ToolNotAccepted";
    /// No step of the script matches.
    pub const SCRIPT_EXHAUSTED: &str = "ScriptExhausted";
    /// The provider could not be reached.
    pub const PROVIDER_UNREACHABLE: &str = "ProviderUnreachable";
    /// The provider did not answer in time.
    pub const PROVIDER_TIMEOUT: &str = "ProviderTimeout";
    /// The connection to the provider broke before its answer was complete.
    pub const PROVIDER_DISCONNECTED: &str = "ProviderDisconnected";
    /// HTTP 429 beyond the retries allowed.
    pub const PROVIDER_RATE_LIMITED: &str = "ProviderRateLimited";
    /// HTTP 5xx beyond the retries allowed.
    pub const PROVIDER_ERROR: &str = "ProviderError";
    /// HTTP 401 or 403.
    pub const PROVIDER_UNAUTHORIZED: &str = "ProviderUnauthorized";
    /// Any other 4xx: the request itself was refused.
    pub const PROVIDER_REFUSED: &str = "ProviderRefusedRequest";
    /// The provider's answer could not be read.
    pub const PROVIDER_PROTOCOL: &str = "ProviderProtocolError";
    /// The model's answer is larger than a turn may be.
    pub const ANSWER_TOO_LARGE: &str = "AnswerTooLarge";
    /// A Secret that the provider names is missing or may not be read.
    pub const SECRET_NOT_READABLE: &str = "SecretNotReadable";
    /// All that is needed is there.
    pub const READY: &str = "Ready";
    /// All that was checked is valid.
    pub const VALID: &str = "Valid";
    /// Not a valid JSON Schema 2020-12, or one with a remote or recursive `$ref`.
    pub const INVALID_SCHEMA: &str = "InvalidSchema";
    /// A template names a parameter that the schema does not have, or is malformed.
    pub const INVALID_TEMPLATE: &str = "InvalidTemplate";
    /// `spec.model.parameters` of a run are too large, or nested too deep.
    pub const INVALID_PARAMETERS: &str = "InvalidParameters";
    /// The answer of the model is awaited.
    pub const MODEL_ASKED: &str = "ModelAsked";
    /// Tool calls of the last turn are in progress.
    pub const TOOL_CALLS: &str = "ToolCalls";
    /// A child object could not be created or written.
    pub const WRITE_REFUSED: &str = "WriteRefused";

    /// Exit code 0.
    pub const COMPLETED: &str = "Completed";
    /// Exit code 0, and descendants that were still there were killed.
    pub const LEFTOVER_KILLED: &str = "LeftoverProcessesKilled";
    /// Another exit code.
    pub const NON_ZERO_EXIT: &str = "NonZeroExit";
    /// Ended by a signal that was not ours.
    pub const SIGNALLED: &str = "Signalled";
    /// The kernel killed for memory; the message says at whose limit.
    pub const OUT_OF_MEMORY: &str = "OutOfMemory";
    /// The hard timeout passed.
    pub const HARD_TIMEOUT: &str = "HardTimeout";
    /// No place on a node became free within the operator's `queueTimeoutSeconds`; nothing was started.
    pub const QUEUE_TIMEOUT: &str = "QueueTimeout";
    /// A spawn step failed before the tool's program began.
    pub const START_FAILED: &str = "StartFailed";
    /// A limit that was asked for cannot be set on this node.
    pub const LIMIT_UNAVAILABLE: &str = "LimitUnavailable";
    /// No slot or no room in the spool.
    pub const SPOOL_FULL: &str = "SpoolFull";
    /// The agent was away longer than tools may be without one, or its supervisor died.
    pub const SUPERVISION_LOST: &str = "SupervisionLost";
    /// The node's agent was told to end, and ended what ran.
    pub const NODE_DRAINING: &str = "NodeDraining";
    /// The node's memory of executions is not the one the binding names.
    pub const OTHER_INCARNATION: &str = "OtherIncarnation";
    /// The plan is newer than the node agent knows; nothing was started.
    pub const PLAN_VERSION: &str = "PlanVersionUnknown";
    /// The node's Lease stopped moving.
    pub const NODE_LOST: &str = "NodeLost";
    /// Its node is alive, but has told no end long after the call's hard timeout.
    pub const NOT_REPORTED: &str = "NotReported";
    /// The run it belongs to ended.
    pub const RUN_ENDED: &str = "RunEnded";
    /// The end was written without its output, since the full status was refused.
    pub const STATUS_REFUSED: &str = "StatusRefused";
    /// The group could not be emptied or removed within the bound.
    pub const CLEAN_UP_FAILED: &str = "CleanUpFailed";
    /// The group was seen empty and was removed.
    pub const CONFIRMED: &str = "Confirmed";

    /// Waiting: every node is at its capacity.
    pub const CONCURRENCY_LIMIT: &str = "ConcurrencyLimit";
    /// Waiting: no node agent with a fresh Lease.
    pub const NO_READY_NODE: &str = "NoReadyNode";
    /// The bounded wait passed.
    pub const WAIT_ELAPSED: &str = "WaitElapsed";
}

/// Refusal codes given to the model, in status and in logs.
pub mod refusal {
    /// No such tool is offered or exists.
    pub const TOOL_NOT_FOUND: &str = "TOOL_NOT_FOUND";
    /// The tool is there, and its author has to mend it first; its condition says what.
    pub const TOOL_NOT_ACCEPTED: &str = "TOOL_NOT_ACCEPTED";
    /// The tool is not the one that was frozen into the turn.
    pub const TOOL_CHANGED: &str = "TOOL_CHANGED";
    /// The arguments do not fit the tool's schema.
    pub const INVALID_ARGUMENT: &str = "INVALID_ARGUMENT";
}

/// Puts a condition into the list: the transition time moves only when the status does.
///
/// `message` is cut to 1,024 bytes on a character boundary; a condition is not a log.
pub fn set(
    list: &mut Vec<Condition>,
    kind: &str,
    status: bool,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Time,
) {
    put(
        list,
        kind,
        if status { "True" } else { "False" },
        reason,
        message,
        generation,
        now,
    );
}

/// Puts a condition with status `Unknown` into the list: it is not decided yet, and `reason` says what it waits for.
pub fn set_unknown(
    list: &mut Vec<Condition>,
    kind: &str,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Time,
) {
    put(list, kind, "Unknown", reason, message, generation, now);
}

fn put(
    list: &mut Vec<Condition>,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Time,
) {
    let since = list
        .iter()
        .find(|c| c.type_ == kind && c.status == status)
        .map_or(MetaTime(now), |c| c.last_transition_time.clone());
    list.retain(|c| c.type_ != kind);
    list.push(Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message
            .get(..message.floor_char_boundary(1024))
            .unwrap_or_default()
            .to_owned(),
        observed_generation: generation,
        last_transition_time: since,
    });
    list.sort_by(|a, b| a.type_.cmp(&b.type_));
}

/// The condition of that type, if there.
pub fn find<'a>(list: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    list.iter().find(|c| c.type_ == kind)
}

/// Whether the condition is there with status `True`.
pub fn is_true(list: &[Condition], kind: &str) -> bool {
    find(list, kind).is_some_and(|c| c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let t = |s: i64| Time::from_second(s).unwrap();
        let mut list = vec![];
        set(&mut list, kind::READY, true, "A", "", None, t(1));
        set(&mut list, kind::READY, true, "B", "", None, t(2));
        assert_eq!(list[0].last_transition_time.0, t(1));
        assert_eq!(list[0].reason, "B");
        set(
            &mut list,
            kind::READY,
            false,
            "C",
            &"\u{e9}".repeat(600),
            None,
            t(3),
        );
        assert_eq!((list.len(), list[0].last_transition_time.0), (1, t(3)));
        assert_eq!(list[0].message.len(), 1024);
    }
}

//! Phases: which may follow which, which are final, and which limit ends each of them.
//!
//! The same transitions stand as CEL rules in the CRDs, so that a stale writer is refused by the API server.

use crate::values::open_enum;

open_enum! {
    /// Phase of an `AgentRun`. Absent means `Pending`.
    RunPhase {
        /// Accepted, no turn completed yet.
        Pending,
        /// A model request is in progress or the next turn is being prepared.
        Running,
        /// Tool calls of the current turn have been in progress for more than a second.
        WaitingForTools,
        /// The end is known; live executions are being stopped and verified.
        Finishing,
        /// Ended with an answer.
        Succeeded,
        /// Ended without an answer; `status.failure` says why.
        Failed,
        /// Ended because `spec.desiredState` asked for it.
        Cancelled,
    }
}

open_enum! {
    /// Phase of an `AgentTurn`. Absent means `Requesting`.
    TurnPhase {
        /// The model request may be in progress.
        Requesting,
        /// The model's answer is stored; its calls may have been dispatched.
        Completed,
        /// The request ended in an error.
        Failed,
        /// Given up, because its run ended or another leader took over; nothing it may have received counts.
        Abandoned,
    }
}

open_enum! {
    /// Phase of a `ToolExecution`. Absent means not started: bound or about to be.
    ExecutionPhase {
        /// Waiting for a slot or a node; `status.reason` says for which.
        Queued,
        /// A process of the execution is known to run.
        Running,
        /// The tool ended with exit code 0.
        Succeeded,
        /// The tool ended in another way, or could not be started.
        Failed,
        /// Stopped because `spec.desiredState` asked for it.
        Cancelled,
        /// Stopped by its hard timeout, or it got no place in time.
        TimedOut,
        /// The node that ran it is gone; how it ended is not known.
        Orphaned,
        /// Refused before anything was started.
        Denied,
    }
}

open_enum! {
    /// Whether anything of an execution ran, and whether its end is known. Retry and idempotency read only this.
    Outcome {
        /// Nothing of ours ran.
        NotStarted,
        /// It ran, and its own end was seen. The third value, `Unknown`, says that it may have run and that
        /// how it ended is not known; a value of a later version reads the same, which is the careful side.
        Completed,
    }
}

/// The limit that ends a phase of a run or execution at the latest: the operator looks again by then. A turn has none of
/// its own: its requests are bounded by the provider's `timeouts`, and all of it by its run's deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// `spec.limits.deadlineSeconds` of the run.
    RunDeadline,
    /// The deadline of the run whose call it is; for a user's own execution, how long such a one may wait for a place.
    Queue,
    /// The tool's hard timeout and grace, then the bound on a kill; the orphan rule when the node is gone.
    ToolTimeout,
    /// A bound on clean-up, after which the end is written with what could not be verified.
    CleanUp,
    /// Final: ends by retention or deletion only.
    Final,
}

impl RunPhase {
    /// Whether nothing may follow.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Phases that may follow this one (itself not listed).
    pub fn successors(self) -> &'static [Self] {
        use RunPhase::*;
        match self {
            Pending => &[Running, WaitingForTools, Finishing, Succeeded, Failed, Cancelled],
            Running => &[WaitingForTools, Finishing, Succeeded, Failed, Cancelled],
            WaitingForTools => &[Running, Finishing, Succeeded, Failed, Cancelled],
            Finishing => &[Succeeded, Failed, Cancelled],
            Succeeded | Failed | Cancelled | Unknown => &[],
        }
    }

    /// What ends this phase at the latest.
    pub fn bound(self) -> Bound {
        match self {
            Self::Pending | Self::Running | Self::WaitingForTools | Self::Unknown => Bound::RunDeadline,
            Self::Finishing => Bound::CleanUp,
            Self::Succeeded | Self::Failed | Self::Cancelled => Bound::Final,
        }
    }
}

impl TurnPhase {
    /// Whether nothing may follow.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Abandoned)
    }

    /// Phases that may follow this one.
    pub fn successors(self) -> &'static [Self] {
        match self {
            Self::Requesting => &[Self::Completed, Self::Failed, Self::Abandoned],
            _ => &[],
        }
    }
}

impl ExecutionPhase {
    /// The phases after which nothing may follow.
    pub const TERMINAL: &'static [Self] = &[
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
        Self::TimedOut,
        Self::Orphaned,
        Self::Denied,
    ];

    /// Whether nothing may follow.
    pub fn is_terminal(self) -> bool {
        Self::TERMINAL.contains(&self)
    }

    /// Phases that may follow this one. An absent phase may be followed by any.
    pub fn successors(self) -> &'static [Self] {
        use ExecutionPhase::*;
        match self {
            Queued => &[Running, Succeeded, Failed, Cancelled, TimedOut, Orphaned, Denied],
            // Queued again only with a higher attempt; the server's rule on `binding.attempt` holds that half.
            Running => &[Queued, Succeeded, Failed, Cancelled, TimedOut, Orphaned],
            _ => &[],
        }
    }

    /// What ends this phase at the latest.
    pub fn bound(self) -> Bound {
        match self {
            Self::Queued => Bound::Queue,
            Self::Running | Self::Unknown => Bound::ToolTimeout,
            _ => Bound::Final,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_phases_have_no_successors_and_others_have() {
        for p in RunPhase::ALL {
            assert_eq!(p.is_terminal(), p.successors().is_empty(), "{p}");
            assert_eq!(p.is_terminal(), p.bound() == Bound::Final, "{p}");
        }
        for p in TurnPhase::ALL {
            assert_eq!(p.is_terminal(), p.successors().is_empty(), "{p}");
        }
        for p in ExecutionPhase::ALL {
            assert_eq!(p.is_terminal(), p.successors().is_empty(), "{p}");
            assert_eq!(p.is_terminal(), p.bound() == Bound::Final, "{p}");
        }
    }

    #[test]
    fn an_unknown_phase_is_read_as_unknown() {
        let p: ExecutionPhase = serde_json::from_str("\"FromTheFuture\"").unwrap();
        assert_eq!(p, ExecutionPhase::Unknown);
        assert!(!p.is_terminal());
    }
}

//! A run whose model is asked: what it says of it, once somebody may wonder.

use super::run::Subjects;
use super::status::{in_phase, publish};
use super::turn;
use super::types::{Action, Decision};
use super::world::FailedTry;
use crate::time::{plus_millis, to_the_second};
use fairlead_crds::conditions::{self, kind, reason};
use fairlead_crds::{AgentTurn, RunPhase};
use std::sync::Arc;

impl<'a> Subjects<'a> {
    /// Goes on with a turn that has no end yet, and tells on the run what it waits for if that takes long.
    pub(super) fn ask(&self, turn: &'a Arc<AgentTurn>) -> Decision {
        let begun = turn
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(self.now, |t| t.0);
        let mut decision = match turn::drive(self.world, self.state, self.run, turn, self.now) {
            Ok(decision) => decision,
            Err(missing) => return self.missing(missing, begun),
        };
        // A turn that ends now is told with its end.
        if decision
            .actions
            .iter()
            .any(|a| matches!(a, Action::EndTurn { .. }))
        {
            return decision;
        }
        // The server's creation time has whole seconds only: up to one more has not passed.
        let visible_at = plus_millis(
            begun,
            self.world.settings.visible_after_millis.saturating_add(1_000),
        );
        if visible_at > self.now {
            decision.wake_by(visible_at);
            return decision;
        }
        let mut status = in_phase(
            self.state,
            self.run,
            RunPhase::Running,
            reason::MODEL_ASKED,
            self.now,
        );
        let failed = self
            .state
            .request
            .as_ref()
            .and_then(|r| Some((r.tries, r.failed.as_ref()?)));
        let (why, message) = told(turn, failed);
        conditions::set_unknown(
            &mut status.conditions,
            kind::SUCCEEDED,
            why,
            &message,
            self.run.metadata.generation,
            self.now,
        );
        let write = publish(&self.world.writes, self.run, status, self.now);
        write.into_iter().for_each(|action| decision.add(action));
        decision
    }
}

impl Subjects<'_> {
    /// What the provider said last, for the end of a run that was still waiting for it.
    pub(super) fn asked_in_vain(&self) -> String {
        let failed = self.state.request.as_ref().and_then(|r| r.failed.as_ref());
        failed.map_or_else(String::new, |last| {
            format!(
                " while ModelProvider {:?} was waited for, which said: {}",
                self.run.spec.model.provider_ref.name, last.message
            )
        })
    }
}

/// Reason and message about a turn whose answer is awaited. They change with each try that fails, and at no other time.
fn told(turn: &AgentTurn, failed: Option<(u32, &FailedTry)>) -> (&'static str, String) {
    let provider = &turn.spec.provider_ref.name;
    let index = turn.spec.index;
    match failed {
        None => (
            reason::MODEL_ASKED,
            format!("Turn {index} waits for the answer of ModelProvider {provider:?}."),
        ),
        Some((tries, last)) => (
            last.reason,
            format!(
                "Turn {index} waits for ModelProvider {provider:?}: try {tries} failed, the next is at {}: {}",
                to_the_second(last.again_at),
                last.message
            ),
        ),
    }
}

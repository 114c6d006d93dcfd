//! A run whose model is asked: what it says of it, once somebody may wonder.

use super::run::Subjects;
use super::turn;
use super::types::{Action, Decision};
use super::world::Request;
use super::writes::Subject;
use crate::time::{plus_millis, to_the_second};
use fairlead_crds::conditions::reason;
use fairlead_crds::{AgentTurn, RunPhase};
use std::sync::Arc;

impl<'a> Subjects<'a> {
    /// Goes on with a turn that has no end yet, and tells on the run what it waits for if that takes long.
    pub(super) fn ask(&self, turn: &'a Arc<AgentTurn>) -> Decision {
        if let Some((because, at)) = self.world.writes.blocked(&Subject::Turn(self.uid()), self.now) {
            return self.held_up(because, at);
        }
        let mut decision = match turn::drive(self.world, self.state, self.run, turn, self.now) {
            Ok(decision) => decision,
            Err(missing) => {
                let begun = turn.metadata.creation_timestamp.as_ref();
                return self.missing(missing, begun.map_or(self.now, |t| t.0));
            }
        };
        // A turn that ends now is told with its end.
        let ends = |action: &Action| matches!(action, Action::EndTurn { .. });
        let Some(request) = self
            .state
            .request
            .as_ref()
            .filter(|_| !decision.actions.iter().any(ends))
        else {
            return decision;
        };
        // By our own clock, which need not be the server's.
        let visible_at = plus_millis(request.since, self.world.settings.visible_after_millis);
        if visible_at > self.now {
            decision.wake_by(visible_at);
            return decision;
        }
        let (why, message) = told(turn, request);
        let write = self.tell_waiting(RunPhase::Running, reason::MODEL_ASKED, why, &message);
        write.into_iter().for_each(|action| decision.add(action));
        decision
    }

    /// What the provider had said to the last try of a turn that was given up because the run ended, if it was asked.
    pub(super) fn asked_in_vain(&self) -> String {
        let failure = self
            .last_turn()
            .and_then(|turn| turn.status.as_ref()?.failure.as_ref());
        failure
            .filter(|failure| failure.reason == reason::RUN_ENDED)
            .map_or_else(String::new, |failure| format!(" {}", failure.message))
    }
}

/// Reason and message about a turn whose answer is awaited. They change with each try that fails, and at no other time.
fn told(turn: &AgentTurn, request: &Request) -> (&'static str, String) {
    let provider = &turn.spec.provider_ref.name;
    let index = turn.spec.index;
    match &request.failed {
        None => (
            reason::MODEL_ASKED,
            format!("Turn {index} waits for the answer of ModelProvider {provider:?}."),
        ),
        Some(last) => (
            last.reason,
            format!(
                "Turn {index} waits for ModelProvider {provider:?}: try {} failed, the next is at {}: {}",
                request.tries,
                to_the_second(last.again_at),
                last.message
            ),
        ),
    }
}

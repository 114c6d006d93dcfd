//! The end of a run: the request closed, executions stopped and verified, the terminal phase, and what comes after.

use super::bounds;
use super::execution;
use super::run::Subjects;
use super::status::{self, End, in_phase, publish};
use super::turn;
use super::types::{Action, Because, Decision, ObjectKey};
use super::world::{has_ended, is_settled, key_of};
use super::writes::Subject;
use crate::time::plus_seconds;
use fairlead_crds::conditions::{self, kind, reason};
use fairlead_crds::values::Time;
use fairlead_crds::{RunPhase, ToolExecution};
use std::sync::Arc;

impl<'a> Subjects<'a> {
    /// Ends the run: closes the request, stops what is live, and writes the end when nothing is.
    pub(super) fn finish(&self, end: &End) -> Decision {
        if let Some(decision) = turn::give_up(self.world, self.state, self.run, self.now) {
            return decision;
        }
        if self.starts_in_flight() {
            return Decision::because(Because::WriteInFlight);
        }
        let live: Vec<_> = self.executions().filter(|x| !has_ended(x)).collect();
        let gives_up = self.gives_up();
        if !live.is_empty() && gives_up.is_none_or(|at| at > self.now) {
            let mut decision = self.stop(&live, end);
            gives_up.into_iter().for_each(|at| decision.wake_by(at));
            return decision;
        }
        let unclean: Vec<_> = self
            .executions()
            .filter(|x| !is_settled(x))
            .filter_map(|x| x.metadata.name.clone())
            .collect();
        let unclean = (!unclean.is_empty()).then(|| {
            format!(
                "Not confirmed as gone: execution {}; its status names what is left.",
                unclean.join(", ")
            )
        });
        let mut status = in_phase(self.state, self.run, end.phase, &end.reason, self.now);
        status::end(&mut status, self.run, end, unclean.as_deref(), self.now);
        match publish(&self.world.writes, self.run, status, self.now) {
            Some(action) => Decision::act(action),
            None => self.blocked_on_status(),
        }
    }

    /// When a run that ends stops waiting for its executions; nothing while its end has not begun to be written.
    fn gives_up(&self) -> Option<Time> {
        let phase = self.run.status.as_ref()?.phase?;
        (phase == RunPhase::Finishing)
            .then(|| bounds::of_run(&self.world.settings, self.run, self.now))
            .flatten()
    }

    /// Whether a turn or an execution of the run is just being created: it must be seen before the run can end.
    fn starts_in_flight(&self) -> bool {
        let writes = &self.world.writes;
        let namespace = self.run.metadata.namespace.as_deref().unwrap_or_default();
        let statuses = self.state.turns.values().filter_map(|t| t.status.as_ref());
        let mut names = statuses
            .flat_map(|s| &s.tool_calls)
            .filter_map(|c| c.execution_name.as_ref());
        writes.in_flight(&Subject::Turn(self.uid()))
            || names.any(|name| {
                let key = ObjectKey::new(namespace, name.clone());
                !self.world.executions.contains_key(&key) && writes.in_flight(&Subject::Execution(key))
            })
    }

    fn blocked_on_status(&self) -> Decision {
        match self.world.writes.blocked(&Subject::Run(self.uid()), self.now) {
            Some((because, at)) => Decision {
                because: vec![because],
                wake: at,
                actions: Vec::new(),
            },
            None => Decision::because(Because::Settled),
        }
    }

    fn stop(&self, live: &[&'a Arc<ToolExecution>], end: &End) -> Decision {
        let mut decision = self.stop_all(live);
        let mut status = in_phase(self.state, self.run, RunPhase::Finishing, &end.reason, self.now);
        status.failure.clone_from(&end.failure);
        let message = format!("It ends when its executions have: {}", end.message);
        conditions::set_unknown(
            &mut status.conditions,
            kind::SUCCEEDED,
            &end.reason,
            &message,
            self.run.metadata.generation,
            self.now,
        );
        decision
            .actions
            .extend(publish(&self.world.writes, self.run, status, self.now));
        decision
    }

    fn stop_all(&self, live: &[&'a Arc<ToolExecution>]) -> Decision {
        let mut decision = Decision::because(Because::Stopping { count: live.len() });
        for execution in live.iter().filter(|x| self.free(x)) {
            if execution.spec.desired_state.is_none() || execution.spec.binding.is_none() {
                decision.actions.push(execution::stop(
                    execution,
                    reason::RUN_ENDED,
                    "The run ended.",
                    self.now,
                ));
            }
        }
        for execution in live {
            let key = key_of(&execution.metadata);
            if let Some((_, Some(at))) = self.world.writes.blocked(&Subject::Execution(key), self.now) {
                decision.wake_by(at);
            }
        }
        decision
    }

    /// What a write that came late left behind, clean-up that is confirmed late, and retention.
    pub(super) fn after_the_end(&self) -> Decision {
        if let Some(decision) = turn::give_up(self.world, self.state, self.run, self.now) {
            return decision;
        }
        let live: Vec<_> = self.executions().filter(|x| !has_ended(x)).collect();
        if !live.is_empty() {
            return self.stop_all(&live);
        }
        if let Some((because, at)) = self.world.writes.blocked(&Subject::Run(self.uid()), self.now) {
            return Decision {
                because: vec![because],
                wake: at,
                actions: Vec::new(),
            };
        }
        if let Some(action) = self.confirmed_late() {
            return Decision::act(action);
        }
        let completed = self.run.status.as_ref().and_then(|s| s.completion_time);
        let Some((ttl, completed)) = self.run.spec.ttl_seconds_after_finished.zip(completed) else {
            return Decision::because(Because::Ended);
        };
        let expires = plus_seconds(completed, ttl);
        if expires > self.now {
            return Decision::wait(Because::Retained, expires);
        }
        Decision::act(Action::DeleteRun {
            run: Arc::clone(self.run),
        })
    }

    fn confirmed_late(&self) -> Option<Action> {
        let status = self.run.status.as_ref()?;
        let unclean =
            conditions::find(&status.conditions, kind::CLEANED_UP).is_some_and(|c| c.status == "False");
        if !unclean || self.executions().any(|x| !is_settled(x)) {
            return None;
        }
        let mut status = status.clone();
        status::cleaned_up(&mut status, self.run.metadata.generation, None, self.now);
        publish(&self.world.writes, self.run, status, self.now)
    }
}

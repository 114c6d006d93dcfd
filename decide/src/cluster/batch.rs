//! The tool calls of a run: into the queue, waited for, left behind, cancelled.

use super::execution;
use super::run::Subjects;
use super::stage::Progress;
use super::status::{in_phase, publish};
use super::types::{Action, Because, Decision};
use super::world::{Waiter, has_ended, key_of};
use super::writes::Subject;
use crate::time::plus_millis;
use fairlead_crds::conditions::{self, kind, reason};
use fairlead_crds::values::Time;
use fairlead_crds::{AgentTurn, RunPhase, ToolExecution};
use std::sync::Arc;

impl<'a> Subjects<'a> {
    /// The tool calls of the last turn.
    pub(super) fn tools(&self, turn: &'a Arc<AgentTurn>) -> Decision {
        let progress = self.view(turn).progress(self.now);
        let mut decision = match progress.settled_at {
            Some(at) => self.next_turn(turn.spec.index.saturating_add(1), at),
            None => self.wait_for_tools(&progress),
        };
        let beside = self
            .queue(&progress)
            .into_iter()
            .chain(self.cancels(&progress.to_cancel))
            .chain(self.left_behind(&progress));
        beside.for_each(|action| decision.add(action));
        let waiting = progress
            .stage_began
            .is_some_and(|at| plus_millis(at, self.world.settings.visible_after_millis) <= self.now);
        let phase = if waiting {
            RunPhase::WaitingForTools
        } else {
            RunPhase::Running
        };
        for (key, _) in &progress.wanted {
            if let Some((_, Some(at))) = self
                .world
                .writes
                .blocked(&Subject::Execution(key.clone()), self.now)
            {
                decision.wake_by(at);
            }
        }
        let refused = progress
            .wanted
            .iter()
            .find_map(|(key, _)| self.lasting_failure(&Subject::Execution(key.clone())));
        if let Some(message) = refused {
            self.tell_refusal(message)
                .into_iter()
                .for_each(|a| decision.add(a));
            return decision;
        }
        let message = format!("Tool calls of turn {} are in progress.", turn.spec.index);
        let mut status = in_phase(self.state, self.run, phase, reason::TOOL_CALLS, self.now);
        conditions::set_unknown(
            &mut status.conditions,
            kind::SUCCEEDED,
            reason::TOOL_CALLS,
            &message,
            self.run.metadata.generation,
            self.now,
        );
        // Back from waiting is told with the next turn: it follows within moments.
        let told = status.turns == self.run.status.as_ref().map_or(0, |s| s.turns);
        if waiting || !told {
            let write = publish(&self.world.writes, self.run, status, self.now);
            write.into_iter().for_each(|a| decision.add(a));
        }
        decision
    }

    fn wait_for_tools(&self, progress: &Progress) -> Decision {
        let mut decision = Decision::because(Because::ToolsRunning {
            count: progress.live + progress.wanted.len(),
        });
        decision.wake = progress.settles_by;
        if let Some(began) = progress.stage_began {
            let visible = plus_millis(began, self.world.settings.visible_after_millis);
            if visible > self.now {
                decision.wake_by(visible);
            }
        }
        decision
    }

    /// Executions of any turn that have no node yet: they go on waiting, or end if somebody wants them stopped. Of
    /// those of the last turn the queue knows already.
    pub(super) fn waiting_ones(&self) -> Vec<Action> {
        let unbound = self
            .executions()
            .filter(|x| x.spec.binding.is_none() && !has_ended(x) && self.free(x));
        let (stopped, waiting): (Vec<_>, Vec<_>) = unbound.partition(|x| x.spec.desired_state.is_some());
        let stops = stopped
            .into_iter()
            .map(|x| execution::stop(x, reason::CANCELLED, "spec.desiredState asked for it.", self.now));
        let waiters: Vec<_> = waiting
            .into_iter()
            .map(|x| (key_of(&x.metadata), x))
            .filter(|(key, _)| !self.world.waiting.contains_key(key))
            .filter_map(|(key, x)| {
                let call = x.spec.turn.zip(x.spec.call_id.clone())?;
                let since = x.metadata.creation_timestamp.as_ref().map_or(self.now, |t| t.0);
                let run = Some(self.uid());
                Some((
                    key,
                    Waiter {
                        run,
                        call: Some(call),
                        since,
                    },
                ))
            })
            .collect();
        let want = (!waiters.is_empty()).then_some(Action::Want { waiters });
        stops.chain(want).collect()
    }

    /// Calls of the last turn that are to be made.
    fn queue(&self, progress: &Progress) -> Option<Action> {
        let waiters: Vec<_> = progress
            .wanted
            .iter()
            .filter(|(key, _)| !self.world.waiting.contains_key(key))
            .filter(|(key, _)| {
                self.world
                    .writes
                    .blocked(&Subject::Execution(key.clone()), self.now)
                    .is_none()
            })
            .cloned()
            .collect();
        (!waiters.is_empty()).then_some(Action::Want { waiters })
    }

    /// When a write about one of the run's executions that failed may be tried again.
    pub(super) fn next_write(&self) -> Option<Time> {
        let live = self.executions().filter(|x| !has_ended(x));
        let blocked = live.filter_map(|x| {
            self.world
                .writes
                .blocked(&Subject::Execution(key_of(&x.metadata)), self.now)
        });
        blocked.filter_map(|(_, at)| at).min()
    }

    pub(super) fn free(&self, execution: &ToolExecution) -> bool {
        let key = key_of(&execution.metadata);
        self.world
            .writes
            .blocked(&Subject::Execution(key), self.now)
            .is_none()
    }

    fn cancels(&self, executions: &[Arc<ToolExecution>]) -> Vec<Action> {
        executions
            .iter()
            .filter(|x| self.free(x))
            .map(|x| execution::stop(x, reason::CANCELLED, "The model asked for it.", self.now))
            .collect()
    }

    fn left_behind(&self, progress: &Progress) -> Vec<Action> {
        progress
            .left_behind
            .iter()
            .filter(|x| self.free(x))
            .filter_map(|x| execution::background(x, self.now))
            .collect()
    }
}

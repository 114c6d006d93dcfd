//! What to do about a run.

use super::bounds;
use super::failure::failure;
use super::request::tools_of;
use super::stage::View;
use super::status::{End, in_phase, publish, tool_calls};
use super::turn;
use super::types::{Action, Because, Decision};
use super::world::{RunState, World, has_ended, phase_of};
use super::writes::Subject;
use crate::time::{plus_millis, plus_seconds, until};
use crate::tool_check::too_deep;
use fairlead_crds::conditions::{self, kind, reason};
use fairlead_crds::values::{Time, too_nested};
use fairlead_crds::{AgentRun, AgentTurn, FailureClass, RunPhase, ToolExecution, TurnPhase};
use std::sync::Arc;

/// Most bytes of `spec.model.parameters` as JSON.
const PARAMETERS_MAX_BYTES: usize = 16 * 1024;

/// A run with its state, as one argument.
#[derive(Clone, Copy)]
pub(super) struct Subjects<'a> {
    pub(super) world: &'a World,
    pub(super) state: &'a RunState,
    pub(super) run: &'a Arc<AgentRun>,
    pub(super) now: Time,
}

/// Decides about a run.
pub fn decide(world: &World, uid: &str, now: Time) -> Decision {
    let Some((state, run)) = world.run(uid) else {
        return Decision::default();
    };
    let all = Subjects {
        world,
        state,
        run,
        now,
    };
    if run.metadata.deletion_timestamp.is_some() {
        return all.deleting();
    }
    if run
        .status
        .as_ref()
        .and_then(|s| s.phase)
        .is_some_and(RunPhase::is_terminal)
    {
        return all.with_overdue(all.after_the_end());
    }
    if let Some(until) = all.torn_until().filter(|until| *until > now) {
        return Decision::wait(Because::Deleting, until);
    }
    let mut decision = match all.end() {
        Some(end) => all.finish(&end),
        None => {
            let mut decision = all.proceed();
            all.waiting_ones()
                .into_iter()
                .for_each(|action| decision.add(action));
            decision
        }
    };
    // One whose end was begun by somebody else may go on after all, and then has its deadline again.
    let bounds = [bounds::of_run(&world.settings, run, now), Some(all.deadline())];
    let to_come = bounds.into_iter().flatten().filter(|at| *at > now);
    to_come.for_each(|at| decision.wake_by(at));
    all.next_write().into_iter().for_each(|at| decision.wake_by(at));
    all.with_overdue(decision)
}

/// Whether a run makes no more calls: it has ended, is about to, or is being deleted.
pub fn makes_no_calls(world: &World, uid: &str, now: Time) -> bool {
    let Some((state, run)) = world.run(uid) else {
        return true;
    };
    let phase = run.status.as_ref().and_then(|s| s.phase);
    let over = phase.is_some_and(|p| p.is_terminal() || p == RunPhase::Finishing);
    let all = Subjects {
        world,
        state,
        run,
        now,
    };
    over || run.metadata.deletion_timestamp.is_some() || state.torn.is_some() || all.end().is_some()
}

impl<'a> Subjects<'a> {
    pub(super) fn uid(&self) -> String {
        self.run.metadata.uid.clone().unwrap_or_default()
    }

    fn created(&self) -> Time {
        self.run
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(self.now, |t| t.0)
    }

    /// Until when a run waits to be gone, one of whose turns is.
    fn torn_until(&self) -> Option<Time> {
        let grace = self.world.settings.dependency_grace_seconds;
        self.state.torn.map(|at| plus_seconds(at, grace))
    }

    fn deadline(&self) -> Time {
        plus_seconds(self.created(), self.run.spec.limits.deadline_seconds)
    }

    /// The same decision, and what is to be done about executions whose nodes say nothing.
    fn with_overdue(&self, mut decision: Decision) -> Decision {
        let live = self.executions().filter(|x| !has_ended(x) && self.free(x));
        for execution in live {
            let (action, wake) = bounds::overdue(self.world, execution, self.now);
            action.into_iter().for_each(|action| decision.add(action));
            wake.into_iter().for_each(|at| decision.wake_by(at));
        }
        decision
    }

    pub(super) fn last_turn(&self) -> Option<&'a Arc<AgentTurn>> {
        self.state.turns.values().next_back()
    }

    pub(super) fn view(&self, turn: &'a AgentTurn) -> View<'a> {
        View {
            world: self.world,
            state: self.state,
            run: self.run,
            turn,
            tools: tools_of(self.state, turn),
        }
    }

    /// The node agents kill what ran; a request in progress is of no use to anybody.
    fn deleting(&self) -> Decision {
        let mut decision = Decision::because(Because::Deleting);
        if let Some(request) = &self.state.request {
            decision.actions.push(Action::StopAsking {
                run: self.uid(),
                turn: request.turn.clone(),
            });
        }
        decision
    }

    /// Why the run ends now, if it does.
    fn end(&self) -> Option<End> {
        let limits = &self.run.spec.limits;
        let limit = |reason, what: &str, fix: &str| {
            let message = format!("{what}. {fix}, and create the run again.");
            Some(End::failed(failure(FailureClass::Terminal, reason, &message)))
        };
        if self.torn_until().is_some_and(|until| until <= self.now) {
            let what = "A turn of the run was deleted, so the conversation cannot go on";
            return limit(reason::TURN_DELETED, what, "Leave the turns of a run alone");
        }
        // An answer that is there is given, whatever was asked for meanwhile.
        if let Some(end) = self.end_of_last_turn() {
            return Some(end);
        }
        if let Some(end) = self.end_that_began() {
            return Some(end);
        }
        if self.run.spec.desired_state.is_some() {
            return Some(End::cancelled());
        }
        if let Some(message) = &self.state.broken {
            let message = format!("The API server refuses the run's next turn: {message}");
            return Some(End::failed(failure(
                FailureClass::Terminal,
                reason::WRITE_REFUSED,
                &message,
            )));
        }
        if let Some(end) = self.unfit() {
            return Some(end);
        }
        if tool_calls(self.state) > limits.max_tool_calls {
            let what = format!(
                "The model made {} tool calls; spec.limits.maxToolCalls is {}",
                tool_calls(self.state),
                limits.max_tool_calls
            );
            return limit(reason::MAX_TOOL_CALLS, &what, "Raise it");
        }
        if self.deadline() <= self.now {
            let message = format!(
                "spec.limits.deadlineSeconds ({}) passed. Raise it, and create the run again.{}",
                limits.deadline_seconds,
                self.asked_in_vain()
            );
            let failure = failure(FailureClass::Terminal, reason::DEADLINE, &message);
            return Some(End::failed(failure));
        }
        None
    }

    /// The end of a run whose parameters cannot be stored in a turn and read again, or would make every turn large.
    fn unfit(&self) -> Option<End> {
        let parameters = &self.run.spec.model.parameters;
        let bytes = serde_json::to_vec(parameters).map_or(usize::MAX, |text| text.len());
        let message = if too_nested(parameters) {
            too_deep("spec.model.parameters", "flatten it, and create the run again")
        } else if bytes > PARAMETERS_MAX_BYTES {
            format!(
                "spec.model.parameters: {bytes} bytes as JSON, at most {PARAMETERS_MAX_BYTES} are allowed, since every \
                 turn holds them; shorten them, and create the run again"
            )
        } else {
            return None;
        };
        let failure = failure(FailureClass::Terminal, reason::INVALID_PARAMETERS, &message);
        Some(End::failed(failure))
    }

    /// An end that was begun is carried through, even if its cause has gone.
    fn end_that_began(&self) -> Option<End> {
        let status = self
            .run
            .status
            .as_ref()
            .filter(|s| s.phase == Some(RunPhase::Finishing))?;
        status.failure.clone().map(End::failed)
    }

    fn end_of_last_turn(&self) -> Option<End> {
        let turn = self.last_turn()?;
        let ended = turn.status.as_ref()?;
        match phase_of(turn) {
            TurnPhase::Failed => Some(End::failed(ended.failure.clone().unwrap_or_else(|| {
                failure(
                    FailureClass::Terminal,
                    reason::PROVIDER_PROTOCOL,
                    "The turn failed.",
                )
            }))),
            TurnPhase::Completed if ended.tool_calls.is_empty() => {
                let name = turn.metadata.name.as_deref().unwrap_or_default();
                Some(End::answered(ended.message.as_deref().unwrap_or_default(), name))
            }
            _ => None,
        }
    }

    /// The next step of a run that goes on.
    fn proceed(&self) -> Decision {
        match self.last_turn().map(|t| (t, phase_of(t))) {
            None => self.next_turn(1, self.created()),
            Some((turn, TurnPhase::Requesting | TurnPhase::Unknown)) => self.ask(turn),
            Some((turn, TurnPhase::Completed)) => self.tools(turn),
            Some((turn, _)) => {
                let ended = turn.status.as_ref().and_then(|s| s.completion_time);
                self.next_turn(turn.spec.index, ended.unwrap_or(self.created()))
            }
        }
    }

    /// Makes a turn, or waits for what is missing, or gives up on it.
    pub(super) fn next_turn(&self, index: i64, since: Time) -> Decision {
        if let Some((because, at)) = self.world.writes.blocked(&Subject::Turn(self.uid()), self.now) {
            return self.held_up(because, at);
        }
        if index > self.run.spec.limits.max_turns {
            let message = format!(
                "The model has not answered within spec.limits.maxTurns ({}). Raise it, and create the run again.",
                self.run.spec.limits.max_turns
            );
            return self.finish(&End::failed(failure(
                FailureClass::Terminal,
                reason::MAX_TURNS,
                &message,
            )));
        }
        match turn::make(self.world, self.state, self.run, index, self.now) {
            Ok(action) => Decision::act(action),
            Err(missing) if turn::grace_ends(self.world, self.run, since) <= self.now => {
                let message = format!(
                    "{}. Then create the run again.",
                    missing.message.trim_end_matches('.')
                );
                self.finish(&End::failed(failure(
                    FailureClass::Manual,
                    missing.reason,
                    &message,
                )))
            }
            Err(missing) => self.missing(missing, since),
        }
    }

    /// Waits for a write, and says on the run why it was refused: a quota or a missing right can last.
    pub(super) fn held_up(&self, because: Because, at: Option<Time>) -> Decision {
        let mut decision = Decision {
            actions: Vec::new(),
            wake: at,
            because: Vec::new(),
        };
        if let Some(message) = self.lasting_failure(&Subject::Turn(self.uid())) {
            decision.actions.extend(self.tell_refusal(message));
        }
        decision.because.push(because);
        decision
    }

    /// What the server said to a write that has failed for long enough for somebody to wonder.
    pub(super) fn lasting_failure(&self, subject: &Subject) -> Option<&'a str> {
        let (since, message) = self.world.writes.last_failure(subject)?;
        (plus_millis(since, self.world.settings.visible_after_millis) <= self.now).then_some(message)
    }

    pub(super) fn tell_refusal(&self, message: &str) -> Option<Action> {
        let why = reason::WRITE_REFUSED;
        self.tell_waiting(self.lasting_phase(), why, why, message)
    }

    /// The write that says on the run what it waits for; `entered` is why it is in `phase`, where that is new.
    pub(super) fn tell_waiting(
        &self,
        phase: RunPhase,
        entered: &str,
        why: &str,
        message: &str,
    ) -> Option<Action> {
        let mut status = in_phase(self.state, self.run, phase, entered, self.now);
        let generation = self.run.metadata.generation;
        conditions::set_unknown(
            &mut status.conditions,
            kind::SUCCEEDED,
            why,
            message,
            generation,
            self.now,
        );
        publish(&self.world.writes, self.run, status, self.now)
    }

    /// The phase that was last written, or the first one.
    fn lasting_phase(&self) -> RunPhase {
        self.run
            .status
            .as_ref()
            .and_then(|s| s.phase)
            .unwrap_or(RunPhase::Pending)
    }

    /// Says on the run what it waits for, once it has waited long enough for somebody to wonder.
    pub(super) fn missing(&self, missing: turn::Missing, since: Time) -> Decision {
        let visible_at = plus_millis(
            since.max(self.created()),
            self.world.settings.visible_after_millis,
        );
        let grace_ends = turn::grace_ends(self.world, self.run, since);
        let (why, message) = (missing.reason, until(&missing.message, grace_ends));
        let mut decision = turn::wait_for(missing, grace_ends);
        if visible_at > self.now {
            decision.wake_by(visible_at);
        } else {
            let write = self.tell_waiting(self.lasting_phase(), why, why, &message);
            decision.actions.extend(write);
        }
        decision
    }

    pub(super) fn executions(&self) -> impl Iterator<Item = &'a Arc<ToolExecution>> {
        self.world
            .executions_of(self.run.metadata.uid.as_deref().unwrap_or_default())
    }
}

//! The story of a run: what is known of it, and what of that was not said yet.
//!
//! Snapshots of the objects go in, in any order and as often as one likes; lines come out, each once. Nothing is
//! derived from the order of events, so a finished run is told as it would have been while it ran.

use crate::story_facts::{self, Fact};
use crate::text;
use fairlead_crds::values::Time;
use fairlead_crds::{
    AgentRun, AgentTurn, ExecutionPhase, RunPhase, ToolExecution, ToolExecutionStatus, TurnPhase,
};
use jiff::SignedDuration;
use std::collections::{BTreeMap, HashSet};

/// A creation is known to the second: it was at most this much later.
const REST_OF_SECOND: SignedDuration = SignedDuration::from_millis(999);

/// What is known of a run, and what was said.
#[derive(Debug)]
pub struct Story {
    run: AgentRun,
    turns: BTreeMap<(i64, i64), AgentTurn>,
    executions: BTreeMap<String, ToolExecution>,
    said: HashSet<String>,
    /// The latest time that was said, in hundredths of a second.
    clock: i64,
}

impl Story {
    /// A story of which nothing was said.
    pub fn new(run: AgentRun) -> Self {
        Self {
            run,
            turns: BTreeMap::new(),
            executions: BTreeMap::new(),
            said: HashSet::new(),
            clock: 0,
        }
    }

    /// Takes a newer snapshot of the run.
    pub fn see_run(&mut self, run: AgentRun) {
        self.run = run;
    }

    /// Takes a snapshot of a turn.
    pub fn see_turn(&mut self, turn: AgentTurn) {
        self.turns.insert((turn.spec.index, turn.spec.attempt), turn);
    }

    /// Takes a snapshot of an execution.
    pub fn see_execution(&mut self, execution: ToolExecution) {
        self.executions
            .insert(execution.metadata.name.clone().unwrap_or_default(), execution);
    }

    /// The run as last seen.
    pub fn run(&self) -> &AgentRun {
        &self.run
    }

    /// The phase of the run.
    pub fn phase(&self) -> RunPhase {
        self.run
            .status
            .as_ref()
            .and_then(|status| status.phase)
            .unwrap_or(RunPhase::Pending)
    }

    /// What can be said now and was not said before, in the order in which it happened.
    pub fn news(&mut self) -> Vec<Fact> {
        let mut facts = story_facts::of_run(&self.run);
        for turn in self.turns.values() {
            let mut of_turn = story_facts::of_turn(turn);
            if let Some(asked) = of_turn.first_mut().filter(|fact| fact.at.is_none()) {
                asked.at = made_within_second(turn, &facts);
            }
            facts.extend(of_turn);
            let belongs = |execution: &&ToolExecution| execution.spec.turn == Some(turn.spec.index);
            let last_attempt = !self.turns.contains_key(&(turn.spec.index, turn.spec.attempt + 1));
            if last_attempt {
                facts.extend(
                    self.executions
                        .values()
                        .filter(belongs)
                        .flat_map(|tx| story_facts::of_execution(tx, completed(turn))),
                );
            }
        }
        // What has no time of its own happened right after what stands before it.
        let mut latest = None;
        for fact in &mut facts {
            latest = fact.at.or(latest);
            fact.at = latest;
        }
        facts.sort_by_key(|fact| fact.at);
        facts.retain(|fact| self.said.insert(fact.key.clone()));
        facts
    }

    /// What is in progress at `now`, if anything: the model, or executions, each with how long it has been.
    pub fn in_progress(&self, now: Time) -> Option<String> {
        if self.phase().is_terminal() {
            return None;
        }
        let running: Vec<String> = self.executions.values().filter_map(|tx| live(tx, now)).collect();
        if !running.is_empty() {
            return Some(running.join(", "));
        }
        let (_, turn) = self.turns.last_key_value()?;
        let phase = turn
            .status
            .as_ref()
            .and_then(|status| status.phase)
            .unwrap_or(TurnPhase::Requesting);
        (phase == TurnPhase::Requesting).then(|| {
            let since = turn.metadata.creation_timestamp.as_ref().map(|time| time.0);
            format!(
                "turn {}: the model has been asked {}",
                turn.spec.index,
                ago(since, now)
            )
        })
    }

    /// Seconds and hundredths from the beginning of the run to `at`, never less than what was given before: the parts'
    /// clocks differ, and some times are known to the second only.
    pub fn clock(&mut self, at: Option<Time>) -> String {
        self.clock = self.hundredths(at).max(self.clock);
        seconds(self.clock)
    }

    /// As [`Story::clock`], for something that is not said for good.
    pub fn clock_at(&self, now: Time) -> String {
        seconds(self.hundredths(Some(now)).max(self.clock))
    }

    fn hundredths(&self, at: Option<Time>) -> i64 {
        match (self.began(), at) {
            (Some(start), Some(at)) => (at.as_millisecond() - start.as_millisecond()).max(0) / 10,
            _ => 0,
        }
    }

    /// When the run began. Its creation is known to the second only. It was taken up after that, and usually at once, so
    /// that is a better beginning as long as it lies within that second.
    fn began(&self) -> Option<Time> {
        let created = self.run.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let asked = || {
            let (_, first) = self.turns.first_key_value()?;
            first.status.as_ref()?.start_time
        };
        let taken_up = self.run.status.as_ref().and_then(|status| status.start_time);
        let latest = created.and_then(|created| created.checked_add(REST_OF_SECOND).ok());
        match (taken_up.or_else(asked), latest) {
            (Some(taken_up), Some(latest)) => Some(taken_up.min(latest)),
            _ => created,
        }
    }
}

fn seconds(hundredths: i64) -> String {
    format!("{}.{:02} s", hundredths / 100, hundredths % 100)
}

/// When a turn was made whose request has not ended: after what came `before` it in the second of its creation.
fn made_within_second(turn: &AgentTurn, before: &[Fact]) -> Option<Time> {
    let created = turn.metadata.creation_timestamp.as_ref()?.0;
    let latest = created.checked_add(REST_OF_SECOND).ok()?;
    let earlier = before
        .iter()
        .filter_map(|fact| fact.at)
        .filter(|at| *at <= latest);
    Some(earlier.max().map_or(created, |at| at.max(created)))
}

fn completed(turn: &AgentTurn) -> Option<Time> {
    turn.status.as_ref().and_then(|status| status.completion_time)
}

fn live(execution: &ToolExecution, now: Time) -> Option<String> {
    let none = ToolExecutionStatus::default();
    let status = execution.status.as_ref().unwrap_or(&none);
    let tool = &execution.spec.tool.tool_ref.name;
    let created = execution.metadata.creation_timestamp.as_ref().map(|time| time.0);
    match status.phase {
        Some(ExecutionPhase::Queued) => {
            let reason = status.reason.as_deref().unwrap_or_default();
            Some(format!("{tool} queued ({reason}) {}", ago(created, now)))
        }
        Some(phase) if phase.is_terminal() => None,
        _ => Some(format!("{tool} runs {}", ago(status.start_time.or(created), now))),
    }
}

fn ago(since: Option<Time>, now: Time) -> String {
    since.map_or_else(String::new, |since| {
        format!("for {}", text::age(now.as_second() - since.as_second()))
    })
}

#[cfg(test)]
mod tests;

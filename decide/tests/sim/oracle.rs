//! What must hold in the end, and of every request that a model gets.

use super::api::{name, run_ended, turn_phase};
use super::{Sim, rng::Ms};
use fairlead_crds::canonical::digest;
use fairlead_crds::{AgentRun, AgentTurn, ExecutionPhase, Outcome, RunPhase, ToolExecution, TurnPhase};
use fairlead_decide::cluster::{ObjectKey, has_ended};
use fairlead_decide::model::{Message, ModelRequest};
use serde_json::json;
use std::collections::BTreeMap;

/// How long nothing may be written any more once all have ended.
const QUIET_MS: Ms = 45_000;

impl Sim {
    /// Everything has ended, and nothing is written any more.
    pub fn is_over(&self) -> bool {
        self.now > self.config.faults_until / 8
            && self.users_left == 0
            && self.now - self.last_write > QUIET_MS
            && self.all_have_ended()
            && (self.config.calm || self.now > self.config.faults_until)
    }

    pub fn unfinished(&self) -> String {
        let runs = self
            .api
            .runs
            .iter()
            .filter(|(_, r)| !run_ended(r))
            .map(|(k, _)| format!("run {k}"));
        let executions = self
            .api
            .executions
            .iter()
            .filter(|(_, x)| !has_ended(x))
            .map(|(k, _)| format!("execution {k}"));
        let named: Vec<_> = runs.chain(executions).collect();
        if named.is_empty() {
            return format!(
                "something goes on writing: {:?}, the last at {} ms",
                self.api.writes, self.last_write
            );
        }
        named.join(", ")
    }

    /// The end of a story.
    pub fn judge(&mut self) -> Result<(), String> {
        if let Some(violation) = self.api.violations.first() {
            return Err(violation.clone());
        }
        if !self.all_have_ended() {
            return Err(format!(
                "nothing happens any more, and these have not ended: {}",
                self.unfinished()
            ));
        }
        for (uid, count) in &self.effects {
            if *count > 1 {
                return Err(format!("execution {uid} had {count} effects"));
            }
        }
        for ((run, call), made) in self.api.calls() {
            let effects: u32 = made.iter().filter_map(|(_, uid)| self.effects.get(uid)).sum();
            // One that was deleted with its run may be created again by a write that comes late: it has no effect.
            if effects > 1 || made.iter().any(|(name, _)| *name != made[0].0) {
                return Err(format!(
                    "call {call} of run {run} became {made:?}, with {effects} effects"
                ));
            }
        }
        for execution in self.api.executions.values() {
            self.judge_execution(execution)?;
        }
        for turn in self.api.turns.values() {
            self.judge_turn(turn)?;
        }
        for run in self.api.runs.values() {
            self.judge_run(run)?;
        }
        self.judge_memory()
    }

    /// A leader remembers nothing that is not there any more.
    fn judge_memory(&self) -> Result<(), String> {
        for (i, operator) in self
            .operators
            .iter()
            .enumerate()
            .filter(|(_, o)| o.up && o.term().is_some() && o.paused_until + QUIET_MS / 2 < self.now)
        {
            let world = &operator.core.world;
            let loaded = self.nodes.iter().find(|n| world.load.on_node(&n.name) > 0);
            if let Some(node) = loaded {
                let counted: Vec<_> = world
                    .load
                    .executions_on(&node.name)
                    .map(ToString::to_string)
                    .collect();
                return Err(format!(
                    "operator {i} still counts {} on {}",
                    counted.join(", "),
                    node.name
                ));
            }
            let waits = world.waiting.iter().map(|(key, _)| key).next();
            let execution = world
                .executions
                .keys()
                .find(|key| !self.api.executions.contains_key(key));
            if let Some(key) = waits.or(execution) {
                return Err(format!("operator {i} still knows {key}"));
            }
            let known = |uid: &String| {
                self.api
                    .runs
                    .values()
                    .any(|r| r.metadata.uid.as_ref() == Some(uid))
            };
            if let Some(uid) = world.runs.keys().find(|uid| !known(uid)) {
                return Err(format!("operator {i} still knows run {uid}"));
            }
        }
        Ok(())
    }

    fn judge_execution(&self, execution: &ToolExecution) -> Result<(), String> {
        let name = name(&execution.metadata);
        let status = execution.status.clone().unwrap_or_default();
        let uid = execution.metadata.uid.clone().unwrap_or_default();
        let effects = self.effects.get(&uid).copied().unwrap_or(0);
        match (status.phase, status.outcome) {
            (Some(ExecutionPhase::Succeeded), outcome)
                if effects != 1 || outcome != Some(Outcome::Completed) =>
            {
                return Err(format!(
                    "{name} succeeded with {effects} effects and outcome {outcome:?}"
                ));
            }
            (_, Some(Outcome::NotStarted)) if effects != 0 => {
                return Err(format!(
                    "{name} is said not to have started, and had {effects} effects: {status:?}"
                ));
            }
            (_, Some(Outcome::Completed)) if effects != 1 => {
                return Err(format!(
                    "{name} is said to have completed, and had {effects} effects"
                ));
            }
            (_, None) => return Err(format!("{name} ended without an outcome")),
            _ => {}
        }
        if status.phase == Some(ExecutionPhase::Succeeded) {
            let bytes = self.output_of(&uid);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if status.output.as_ref().map(|o| &o.text) != Some(&text) {
                return Err(format!("the output of {name} is not what it printed"));
            }
        }
        Ok(())
    }

    fn judge_turn(&self, turn: &AgentTurn) -> Result<(), String> {
        let what = name(&turn.metadata);
        if !turn_phase(turn).is_terminal() {
            return Err(format!("turn {what} is left {:?}", turn_phase(turn)));
        }
        // What the model was told not to have happened has not happened.
        let Some(past) = self.turn_of(&turn.spec.run_ref.uid, turn.spec.index - 1) else {
            return Ok(());
        };
        for told in &turn.spec.observations {
            let call = past
                .status
                .iter()
                .flat_map(|s| &s.tool_calls)
                .find(|c| c.call_id == told.call_id);
            let Some(name) = call.and_then(|c| c.execution_name.clone()) else {
                continue;
            };
            let key = ObjectKey::new(turn.metadata.namespace.clone().unwrap_or_default(), name.clone());
            let uid = self
                .api
                .executions
                .get(&key)
                .and_then(|x| x.metadata.uid.clone())
                .unwrap_or_default();
            if serde_json::from_str::<serde_json::Value>(&told.text).is_err()
                && self.effects.contains_key(&uid)
            {
                return Err(format!(
                    "the model was told of {name}: {:?}, and it had an effect",
                    told.text
                ));
            }
        }
        Ok(())
    }

    fn judge_run(&self, run: &AgentRun) -> Result<(), String> {
        let what = name(&run.metadata);
        let status = run.status.clone().unwrap_or_default();
        let clean = self.config.calm && self.config.patient && self.config.mood.errors == 0;
        if clean && status.phase != Some(RunPhase::Succeeded) {
            return Err(format!(
                "nothing went wrong, and run {what} ended {:?}: {:?}",
                status.phase, status.failure
            ));
        }
        Ok(())
    }

    fn turn_of(&self, run: &str, index: i64) -> Option<&AgentTurn> {
        let turns = self.api.turns.values().map(|t| &**t);
        turns
            .filter(|t| t.spec.run_ref.uid == run && t.spec.index == index)
            .find(|t| turn_phase(t) == TurnPhase::Completed)
    }

    /// A request says exactly what is stored, goes out once at a time, and by the process that made its turn.
    pub fn check_ask(&mut self, i: usize, namespace: &str, run: &str, turn: &str, request: &ModelRequest) {
        let twin = self
            .asks
            .values()
            .any(|ask| ask.turn == turn && ask.namespace == namespace);
        if twin {
            return self.violation(format!("turn {turn} is asked twice at once"));
        }
        let key = ObjectKey::new(namespace, turn);
        if self.drivers.get(&key) != Some(&(i, self.operators[i].epoch)) {
            return self.violation(format!("turn {turn} is driven by a process that did not make it"));
        }
        // The run may just have been deleted.
        let Some(stored) = self.api.turns.get(&key).cloned() else {
            return;
        };
        let told = digest(&json!({"messages": request.messages, "tools": request.tools}));
        if told != stored.spec.request_digest {
            return self.violation(format!(
                "the request of {turn} is not the one its digest was made of"
            ));
        }
        if let Err(text) = self.check_messages(namespace, run, &stored, request) {
            self.violation(format!("the request of {turn}: {text}"));
        }
    }

    fn check_messages(
        &self,
        namespace: &str,
        run: &str,
        turn: &AgentTurn,
        request: &ModelRequest,
    ) -> Result<(), String> {
        let texts: BTreeMap<&str, &str> = request
            .messages
            .iter()
            .filter_map(|m| match m {
                Message::Tool { call_id, text, .. } => Some((call_id.as_str(), text.as_str())),
                _ => None,
            })
            .collect();
        for index in 1..turn.spec.index {
            let Some(past) = self.turn_of(run, index) else {
                return Err(format!("turn {index} before it is not completed"));
            };
            let next = if index + 1 == turn.spec.index {
                Some(turn)
            } else {
                self.turn_of(run, index + 1)
            };
            for call in past.status.iter().flat_map(|s| &s.tool_calls) {
                let id = call.call_id.as_str();
                let text = *texts
                    .get(id)
                    .ok_or_else(|| format!("call {id} of turn {index} has no result"))?;
                let observed = next.and_then(|t| t.spec.observations.iter().find(|o| o.call_id == id));
                let expected = match (observed, &call.error) {
                    (Some(observation), _) => observation.text.clone(),
                    (None, Some(error)) => error.text.clone(),
                    (None, None) => {
                        let name = call.execution_name.clone().unwrap_or_default();
                        match self.api.executions.get(&ObjectKey::new(namespace, name.clone())) {
                            Some(execution) => {
                                result_of(execution).ok_or_else(|| format!("{name} has no end yet"))?
                            }
                            None => return Err(format!("{name} is not stored")),
                        }
                    }
                };
                if text != expected {
                    return Err(format!(
                        "call {id} of turn {index} says {text:?}, and stored is {expected:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The text a model must get, written down anew.
fn result_of(execution: &ToolExecution) -> Option<String> {
    let status = execution.status.as_ref()?;
    let phase = status.phase.filter(|p| p.is_terminal())?;
    let output = status.output.as_ref().map(|o| o.text.clone()).unwrap_or_default();
    if phase == ExecutionPhase::Succeeded {
        return Some(output);
    }
    let line = format!(
        "[{phase}: {}] {}",
        status.reason.clone().unwrap_or_default(),
        status.message.clone().unwrap_or_default()
    );
    let newline = if output.is_empty() || output.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    Some(format!("{output}{newline}{line}"))
}

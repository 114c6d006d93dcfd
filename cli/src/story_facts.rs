//! What the objects of a run say, as lines.

use crate::text::{self, Tone};
use fairlead_crds::conditions::{find, is_true, kind, reason};
use fairlead_crds::values::Time;
use fairlead_crds::{
    AgentRun, AgentRunStatus, AgentTurn, AgentTurnStatus, ExecutionPhase, RunPhase, ToolCall, ToolExecution,
    ToolExecutionStatus, TurnPhase,
};

/// Something that happened, to be said once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Names the fact, so that it is said once.
    pub key: String,
    /// When it happened, where the objects say so.
    pub at: Option<Time>,
    /// Its colour.
    pub tone: Option<Tone>,
    /// The line.
    pub line: String,
}

fn fact(key: String, at: Option<Time>, tone: Option<Tone>, line: String) -> Fact {
    Fact { key, at, tone, line }
}

/// That a run was taken up, is finishing, has ended.
pub fn of_run(run: &AgentRun) -> Vec<Fact> {
    let none = AgentRunStatus::default();
    let status = run.status.as_ref().unwrap_or(&none);
    let spec = &run.spec;
    let model = spec
        .model
        .name
        .as_ref()
        .map(|name| format!(" (model {name})"))
        .unwrap_or_default();
    let asked = text::excerpt(&spec.input, 60);
    let mut facts = vec![fact(
        "run".to_owned(),
        run.metadata.creation_timestamp.as_ref().map(|time| time.0),
        None,
        format!(
            "run    \"{asked}\" by provider {}{model}",
            spec.model.provider_ref.name
        ),
    )];
    facts.extend(waits(status));
    for transition in &status.transitions {
        if transition.phase == RunPhase::Finishing {
            let line = format!(
                "run    Finishing ({}): live executions are stopped and verified",
                transition.reason
            );
            facts.push(fact(
                format!("finishing/{}", transition.n),
                Some(transition.at),
                Some(Tone::Warning),
                line,
            ));
        }
    }
    if let Some(cleaned) =
        find(&status.conditions, kind::CLEANED_UP).filter(|condition| condition.status == "False")
    {
        let line = format!(
            "run    not cleaned up ({}): {}",
            cleaned.reason,
            text::visible(&cleaned.message)
        );
        facts.push(fact(
            "unclean".to_owned(),
            status.completion_time,
            Some(Tone::Bad),
            line,
        ));
    }
    facts
}

/// What a run waits for, other than the model's answer and its calls.
fn waits(status: &AgentRunStatus) -> Option<Fact> {
    let told = find(&status.conditions, kind::SUCCEEDED).filter(|c| c.status == "Unknown")?;
    let usual = [reason::MODEL_ASKED, reason::TOOL_CALLS];
    let unusual = !usual.contains(&told.reason.as_str()) && status.phase != Some(RunPhase::Finishing);
    unusual.then(|| {
        let line = format!("run    waits ({}): {}", told.reason, text::visible(&told.message));
        fact(format!("waits/{}", told.message), None, Some(Tone::Warning), line)
    })
}

/// The last line on a run that has ended, and its colour.
pub fn end_of_run(run: &AgentRun) -> (String, Option<Tone>) {
    let none = AgentRunStatus::default();
    let status = run.status.as_ref().unwrap_or(&none);
    let phase = status.phase.unwrap_or(RunPhase::Pending);
    let tokens = status
        .usage
        .as_ref()
        .map(|usage| format!(", {}", text::count(usage.total_tokens, "token")));
    let mut line = format!(
        "run    {phase}: {}, {}{}",
        text::count(status.turns, "turn"),
        text::count(status.tool_calls, "tool call"),
        tokens.unwrap_or_default()
    );
    if let Some(failure) = &status.failure {
        line.push_str(&format!(
            "\n       {}: {}",
            failure.reason,
            text::visible(&failure.message)
        ));
    }
    (line, crate::runs_table::tone(phase))
}

/// That a turn was asked, and what came of it.
pub fn of_turn(turn: &AgentTurn) -> Vec<Fact> {
    let (index, attempt) = (turn.spec.index, turn.spec.attempt);
    let none = AgentTurnStatus::default();
    let status = turn.status.as_ref().unwrap_or(&none);
    let key = |what: &str| format!("turn/{index}/{attempt}/{what}");
    let again = if attempt > 1 {
        format!(", attempt {attempt}")
    } else {
        String::new()
    };
    let asked = format!(
        "turn {index} asks {} of provider {}{again}",
        turn.spec.model, turn.spec.provider_ref.name
    );
    let mut facts = vec![fact(key("asked"), status.start_time, None, asked)];
    let Some(phase) = status.phase.filter(|phase| phase.is_terminal()) else {
        return facts;
    };
    let took = status
        .latency_millis
        .map(|millis| format!(" in {}", text::millis(millis)))
        .unwrap_or_default();
    let (tone, line) = match phase {
        TurnPhase::Completed if status.tool_calls.is_empty() => (None, format!("turn {index} answers{took}")),
        TurnPhase::Completed => {
            let calls = text::count(status.tool_calls.len() as i64, "call");
            let said = status.message.as_deref().filter(|text| !text.trim().is_empty());
            let said = said
                .map(|text| format!(": \"{}\"", text::excerpt(text, 60)))
                .unwrap_or_default();
            (None, format!("turn {index} makes {calls}{took}{said}"))
        }
        TurnPhase::Abandoned => {
            let reason = status.failure.as_ref().map(|f| format!(" ({})", f.reason));
            (
                Some(Tone::Warning),
                format!(
                    "turn {index} attempt {attempt} given up{}",
                    reason.unwrap_or_default()
                ),
            )
        }
        _ => {
            // The run ends for the same reason, and says it in full.
            let reason = status.failure.as_ref().map(|f| format!(" ({})", f.reason));
            (
                Some(Tone::Bad),
                format!("turn {index} failed{}", reason.unwrap_or_default()),
            )
        }
    };
    facts.push(fact(key("ended"), status.completion_time, tone, line));
    facts.extend(
        status
            .tool_calls
            .iter()
            .map(|call| of_call(call, &key(&call.call_id))),
    );
    facts
}

fn of_call(call: &ToolCall, key: &str) -> Fact {
    let arguments = serde_json::to_string(&call.arguments).unwrap_or_default();
    let head = format!(
        "  call {} {}",
        text::visible(&call.tool),
        text::excerpt(&arguments, 80)
    );
    let (tone, line) = match (&call.error, &call.execution_name) {
        (Some(error), _) => (
            Some(Tone::Warning),
            format!(
                "{head} refused ({}): {}",
                error.reason,
                text::excerpt(without(&error.reason, &error.text), 200)
            ),
        ),
        (None, Some(name)) => (None, format!("{head} → {name}")),
        (None, None) => (None, head),
    };
    fact(key.to_owned(), None, tone, line)
}

/// A text for the model begins with its reason; where the reason stands already it is left out.
fn without<'a>(reason: &str, text: &'a str) -> &'a str {
    text.strip_prefix(reason)
        .and_then(|rest| rest.strip_prefix(": "))
        .unwrap_or(text)
}

/// That an execution waits, runs, was left behind by its run, has ended. `called` is when its turn was completed: what
/// is known to the second only is not before that.
pub fn of_execution(execution: &ToolExecution, called: Option<Time>) -> Vec<Fact> {
    let none = ToolExecutionStatus::default();
    let status = execution.status.as_ref().unwrap_or(&none);
    let name = execution.metadata.name.clone().unwrap_or_default();
    let tool = &execution.spec.tool.tool_ref.name;
    let key = |what: &str| format!("tx/{name}/{what}");
    let mut facts = Vec::new();
    if status.phase == Some(ExecutionPhase::Queued) {
        let reason = status.reason.clone().unwrap_or_default();
        let at = execution.metadata.creation_timestamp.as_ref().map(|time| time.0);
        facts.push(fact(
            key("queued"),
            at.max(called),
            Some(Tone::Faint),
            format!("  {tool} waits ({reason}) {name}"),
        ));
    }
    if status.phase == Some(ExecutionPhase::Running) {
        let node = status.node_name.clone().unwrap_or_else(|| "its node".to_owned());
        facts.push(fact(
            key("running"),
            status.start_time,
            Some(Tone::Active),
            format!("  {tool} runs on {node} {name}"),
        ));
    }
    if is_true(&status.conditions, kind::BACKGROUNDED) {
        let at =
            find(&status.conditions, kind::BACKGROUNDED).map(|condition| condition.last_transition_time.0);
        let at = at.max(status.start_time).max(called);
        let line = format!("  {tool} goes on in the background, the model gets its handle {name}");
        facts.push(fact(key("backgrounded"), at, Some(Tone::Active), line));
    }
    if let Some(phase) = status.phase.filter(|phase| phase.is_terminal()) {
        let tone = if phase == ExecutionPhase::Succeeded {
            Tone::Good
        } else {
            Tone::Bad
        };
        facts.push(fact(
            key("ended"),
            status.completion_time,
            Some(tone),
            ended(tool, phase, status),
        ));
    }
    facts
}

fn ended(tool: &str, phase: ExecutionPhase, status: &ToolExecutionStatus) -> String {
    let mut line = format!("  {tool} {phase}");
    let plain = match status.reason.as_deref() {
        Some("Completed") => phase == ExecutionPhase::Succeeded,
        reason => reason == Some(phase.as_str()),
    };
    if let Some(reason) = status.reason.as_ref().filter(|_| !plain) {
        line.push_str(&format!(" ({reason})"));
    }
    let result = status.result.clone().unwrap_or_default();
    let mut parts = Vec::new();
    parts.extend(result.exit_code.map(|code| format!("exit {code}")));
    parts.extend(result.signal.map(|signal| format!("signal {signal}")));
    parts.extend(status.usage.as_ref().map(|usage| text::millis(usage.wall_millis)));
    if let Some(output) = &status.output {
        let cut = if output.truncated { ", cut" } else { "" };
        parts.push(format!(
            "{} of output{cut}",
            text::count(output.total_bytes, "byte")
        ));
    }
    parts.extend(status.node_name.as_ref().map(|node| format!("on {node}")));
    if !parts.is_empty() {
        line.push_str(&format!(": {}", parts.join(", ")));
    }
    if phase != ExecutionPhase::Succeeded
        && let Some(message) = &status.message
    {
        line.push_str(&format!("; {}", text::excerpt(message, 160)));
    }
    line
}

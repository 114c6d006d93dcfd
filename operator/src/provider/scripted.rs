//! The script that stands in for a model: which step answers, and what.
//!
//! Pure: the same script, request and number of earlier tries give the same answer, so a restart changes nothing.

use super::answer::MAX_ANSWER_BYTES;
use super::error::{bounded, failure, kind_of_status};
use fairlead_crds::values::too_nested;
use fairlead_crds::{ScriptStep, ScriptedError};
use fairlead_decide::model::{Message, ModelError, ModelErrorKind, ModelRequest, ModelResponse, RawCall};
use fairlead_decide::tool_check::too_deep;
use regex::{Captures, Regex, RegexBuilder};
use serde_json::{Map, Value};
use std::time::Duration;

/// Most bytes of a compiled expression; matching is linear in the text whatever the expression is.
const MAX_PATTERN_BYTES: usize = 1024 * 1024;

/// What a script plays.
#[derive(Debug)]
pub struct Played {
    /// Number of the step, from 1.
    pub step: usize,
    /// How long the answer is held back.
    pub delay: Duration,
    /// The answer, or the failure that the step stands for.
    pub outcome: Result<ModelResponse, ModelError>,
}

/// The step of `script` that answers `request` after `tries_before` tries of the same turn.
///
/// The first step whose `when` matches answers. One with `times` does so for that many tries of a turn and then falls
/// through; since every try of a turn is the same request, that follows from their number alone.
///
/// # Errors
///
/// `ScriptExhausted` when no step answers, with the reason of each; an answer larger than a turn is `TooLarge`.
pub fn answer(
    script: &[ScriptStep],
    request: &ModelRequest,
    tries_before: u32,
) -> Result<Played, ModelError> {
    let last = request.messages.iter().rev().find_map(|message| match message {
        Message::Tool { name, text, .. } => Some((name.as_str(), text.as_str())),
        _ => None,
    });
    let mut used = i64::from(tries_before);
    let mut reasons = Vec::new();
    for (index, step) in script.iter().enumerate() {
        let step_number = index + 1;
        match matches(step, request.turn, last) {
            Err(reason) => reasons.push(format!("step {step_number}: {reason}")),
            Ok(_) if step.respond.times.is_some_and(|times| used >= times) => {
                let times = step.respond.times.unwrap_or_default();
                used -= times;
                reasons.push(format!(
                    "step {step_number}: has answered its {times} times in this turn"
                ));
            }
            Ok(groups) => return play(step, step_number, &groups),
        }
    }
    Err(failure(
        ModelErrorKind::ScriptExhausted,
        format!(
            "spec.script: no step answers turn {}: {}; add a step, or one without when at the end",
            request.turn,
            if reasons.is_empty() {
                "it has none".to_owned()
            } else {
                bounded(reasons.join("; "), 1800)
            }
        ),
    ))
}

/// What is wrong in `script`, with field, rule and fix.
pub(super) fn faults(script: &[ScriptStep]) -> Vec<String> {
    let mut faults = Vec::new();
    if script.is_empty() {
        faults.push("spec.script: required with wireApi Scripted; add at least one step".to_owned());
    }
    for (index, step) in script.iter().enumerate() {
        let groups = match step.when.result_matches.as_deref().map(compile) {
            None => 0,
            Some(Ok(pattern)) => pattern.captures_len(),
            Some(Err(fault)) => {
                faults.push(format!(
                    "spec.script[{index}].when.resultMatches: {fault}; correct the expression"
                ));
                continue;
            }
        };
        let mut asked = Vec::new();
        groups_in(step.respond.text.as_deref().unwrap_or(""), &mut asked);
        for (place, call) in step.respond.tool_calls.iter().enumerate() {
            if too_nested(&call.arguments) {
                let at = format!("spec.script[{index}].respond.toolCalls[{place}].arguments");
                faults.push(too_deep(&at, "flatten it"));
                continue;
            }
            call.arguments
                .values()
                .for_each(|value| groups_in_value(value, &mut asked));
        }
        if let Some(group) = asked.into_iter().find(|group| *group >= groups) {
            faults.push(format!(
                "spec.script[{index}].respond: {{{{{group}}}}} names no group of when.resultMatches, which has {}; add \
                 the group or correct the number",
                if groups == 0 { "not been given".to_owned() } else { format!("{} and the whole match, 0", groups - 1) }
            ));
        }
    }
    faults
}

/// Groups of the match, the whole first; empty where the step has no expression.
type Groups = Vec<String>;

/// Whether `step` answers, and with which groups; else why not.
fn matches(step: &ScriptStep, turn: i64, last: Option<(&str, &str)>) -> Result<Groups, String> {
    if let Some(wanted) = step.when.turn.filter(|wanted| *wanted != turn) {
        return Err(format!("wants turn {wanted}"));
    }
    if let Some(wanted) = &step.when.last_tool {
        match last {
            None => return Err(format!("wants a result of {wanted}, and there is no result yet")),
            Some((name, _)) if name != wanted => {
                return Err(format!("wants a result of {wanted}, the last is of {name}"));
            }
            Some(_) => {}
        }
    }
    let Some(pattern) = &step.when.result_matches else {
        return Ok(Groups::new());
    };
    let Some((_, text)) = last else {
        return Err(format!(
            "wants a result that matches {pattern:?}, and there is no result yet"
        ));
    };
    let compiled = compile(pattern).map_err(|fault| format!("resultMatches cannot be read: {fault}"))?;
    match compiled.captures(text) {
        Some(found) => Ok(groups_of(&found)),
        None => Err(format!(
            "resultMatches {:?} is not found in the last result, which begins {:?}",
            bounded(pattern.clone(), 80),
            bounded(text.to_owned(), 80)
        )),
    }
}

fn compile(pattern: &str) -> Result<Regex, String> {
    RegexBuilder::new(pattern)
        .size_limit(MAX_PATTERN_BYTES)
        .build()
        .map_err(|fault| bounded(fault.to_string(), 400))
}

fn groups_of(found: &Captures<'_>) -> Groups {
    found
        .iter()
        .map(|group| group.map_or_else(String::new, |m| m.as_str().to_owned()))
        .collect()
}

fn play(step: &ScriptStep, number: usize, groups: &[String]) -> Result<Played, ModelError> {
    let respond = &step.respond;
    let delay = Duration::from_millis(u64::try_from(respond.delay_millis).unwrap_or(0));
    if let Some(error) = &respond.error {
        return Ok(Played {
            step: number,
            delay,
            outcome: Err(scripted_error(error, number)),
        });
    }
    let mut room = MAX_ANSWER_BYTES;
    let text = respond
        .text
        .as_deref()
        .map(|text| fill(text, groups, &mut room))
        .transpose()?;
    let calls: Vec<RawCall> = respond
        .tool_calls
        .iter()
        .map(|call| {
            let arguments: Map<String, Value> = call
                .arguments
                .iter()
                .map(|(key, value)| Ok((key.clone(), fill_value(value, groups, &mut room)?)))
                .collect::<Result<_, ModelError>>()?;
            let arguments = Value::Object(arguments).to_string();
            Ok(RawCall {
                id: call.id.clone(),
                name: call.name.clone(),
                arguments,
            })
        })
        .collect::<Result<_, ModelError>>()?;
    let finish = if calls.is_empty() { "stop" } else { "tool_calls" };
    let response = ModelResponse {
        text: text.filter(|text| !text.is_empty()),
        calls,
        finish_reason: Some(finish.to_owned()),
        ..ModelResponse::default()
    };
    Ok(Played {
        step: number,
        delay,
        outcome: Ok(response),
    })
}

fn scripted_error(error: &ScriptedError, number: usize) -> ModelError {
    let status = u16::try_from(error.status).unwrap_or(500);
    ModelError {
        status: Some(status),
        retry_after_seconds: error.retry_after_seconds,
        ..failure(
            kind_of_status(status),
            format!("HTTP {status}: step {number} of the script answers with an error"),
        )
    }
}

/// Puts the groups of a match into `text`, in one pass: what a group holds is never read again.
fn fill(text: &str, groups: &[String], room: &mut usize) -> Result<String, ModelError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, number, after)) = next_group(rest) {
        out.push_str(before);
        match groups.get(number) {
            Some(group) => out.push_str(group),
            // Without such a group it is text like any other.
            None => out.push_str(&rest[before.len()..rest.len() - after.len()]),
        }
        if out.len() > *room {
            return Err(too_large());
        }
        rest = after;
    }
    out.push_str(rest);
    *room = room.checked_sub(out.len()).ok_or_else(too_large)?;
    Ok(out)
}

fn too_large() -> ModelError {
    failure(
        ModelErrorKind::TooLarge,
        format!("the script's answer is larger than the {MAX_ANSWER_BYTES} bytes that a turn can hold"),
    )
}

fn fill_value(value: &Value, groups: &[String], room: &mut usize) -> Result<Value, ModelError> {
    Ok(match value {
        Value::String(text) => fill(text, groups, room)?.into(),
        Value::Array(items) => items
            .iter()
            .map(|item| fill_value(item, groups, room))
            .collect::<Result<Vec<_>, _>>()?
            .into(),
        Value::Object(members) => members
            .iter()
            .map(|(key, item)| Ok((key.clone(), fill_value(item, groups, room)?)))
            .collect::<Result<Map<_, _>, ModelError>>()?
            .into(),
        other => other.clone(),
    })
}

/// The first `{{number}}` in `text`: what stands before it, the number, what stands after it.
fn next_group(text: &str) -> Option<(&str, usize, &str)> {
    text.match_indices("{{").find_map(|(at, _)| {
        let inside = &text[at + 2..];
        let end = inside.find(|c: char| !c.is_ascii_digit())?;
        let after = inside[end..].strip_prefix("}}")?;
        Some((&text[..at], inside[..end].parse().ok()?, after))
    })
}

fn groups_in(text: &str, asked: &mut Vec<usize>) {
    let mut rest = text;
    while let Some((_, number, after)) = next_group(rest) {
        asked.push(number);
        rest = after;
    }
}

fn groups_in_value(value: &Value, asked: &mut Vec<usize>) {
    match value {
        Value::String(text) => groups_in(text, asked),
        Value::Array(items) => items.iter().for_each(|item| groups_in_value(item, asked)),
        Value::Object(members) => members.values().for_each(|item| groups_in_value(item, asked)),
        _ => {}
    }
}

//! Whether arguments fit a tool, told so that a model can mend its call.

use super::{Inner, MAX_JSON_BYTES, bounded, cost};
use crate::template;
use fairlead_crds::canonical;
use fairlead_crds::values::OpenObject;
use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind as Kind;
use serde_json::Value;

/// Most faults that are listed.
const MAX_FAULTS: usize = 5;

/// Most steps of a check whose every fault is collected: a fault takes some hundred bytes.
const MAX_COLLECTED_STEPS: usize = 10_000;

/// Judges `value`, which is `arguments` and has `bytes` as JSON.
pub(super) fn validate(
    tool: &Inner,
    value: &Value,
    bytes: usize,
    arguments: &OpenObject,
) -> Result<(), String> {
    if bytes > MAX_JSON_BYTES {
        return Err(format!(
            "the arguments have {bytes} bytes as JSON, at most {MAX_JSON_BYTES} are allowed. Hint: send less, or in several calls"
        ));
    }
    if let Some(at) = canonical::unsafe_integer(value) {
        return Err(format!(
            "{at}: integers beyond 2^53 in magnitude are rounded on their way. Hint: send it as a string, if the tool takes one"
        ));
    }
    let schema = &tool.schema;
    let steps = cost::steps(&schema.root, &schema.patterns, value).map_err(|_| {
        format!(
            "checking the arguments against the tool's schema would take more than {} steps (about one for each \
             keyword and each value it is applied to; patterns count by the length of the text). Hint: send fewer \
             items or shorter texts, in several calls",
            cost::MAX_STEPS
        )
    })?;
    if !schema.validator.is_valid(value) {
        return Err(faults(tool, value, steps));
    }
    template::render(&tool.command, arguments)
        .map(drop)
        .map_err(|error| error.to_string())
}

/// What is wrong with arguments that do not fit, after a check of that many steps.
///
/// The validator collects the faults of all branches and all items before it gives the first; so they are asked for
/// where they are few, and else only the first, which costs the same as a verdict unless there are branches.
fn faults(tool: &Inner, value: &Value, steps: usize) -> String {
    let validator = &tool.schema.validator;
    if steps <= MAX_COLLECTED_STEPS {
        let mut errors = validator.iter_errors(value);
        let first = errors.by_ref().take(MAX_FAULTS);
        let faults: Vec<String> = first.map(|error| describe(tool, &error)).collect();
        let more = if errors.next().is_some() {
            "; there are more"
        } else {
            ""
        };
        return format!("{}{more}", faults.join("; "));
    }
    if tool.schema.branches {
        return "the arguments do not fit the tool's schema, and there is too much in them to say where. Hint: send \
                fewer items, in several calls"
            .to_owned();
    }
    let first = validator.validate(value).err();
    let told = first.map(|error| describe(tool, &error));
    told.unwrap_or_default() + "; there may be more"
}

/// Place, rule and hint of one fault.
fn describe(tool: &Inner, error: &ValidationError<'_>) -> String {
    let place = error.instance_path().to_string();
    let place = if place.is_empty() { "the arguments" } else { &place };
    let text = bounded(error.to_string(), 320);
    let rule = bounded(error.schema_path().to_string(), 160);
    let hint = match error.kind() {
        Kind::Required { property } => format!("add {property}"),
        Kind::AdditionalProperties { .. } | Kind::UnevaluatedProperties { .. }
            if place == "the arguments" =>
        {
            format!("the parameters are {}", known(tool))
        }
        Kind::AdditionalProperties { .. } | Kind::UnevaluatedProperties { .. } | Kind::FalseSchema => {
            "leave it out".to_owned()
        }
        Kind::Type { .. } => {
            "send a value of that type: text in quotes, numbers and true or false without quotes".to_owned()
        }
        Kind::Enum { .. } | Kind::Constant { .. } => {
            "send one of the values allowed, letter by letter".to_owned()
        }
        Kind::Pattern { .. } | Kind::Format { .. } => {
            "send text of the form that the rule asks for".to_owned()
        }
        _ => "change the value so that the rule holds".to_owned(),
    };
    format!("{place}: {text} (rule {rule} of the tool's schema). Hint: {hint}")
}

fn known(tool: &Inner) -> String {
    if tool.parameters.is_empty() {
        "none".to_owned()
    } else {
        tool.parameters.join(", ")
    }
}

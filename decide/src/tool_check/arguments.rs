//! Whether arguments fit a tool, told so that a model can mend its call.

use super::{Inner, MAX_JSON_BYTES, bounded};
use crate::template;
use fairlead_crds::canonical;
use fairlead_crds::values::OpenObject;
use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind as Kind;
use serde_json::Value;

/// Most faults that are listed.
const MAX_FAULTS: usize = 5;

pub(super) fn validate(tool: &Inner, arguments: &OpenObject) -> Result<(), String> {
    let value = Value::Object(arguments.clone());
    let bytes = value.to_string().len();
    if bytes > MAX_JSON_BYTES {
        return Err(format!(
            "the arguments have {bytes} bytes as JSON, at most {MAX_JSON_BYTES} are allowed. Hint: send less, or in several calls"
        ));
    }
    if let Some(at) = canonical::unsafe_integer(&value) {
        return Err(format!(
            "{at}: integers beyond 2^53 in magnitude are rounded on their way. Hint: send it as a string, if the tool takes one"
        ));
    }
    let mut errors = tool.validator.iter_errors(&value);
    let faults: Vec<String> = errors
        .by_ref()
        .take(MAX_FAULTS)
        .map(|error| describe(tool, &error))
        .collect();
    if !faults.is_empty() {
        let more = if errors.next().is_some() {
            "; there are more"
        } else {
            ""
        };
        return Err(format!("{}{more}", faults.join("; ")));
    }
    template::render(&tool.command, arguments)
        .map(drop)
        .map_err(|error| error.to_string())
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
            "send a value of the type that the schema names, numbers without quotes".to_owned()
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

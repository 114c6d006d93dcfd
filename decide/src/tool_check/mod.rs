//! Whether a Tool can be offered, whether arguments fit it, and the plan of a call.

mod arguments;
mod cost;
mod patterns;
mod plan;
mod schema;
mod verdicts;

pub use plan::{DEFAULT_CPU_MILLICORES, DEFAULT_MAX_PROCESSES, DEFAULT_MEMORY_MAX_BYTES, resolve_plan};

use crate::template;
use fairlead_crds::conditions::reason;
use fairlead_crds::values::{MAX_NESTING, OpenObject};
use fairlead_crds::{CommandRunner, ToolSpec};
use schema::Compiled;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::sync::Arc;
use verdicts::Verdicts;

/// Most bytes of an `inputSchema`, and of the arguments of one call, as JSON.
pub const MAX_JSON_BYTES: usize = 64 * 1024;

/// What is told of an open object at `place` that has more than [`MAX_NESTING`] levels.
pub fn too_deep(place: &str, fix: &str) -> String {
    format!("{place}: more than {MAX_NESTING} objects and lists inside one another; {fix}")
}

/// A Tool whose schema and templates are valid: the compiled schema and the command. Cheap to clone.
#[derive(Clone)]
pub struct AcceptedTool {
    inner: Arc<Inner>,
}

struct Inner {
    schema: Compiled,
    /// Names of the declared parameters, for hints.
    parameters: Vec<String>,
    command: CommandRunner,
    verdicts: Verdicts,
}

impl fmt::Debug for AcceptedTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceptedTool")
            .field("argv", &self.inner.command.argv)
            .finish_non_exhaustive()
    }
}

/// Why a Tool cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolFault {
    /// Which part is wrong.
    pub reason: ToolFaultReason,
    /// Field, rule and fix, in one sentence of at most 1,024 bytes.
    pub message: String,
}

impl fmt::Display for ToolFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Which part of a Tool is wrong; the reason of its Accepted condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ToolFaultReason {
    /// `spec.inputSchema`.
    InvalidSchema,
    /// A template of `spec.runner.command`.
    InvalidTemplate,
}

impl ToolFaultReason {
    /// The reason as it is written into the condition.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidSchema => reason::INVALID_SCHEMA,
            Self::InvalidTemplate => reason::INVALID_TEMPLATE,
        }
    }
}

/// Why arguments do not fit a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentFault {
    /// What the model or the user is told: where, which rule, and what to do; at most 2,048 bytes.
    pub message: String,
}

impl fmt::Display for ArgumentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Judges `tool` and compiles its schema.
///
/// # Errors
///
/// Every fault found: at most one of the schema and one of the templates.
pub fn accept(tool: &ToolSpec) -> Result<AcceptedTool, Vec<ToolFault>> {
    let compiled = schema::compile(&tool.input_schema).map_err(|message| ToolFault {
        reason: ToolFaultReason::InvalidSchema,
        message: bounded(message + yaml_hint(&tool.input_schema), 1024),
    });
    let templates = template::check(&tool.runner.command, &tool.input_schema).map_err(|error| ToolFault {
        reason: ToolFaultReason::InvalidTemplate,
        message: bounded(error.to_string(), 1024),
    });
    match (compiled, templates) {
        (Ok(schema), Ok(())) => Ok(AcceptedTool {
            inner: Arc::new(Inner {
                schema,
                parameters: schema::parameters(&tool.input_schema),
                command: tool.runner.command.clone(),
                verdicts: Verdicts::default(),
            }),
        }),
        (compiled, templates) => Err(compiled.err().into_iter().chain(templates.err()).collect()),
    }
}

/// What its author may not see: readers of YAML 1.1, kubectl's among them, take some short names for true or false.
fn yaml_hint(schema: &OpenObject) -> &'static str {
    let required = schema.get("required").and_then(Value::as_array);
    if required.is_some_and(|names| names.iter().any(Value::is_boolean)) {
        ". In YAML the names n, y, no, yes, on and off are read as false or true: write them in quotes, as in \"n\""
    } else {
        ""
    }
}

impl AcceptedTool {
    /// Judges `arguments`: their size, their integers, the schema, and whether the command can be made from them.
    ///
    /// The work is bounded whatever schema and arguments are, and is done once for arguments that come again.
    ///
    /// # Errors
    ///
    /// What is wrong, in words for the model. All faults of the schema up to a bound, else the first of the others.
    pub fn validate(&self, arguments: &OpenObject) -> Result<(), ArgumentFault> {
        let value = Value::Object(arguments.clone());
        let text = value.to_string();
        let judge = || {
            arguments::validate(&self.inner, &value, text.len(), arguments)
                .map_err(|message| bounded(message, 2048))
        };
        let verdict = self.inner.verdicts.of(Sha256::digest(&text).into(), judge);
        verdict.map_err(|message| ArgumentFault { message })
    }
}

/// `text`, cut to `most` bytes at a character's end.
fn bounded(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most - "…".len()));
        text.push('…');
    }
    text
}

//! Templates of a command: how arguments become `argv` and standard input, without a shell.
//!
//! An element of `argv` may hold `{{name}}` for a parameter of the tool's `inputSchema`. The rules:
//!
//! - one element in, one out: a value never makes, splits or changes another element;
//! - an element that is only `{{name...}}` spreads a list: one element per item, none for an empty list;
//! - an element whose one parameter is absent (or null) is dropped; beside another parameter, a parameter must be
//!   required, so that nothing else is lost with it;
//! - a value that begins with `-` is refused, since a command would read it as an option, unless the element begins
//!   with text of its own (`--name={{name}}`) or the element before it is `--`;
//! - strings stand as they are, numbers and booleans in canonical form (`1.0` and `1` are one value), lists and
//!   objects as canonical JSON (RFC 8785);
//! - braces are read from the left: `{{{{` stands for the text `{{`, and of three the first is text. Closing braces
//!   without an open parameter are text.
//!
//! `stdin` is one more element that is never read as an option.

mod check;
mod parse;

pub use check::check;

use fairlead_crds::CommandRunner;
use fairlead_crds::canonical;
use fairlead_crds::values::OpenObject;
use parse::Piece;
use serde_json::Value;
use std::fmt;

/// Most bytes of all elements of one `argv`, each with the NUL that ends it; standard input has the same bound of
/// its own. The kernel takes no longer single argument (`MAX_ARG_STRLEN`, execve(2)).
pub const MAX_RENDERED_BYTES: usize = 128 * 1024;

/// A command with its arguments filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The program and its arguments; never empty, and no element holds a NUL.
    pub argv: Vec<String>,
    /// What the command reads from standard input; `None` is end of file at once.
    pub stdin: Option<String>,
}

/// A template that is wrong, or arguments that do not fit it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// The field of the Tool, such as `spec.runner.command.argv[2]`.
    pub field: String,
    /// The rule that is broken and how to mend it.
    pub message: String,
}

impl TemplateError {
    fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl std::error::Error for TemplateError {}

fn argv_field(index: usize) -> String {
    format!("spec.runner.command.argv[{index}]")
}

const STDIN_FIELD: &str = "spec.runner.command.stdin";

/// Fills `arguments` into the templates of `command`.
///
/// The arguments are taken as they are: whether they fit the schema is judged elsewhere. Members that no template
/// names are not used.
///
/// # Errors
///
/// A malformed template, a value that no argument can hold (a NUL byte, a leading `-`, a null inside a list), a
/// spread of something other than a list, an absent parameter that may not be absent, or a result larger than
/// [`MAX_RENDERED_BYTES`].
pub fn render(command: &CommandRunner, arguments: &OpenObject) -> Result<Rendered, TemplateError> {
    let mut argv = Vec::with_capacity(command.argv.len());
    let mut room = MAX_RENDERED_BYTES;
    for (index, element) in command.argv.iter().enumerate() {
        let field = argv_field(index);
        let pieces = parse::pieces(element).map_err(|fault| TemplateError::new(&field, fault))?;
        let after_dashes = index > 0 && command.argv.get(index - 1).is_some_and(|before| before == "--");
        let may_begin_with_dash =
            after_dashes || !matches!(pieces.first(), Some(Piece::Value(_) | Piece::Spread(_)));
        let mut put = |text: String| -> Result<(), TemplateError> {
            if text.starts_with('-') && !may_begin_with_dash {
                return Err(dash(&field, element));
            }
            room = room
                .checked_sub(text.len() + 1)
                .ok_or_else(|| too_large(&field))?;
            argv.push(text);
            Ok(())
        };
        if let [Piece::Spread(name)] = pieces.as_slice() {
            for text in spread(&field, name, arguments)? {
                put(text)?;
            }
        } else if let Some(text) = join(&field, &pieces, arguments)? {
            put(text)?;
        } else if index == 0 {
            return Err(TemplateError::new(
                field,
                "the program may not be absent; give its parameter a value, and make it required in spec.inputSchema",
            ));
        }
    }
    if argv.first().is_none_or(String::is_empty) {
        return Err(TemplateError::new(
            argv_field(0),
            "the program is empty; name one",
        ));
    }
    let stdin = match &command.stdin {
        None => None,
        Some(template) => {
            let pieces = parse::pieces(template).map_err(|fault| TemplateError::new(STDIN_FIELD, fault))?;
            join(STDIN_FIELD, &pieces, arguments)?
        }
    };
    Ok(Rendered { argv, stdin })
}

/// The text of one element; `None` when its parameter is absent.
fn join(field: &str, pieces: &[Piece<'_>], arguments: &OpenObject) -> Result<Option<String>, TemplateError> {
    let mut out = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Brace => out.push_str("{{"),
            Piece::Spread(name) => return Err(spread_with_text(field, name)),
            Piece::Value(name) => match present(arguments, name) {
                Some(value) => push_value(field, name, value, &mut out)?,
                None if parse::parameters(pieces).count() == 1 => return Ok(None),
                None => return Err(absent_beside_another(field, name)),
            },
        }
        if out.len() > MAX_RENDERED_BYTES {
            return Err(too_large(field));
        }
    }
    Ok(Some(out))
}

fn spread(field: &str, name: &str, arguments: &OpenObject) -> Result<Vec<String>, TemplateError> {
    let items = match present(arguments, name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(_) => {
            return Err(TemplateError::new(
                field,
                format!("{{{{{name}...}}}} spreads a list, and the argument {name} is none; give a list"),
            ));
        }
    };
    items
        .iter()
        .map(|item| {
            let mut out = String::new();
            push_value(field, name, item, &mut out).map(|()| out)
        })
        .collect()
}

/// The argument `name`; null counts as absent, since models write it for a parameter they leave out.
fn present<'a>(arguments: &'a OpenObject, name: &str) -> Option<&'a Value> {
    arguments.get(name).filter(|value| !value.is_null())
}

fn push_value(field: &str, name: &str, value: &Value, out: &mut String) -> Result<(), TemplateError> {
    match value {
        Value::String(text) if text.contains('\0') => {
            return Err(TemplateError::new(
                field,
                format!("the argument {name} holds a NUL byte, which no command can be given; leave it out"),
            ));
        }
        Value::String(text) => out.push_str(text),
        Value::Null => {
            return Err(TemplateError::new(
                field,
                format!("the list {name} holds a null, which has no form as an argument; leave it out"),
            ));
        }
        other => out.push_str(&canonical::to_string(other)),
    }
    Ok(())
}

fn dash(field: &str, element: &str) -> TemplateError {
    TemplateError::new(
        field,
        format!(
            "the value for {element} begins with '-' and would be read as an option; give another value, or let the \
             tool's author write \"--\" as the element before it or text of its own at its beginning"
        ),
    )
}

fn too_large(field: &str) -> TemplateError {
    TemplateError::new(
        field,
        format!("the command would be larger than {MAX_RENDERED_BYTES} bytes here; give shorter arguments"),
    )
}

fn spread_with_text(field: &str, name: &str) -> TemplateError {
    TemplateError::new(
        field,
        format!(
            "{{{{{name}...}}}} spreads a list and must be the whole of an element of argv; give it an element of its own"
        ),
    )
}

fn absent_beside_another(field: &str, name: &str) -> TemplateError {
    TemplateError::new(
        field,
        format!(
            "the parameter {name} stands beside another and may not be absent; give it a value, and list it in \
             spec.inputSchema.required, or give it an element of its own"
        ),
    )
}

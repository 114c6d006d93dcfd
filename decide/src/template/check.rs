//! Whether the templates of a command fit the schema of its arguments.

use super::parse::{self, Piece};
use super::{STDIN_FIELD, TemplateError, argv_field, spread_with_text};
use fairlead_crds::CommandRunner;
use fairlead_crds::values::OpenObject;
use serde_json::Value;

/// Judges the templates of `command` against `schema`, the tool's `inputSchema`, before any call is made.
///
/// # Errors
///
/// The first field that is malformed, names a parameter that `schema.properties` does not have, spreads what is not
/// declared a list, or could lose more than its own parameter when that one is absent.
pub fn check(command: &CommandRunner, schema: &OpenObject) -> Result<(), TemplateError> {
    for (index, element) in command.argv.iter().enumerate() {
        let field = argv_field(index);
        let pieces = element_pieces(&field, element, schema)?;
        let spreads = pieces.iter().find_map(|piece| match piece {
            Piece::Spread(name) => Some(*name),
            _ => None,
        });
        if let Some(name) = spreads {
            if pieces.len() > 1 {
                return Err(spread_with_text(&field, name));
            }
            if index == 0 {
                return Err(TemplateError::new(
                    field,
                    "the program cannot be a spread list; write its name",
                ));
            }
            must_be_list(&field, name, schema)?;
        }
        if index == 0 {
            program(&field, element, &pieces, schema)?;
        }
    }
    if command.argv.is_empty() {
        return Err(TemplateError::new(
            "spec.runner.command.argv",
            "names no program; write at least one element",
        ));
    }
    if let Some(template) = &command.stdin {
        let pieces = element_pieces(STDIN_FIELD, template, schema)?;
        if let Some(Piece::Spread(name)) = pieces.iter().find(|piece| matches!(piece, Piece::Spread(_))) {
            return Err(TemplateError::new(
                STDIN_FIELD,
                format!(
                    "{{{{{name}...}}}} would spread a list, and standard input is one text; write {{{{{name}}}}}"
                ),
            ));
        }
    }
    for (index, var) in command.env.iter().enumerate() {
        if var.value.contains('\0') {
            let field = format!("spec.runner.command.env[{index}].value");
            return Err(TemplateError::new(
                field,
                "holds a NUL byte, which ends a variable; take it out",
            ));
        }
    }
    Ok(())
}

/// Parses one element and judges what holds for argv and standard input alike.
fn element_pieces<'a>(
    field: &str,
    element: &'a str,
    schema: &OpenObject,
) -> Result<Vec<Piece<'a>>, TemplateError> {
    if element.contains('\0') {
        return Err(TemplateError::new(
            field,
            "holds a NUL byte, which no command can be given; take it out",
        ));
    }
    let pieces = parse::pieces(element).map_err(|fault| TemplateError::new(field, fault))?;
    let several = parse::parameters(&pieces).count() > 1;
    for name in parse::parameters(&pieces) {
        if property(schema, name).is_none() {
            return Err(TemplateError::new(field, unknown(name, schema)));
        }
        if several && !is_required(schema, name) {
            return Err(TemplateError::new(
                field,
                format!(
                    "{{{{{name}}}}} is optional and stands beside another parameter, which would be lost with it; list \
                     {name} in spec.inputSchema.required, or give it an element of its own"
                ),
            ));
        }
    }
    Ok(pieces)
}

fn program(
    field: &str,
    element: &str,
    pieces: &[Piece<'_>],
    schema: &OpenObject,
) -> Result<(), TemplateError> {
    if element.is_empty() {
        return Err(TemplateError::new(field, "the program is empty; write its name"));
    }
    match parse::parameters(pieces).find(|name| !is_required(schema, name)) {
        Some(name) => Err(TemplateError::new(
            field,
            format!(
                "the program comes from {{{{{name}}}}}, which is optional; list {name} in spec.inputSchema.required"
            ),
        )),
        None => Ok(()),
    }
}

fn must_be_list(field: &str, name: &str, schema: &OpenObject) -> Result<(), TemplateError> {
    let kinds: Vec<&str> = match property(schema, name).and_then(|p| p.get("type")) {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if kinds.contains(&"array") && kinds.iter().all(|kind| matches!(*kind, "array" | "null")) {
        return Ok(());
    }
    Err(TemplateError::new(
        field,
        format!(
            "{{{{{name}...}}}} spreads a list, and spec.inputSchema.properties.{name} does not say so; write \"type: \
             array\" there, or {{{{{name}}}}} here"
        ),
    ))
}

fn property<'a>(schema: &'a OpenObject, name: &str) -> Option<&'a Value> {
    schema.get("properties")?.get(name)
}

fn is_required(schema: &OpenObject, name: &str) -> bool {
    schema
        .get("required")
        .and_then(Value::as_array)
        .is_some_and(|names| names.iter().any(|known| known.as_str() == Some(name)))
}

fn unknown(name: &str, schema: &OpenObject) -> String {
    let known: Vec<&str> = schema
        .get("properties")
        .and_then(Value::as_object)
        .map(|properties| properties.keys().map(String::as_str).take(16).collect())
        .unwrap_or_default();
    let known = if known.is_empty() {
        "it has none".to_owned()
    } else {
        format!("it has {}", known.join(", "))
    };
    format!(
        "{{{{{name}}}}} is no parameter of spec.inputSchema.properties ({known}); add it there, or correct the name"
    )
}

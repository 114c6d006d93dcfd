//! The schema of a tool's arguments: what is allowed in it, and its compilation.
//!
//! The operator compiles schemas of every namespace and runs them over arguments that models write, so a schema must
//! be bounded in size, in the work it makes and in the memory of its patterns, and must never reach outside itself.

use super::MAX_JSON_BYTES;
use fairlead_crds::values::OpenObject;
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;
use std::collections::HashMap;

/// Most schemas in a schema with every reference followed; without a bound, a few references to one another that
/// double each time would make work that no size limit holds.
const MAX_EXPANDED: usize = 4096;
/// Most regular expressions, each compiled to at most [`MAX_PATTERN_BYTES`].
const MAX_PATTERNS: usize = 64;
const MAX_PATTERN_BYTES: usize = 1024 * 1024;
/// Most schemas inside one another, references followed.
const MAX_DEPTH: usize = 64;

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Compiles `schema`. The error names field, rule and fix.
pub(super) fn compile(schema: &OpenObject) -> Result<Validator, String> {
    let root = Value::Object(schema.clone());
    let bytes = root.to_string().len();
    if bytes > MAX_JSON_BYTES {
        return Err(format!(
            "spec.inputSchema: {bytes} bytes as JSON, at most {MAX_JSON_BYTES} are allowed; shorten descriptions or split the tool"
        ));
    }
    if let Some(other) = schema
        .get("$schema")
        .filter(|draft| draft.as_str() != Some(DRAFT))
    {
        return Err(format!(
            "spec.inputSchema.$schema: {other} is not supported, only JSON Schema 2020-12 is; remove $schema or write {DRAFT}"
        ));
    }
    if schema.get("type").and_then(Value::as_str) != Some("object") {
        return Err(
            "spec.inputSchema.type: must be \"object\", since arguments are an object; write type: object \
                    and declare the parameters under properties"
                .to_owned(),
        );
    }
    let mut walk = Walk {
        root: &root,
        sizes: HashMap::from([("#", None)]),
        patterns: 0,
    };
    walk.schema(&root, "#", 0)?;
    jsonschema::draft202012::options()
        .offline()
        .with_pattern_options(
            PatternOptions::regex()
                .size_limit(MAX_PATTERN_BYTES)
                .dfa_size_limit(MAX_PATTERN_BYTES),
        )
        .build(&root)
        .map_err(|error| {
            let hint = if matches!(error.kind().keyword(), "pattern" | "format") {
                "; patterns run in linear time, so without look-around or back-references"
            } else {
                ""
            };
            format!(
                "spec.inputSchema{}: {error}{hint}; correct the schema",
                error.instance_path()
            )
        })
}

/// Names of the declared parameters, at most 16.
pub(super) fn parameters(schema: &OpenObject) -> Vec<String> {
    let properties = schema.get("properties").and_then(Value::as_object);
    properties
        .map(|map| map.keys().take(16).cloned().collect())
        .unwrap_or_default()
}

/// A walk over every schema in a schema, along its references.
struct Walk<'a> {
    root: &'a Value,
    /// Size of each referenced place, references followed; `None` while it is walked.
    sizes: HashMap<&'a str, Option<usize>>,
    patterns: usize,
}

impl<'a> Walk<'a> {
    /// Size of `value` at `at`, with references followed.
    fn schema(&mut self, value: &'a Value, at: &str, depth: usize) -> Result<usize, String> {
        let Some(members) = value.as_object() else {
            return Ok(1);
        };
        if depth > MAX_DEPTH {
            return Err(format!(
                "spec.inputSchema: more than {MAX_DEPTH} schemas inside one another at {at}; flatten it"
            ));
        }
        let mut size = 1_usize;
        for (key, member) in members {
            let below = format!("{at}/{}", escape(key));
            size = size.saturating_add(match key.as_str() {
                "$ref" => self.reference(member, &below, depth)?,
                "$dynamicRef" | "$recursiveRef" | "$dynamicAnchor" | "$recursiveAnchor" | "$anchor" | "$id" | "$vocabulary" => {
                    return Err(format!(
                        "spec.inputSchema: {key} at {below} is not supported; remove it, and refer by \"$ref\": \"#/$defs/…\""
                    ));
                }
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
                    self.named(key, member, &below, depth)?
                }
                "allOf" | "anyOf" | "oneOf" | "prefixItems" => self.listed(member, &below, depth)?,
                "items" | "additionalProperties" | "contains" | "propertyNames" | "not" | "if" | "then" | "else"
                | "unevaluatedItems" | "unevaluatedProperties" | "contentSchema" => {
                    self.schema(member, &below, depth + 1)?
                }
                "pattern" => self.pattern(&below).map(|()| 0)?,
                _ => 0,
            });
        }
        if size > MAX_EXPANDED {
            return Err(format!(
                "spec.inputSchema: more than {MAX_EXPANDED} schemas with references followed, at {at}; simplify it"
            ));
        }
        Ok(size)
    }

    /// A keyword whose members are schemas by name.
    fn named(&mut self, key: &str, value: &'a Value, at: &str, depth: usize) -> Result<usize, String> {
        let mut size = 0_usize;
        for (name, member) in value.as_object().into_iter().flatten() {
            let below = format!("{at}/{}", escape(name));
            if key == "patternProperties" {
                self.pattern(&below)?;
            }
            size = size.saturating_add(self.schema(member, &below, depth + 1)?);
        }
        Ok(size)
    }

    /// A keyword whose items are schemas.
    fn listed(&mut self, value: &'a Value, at: &str, depth: usize) -> Result<usize, String> {
        let mut size = 0_usize;
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            size = size.saturating_add(self.schema(item, &format!("{at}/{index}"), depth + 1)?);
        }
        Ok(size)
    }

    fn reference(&mut self, value: &'a Value, at: &str, depth: usize) -> Result<usize, String> {
        let Some(target) = value.as_str() else {
            return Err(format!(
                "spec.inputSchema: {at} is not a string; write \"#/$defs/…\""
            ));
        };
        if !target.starts_with('#') {
            return Err(format!(
                "spec.inputSchema: {at} refers to {target}, and nothing outside the schema is fetched; copy it into \
                 $defs and write \"#/$defs/…\""
            ));
        }
        match self.sizes.get(target) {
            Some(Some(size)) => return Ok(*size),
            Some(None) => {
                return Err(format!(
                    "spec.inputSchema: {at} refers to {target}, which holds it: a schema may not be recursive; write out \
                     the levels you need"
                ));
            }
            None => {}
        }
        let Some(found) = self.root.pointer(&target[1..]) else {
            return Err(format!(
                "spec.inputSchema: {at} refers to {target}, which is not there; add it under $defs, or correct the name"
            ));
        };
        self.sizes.insert(target, None);
        let size = self.schema(found, target, depth + 1)?;
        self.sizes.insert(target, Some(size));
        Ok(size)
    }

    fn pattern(&mut self, at: &str) -> Result<(), String> {
        self.patterns += 1;
        if self.patterns > MAX_PATTERNS {
            return Err(format!(
                "spec.inputSchema: more than {MAX_PATTERNS} regular expressions, at {at}; use fewer, or enum"
            ));
        }
        Ok(())
    }
}

/// `name` as a token of a JSON pointer (RFC 6901 §3).
fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

//! The schema of a tool's arguments: what is allowed in it, and its compilation.
//!
//! The operator compiles schemas of every namespace and runs them over arguments that models write, so a schema must
//! be bounded in size, in the work it makes and in the memory of its patterns, and must never reach outside itself.

use super::{MAX_JSON_BYTES, patterns};
use fairlead_crds::values::{OpenObject, too_nested};
use jsonschema::Validator;
use serde_json::Value;
use std::collections::HashMap;

/// Most schemas in a schema with every reference followed; without a bound, a few references to one another that
/// double each time would make work that no size limit holds.
const MAX_EXPANDED: usize = 4096;
/// Most schemas, with every reference followed, that each item of a list or each member of a map is judged by: what is
/// sent may have many of them.
const MAX_PER_ELEMENT: usize = 512;
/// Most regular expressions.
const MAX_PATTERNS: usize = 64;
/// Most schemas inside one another, references followed.
const MAX_DEPTH: usize = 64;

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// A schema, ready to judge arguments.
pub(super) struct Compiled {
    pub(super) validator: Validator,
    /// The schema itself, by which the work of a check is counted.
    pub(super) root: Value,
    /// Compiled sizes of its regular expressions, bytes.
    pub(super) patterns: HashMap<String, usize>,
    /// Whether there are alternatives (anyOf, oneOf) in it, whose faults are all collected to tell one.
    pub(super) branches: bool,
}

/// Compiles `schema`. The error names field, rule and fix.
pub(super) fn compile(schema: &OpenObject) -> Result<Compiled, String> {
    if too_nested(schema) {
        return Err(super::too_deep(
            "spec.inputSchema",
            "flatten it, or refer to parts under $defs",
        ));
    }
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
        known: HashMap::from([("#", None)]),
        patterns: Vec::new(),
        branches: false,
    };
    walk.schema(&root, "#", 0)?;
    let (patterns, branches) = (patterns::sizes(&walk.patterns)?, walk.branches);
    Ok(Compiled {
        validator: build(&root)?,
        root,
        patterns,
        branches,
    })
}

fn build(root: &Value) -> Result<Validator, String> {
    jsonschema::draft202012::options()
        .offline()
        .with_pattern_options(patterns::options(patterns::MAX_PATTERN_BYTES))
        .build(root)
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
    /// Extent of each referenced place, references followed; `None` while it is walked.
    known: HashMap<&'a str, Option<Extent>>,
    /// The regular expressions, and where they stand.
    patterns: Vec<(String, String)>,
    branches: bool,
}

/// How large a schema is, references followed.
#[derive(Clone, Copy, Default)]
struct Extent {
    /// Schemas in it, itself included.
    size: usize,
    /// Schemas inside one another, itself included.
    height: usize,
}

impl Extent {
    /// Puts a schema into this one.
    fn hold(&mut self, inner: Self) {
        self.size = self.size.saturating_add(inner.size);
        self.height = self.height.max(inner.height);
    }
}

impl<'a> Walk<'a> {
    /// Extent of `value` at `at`, with references followed.
    fn schema(&mut self, value: &'a Value, at: &str, depth: usize) -> Result<Extent, String> {
        let mut extent = Extent { size: 1, height: 0 };
        if depth > MAX_DEPTH {
            return Err(too_deep(at));
        }
        for (key, member) in value.as_object().into_iter().flatten() {
            let below = format!("{at}/{}", escape(key));
            extent.hold(self.keyword(key, member, &below, depth)?);
        }
        extent.height = extent.height.saturating_add(1);
        if extent.size > MAX_EXPANDED {
            return Err(format!(
                "spec.inputSchema: more than {MAX_EXPANDED} schemas with references followed, at {at}; simplify it"
            ));
        }
        if extent.height.saturating_add(depth) > MAX_DEPTH + 1 {
            return Err(too_deep(at));
        }
        Ok(extent)
    }

    /// Extent of the schemas in the keyword `key` at `at`.
    fn keyword(&mut self, key: &str, member: &'a Value, at: &str, depth: usize) -> Result<Extent, String> {
        let extent = match key {
            "$ref" => return self.reference(member, at, depth),
            "$dynamicRef" | "$recursiveRef" | "$dynamicAnchor" | "$recursiveAnchor" | "$anchor" | "$id"
            | "$vocabulary" => {
                return Err(format!(
                    "spec.inputSchema: {key} at {at} is not supported; remove it, and refer by \"$ref\": \"#/$defs/…\""
                ));
            }
            "properties" | "$defs" | "definitions" | "dependentSchemas" => {
                return self.named(key, member, at, depth);
            }
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => {
                self.branches |= matches!(key, "anyOf" | "oneOf");
                return self.listed(member, at, depth);
            }
            "not" | "if" | "then" | "else" | "contentSchema" => return self.schema(member, at, depth + 1),
            "pattern" => {
                self.pattern(member.as_str().unwrap_or_default(), at)?;
                return Ok(Extent::default());
            }
            "patternProperties" => self.named(key, member, at, depth)?,
            "items"
            | "contains"
            | "additionalProperties"
            | "propertyNames"
            | "unevaluatedItems"
            | "unevaluatedProperties" => self.schema(member, at, depth + 1)?,
            _ => return Ok(Extent::default()),
        };
        if extent.size > MAX_PER_ELEMENT {
            return Err(format!(
                "spec.inputSchema: each element is judged by {} schemas with references followed, at {at}; at most \
                 {MAX_PER_ELEMENT} are allowed, since there may be many elements; use fewer branches, or enum",
                extent.size
            ));
        }
        Ok(extent)
    }

    /// A keyword whose members are schemas by name.
    fn named(&mut self, key: &str, value: &'a Value, at: &str, depth: usize) -> Result<Extent, String> {
        let mut extent = Extent::default();
        for (name, member) in value.as_object().into_iter().flatten() {
            let below = format!("{at}/{}", escape(name));
            if key == "patternProperties" {
                self.pattern(name, &below)?;
            }
            extent.hold(self.schema(member, &below, depth + 1)?);
        }
        Ok(extent)
    }

    /// A keyword whose items are schemas.
    fn listed(&mut self, value: &'a Value, at: &str, depth: usize) -> Result<Extent, String> {
        let mut extent = Extent::default();
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            extent.hold(self.schema(item, &format!("{at}/{index}"), depth + 1)?);
        }
        Ok(extent)
    }

    fn reference(&mut self, value: &'a Value, at: &str, depth: usize) -> Result<Extent, String> {
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
        match self.known.get(target) {
            Some(Some(extent)) => return Ok(*extent),
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
        self.known.insert(target, None);
        let extent = self.schema(found, target, depth + 1)?;
        self.known.insert(target, Some(extent));
        Ok(extent)
    }

    fn pattern(&mut self, pattern: &str, at: &str) -> Result<(), String> {
        self.patterns.push((pattern.to_owned(), at.to_owned()));
        if self.patterns.len() > MAX_PATTERNS {
            return Err(format!(
                "spec.inputSchema: more than {MAX_PATTERNS} regular expressions, at {at}; use fewer, or enum"
            ));
        }
        Ok(())
    }
}

fn too_deep(at: &str) -> String {
    format!("spec.inputSchema: more than {MAX_DEPTH} schemas inside one another at {at}; flatten it")
}

/// `name` as a token of a JSON pointer (RFC 6901 §3).
fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

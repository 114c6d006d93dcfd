//! How much work a check of arguments against a schema is at most, counted before any of it is done.
//!
//! The operator decides on one thread, and both sides of a check are written by others: a schema of a namespace's
//! author, arguments of a model. A small schema over small arguments can be much work (branches times items, patterns
//! times text), so no bound on their sizes alone is enough.

use serde_json::{Map, Value};
use std::collections::HashMap;

/// Most steps of one check. A step is one keyword applied to one value, 64 bytes of text, or 512 bytes of text times
/// compiled pattern: a few tens of nanoseconds each.
pub(super) const MAX_STEPS: usize = 250_000;

/// Bytes of text that are compared or counted in one step.
const STEP_BYTES: usize = 64;
/// What a compiled pattern has to do in one step: bytes of text times bytes of its automaton.
const STEP_PATTERN_BYTES: usize = 512;
/// Up to 15 items are compared each with each.
const PAIRWISE: usize = 8;

/// The check would be more work than [`MAX_STEPS`].
pub(super) struct Excessive;

/// Steps to judge a value, and further ones to find out which of its members a schema has looked at.
#[derive(Clone, Copy, Default)]
struct Cost {
    judge: usize,
    mark: usize,
}

/// Steps of a check of `instance` against `root`, whose `patterns` have these compiled sizes in bytes.
pub(super) fn steps(
    root: &Value,
    patterns: &HashMap<String, usize>,
    instance: &Value,
) -> Result<usize, Excessive> {
    let mut counter = Counter {
        root,
        patterns,
        walked: 0,
    };
    let cost = counter.schema(root, instance)?;
    (cost.judge <= MAX_STEPS).then_some(cost.judge).ok_or(Excessive)
}

struct Counter<'a> {
    root: &'a Value,
    patterns: &'a HashMap<String, usize>,
    /// Steps so far, each counted once: the bound of this walk itself.
    walked: usize,
}

impl Counter<'_> {
    fn own(&mut self, cost: &mut Cost, steps: usize) -> Result<(), Excessive> {
        self.walked = self.walked.saturating_add(steps);
        cost.judge = cost.judge.saturating_add(steps);
        (self.walked <= MAX_STEPS).then_some(()).ok_or(Excessive)
    }

    /// A schema for the same value, which is judged again wherever members looked at are asked for.
    fn in_place(&mut self, cost: &mut Cost, schema: &Value, instance: &Value) -> Result<(), Excessive> {
        let inner = self.schema(schema, instance)?;
        cost.judge = cost.judge.saturating_add(inner.judge);
        cost.mark = cost.mark.saturating_add(inner.judge).saturating_add(inner.mark);
        Ok(())
    }

    /// A schema for a part of the value.
    fn below(&mut self, cost: &mut Cost, schema: &Value, instance: &Value) -> Result<(), Excessive> {
        let inner = self.schema(schema, instance)?;
        cost.judge = cost.judge.saturating_add(inner.judge);
        Ok(())
    }

    fn schema(&mut self, schema: &Value, instance: &Value) -> Result<Cost, Excessive> {
        let mut cost = Cost::default();
        self.own(&mut cost, 1)?;
        let Some(members) = schema.as_object() else {
            return Ok(cost);
        };
        let mut looks = false;
        for (key, member) in members {
            self.own(&mut cost, 1)?;
            looks |= key.starts_with("unevaluated");
            match instance {
                Value::Object(object) => {
                    self.of_object(&mut cost, members, (key.as_str(), member), instance, object)?;
                }
                Value::Array(items) => self.of_array(&mut cost, key, member, items)?,
                Value::String(text) => self.of_text(&mut cost, key, member, text)?,
                _ => {}
            }
            match (key.as_str(), member) {
                ("$ref", Value::String(target)) => {
                    let target = target.get(1..).and_then(|at| self.root.pointer(at));
                    if let Some(target) = target {
                        self.in_place(&mut cost, target, instance)?;
                    }
                }
                ("allOf" | "anyOf" | "oneOf", Value::Array(branches)) => {
                    for branch in branches {
                        self.in_place(&mut cost, branch, instance)?;
                    }
                }
                ("not" | "if" | "then" | "else", _) => self.in_place(&mut cost, member, instance)?,
                ("enum" | "const", _) => self.compare(&mut cost, member, instance)?,
                _ => {}
            }
        }
        if looks {
            cost.judge = cost.judge.saturating_add(cost.mark);
        }
        Ok(cost)
    }

    fn of_object(
        &mut self,
        cost: &mut Cost,
        schema: &Map<String, Value>,
        (key, member): (&str, &Value),
        instance: &Value,
        object: &Map<String, Value>,
    ) -> Result<(), Excessive> {
        match (key, member) {
            ("properties", Value::Object(properties)) => {
                self.own(cost, properties.len())?;
                for (name, property) in properties {
                    if let Some(value) = object.get(name) {
                        self.below(cost, property, value)?;
                    }
                }
            }
            ("dependentSchemas", Value::Object(schemas)) => {
                self.own(cost, schemas.len())?;
                for (_, schema) in schemas.iter().filter(|(name, _)| object.contains_key(*name)) {
                    self.in_place(cost, schema, instance)?;
                }
            }
            ("patternProperties", Value::Object(schemas)) => {
                for (pattern, property) in schemas {
                    for (name, value) in object {
                        // Once for itself, and once where the members that are left are asked for.
                        let steps = self.pattern(pattern, name).saturating_mul(2);
                        self.own(cost, steps)?;
                        self.below(cost, property, value)?;
                    }
                }
            }
            ("additionalProperties" | "unevaluatedProperties", _) => {
                let known = schema.get("properties").and_then(Value::as_object);
                for (name, value) in object {
                    self.own(cost, 1)?;
                    if key != "additionalProperties" || !known.is_some_and(|known| known.contains_key(name)) {
                        self.below(cost, member, value)?;
                    }
                }
            }
            ("propertyNames", _) => {
                for name in object.keys() {
                    self.own(cost, name.len() / STEP_BYTES)?;
                    self.below(cost, member, &Value::String(name.clone()))?;
                }
            }
            ("required" | "dependentRequired", _) => {
                let steps = size(member);
                self.own(cost, steps)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn of_array(
        &mut self,
        cost: &mut Cost,
        key: &str,
        member: &Value,
        items: &[Value],
    ) -> Result<(), Excessive> {
        match (key, member) {
            ("items" | "contains" | "unevaluatedItems", _) => {
                for item in items {
                    self.below(cost, member, item)?;
                }
            }
            ("prefixItems", Value::Array(schemas)) => {
                for (schema, item) in schemas.iter().zip(items) {
                    self.below(cost, schema, item)?;
                }
            }
            ("uniqueItems", Value::Bool(true)) => {
                let steps = items.iter().map(size).fold(0_usize, usize::saturating_add);
                self.own(cost, steps.saturating_mul(PAIRWISE))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn of_text(&mut self, cost: &mut Cost, key: &str, member: &Value, text: &str) -> Result<(), Excessive> {
        let steps = match (key, member) {
            ("minLength" | "maxLength", _) => text.len() / STEP_BYTES,
            ("pattern", Value::String(pattern)) => self.pattern(pattern, text),
            _ => 0,
        };
        self.own(cost, steps)
    }

    /// Steps to match `text`, and to name the pattern in a fault.
    fn pattern(&self, pattern: &str, text: &str) -> usize {
        let compiled = self.patterns.get(pattern).copied().unwrap_or(0);
        let matching = text.len().saturating_mul(compiled) / STEP_PATTERN_BYTES;
        matching
            .saturating_add(pattern.len() / STEP_BYTES)
            .saturating_add(1)
    }

    /// `instance` beside a value, or beside each of a list of values.
    fn compare(&mut self, cost: &mut Cost, options: &Value, instance: &Value) -> Result<(), Excessive> {
        let steps = match (options, instance) {
            (Value::Array(options), Value::String(text)) => {
                options.len().saturating_mul(1 + text.len() / STEP_BYTES)
            }
            (Value::Array(options), Value::Null | Value::Bool(_) | Value::Number(_)) => options.len(),
            _ => size(options),
        };
        self.own(cost, steps)
    }
}

/// Steps to look at all of a value once.
fn size(value: &Value) -> usize {
    let inner = match value {
        Value::String(text) => text.len() / STEP_BYTES,
        Value::Array(items) => items.iter().map(size).fold(0, usize::saturating_add),
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| size(member).saturating_add(name.len() / STEP_BYTES))
            .fold(0, usize::saturating_add),
        _ => 0,
    };
    inner.saturating_add(1)
}

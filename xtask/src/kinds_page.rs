//! `docs/kinds.md`: every field of every kind, from the same descriptions that `kubectl explain` shows.

use std::fmt::Write;

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};

const INTRO: &str = "\
# Kinds

Group `fairlead.dev`, version `v1alpha1`, all namespaced, category `fairlead`: `kubectl get fairlead` lists them all.
The tables below are made from the schemas; `kubectl explain agentrun.spec` shows the same sentences.

What is sent is checked by the API server: types, bounds, combinations, and what may change. A refusal names the field,
the rule and the fix. What a schema cannot judge (templates, JSON Schemas, sizes of open objects) is judged by the
operator: condition `Accepted` of a Tool, condition `Ready` of a ModelProvider, or a call that ends `Denied`.
";

/// The page, made from the CRDs.
///
/// # Errors
/// When a CRD has no schema.
pub fn page(crds: &[CustomResourceDefinition]) -> Result<String> {
    let mut text =
        format!("<!-- Made by `cargo xtask gen` from the types in crds/src. Do not edit. -->\n{INTRO}");
    for crd in crds {
        section(crd, &mut text).with_context(|| format!("describe CRD {:?}", crd.metadata.name))?;
    }
    Ok(text)
}

fn section(crd: &CustomResourceDefinition, text: &mut String) -> Result<()> {
    let names = &crd.spec.names;
    let version = crd.spec.versions.first().context("no version")?;
    let schema = version
        .schema
        .as_ref()
        .and_then(|schema| schema.open_api_v3_schema.as_ref());
    let schema = schema.context("no schema")?;
    let short = names
        .short_names
        .iter()
        .flatten()
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>();
    let short = if short.is_empty() {
        String::new()
    } else {
        format!(" (short: {})", short.join(", "))
    };
    writeln!(
        text,
        "\n## {}\n\n`{}`{short}. {}",
        names.kind,
        names.plural,
        one_line(schema)
    )?;
    for part in ["spec", "status"] {
        let Some(schema) = schema.properties.as_ref().and_then(|map| map.get(part)) else {
            continue;
        };
        writeln!(
            text,
            "\n### {} {part}\n\n{}\n\n| field | type | meaning |\n| --- | --- | --- |",
            names.kind,
            one_line(schema)
        )?;
        rows("", schema, text)?;
    }
    Ok(())
}

/// A row for each property, and below it those of what it holds.
fn rows(prefix: &str, schema: &JSONSchemaProps, text: &mut String) -> Result<()> {
    for (name, property) in schema.properties.iter().flatten() {
        let required = schema.required.iter().flatten().any(|required| required == name);
        let mark = if required { " (required)" } else { "" };
        let path = format!("{prefix}{name}");
        writeln!(
            text,
            "| `{path}` | {}{mark} | {} |",
            type_of(property),
            one_line(property)
        )?;
        // Conditions are those of Kubernetes itself.
        if name == "conditions" {
            continue;
        }
        match items(property) {
            Some(item) => rows(&format!("{path}[]."), item, text)?,
            None => rows(&format!("{path}."), property, text)?,
        }
    }
    Ok(())
}

fn items(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match schema.items.as_ref()? {
        JSONSchemaPropsOrArray::Schema(item) => Some(item),
        JSONSchemaPropsOrArray::Schemas(_) => None,
    }
}

fn type_of(schema: &JSONSchemaProps) -> String {
    let values = schema.enum_.iter().flatten().filter_map(|value| value.0.as_str());
    let values = values.map(|value| format!("`{value}`")).collect::<Vec<_>>();
    if !values.is_empty() {
        return values.join(" or ");
    }
    match (schema.type_.as_deref(), items(schema)) {
        (Some("array"), Some(item)) => format!("list of {}", type_of(item)),
        (Some(kind), _) => kind.to_owned(),
        (None, _) => "any".to_owned(),
    }
}

/// The description on one line, fit for a cell of a table.
fn one_line(schema: &JSONSchemaProps) -> String {
    let text = schema.description.as_deref().unwrap_or_default();
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_and_every_field_is_described() {
        let page = page(&fairlead_crds::all_crds()).unwrap();
        for crd in fairlead_crds::all_crds() {
            assert!(page.contains(&format!("\n## {}\n", crd.spec.names.kind)));
        }
        let row = "| `limits.maxTurns` | integer | Most turns (model requests that completed). 1 to 1,000; 64 by default. |";
        assert!(page.contains(row), "{page}");
        let undescribed: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("| `") && line.ends_with("|  |"))
            .collect();
        assert!(undescribed.is_empty(), "{undescribed:#?}");
    }
}

//! The CustomResourceDefinitions, made from the types.

use crate::{AgentRun, AgentTurn, ModelProvider, Tool, ToolExecution};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube_core::CustomResourceExt;

/// Revision of the schemas. The parts refuse to be ready over CRDs of a lower one.
pub const CRD_REVISION: u32 = 1;
/// Annotation on each CRD that holds [`CRD_REVISION`].
pub const CRD_REVISION_ANNOTATION: &str = "fairlead.dev/crd-revision";

/// Every CRD, in alphabetical order of its kind, annotated with [`CRD_REVISION`].
pub fn all_crds() -> Vec<CustomResourceDefinition> {
    [
        AgentRun::crd(),
        AgentTurn::crd(),
        ModelProvider::crd(),
        Tool::crd(),
        ToolExecution::crd(),
    ]
    .into_iter()
    .map(|mut crd| {
        crd.metadata
            .annotations
            .get_or_insert_default()
            .insert(CRD_REVISION_ANNOTATION.to_owned(), CRD_REVISION.to_string());
        for version in &mut crd.spec.versions {
            if let Some(schema) = version
                .schema
                .as_mut()
                .and_then(|s| s.open_api_v3_schema.as_mut())
            {
                unwrap_lines(schema);
                without_defaults_in_lists(schema, false);
            }
        }
        crd
    })
    .collect()
}

/// A doc comment is broken into lines for its reader here; `kubectl explain` breaks lines itself.
fn unwrap_lines(schema: &mut JSONSchemaProps) {
    if let Some(text) = &mut schema.description {
        let paragraphs: Vec<_> = text
            .split("\n\n")
            .map(|p| p.lines().map(str::trim).collect::<Vec<_>>().join(" "))
            .collect();
        *text = paragraphs.join("\n\n").trim().to_owned();
    }
    for property in schema.properties.iter_mut().flat_map(|p| p.values_mut()) {
        unwrap_lines(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        unwrap_lines(items);
    }
}

/// Takes the defaults out of what stands in lists; the parts fill in the same ones when they read an object.
///
/// `kubectl apply` replaces a list of a custom resource as a whole where the live one differs from the file. With a
/// default in an item it always does, and every apply would say "configured" although nothing changes.
fn without_defaults_in_lists(schema: &mut JSONSchemaProps, in_list: bool) {
    if in_list {
        schema.default = None;
    }
    for property in schema.properties.iter_mut().flat_map(|p| p.values_mut()) {
        without_defaults_in_lists(property, in_list);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        without_defaults_in_lists(items, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The derive panics while it runs for some shapes, and emits `$ref` for recursive ones; neither may reach a user.
    #[test]
    fn every_crd_can_be_made_and_holds_no_reference() {
        for crd in all_crds() {
            let text = serde_json::to_string(&crd).unwrap();
            assert!(!text.contains("$ref"), "{:?}", crd.metadata.name);
            assert!(
                text.len() < 250_000,
                "client-side apply stores it in an annotation of at most 256 KiB"
            );
        }
    }
}

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

const CRD: &str = "toolexecutions.fairlead.dev";
const VAP: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/";
const BINDING: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/";

fn needs() -> Needs {
    Needs {
        program: "test",
        crds: vec![CRD.to_owned()],
    }
}

fn crd_path() -> String {
    format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD}")
}

fn meta(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1",
        "kind": "PartialObjectMetadata",
        "metadata": {"name": name, "annotations": annotations},
    })
}

fn binding(name: &str, policy: &str, actions: &[&str]) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": policy, "validationActions": actions},
    })
}

/// What the chart installs, by path.
fn whole() -> BTreeMap<String, Value> {
    let revision = json!({CRD_REVISION_ANNOTATION: CRD_REVISION.to_string()});
    let mut objects = BTreeMap::from([(crd_path(), meta(CRD, &revision))]);
    for name in ADMISSION_POLICIES {
        objects.insert(format!("{VAP}{name}"), meta(name, &json!({})));
        objects.insert(
            format!("{BINDING}{name}"),
            binding(name, name, &["Deny", "Audit"]),
        );
    }
    objects
}

/// A client of a server that has these objects and nothing else.
fn client(objects: BTreeMap<String, Value>) -> Client {
    let objects = Arc::new(objects);
    let service = tower::service_fn(move |request: Request<Body>| {
        let found = objects.get(request.uri().path()).cloned();
        async move {
            let (code, body) = match found {
                Some(object) => (StatusCode::OK, object),
                None => (
                    StatusCode::NOT_FOUND,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}),
                ),
            };
            let mut response = Response::new(Body::from(body.to_string().into_bytes()));
            *response.status_mut() = code;
            Ok::<_, Infallible>(response)
        }
    });
    Client::new(service, "default")
}

async fn said(objects: BTreeMap<String, Value>) -> String {
    match needs().check(&client(objects)).await {
        Ok(()) => String::new(),
        Err(error) => format!("{error:#}"),
    }
}

#[tokio::test]
async fn what_the_chart_installs_is_whole() {
    assert_eq!(said(whole()).await, "");
}

#[tokio::test]
async fn whatever_is_missing_is_named_with_the_fix() {
    for path in whole().keys() {
        let mut objects = whole();
        objects.remove(path);
        let said = said(objects).await;
        let name = path.rsplit('/').next().unwrap();
        assert!(
            said.contains(name) && said.contains("is missing") && said.contains("helm upgrade"),
            "{path}: {said}"
        );
        assert_eq!(
            path.starts_with(BINDING),
            said.starts_with("ValidatingAdmissionPolicyBinding"),
            "{path}: {said}"
        );
    }
}

#[tokio::test]
async fn an_old_schema_and_a_binding_that_refuses_nothing_are_as_good_as_missing() {
    let name = ADMISSION_POLICIES[0];
    let revision = |revision: u32| json!({CRD_REVISION_ANNOTATION: revision.to_string()});
    for (path, object, says) in [
        (
            crd_path(),
            meta(CRD, &revision(CRD_REVISION - 1)),
            "older than this test",
        ),
        (crd_path(), meta(CRD, &json!({})), "older than this test"),
        (
            format!("{BINDING}{name}"),
            binding(name, name, &["Warn", "Audit"]),
            "[Warn, Audit]",
        ),
        (
            format!("{BINDING}{name}"),
            binding(name, "another", &["Deny"]),
            "\"another\"",
        ),
    ] {
        let mut objects = whole();
        objects.insert(path.clone(), object);
        let said = said(objects).await;
        assert!(
            said.contains(says) && said.contains("helm upgrade"),
            "{path}: {said}"
        );
    }
}

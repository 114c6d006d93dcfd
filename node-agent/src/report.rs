//! Status writes and reads of one execution.

use crate::guard::Guarded;
use fairlead_crds::names::MANAGER_NODE_AGENT;
use fairlead_crds::reading::Readable;
use fairlead_crds::{API_VERSION, ToolExecution, ToolExecutionStatus};
use fairlead_decide::node::{ObjectRef, Report, ReportFailure};
use fairlead_decide::output::yaml_safe;
use fairlead_installation::is_too_large;
use http::HeaderValue;
use http::header::ACCEPT;
use kube::api::{Patch, PatchParams};
use kube::core::{PartialObjectMeta, Request};
use kube::{Api, Client, Error, Resource};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// Longest wait for the API server's answer.
const BOUND: Duration = Duration::from_secs(15);

/// What is applied: written from the status as it is, which may hold a large output.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Name<'a>,
    status: &'a ToolExecutionStatus,
}

#[derive(Serialize)]
struct Name<'a> {
    name: &'a str,
    namespace: &'a str,
}

/// Applies a status as the agent's field manager.
///
/// # Errors
/// Whether it may succeed later. A write whose answer was lost counts as one that may: applying the same again changes
/// nothing.
pub(crate) async fn write(client: Client, report: &Report) -> Result<(), ReportFailure> {
    let body = Body {
        api_version: API_VERSION,
        kind: "ToolExecution",
        metadata: Name {
            name: &report.object.name,
            namespace: &report.object.namespace,
        },
        status: &report.status,
    };
    let result = tokio::time::timeout(BOUND, apply(&client, &report.object, &body)).await;
    let (execution, level) = (&report.key, report.level);
    match result {
        Ok(Ok(stored)) if stored.meta().uid.as_deref() == Some(execution.uid.as_str()) => Ok(()),
        Ok(Ok(_)) => {
            // The admission policy compares fences, so this is a cluster without it.
            tracing::error!(%execution, ?level, "the status went to a successor of the same name");
            Err(ReportFailure::NotFound)
        }
        Ok(Err(error)) => {
            let failure = judge(&error);
            tracing::warn!(%execution, ?level, ?failure, %error, "write the status");
            Err(failure)
        }
        Err(_) => {
            tracing::warn!(%execution, ?level, "write the status: no answer within {BOUND:?}");
            Err(ReportFailure::Transient)
        }
    }
}

/// `patch_status` of the client library, but with a body that the server's YAML reader takes for what it is.
/// It answers with metadata only, since the status is known and may be large.
async fn apply(
    client: &Client,
    object: &ObjectRef,
    body: &Body<'_>,
) -> Result<Readable<PartialObjectMeta<ToolExecution>>, Error> {
    let params = PatchParams::apply(MANAGER_NODE_AGENT).force().validation_strict();
    let path = ToolExecution::url_path(&(), Some(&object.namespace));
    let mut request = Request::new(path)
        .patch_subresource("status", &object.name, &params, &Patch::Apply(&()))
        .map_err(Error::BuildRequest)?;
    request
        .headers_mut()
        .insert(ACCEPT, HeaderValue::from_static(METADATA_ONLY));
    let json = serde_json::to_string(body).map_err(Error::SerdeError)?;
    client
        .request(request.map(|_| yaml_safe(json).into_bytes()))
        .await
}

/// What an error of the API server means for trying again.
fn judge(error: &Error) -> ReportFailure {
    let Error::Api(status) = error else {
        return ReportFailure::Transient;
    };
    match status.code {
        404 => ReportFailure::NotFound,
        403 => ReportFailure::Forbidden,
        _ if is_too_large(status) => ReportFailure::Refused,
        400 | 422 => ReportFailure::Refused,
        _ => ReportFailure::Transient,
    }
}

/// Reads the object of that UID; `None` when it is gone, also when another one has its name.
///
/// # Errors
/// When it could not be read.
pub(crate) async fn read(
    client: Client,
    uid: &str,
    object: &ObjectRef,
) -> Result<Option<Arc<ToolExecution>>, ()> {
    let api: Api<Guarded> = Api::namespaced(client, &object.namespace);
    match tokio::time::timeout(BOUND, api.get_opt(&object.name)).await {
        Ok(Ok(found)) => match found.filter(|found| found.meta().uid.as_deref() == Some(uid)) {
            None => Ok(None),
            Some(Guarded::Whole(found) | Guarded::TooNew(found)) => Ok(Some(Arc::from(found))),
            Some(Guarded::Unreadable(unread)) => {
                tracing::warn!(uid, error = unread.error, "read the execution back");
                Err(())
            }
        },
        Ok(Err(error)) => {
            tracing::warn!(uid, %error, "read the execution back");
            Err(())
        }
        Err(_) => {
            tracing::warn!(uid, "read the execution back: no answer within {BOUND:?}");
            Err(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn what_is_applied_names_its_object_and_holds_the_status() {
        let status = ToolExecutionStatus::default();
        let body = Body {
            api_version: API_VERSION,
            kind: "ToolExecution",
            metadata: Name {
                name: "tx",
                namespace: "ns",
            },
            status: &status,
        };
        let expected = serde_json::json!({
            "apiVersion": API_VERSION, "kind": "ToolExecution",
            "metadata": {"name": "tx", "namespace": "ns"}, "status": status,
        });
        assert_eq!(serde_json::to_value(&body).unwrap(), expected);
    }

    #[test]
    fn only_what_may_change_is_tried_again_as_it_is() {
        let api = |code: u16, message: &str| {
            let status = Status {
                code,
                message: message.to_owned(),
                ..Status::default()
            };
            judge(&Error::Api(Box::new(status)))
        };
        assert_eq!(api(404, ""), ReportFailure::NotFound);
        assert_eq!(api(403, ""), ReportFailure::Forbidden);
        for code in [400, 413, 422] {
            assert_eq!(api(code, ""), ReportFailure::Refused, "{code}");
        }
        assert_eq!(
            api(500, "etcdserver: request is too large"),
            ReportFailure::Refused
        );
        for code in [401, 409, 429, 500, 503] {
            assert_eq!(api(code, ""), ReportFailure::Transient, "{code}");
        }
    }
}

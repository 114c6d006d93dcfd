//! Reading the one Secret a provider names, with nothing but the grant its namespace gave.

use crate::provider::{ApiKey, check as check_spec};
use fairlead_crds::conditions::reason;
use fairlead_crds::{ModelProvider, ModelProviderSpec, SecretKeyRef};
use fairlead_decide::model::{ModelError, ModelErrorKind};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use std::time::Duration;

/// Bound on the read of one Secret.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// The API key a provider names; nothing where it names none. `grantee` is the operator's own ServiceAccount, as
/// `namespace:name`, for the command that would grant it the Secret.
///
/// # Errors
/// When the Secret is missing, lacks the key, or may not be read; the message says how to mend it.
pub async fn api_key(
    client: &Client,
    grantee: &str,
    namespace: &str,
    spec: &ModelProviderSpec,
) -> Result<Option<ApiKey>, ModelError> {
    let Some(credentials) = &spec.credentials else {
        return Ok(None);
    };
    read(client, grantee, namespace, &credentials.secret_ref)
        .await
        .map(Some)
        .map_err(|(kind, message)| ModelError {
            kind,
            status: None,
            retry_after_seconds: None,
            answer_begun: false,
            message,
        })
}

/// Why a provider cannot be called, as reason and message, as far as can be told without calling it.
pub async fn check(client: &Client, grantee: &str, provider: &ModelProvider) -> Option<(String, String)> {
    if let Err(message) = check_spec(&provider.spec) {
        return Some((reason::PROVIDER_NOT_READY.to_owned(), message));
    }
    let namespace = provider.metadata.namespace.as_deref().unwrap_or_default();
    let fault = api_key(client, grantee, namespace, &provider.spec).await.err()?;
    Some((reason::SECRET_NOT_READABLE.to_owned(), fault.message))
}

async fn read(
    client: &Client,
    grantee: &str,
    namespace: &str,
    secret: &SecretKeyRef,
) -> Result<ApiKey, (ModelErrorKind, String)> {
    let SecretKeyRef { name, key } = secret;
    let place = format!("spec.credentials.secretRef: Secret {name:?} in namespace {namespace:?}");
    let fault = |message: String| (ModelErrorKind::SecretNotReadable, message);
    // What may pass by itself is no fault of the Secret: the request is tried again.
    let passing = |message: String| (ModelErrorKind::Connect, message);
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let answer = tokio::time::timeout(READ_LIMIT, api.get_opt(name)).await;
    let answer = answer.map_err(|_| passing(format!("{place} could not be read within {READ_LIMIT:?}.")))?;
    let found = match answer {
        Ok(Some(found)) => found,
        Ok(None) => {
            return Err(fault(format!(
                "{place} does not exist; create it with the key {key:?}."
            )));
        }
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            return Err(fault(format!(
                "{place} may not be read by the operator, which so cannot see whether it is there; create it if it is not, \
                 and grant it: kubectl -n {namespace} create role read-{name} \
                 --verb=get --resource=secrets --resource-name={name} && kubectl -n {namespace} create rolebinding \
                 read-{name} --role=read-{name} --serviceaccount={grantee}"
            )));
        }
        Err(error) => return Err(passing(format!("{place} could not be read: {error}."))),
    };
    let bytes = found.data.and_then(|mut data| data.remove(key)).map(|b| b.0);
    let bytes = bytes.ok_or_else(|| {
        fault(format!(
            "{place} has no key {key:?}; add it, or name another in secretRef.key."
        ))
    })?;
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| fault(format!("{place}: the value of key {key:?} is not text.")))?;
    Ok(ApiKey::from(text.trim().to_owned()))
}

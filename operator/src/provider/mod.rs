//! Model providers: one try of one request, over the chat completions protocol or by a script.
//!
//! Whether a failed try is repeated, and when, is decided in the core; here nothing is repeated and no redirect is
//! followed. A try is bounded in time by the provider's limits and in memory by [`MAX_ANSWER_BYTES`],
//! [`MAX_BODY_BYTES`] and [`sse::MAX_EVENT_BYTES`].

mod answer;
mod chat;
mod error;
mod exchange;
pub mod scripted;
pub mod sse;

pub use answer::MAX_ANSWER_BYTES;
pub use exchange::MAX_BODY_BYTES;

use fairlead_crds::{ModelProviderSpec, WireApi};
use fairlead_decide::model::{ModelError, ModelErrorKind, ModelRequest, ModelResponse};
use reqwest::redirect;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A key of a provider; it never shows in logs, and its memory is wiped when it is dropped.
pub type ApiKey = secrecy::SecretString;

/// Calls model providers. Connections are kept and shared between providers with the same connect limit.
#[derive(Debug, Default)]
pub struct ProviderClient {
    /// By connect limit in seconds, of which the schema allows 300: the HTTP client takes that limit only when made.
    clients: Mutex<BTreeMap<u64, reqwest::Client>>,
}

impl ProviderClient {
    /// A client without connections. The process must have installed a rustls crypto provider, or leave it to the
    /// HTTP client's own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes one try of `request`.
    ///
    /// `tries_before` is how many tries of the same turn came before this one; a script's `times` counts by it, so
    /// that nothing about a script is kept in memory.
    ///
    /// # Errors
    ///
    /// Why the try failed. The key is never part of the message.
    pub async fn call(
        &self,
        provider: &ModelProviderSpec,
        api_key: Option<&ApiKey>,
        request: &ModelRequest,
        tries_before: u32,
    ) -> Result<ModelResponse, ModelError> {
        let started = Instant::now();
        let result = match provider.wire_api {
            WireApi::Scripted => run_script(provider, request, tries_before).await,
            WireApi::ChatCompletions if provider.credentials.is_some() && api_key.is_none() => {
                Err(error::failure(
                    ModelErrorKind::SecretNotReadable,
                    "the key that spec.credentials names was not read; grant the operator get on that Secret",
                ))
            }
            WireApi::ChatCompletions => {
                let client = self.client(provider.timeouts.connect_seconds)?;
                exchange::exchange(&client, provider, api_key, request).await
            }
        };
        let millis = exchange::millis(started.elapsed());
        result
            .inspect(|_| tracing::debug!(turn = request.turn, model = request.model, millis, "model answered"))
            .map_err(|failed| {
                let failed = error::without_key(failed, api_key);
                tracing::info!(
                    turn = request.turn, model = request.model, millis, kind = ?failed.kind, status = failed.status,
                    error = failed.message, "model did not answer"
                );
                failed
            })
    }

    fn client(&self, connect_seconds: i64) -> Result<reqwest::Client, ModelError> {
        let limit = exchange::seconds(connect_seconds.min(300));
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = clients.get(&limit.as_secs()) {
            return Ok(known.clone());
        }
        let made = reqwest::Client::builder()
            .user_agent(concat!("fairlead/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(limit)
            .redirect(redirect::Policy::none())
            // Another try is the core's to decide; the library's own would not be counted.
            .retry(reqwest::retry::never())
            .tcp_keepalive(Duration::from_secs(30))
            // Shorter than servers keep an idle connection: one that closes as a request is sent cannot be told from one
            // that had taken the request.
            .pool_idle_timeout(Duration::from_secs(4))
            .build()
            .map_err(|failed| {
                error::failure(
                    ModelErrorKind::Connect,
                    format!("the HTTP client cannot be made: {}", error::causes(&failed)),
                )
            })?;
        clients.insert(limit.as_secs(), made.clone());
        Ok(made)
    }
}

/// Judges `provider` as far as that can be done without calling it, for its Ready condition.
///
/// # Errors
///
/// Every fault found, with field, rule and fix, joined by semicolons; at most 2,048 bytes.
pub fn check(provider: &ModelProviderSpec) -> Result<(), String> {
    let faults = match provider.wire_api {
        WireApi::ChatCompletions => endpoint(provider).err().into_iter().collect(),
        WireApi::Scripted => scripted::faults(&provider.script),
    };
    if faults.is_empty() {
        Ok(())
    } else {
        Err(error::bounded(faults.join("; "), 2048))
    }
}

/// The URL that requests go to.
fn endpoint(provider: &ModelProviderSpec) -> Result<url::Url, String> {
    let base = provider
        .base_url
        .as_deref()
        .ok_or("spec.baseUrl: required with wireApi ChatCompletions; add it, for example https://models.example.com/v1")?;
    let mut url = url::Url::parse(base).map_err(|fault| {
        format!("spec.baseUrl: {fault}; correct it, for example https://models.example.com/v1")
    })?;
    if !matches!(url.scheme(), "http" | "https") || url.query().is_some() || url.fragment().is_some() {
        return Err(
            "spec.baseUrl: must be http:// or https:// without query or fragment; correct it".to_owned(),
        );
    }
    let path = format!("{}/chat/completions", url.path().trim_end_matches('/'));
    url.set_path(&path);
    Ok(url)
}

/// `spec.baseUrl` as it may be told: without the name and password that a URL can hold.
fn address(provider: &ModelProviderSpec) -> String {
    let base = provider.base_url.as_deref().unwrap_or_default();
    let Ok(mut url) = url::Url::parse(base) else {
        return String::new();
    };
    // Fails for a URL that can hold neither.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    url.to_string()
}

/// Plays the step of the script that answers. Its delay stands under the time limits of a request, as a model's would.
async fn run_script(
    provider: &ModelProviderSpec,
    request: &ModelRequest,
    tries_before: u32,
) -> Result<ModelResponse, ModelError> {
    let played = scripted::answer(&provider.script, request, tries_before)?;
    let limits = &provider.timeouts;
    let (limit, field) = if limits.first_byte_seconds <= limits.total_seconds {
        (limits.first_byte_seconds, "firstByteSeconds")
    } else {
        (limits.total_seconds, "totalSeconds")
    };
    let bound = exchange::seconds(limit);
    tokio::time::sleep(played.delay.min(bound)).await;
    if played.delay > bound {
        return Err(error::failure(
            ModelErrorKind::Timeout,
            format!("no answer within spec.timeouts.{field} ({limit} s): the script's delay is longer"),
        ));
    }
    let millis = exchange::millis(played.delay);
    played.outcome.map(|response| ModelResponse {
        first_delta_millis: Some(millis),
        latency_millis: millis,
        ..response
    })
}

//! One request over HTTP and the reading of its answer, within the provider's time limits.

use super::answer::Answer;
use super::error::{at_base_url, bounded, failure, of_status, of_transport};
use super::sse::{SseFault, SseReader};
use super::{ApiKey, chat};
use fairlead_crds::{ModelProviderSpec, ProviderTimeouts};
use fairlead_decide::model::{ModelError, ModelErrorKind, ModelRequest, ModelResponse};
use http::{HeaderMap, HeaderValue, header};
use reqwest::Response;
use secrecy::ExposeSecret as _;
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Most bytes of an answer that comes whole; more than a turn holds, since JSON escapes and other members take room.
pub const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
/// Most bytes of an error's body that are read.
const MAX_ERROR_BODY_BYTES: usize = 64 * 1024;
/// Longest wait for the usage and the end of a stream after the model has said why it stopped, and for the body of an error.
const TRAILER: Duration = Duration::from_secs(5);

/// What the answer is held in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Events,
}

/// Sends `request` to the chat completions endpoint of `provider` once and reads the answer.
pub(super) async fn exchange(
    client: &reqwest::Client,
    provider: &ModelProviderSpec,
    key: Option<&ApiKey>,
    request: &ModelRequest,
) -> Result<ModelResponse, ModelError> {
    let body = chat::render(request, provider.stream)?;
    let url = super::endpoint(provider).map_err(|fault| failure(ModelErrorKind::Refused, fault))?;
    let mut outgoing = client.post(url).json(&body);
    if let Some(authorization) = key.map(authorization).transpose()? {
        outgoing = outgoing.header(header::AUTHORIZATION, authorization);
    }
    let started = Instant::now();
    let clock = Clock::new(&provider.timeouts, started);
    let response = clock
        .head(outgoing.send())
        .await
        .map_err(|error| at_base_url(error, &super::address(provider)))?;
    let status = response.status();
    let headers = response.headers().clone();
    let mut body = Body { response, clock };
    if !status.is_success() {
        let text = body.read_error().await;
        return Err(of_status(status, &headers, &text));
    }
    let (answer, first) = read_answer(&mut body, &headers).await?;
    let mut made = answer.into_response()?;
    let named = ["x-request-id", "request-id"]
        .iter()
        .find_map(|name| headers.get(*name)?.to_str().ok());
    if let Some(id) = named.filter(|id| !id.is_empty() && id.len() <= 256) {
        made.request_id = Some(id.to_owned());
    }
    made.first_delta_millis = first.map(|first| millis(first - started));
    made.latency_millis = millis(started.elapsed());
    Ok(made)
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn authorization(key: &ApiKey) -> Result<HeaderValue, ModelError> {
    // A line end behind the key is the commonest mistake in making a Secret.
    let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret().trim())).map_err(|_| {
        failure(
            ModelErrorKind::SecretNotReadable,
            "the key in the Secret that spec.credentials names holds a character that no HTTP header can; write the Secret again",
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Reads a successful answer; with it, when its first piece came.
async fn read_answer(body: &mut Body, headers: &HeaderMap) -> Result<(Answer, Option<Instant>), ModelError> {
    let mut reading = Reading {
        form: declared_form(headers)?,
        ..Reading::default()
    };
    loop {
        let begun = reading.answer.begun() || !reading.whole.is_empty();
        match body.next(begun, reading.answer.finished()).await? {
            Next::Bytes(chunk) if reading.take(&chunk)? => break,
            Next::Bytes(_) => {}
            Next::Over => {
                reading.end()?;
                break;
            }
        }
    }
    Ok((reading.answer, reading.first))
}

/// The form that the server declares; none where it declares nothing, or only that it is text: its first byte tells then.
///
/// # Errors
///
/// What is no answer of a model, such as a web page.
fn declared_form(headers: &HeaderMap) -> Result<Option<Form>, ModelError> {
    let declared = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = declared.map(|text| {
        text.split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase()
    });
    match essence.as_deref() {
        None | Some("" | "text/plain" | "application/octet-stream") => Ok(None),
        Some("text/event-stream") => Ok(Some(Form::Events)),
        Some(json) if json.contains("json") => Ok(Some(Form::Json)),
        Some(other) => Err(protocol(
            &format!(
                "it is {:?}, neither JSON nor an event stream; set spec.baseUrl to where the API really is",
                bounded(other.to_owned(), 64)
            ),
            false,
        )),
    }
}

/// An answer while it is read.
#[derive(Default)]
struct Reading {
    answer: Answer,
    /// What the answer is held in: as the server declares it, else as its first byte tells.
    form: Option<Form>,
    whole: Vec<u8>,
    events: SseReader,
    first: Option<Instant>,
}

impl Reading {
    /// Takes bytes in; true when the stream says that it is done.
    fn take(&mut self, chunk: &[u8]) -> Result<bool, ModelError> {
        let form = *self.form.get_or_insert_with(|| {
            let begins = chunk.iter().find(|byte| !byte.is_ascii_whitespace());
            if begins == Some(&b'{') {
                Form::Json
            } else {
                Form::Events
            }
        });
        if form == Form::Json {
            self.first.get_or_insert_with(Instant::now);
            if self.whole.len() + chunk.len() > MAX_BODY_BYTES {
                return Err(too_large(format!(
                    "the answer has more than {MAX_BODY_BYTES} bytes"
                )));
            }
            self.whole.extend_from_slice(chunk);
            return Ok(false);
        }
        let mut events = Vec::new();
        let read = self.events.push(chunk, &mut events);
        let done = self.absorb(&events)?;
        read.map_err(|fault| of_sse(fault, &self.answer))?;
        Ok(done)
    }

    /// Judges the answer when nothing more comes.
    fn end(&mut self) -> Result<(), ModelError> {
        if self.form == Some(Form::Json) {
            let value: Value = serde_json::from_slice(&self.whole)
                .map_err(|error| protocol(&format!("no JSON: {error}"), true))?;
            return self.answer.absorb(&value);
        }
        let mut events = Vec::new();
        self.events
            .finish(&mut events)
            .map_err(|fault| of_sse(fault, &self.answer))?;
        if self.absorb(&events)? || self.answer.finished() {
            return Ok(());
        }
        Err(ModelError {
            answer_begun: self.answer.begun(),
            ..failure(
                ModelErrorKind::Disconnected,
                "the connection ended before the answer was complete",
            )
        })
    }

    /// Takes events in; true when the stream says that it is done.
    fn absorb(&mut self, events: &[String]) -> Result<bool, ModelError> {
        for event in events {
            let data = event.trim();
            if data == "[DONE]" {
                return Ok(true);
            }
            if data.is_empty() {
                continue;
            }
            let value: Value = serde_json::from_str(data).map_err(|error| {
                protocol(
                    &format!("an event of the stream is no JSON: {error}"),
                    self.answer.begun(),
                )
            })?;
            self.answer.absorb(&value)?;
            if self.answer.begun() {
                self.first.get_or_insert_with(Instant::now);
            }
        }
        Ok(false)
    }
}

fn protocol(detail: &str, begun: bool) -> ModelError {
    ModelError {
        answer_begun: begun,
        ..failure(
            ModelErrorKind::Protocol,
            format!("the answer cannot be read: {detail}"),
        )
    }
}

fn too_large(message: String) -> ModelError {
    ModelError {
        answer_begun: true,
        ..failure(ModelErrorKind::TooLarge, message)
    }
}

fn of_sse(fault: SseFault, answer: &Answer) -> ModelError {
    match fault {
        SseFault::TooLarge => too_large(format!(
            "an event of the stream has more than {} bytes",
            super::sse::MAX_EVENT_BYTES
        )),
        SseFault::NotUtf8 => protocol("an event of the stream is not UTF-8", answer.begun()),
    }
}

/// The time limits of one try.
struct Clock {
    idle: Duration,
    idle_seconds: i64,
    first_byte: Instant,
    first_byte_seconds: i64,
    end: Instant,
    total_seconds: i64,
}

/// `seconds` of a field, never less than one.
pub(super) fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds.max(1)).unwrap_or(1))
}

impl Clock {
    fn new(limits: &ProviderTimeouts, started: Instant) -> Self {
        Self {
            idle: seconds(limits.idle_seconds),
            idle_seconds: limits.idle_seconds,
            first_byte: started + seconds(limits.first_byte_seconds),
            first_byte_seconds: limits.first_byte_seconds,
            end: started + seconds(limits.total_seconds),
            total_seconds: limits.total_seconds,
        }
    }

    /// Waits for the head of the answer.
    async fn head(
        &self,
        sent: impl Future<Output = Result<Response, reqwest::Error>>,
    ) -> Result<Response, ModelError> {
        match timeout_at(self.first_byte.min(self.end), sent).await {
            Ok(sent) => sent.map_err(of_transport),
            Err(_) if self.end <= self.first_byte => Err(self.whole()),
            Err(_) => Err(failure(
                ModelErrorKind::Timeout,
                format!(
                    "no answer within spec.timeouts.firstByteSeconds ({} s)",
                    self.first_byte_seconds
                ),
            )),
        }
    }

    fn whole(&self) -> ModelError {
        failure(
            ModelErrorKind::Timeout,
            format!(
                "the answer was not complete within spec.timeouts.totalSeconds ({} s)",
                self.total_seconds
            ),
        )
    }
}

/// The rest of an answer.
struct Body {
    response: Response,
    clock: Clock,
}

enum Next {
    Bytes(Vec<u8>),
    Over,
}

impl Body {
    /// The next bytes. `begun` is told in an error; once the answer is `finished`, whatever ends the stream is its end.
    async fn next(&mut self, begun: bool, finished: bool) -> Result<Next, ModelError> {
        let idle = Instant::now()
            + if finished {
                self.clock.idle.min(TRAILER)
            } else {
                self.clock.idle
            };
        let fault = match timeout_at(idle.min(self.clock.end), self.response.chunk()).await {
            Ok(Ok(Some(bytes))) => return Ok(Next::Bytes(bytes.to_vec())),
            Ok(Ok(None)) => return Ok(Next::Over),
            Ok(Err(error)) => failure(
                ModelErrorKind::Disconnected,
                format!(
                    "the connection broke before the answer was complete: {}",
                    super::error::causes(&error.without_url())
                ),
            ),
            Err(_) if self.clock.end <= idle => self.clock.whole(),
            Err(_) => failure(
                ModelErrorKind::Timeout,
                format!(
                    "no byte of the answer within spec.timeouts.idleSeconds ({} s)",
                    self.clock.idle_seconds
                ),
            ),
        };
        if finished {
            Ok(Next::Over)
        } else {
            Err(ModelError {
                answer_begun: begun,
                ..fault
            })
        }
    }

    /// As much of an error's body as comes in time: the status is known, and what is to be done about it does not wait.
    async fn read_error(&mut self) -> Vec<u8> {
        let mut text = Vec::new();
        self.clock.end = self.clock.end.min(Instant::now() + TRAILER);
        while let Ok(Next::Bytes(bytes)) = self.next(false, false).await {
            text.extend_from_slice(&bytes);
            if text.len() >= MAX_ERROR_BODY_BYTES {
                text.truncate(MAX_ERROR_BODY_BYTES);
                break;
            }
        }
        text
    }
}

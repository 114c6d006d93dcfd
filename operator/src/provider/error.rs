//! Failures of one try, as the core judges them.

use super::ApiKey;
use fairlead_decide::model::{ModelError, ModelErrorKind};
use http::{HeaderMap, StatusCode, header};
use secrecy::ExposeSecret as _;
use serde_json::Value;
use std::time::SystemTime;

/// Most bytes of a message.
const MAX_MESSAGE_BYTES: usize = 2048;
/// Longest wait taken from a Retry-After, seconds: a day.
const MAX_RETRY_AFTER_SECONDS: u64 = 86_400;

/// A failure before any piece of an answer.
pub(super) fn failure(kind: ModelErrorKind, message: impl Into<String>) -> ModelError {
    ModelError {
        kind,
        status: None,
        retry_after_seconds: None,
        answer_begun: false,
        message: bounded(message.into(), MAX_MESSAGE_BYTES),
    }
}

/// Which kind of failure an HTTP status is.
pub(super) fn kind_of_status(status: u16) -> ModelErrorKind {
    match status {
        401 | 403 => ModelErrorKind::Unauthorized,
        429 | 529 => ModelErrorKind::RateLimited,
        500..=599 => ModelErrorKind::Server,
        _ => ModelErrorKind::Refused,
    }
}

/// The failure of an answer with another status than 2xx.
pub(super) fn of_status(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ModelError {
    let message = if status.is_redirection() {
        let target = headers
            .get(header::LOCATION)
            .and_then(|v| v.to_str().ok())
            .unwrap_or("an unnamed place");
        format!(
            "HTTP {}: a redirect to {}, which is not followed; set spec.baseUrl to where the API really is",
            status.as_u16(),
            bounded(target.to_owned(), 512)
        )
    } else {
        format!("HTTP {}: {}", status.as_u16(), provider_message(body))
    };
    ModelError {
        status: Some(status.as_u16()),
        retry_after_seconds: retry_after(headers, SystemTime::now()),
        ..failure(kind_of_status(status.as_u16()), message)
    }
}

/// The failure that an error object inside an answer of status 200 tells of; `None` when `error` is no error.
pub(super) fn of_error_member(error: &Value) -> Option<ModelError> {
    if error.is_null() {
        return None;
    }
    let code = error.get("code").or_else(|| error.get("status"));
    let number = code.and_then(|c| c.as_u64().or_else(|| c.as_str().and_then(|s| s.parse().ok())));
    let status = number
        .and_then(|n| u16::try_from(n).ok())
        .filter(|n| (400..600).contains(n));
    let text = message_in(error).unwrap_or_else(|| bounded(error.to_string(), 1024));
    Some(ModelError {
        status,
        ..failure(
            status.map_or(ModelErrorKind::Server, kind_of_status),
            format!("the answer holds an error: {text}"),
        )
    })
}

/// What the provider says in the body of an error.
fn provider_message(body: &[u8]) -> String {
    let told = serde_json::from_slice::<Value>(body).ok().and_then(|value| {
        // A list of one error is how some gateways wrap it.
        let value = value
            .as_array()
            .and_then(|items| items.first())
            .unwrap_or(&value)
            .clone();
        value
            .get("error")
            .and_then(message_in)
            .or_else(|| message_in(&value))
    });
    let text = told.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned());
    if text.is_empty() {
        "no message".to_owned()
    } else {
        bounded(text, MAX_MESSAGE_BYTES)
    }
}

fn message_in(value: &Value) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    ["message", "detail", "error"]
        .iter()
        .find_map(|key| match value.get(key)? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        })
}

/// Seconds that a Retry-After asks for, given as seconds or as a date (RFC 9110 §10.2.3); none where it is neither.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<i64> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = if let Ok(seconds) = value.parse::<f64>() {
        // Some gateways send fractions; a wait is never cut short.
        if !seconds.is_finite() || seconds < 0.0 {
            return None;
        }
        std::time::Duration::try_from_secs_f64(seconds.ceil())
            .ok()?
            .as_secs()
    } else {
        let until = httpdate::parse_http_date(value).ok()?;
        // Up to the next whole second, for the same reason.
        until.duration_since(now).map_or(0, |wait| {
            wait.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)
        })
    };
    i64::try_from(seconds.min(MAX_RETRY_AFTER_SECONDS)).ok()
}

/// A failure of the HTTP client before the head of an answer, told with its causes and without the URL's parts that
/// could be secret.
pub(super) fn of_transport(error: reqwest::Error) -> ModelError {
    if error.is_connect() {
        return failure(ModelErrorKind::Connect, cause_of_all(&error));
    }
    let kind = if error.is_builder() {
        ModelErrorKind::Refused
    } else if error.is_timeout() {
        ModelErrorKind::Timeout
    } else if is_unreadable(&error) {
        ModelErrorKind::Protocol
    } else {
        ModelErrorKind::Disconnected
    };
    failure(kind, causes(&error.without_url()))
}

/// Whether what came is no HTTP, or has a head larger than is read.
fn is_unreadable(error: &reqwest::Error) -> bool {
    std::iter::successors(std::error::Error::source(error), |cause| cause.source())
        .filter_map(|cause| cause.downcast_ref::<hyper::Error>())
        .any(hyper::Error::is_parse)
}

/// A connection to `address` that could not be made, told with the field that names it and what to look at. Any other
/// error stays as it is.
pub(super) fn at_base_url(error: ModelError, address: &str) -> ModelError {
    match error.kind {
        ModelErrorKind::Connect => failure(
            ModelErrorKind::Connect,
            format!(
                "spec.baseUrl {address}: {}; check the address, and the operator's way to it",
                error.message
            ),
        ),
        _ => error,
    }
}

/// The innermost cause: of a connection that could not be made, those around it say no more than that.
fn cause_of_all(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |cause| cause.source())
        .last()
        .map(ToString::to_string)
        .unwrap_or_default()
}

/// An error with its causes, joined by colons.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        below = cause.source();
    }
    text
}

/// `error` with the key taken out of its message, should the provider have sent it back.
pub(super) fn without_key(mut error: ModelError, key: Option<&ApiKey>) -> ModelError {
    let secret = key
        .map(|key| key.expose_secret().trim())
        .filter(|secret| !secret.is_empty());
    if let Some(secret) = secret
        && error.message.contains(secret)
    {
        error.message = bounded(error.message.replace(secret, "[key]"), MAX_MESSAGE_BYTES);
    }
    error
}

/// `text`, cut to `most` bytes at a character's end.
pub(super) fn bounded(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most - "…".len()));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn wait(value: &str) -> Option<i64> {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, value.parse().unwrap());
        let now =
            httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap() - Duration::from_millis(200);
        retry_after(&headers, now)
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(wait("7"), Some(7));
        assert_eq!(wait(" 0.2 "), Some(1));
        assert_eq!(wait("99999999"), Some(86_400));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:47 GMT"), Some(11));
        assert_eq!(wait("Sunday, 06-Nov-94 08:49:47 GMT"), Some(11));
        assert_eq!(wait("Sun, 06 Nov 1994 08:00:00 GMT"), Some(0));
        for bad in ["-1", "soon", "NaN", "inf", ""] {
            assert_eq!(wait(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_providers_own_words_are_found() {
        let cases = [
            (r#"{"error":{"message":"too long","code":"x"}}"#, "too long"),
            (r#"{"error":"no such model"}"#, "no such model"),
            (r#"{"message":"nope"}"#, "nope"),
            (r#"{"detail":[{"loc":"body"}]}"#, r#"[{"loc":"body"}]"#),
            (r#"[{"error":{"message":"in a list"}}]"#, "in a list"),
            ("<html>bad gateway</html>\n", "<html>bad gateway</html>"),
            ("", "no message"),
        ];
        for (body, expected) in cases {
            assert_eq!(provider_message(body.as_bytes()), expected);
        }
        assert!(provider_message(&vec![b'x'; 100_000]).len() <= MAX_MESSAGE_BYTES);
    }

    #[test]
    fn errors_inside_an_answer_keep_their_status() {
        let kind = |v: Value| of_error_member(&v).map(|e| (e.kind, e.status));
        assert_eq!(kind(Value::Null), None);
        assert_eq!(
            kind(serde_json::json!({"code": 429})),
            Some((ModelErrorKind::RateLimited, Some(429)))
        );
        assert_eq!(
            kind(serde_json::json!({"code": "401"})),
            Some((ModelErrorKind::Unauthorized, Some(401)))
        );
        assert_eq!(
            kind(serde_json::json!({"message": "x"})),
            Some((ModelErrorKind::Server, None))
        );
        assert_eq!(
            kind(serde_json::json!("overloaded")),
            Some((ModelErrorKind::Server, None))
        );
    }
}

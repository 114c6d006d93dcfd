//! How each error of a model request is judged: who can do something about it, and whether it is tried again.

use crate::model::{ModelError, ModelErrorKind};
use crate::time::plus_millis;
use fairlead_crds::conditions::reason;
use fairlead_crds::values::Time;
use fairlead_crds::{Failure, FailureClass};

/// The table: class and reason of every kind of error, and whether another try may help.
pub const MODEL_ERRORS: &[(ModelErrorKind, FailureClass, &str, bool)] = &[
    (
        ModelErrorKind::Connect,
        FailureClass::Automatic,
        reason::PROVIDER_UNREACHABLE,
        true,
    ),
    (
        ModelErrorKind::Timeout,
        FailureClass::Terminal,
        reason::PROVIDER_TIMEOUT,
        false,
    ),
    (
        ModelErrorKind::Disconnected,
        FailureClass::Terminal,
        reason::PROVIDER_DISCONNECTED,
        false,
    ),
    (
        ModelErrorKind::RateLimited,
        FailureClass::Automatic,
        reason::PROVIDER_RATE_LIMITED,
        true,
    ),
    (
        ModelErrorKind::Server,
        FailureClass::Automatic,
        reason::PROVIDER_ERROR,
        true,
    ),
    (
        ModelErrorKind::Unauthorized,
        FailureClass::Manual,
        reason::PROVIDER_UNAUTHORIZED,
        false,
    ),
    (
        ModelErrorKind::Refused,
        FailureClass::Terminal,
        reason::PROVIDER_REFUSED,
        false,
    ),
    (
        ModelErrorKind::Protocol,
        FailureClass::Terminal,
        reason::PROVIDER_PROTOCOL,
        false,
    ),
    (
        ModelErrorKind::TooLarge,
        FailureClass::Terminal,
        reason::ANSWER_TOO_LARGE,
        false,
    ),
    (
        ModelErrorKind::ScriptExhausted,
        FailureClass::Terminal,
        reason::SCRIPT_EXHAUSTED,
        false,
    ),
    (
        ModelErrorKind::SecretNotReadable,
        FailureClass::Manual,
        reason::SECRET_NOT_READABLE,
        false,
    ),
];

/// First pause before a request is sent again, doubled with each try.
const FIRST_PAUSE_MILLIS: i64 = 1_000;
/// The same after a 429 that does not say how long: rates are counted by the minute.
const FIRST_PAUSE_RATE_LIMITED_MILLIS: i64 = 10_000;
/// Longest pause of our own choosing.
const LONGEST_PAUSE_MILLIS: i64 = 30_000;
/// Longest pause that a provider may ask for.
const LONGEST_ASKED_MILLIS: i64 = 3_600_000;
const MESSAGE_MAX: usize = 4096;

fn row(kind: ModelErrorKind) -> (FailureClass, &'static str, bool) {
    MODEL_ERRORS.iter().find(|(k, ..)| *k == kind).map_or(
        (FailureClass::Terminal, reason::PROVIDER_PROTOCOL, false),
        |(_, class, reason, again)| (*class, reason, *again),
    )
}

/// The reason that an error of that kind has.
pub fn reason_of(kind: ModelErrorKind) -> &'static str {
    row(kind).1
}

/// Whether the same request may be sent again: the kind allows it, and no piece of an answer had come.
pub fn may_repeat(error: &ModelError) -> bool {
    row(error.kind).2 && !error.answer_begun
}

/// When a request that failed `tries` times before may be sent again.
///
/// The provider's own wish is honoured. Otherwise the pause doubles and is shortened by up to a quarter, by the run,
/// so that runs that failed together do not come back together.
pub fn next_try(error: &ModelError, tries: u32, run: &str, now: Time) -> Time {
    if let Some(seconds) = error.retry_after_seconds {
        return plus_millis(now, seconds.saturating_mul(1000).clamp(0, LONGEST_ASKED_MILLIS));
    }
    let first = match error.kind {
        ModelErrorKind::RateLimited => FIRST_PAUSE_RATE_LIMITED_MILLIS,
        _ => FIRST_PAUSE_MILLIS,
    };
    let pause = (first << tries.min(10)).min(LONGEST_PAUSE_MILLIS);
    let spread = run.bytes().fold(0_i64, |sum, b| (sum * 31 + i64::from(b)) % 256);
    plus_millis(now, pause - pause / 4 * spread / 256)
}

/// The failure a run ends with after this error, the last of `tries` within `millis` milliseconds.
pub fn of_model(error: &ModelError, tries: u32, millis: i64) -> Failure {
    let (class, reason, _) = row(error.kind);
    if tries < 2 {
        return failure(class, reason, &error.message);
    }
    let seconds = millis.max(0) / 1000;
    failure(
        class,
        reason,
        &format!("{} ({tries} tries in {seconds} s)", error.message),
    )
}

/// A failure, its message cut to what the field holds.
pub fn failure(class: FailureClass, reason: &str, message: &str) -> Failure {
    let message = message
        .get(..message.floor_char_boundary(MESSAGE_MAX))
        .unwrap_or_default();
    Failure {
        class,
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

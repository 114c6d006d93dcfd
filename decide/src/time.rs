//! Arithmetic on points in time that cannot fail: it stops at the ends of the calendar.

use fairlead_crds::values::Time;
use jiff::SignedDuration;

/// `at` plus `millis`.
pub fn plus_millis(at: Time, millis: i64) -> Time {
    at.saturating_add(SignedDuration::from_millis(millis))
        .unwrap_or(at)
}

/// `at` plus `seconds`.
pub fn plus_seconds(at: Time, seconds: i64) -> Time {
    plus_millis(at, seconds.saturating_mul(1000))
}

/// Milliseconds from `from` to `to`, negative when `to` is earlier.
pub fn millis_between(from: Time, to: Time) -> i64 {
    i64::try_from(to.duration_since(from).as_millis()).unwrap_or(i64::MAX)
}

/// `at` for people, without its fraction of a second.
pub fn to_the_second(at: Time) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A message about something missing, with how long it is waited for.
pub fn until(message: &str, at: Time) -> String {
    format!(
        "{} (waited for until {})",
        message.trim_end_matches('.'),
        to_the_second(at)
    )
}

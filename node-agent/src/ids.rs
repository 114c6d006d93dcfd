//! Between the core's keys and clocks and those of the supervisor's protocol.

use fairlead_decide::node::{AttemptKey, Cause, Exit, Moment, Wait};
use fairlead_supervisor::{sys, wire};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Both clocks, now.
pub(crate) fn now() -> Moment {
    Moment {
        boot_ms: sys::boottime_ms(),
        unix_ms: unix(sys::realtime_ms()),
    }
}

/// The moment of a `CLOCK_BOOTTIME` reading, its wall clock as it stands today.
pub(crate) fn moment(boot_ms: u64) -> Moment {
    let now = now();
    let past = i64::try_from(now.boot_ms).unwrap_or(0) - i64::try_from(boot_ms).unwrap_or(0);
    Moment {
        boot_ms,
        unix_ms: now.unix_ms - past,
    }
}

/// A wall clock reading as the core has it.
pub(crate) fn unix(unix_ms: u64) -> i64 {
    i64::try_from(unix_ms).unwrap_or(i64::MAX)
}

/// The protocol's key; `None` for a UID that is not one of an API server.
pub(crate) fn to_wire(key: &AttemptKey) -> Option<wire::Key> {
    wire::Key::parse(&key.uid, key.attempt)
}

/// The core's key.
pub(crate) fn from_wire(key: &wire::Key) -> AttemptKey {
    let text = key.to_string();
    let uid = text.rsplit_once('-').map_or(text.as_str(), |(uid, _)| uid);
    AttemptKey {
        uid: uid.to_owned(),
        attempt: key.attempt,
    }
}

/// The end of a leader.
pub(crate) fn exit(wait_status: i32, cause: wire::Cause, at: Moment) -> Exit {
    let status = ExitStatus::from_raw(wait_status);
    let wait = match (status.code(), status.signal()) {
        (Some(code), _) => Wait::Code(code),
        (None, signal) => Wait::Signal(signal.unwrap_or(0)),
    };
    let cause = match cause {
        wire::Cause::None => Cause::None,
        wire::Cause::Requested => Cause::Requested,
        wire::Cause::Deadline => Cause::Deadline,
        wire::Cause::AgentLost => Cause::AgentLost,
        wire::Cause::Shutdown => Cause::Shutdown,
    };
    Exit { wait, cause, at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_ends_are_translated() {
        let key = AttemptKey {
            uid: "0b7d2c1e-1111-4222-8333-944445555666".into(),
            attempt: 7,
        };
        assert_eq!(from_wire(&to_wire(&key).unwrap()), key);
        assert_eq!(
            exit(3 << 8, wire::Cause::None, Moment::default()).wait,
            Wait::Code(3)
        );
        assert_eq!(
            exit(9, wire::Cause::Deadline, Moment::default()).wait,
            Wait::Signal(9)
        );
    }
}

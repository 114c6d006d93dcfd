//! The one place where the operator reads the time.

use fairlead_crds::values::Time;
use jiff::SignedDuration;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A step of the wall clock beyond this is followed; below it is taken for the clock being set right.
const STEP: SignedDuration = SignedDuration::from_secs(5);

/// The wall clock, held so that it never goes back within this process and never stands still.
///
/// Between two readings it runs by the monotonic clock, from the wall time at the first. Where the two have drifted apart
/// by more than five seconds and the wall clock is ahead, it is followed; where it is behind, this clock runs on until the
/// wall clock has caught up.
#[derive(Debug)]
pub struct Clock(Mutex<(Time, Instant)>);

impl Default for Clock {
    fn default() -> Self {
        Self(Mutex::new((Time::now(), Instant::now())))
    }
}

impl Clock {
    /// Now, to the microsecond: what the API server stores is no finer.
    pub fn now(&self) -> Time {
        let mut anchor = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = SignedDuration::try_from(anchor.1.elapsed()).unwrap_or(SignedDuration::ZERO);
        let mut now = anchor.0.saturating_add(passed).unwrap_or(anchor.0);
        let wall = Time::now();
        if wall.duration_since(now) > STEP {
            *anchor = (wall, Instant::now());
            now = wall;
        }
        Time::from_microsecond(now.as_microsecond()).unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_and_never_goes_back() {
        let clock = Clock::default();
        let first = clock.now();
        let later = (0..1000).map(|_| clock.now()).fold(first, |last, now| {
            assert!(now >= last);
            now
        });
        assert!(later > first, "it stands still");
    }
}

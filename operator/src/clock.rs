//! The one place where the operator reads the time.

use fairlead_crds::values::Time;
use std::sync::atomic::{AtomicI64, Ordering};

/// The wall clock, held so that it never goes back within this process.
#[derive(Debug)]
pub struct Clock {
    latest_micros: AtomicI64,
}

impl Default for Clock {
    fn default() -> Self {
        Self {
            latest_micros: AtomicI64::new(i64::MIN),
        }
    }
}

impl Clock {
    /// Now, to the microsecond: what the API server stores is no finer.
    pub fn now(&self) -> Time {
        let read = Time::now().as_microsecond();
        let latest = self.latest_micros.fetch_max(read, Ordering::Relaxed).max(read);
        Time::from_microsecond(latest).unwrap_or(Time::UNIX_EPOCH)
    }
}

//! Waiting for a condition with a deadline.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Asks `condition` every `every` until it gives a value; an error of it ends the wait at once.
/// After `limit` the wait fails, naming `what` and the state that `describe` sees then.
pub fn until<T>(
    what: &str,
    limit: Duration,
    every: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
    describe: impl FnOnce() -> String,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        if start.elapsed() >= limit {
            bail!("waited {} s for {what}, in vain: {}", limit.as_secs(), describe());
        }
        thread::sleep(every);
    }
}

//! How a watch is taken up again that the API server broke.

use backon::ExponentialBuilder;
use kube::runtime::watcher::ExponentialBackoff;
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(4);

/// The pauses of a watch that fails: from half a second, doubled, to 4 seconds, each lengthened by up to as much again at
/// random.
///
/// Shorter than what the client library would take, which grows to half a minute: after an outage of the API server every
/// wait that a run has left would begin that much later. A node has one watch, so even many nodes ask seldom enough.
pub fn watch_backoff() -> ExponentialBackoff {
    let pauses = ExponentialBuilder::new()
        .with_min_delay(FIRST)
        .with_max_delay(LONGEST)
        .without_max_times()
        .with_jitter();
    ExponentialBackoff::from(pauses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_grow_to_a_bound_and_never_end() {
        let pauses: Vec<_> = watch_backoff().take(1_000).collect();
        assert_eq!(pauses.len(), 1_000);
        assert!(pauses[0] >= FIRST && pauses[0] <= 2 * FIRST, "{:?}", pauses[0]);
        assert!(pauses.iter().all(|pause| *pause <= 2 * LONGEST));
        assert!(pauses[20..].iter().all(|pause| *pause >= LONGEST));
    }
}

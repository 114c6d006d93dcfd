//! How a watch is taken up again that the API server broke.

use backon::ExponentialBuilder;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::ExponentialBackoff;
use std::time::Duration;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(4);
/// After so long without a failure the next one is the first again.
const QUIET: Duration = Duration::from_secs(30);

/// The pauses of a watch that fails: from half a second, doubled, to 4 seconds, each lengthened by up to as much again at
/// random; from the first again after half a minute without a failure.
///
/// Shorter than what the client library would take, which grows to half a minute: after an outage of the API server every
/// wait that a run has left would begin that much later.
pub fn watch_backoff() -> impl Backoff {
    let pauses = ExponentialBuilder::new()
        .with_min_delay(FIRST)
        .with_max_delay(LONGEST)
        .without_max_times()
        .with_jitter();
    WatchBackoff {
        pauses: ExponentialBackoff::from(pauses),
        failed: None,
    }
}

struct WatchBackoff {
    pauses: ExponentialBackoff,
    /// When the last pause began.
    failed: Option<Instant>,
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.failed.is_some_and(|at| now.duration_since(at) > QUIET) {
            self.pauses.reset();
        }
        self.failed = Some(now);
        self.pauses.next()
    }
}

impl Backoff for WatchBackoff {
    /// Called at everything that is no failure, the mere beginning of a list among it: a list that fails each time would
    /// never be asked for less often. So only time counts.
    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt as _;
    use kube::runtime::WatchStreamExt as _;
    use kube::runtime::watcher;

    /// What a watcher yields whose lists fail: each begins well.
    #[tokio::test(start_paused = true)]
    async fn a_list_that_keeps_failing_is_asked_for_less_and_less_often() {
        let failing = futures::stream::iter(0_u32..).map(|n| match n % 2 {
            0 => Ok(watcher::Event::<()>::Init),
            _ => Err(watcher::Error::NoResourceVersion),
        });
        let mut events = std::pin::pin!(failing.backoff(watch_backoff()));
        let mut failures = Vec::new();
        while failures.len() < 40 {
            if events.next().await.is_some_and(|event| event.is_err()) {
                failures.push(Instant::now());
            }
        }
        let pauses: Vec<_> = failures.windows(2).map(|w| w[1] - w[0]).collect();
        let slack = Duration::from_millis(5);
        assert!(pauses[0] >= FIRST && pauses[0] <= 2 * FIRST + slack, "{pauses:?}");
        assert!(
            pauses[4..]
                .iter()
                .all(|p| *p >= LONGEST && *p <= 2 * LONGEST + slack),
            "{pauses:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_quiet_time_the_first_pause_is_short_again() {
        let mut pauses = watch_backoff();
        assert!(pauses.by_ref().take(1_000).count() == 1_000, "they never end");
        tokio::time::advance(QUIET + FIRST).await;
        assert!(pauses.next().is_some_and(|pause| pause <= 2 * FIRST));
    }
}

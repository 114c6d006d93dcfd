//! Leader election over a Lease.
//!
//! Every write carries the resourceVersion that was read, so of two candidates one loses. Whether a holder is gone is
//! judged by our own clock since the record last changed, never by comparing clocks of two machines. The term,
//! `spec.leaseTransitions`, rises at every acquisition, also by the same holder or of a Lease that was made anew, and
//! fences what a leader writes.

use anyhow::{Context, Result};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::PostParams;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// A record that has not changed for this long is free.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A leader that could not renew for this long stops leading, well before the record is free.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RENEW_EVERY: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(500);
const CALL_LIMIT: Duration = Duration::from_secs(3);

/// Whether this process leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// It does not.
    Follower,
    /// It does.
    Leader {
        /// The term.
        term: i64,
        /// Until when, unless it is renewed before.
        until: Instant,
    },
}

impl Leadership {
    /// The term, if leadership holds at this instant. A process that was paused learns here that it was away too long.
    pub fn term(self) -> Option<i64> {
        match self {
            Self::Leader { term, until } if Instant::now() < until => Some(term),
            _ => None,
        }
    }
}

/// A candidate.
#[derive(Debug)]
pub struct Election {
    api: Api<Lease>,
    name: &'static str,
    identity: String,
    seen: Option<(String, Instant)>,
}

impl Election {
    /// A candidate called `identity` for the Lease `name`.
    pub fn new(api: Api<Lease>, name: &'static str, identity: String) -> Self {
        Self {
            api,
            name,
            identity,
            seen: None,
        }
    }

    /// Stands for election until `stop`, then gives the Lease back. Every change of leadership goes to `tell`.
    pub async fn run(mut self, tell: watch::Sender<Leadership>, stop: CancellationToken) {
        let mut held: Option<Lease> = None;
        while !stop.is_cancelled() {
            let began = Instant::now();
            held = match held {
                None => self.look(&tell, began).await,
                Some(lease) => self.renew(lease, &tell, began).await,
            };
            let pause = if held.is_some() { RENEW_EVERY } else { LOOK_EVERY };
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.cancelled() => {}
            }
        }
        tell.send_replace(Leadership::Follower);
        if let Some(lease) = held {
            self.release(lease).await;
        }
    }

    async fn look(&mut self, tell: &watch::Sender<Leadership>, began: Instant) -> Option<Lease> {
        match timeout(CALL_LIMIT, self.try_acquire()).await {
            Ok(Ok(Some(lease))) => {
                let term = term_of(&lease);
                tracing::info!(term, identity = self.identity, "leading");
                tell.send_replace(Leadership::Leader {
                    term,
                    until: began + RENEW_DEADLINE,
                });
                Some(lease)
            }
            Ok(Ok(None)) => None,
            Ok(Err(error)) => {
                tracing::warn!(error = format!("{error:#}"), "cannot stand for leader election");
                None
            }
            Err(_) => {
                tracing::warn!(limit = ?CALL_LIMIT, "the API server did not answer about the leader Lease in time");
                None
            }
        }
    }

    /// Takes the Lease if it is absent, empty, or unchanged for its whole duration.
    async fn try_acquire(&mut self) -> Result<Option<Lease>> {
        let Some(mut lease) = self
            .api
            .get_opt(self.name)
            .await
            .context("get the leader Lease")?
        else {
            return self.create().await;
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let unchanged_since = match &self.seen {
            Some((seen, since)) if *seen == version => *since,
            _ => {
                let now = Instant::now();
                self.seen = Some((version, now));
                now
            }
        };
        let holder = lease
            .spec
            .as_ref()
            .and_then(|s| s.holder_identity.as_deref())
            .unwrap_or_default();
        // Our own name says that an answer to us was lost; nobody else is called so.
        if !holder.is_empty() && holder != self.identity && unchanged_since.elapsed() < LEASE_DURATION {
            return Ok(None);
        }
        let term = next_term(term_of(&lease), jiff::Timestamp::now());
        lease.spec = Some(self.spec(term));
        self.replace(&lease).await
    }

    async fn create(&self) -> Result<Option<Lease>> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(self.spec(next_term(0, jiff::Timestamp::now()))),
        };
        match self.api.create(&PostParams::default(), &lease).await {
            Ok(lease) => Ok(Some(lease)),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
            Err(error) => Err(error).context("create the leader Lease"),
        }
    }

    async fn replace(&self, lease: &Lease) -> Result<Option<Lease>> {
        match self.api.replace(self.name, &PostParams::default(), lease).await {
            Ok(lease) => Ok(Some(lease)),
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => Ok(None),
            Err(error) => Err(error).context("replace the leader Lease"),
        }
    }

    async fn renew(
        &mut self,
        mut lease: Lease,
        tell: &watch::Sender<Leadership>,
        began: Instant,
    ) -> Option<Lease> {
        let term = term_of(&lease);
        if let Some(spec) = &mut lease.spec {
            spec.renew_time = Some(MicroTime(jiff::Timestamp::now()));
        }
        match timeout(CALL_LIMIT, self.replace(&lease)).await {
            Ok(Ok(Some(renewed))) => {
                tell.send_replace(Leadership::Leader {
                    term,
                    until: began + RENEW_DEADLINE,
                });
                return Some(renewed);
            }
            Ok(Ok(None)) => match self.still_ours(term).await {
                Some(present) if still_leads(tell) => return Some(present),
                _ => tracing::warn!(term, "leadership was taken over"),
            },
            Ok(Err(error)) if still_leads(tell) => {
                tracing::warn!(
                    term,
                    error = format!("{error:#}"),
                    "the leader Lease could not be renewed"
                );
                return Some(lease);
            }
            Err(_) if still_leads(tell) => return Some(lease),
            _ => {
                tracing::warn!(term, deadline = ?RENEW_DEADLINE, "the leader Lease could not be renewed in time")
            }
        }
        self.seen = None;
        tell.send_replace(Leadership::Follower);
        None
    }

    /// The Lease as it is, if it is ours under `term`: the answer to a renewal that arrived may have been lost.
    async fn still_ours(&self, term: i64) -> Option<Lease> {
        let lease = timeout(CALL_LIMIT, self.api.get_opt(self.name))
            .await
            .ok()?
            .ok()??;
        let holder = lease.spec.as_ref().and_then(|s| s.holder_identity.as_deref());
        (holder == Some(self.identity.as_str()) && term_of(&lease) == term).then_some(lease)
    }

    /// Empties the Lease, so that another need not wait for its end.
    async fn release(&self, mut lease: Lease) {
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
        }
        match timeout(Duration::from_secs(1), self.replace(&lease)).await {
            Ok(Ok(Some(_))) => tracing::info!("gave the leader Lease back"),
            _ => tracing::warn!("the leader Lease could not be given back; it frees itself"),
        }
    }

    fn spec(&self, term: i64) -> LeaseSpec {
        let now = MicroTime(jiff::Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: i32::try_from(term).ok(),
            ..LeaseSpec::default()
        }
    }
}

fn still_leads(tell: &watch::Sender<Leadership>) -> bool {
    tell.borrow().term().is_some()
}

/// A term above `last`, and above what any Lease had that was deleted meanwhile: seconds since the year 2026 began, while
/// that is more. So a leader that was paused across the deletion passes no fence.
fn next_term(last: i64, now: jiff::Timestamp) -> i64 {
    const YEAR_2026: i64 = 1_767_225_600;
    last.saturating_add(1)
        .max(now.as_second().saturating_sub(YEAR_2026))
}

fn term_of(lease: &Lease) -> i64 {
    lease
        .spec
        .as_ref()
        .and_then(|s| s.lease_transitions)
        .map_or(0, i64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_above_all_before_also_of_a_lease_that_was_deleted() {
        let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
        let first = next_term(0, at("2026-12-01T00:00:00Z"));
        let second = next_term(first, at("2026-12-01T00:00:00Z"));
        assert!(second > first, "within a second");
        assert!(next_term(0, at("2026-12-01T00:00:02Z")) > second, "made anew");
        assert!(
            next_term(second, at("2020-01-01T00:00:00Z")) > second,
            "a clock that went back"
        );
        assert!(i32::try_from(next_term(0, at("2090-01-01T00:00:00Z"))).is_ok());
    }
}

//! Readiness as a set of named conditions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The named conditions a process must meet to be ready. Clones share the same set.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    /// Name to what is missing; `None` once the condition holds.
    conditions: Arc<Mutex<BTreeMap<&'static str, Option<String>>>>,
}

/// One condition of a [`Readiness`]. It does not hold until [`ReadyToken::set_ready`], and may fall again.
#[derive(Clone, Debug)]
pub struct ReadyToken {
    readiness: Readiness,
    name: &'static str,
}

impl Readiness {
    /// A set without conditions, which is ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition that does not hold yet. The same name again gives another handle on the same condition.
    pub fn token(&self, name: &'static str) -> ReadyToken {
        self.lock()
            .entry(name)
            .or_insert_with(|| Some("not yet".to_owned()));
        ReadyToken {
            readiness: self.clone(),
            name,
        }
    }

    /// Whether every condition holds.
    pub fn is_ready(&self) -> bool {
        self.lock().values().all(Option::is_none)
    }

    /// One line per condition, by name: `[+]name ok` or `[-]name what is missing`.
    pub fn report(&self) -> String {
        self.lock()
            .iter()
            .map(|(name, missing)| match missing {
                None => format!("[+]{name} ok\n"),
                Some(missing) => format!("[-]{name} {missing}\n"),
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Option<String>>> {
        // No code panics while it holds the lock, and a map of strings cannot be left half-changed.
        self.conditions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadyToken {
    /// The condition holds.
    pub fn set_ready(&self) {
        self.set(None);
    }

    /// The condition does not hold, because of `missing`.
    pub fn set_not_ready(&self, missing: impl Into<String>) {
        self.set(Some(missing.into()));
    }

    fn set(&self, missing: Option<String>) {
        let before = self.readiness.lock().insert(self.name, missing.clone());
        if before != Some(missing.clone()) {
            match missing {
                None => tracing::info!(condition = self.name, "ready condition holds"),
                Some(missing) => {
                    tracing::warn!(condition = self.name, missing, "ready condition does not hold")
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_while_every_condition_holds() {
        let readiness = Readiness::new();
        let (lease, watch) = (readiness.token("lease"), readiness.token("watch"));
        assert!(!readiness.is_ready());
        lease.set_ready();
        assert!(!readiness.is_ready());
        watch.set_ready();
        assert!(readiness.is_ready());
        readiness.token("lease");
        assert!(readiness.is_ready(), "a second handle changes nothing");
        lease.set_not_ready("refused");
        assert!(!readiness.is_ready());
        assert_eq!(readiness.report(), "[-]lease refused\n[+]watch ok\n");
    }
}

//! When each key is decided again.

use fairlead_decide::node::Key;
use std::collections::{BTreeMap, BTreeSet};

/// At most one time per key, `CLOCK_BOOTTIME` milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    by_time: BTreeSet<(u64, Key)>,
    by_key: BTreeMap<Key, u64>,
}

impl Timers {
    /// Sets or clears the time of a key.
    pub(crate) fn set(&mut self, key: Key, at: Option<u64>) {
        if let Some(old) = self.by_key.remove(&key) {
            self.by_time.remove(&(old, key.clone()));
        }
        if let Some(at) = at {
            self.by_time.insert((at, key.clone()));
            self.by_key.insert(key, at);
        }
    }

    /// The earliest time.
    pub(crate) fn next(&self) -> Option<u64> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes out one key whose time has come.
    pub(crate) fn take_due(&mut self, now: u64) -> Option<Key> {
        let (at, key) = self.by_time.first().filter(|(at, _)| *at <= now)?.clone();
        self.by_time.remove(&(at, key.clone()));
        self.by_key.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_decide::node::RunKey;

    #[test]
    fn a_key_has_one_time_and_is_taken_once() {
        let key = |name: &str| Key::Run(RunKey(name.to_owned()));
        let mut timers = Timers::default();
        timers.set(key("a"), Some(5));
        timers.set(key("b"), Some(3));
        timers.set(key("a"), Some(9));
        assert_eq!(timers.next(), Some(3));
        assert_eq!(timers.take_due(8), Some(key("b")));
        assert_eq!(timers.take_due(8), None);
        timers.set(key("a"), None);
        assert_eq!(timers.next(), None);
    }
}

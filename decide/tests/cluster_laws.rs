//! The seven laws of the core, for the cluster half. The simulation checks those of a single decision at every one it
//! makes; here they are tried on worlds that no story leads to.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod sim;

use fairlead_decide::cluster::{Event, Key, Settings};
use proptest::prelude::*;
use sim::api::time;
use sim::core::Core;
use sim::laws;
use sim::worlds::{Odd, keys};

fn settings() -> ProptestConfig {
    ProptestConfig {
        cases: 1_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(settings())]

    /// No world makes the core fail, whatever is in it and missing from it.
    #[test]
    fn total(seed in any::<u64>(), size in 1_usize..60) {
        let mut odd = Odd::new(seed, true);
        let mut core = Core::new(Settings::default(), None);
        core.absorb(Event::Led { term: 1 }, time(0));
        for _ in 0..size {
            let event = odd.event();
            core.absorb(event, time(0));
        }
        for at in [-100_000, 0, 1, 40_000, 10_000_000] {
            for key in keys(&core.world) {
                let decision = core.decide(&key, time(at));
                for action in decision.actions {
                    core.absorb(Event::Started(Box::new(action.clone())), time(at));
                    core.absorb(Event::Ended { action: Box::new(action), result: Ok(()) }, time(at));
                }
            }
        }
    }

    /// The order in which a state was observed does not matter, and neither does how often it is asked.
    #[test]
    fn deterministic(seed in any::<u64>(), size in 1_usize..40) {
        laws::deterministic(seed, size, None).map_err(TestCaseError::fail)?;
    }

    /// Every single decision moves on, explains itself, and is safe.
    #[test]
    fn safe_explains_and_moves_on(seed in any::<u64>(), size in 1_usize..60) {
        laws::single_decisions(seed, size, None).map_err(TestCaseError::fail)?;
    }

    /// Nothing is done about what belongs to others, whatever its name.
    #[test]
    fn leaves_alone_what_is_not_ours(seed in any::<u64>(), size in 1_usize..60) {
        laws::foreign(seed, size, None).map_err(TestCaseError::fail)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Once everything was carried out, nothing is left to do.
    #[test]
    fn settles(seed in any::<u64>(), until in 1_000_i64..60_000) {
        laws::settles(seed, until, None).map_err(TestCaseError::fail)?;
    }

    /// Killed after any number of actions, with all memory lost, it comes to the same end.
    #[test]
    fn crash_safe(seed in any::<u64>(), crash_after in 0_usize..60) {
        laws::crash_safe(seed, crash_after, None).map_err(TestCaseError::fail)?;
    }
}

/// The last-seen time of the queue: one that is asked at one instant gives one answer.
#[test]
fn keys_of_nothing_are_decided_as_nothing() {
    let core = Core::new(Settings::default(), None);
    for key in [Key::Queue, Key::Run("x".into()), Key::Node("x".into())] {
        assert!(core.decide(&key, time(0)).actions.is_empty());
    }
}

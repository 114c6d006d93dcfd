//! Deliberate faults: each mistake that a core could make is found by a law or by the simulation, and by which of them
//! stands here. `docs/testing.md` lists them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod sim;

use sim::faults::{ClusterFault, NodeFault};
use sim::{Config, laws};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The first seed, of so many, whose try fails, with what was said.
fn first_failure(seeds: u64, attempt: impl Fn(u64) -> Result<(), String>) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| {
        let result = catch_unwind(AssertUnwindSafe(|| attempt(seed)));
        let text = match result {
            Ok(Ok(())) => return None,
            Ok(Err(text)) => text,
            Err(cause) => cause
                .downcast_ref::<String>()
                .cloned()
                .unwrap_or_else(|| "panic".into()),
        };
        Some((seed, text))
    })
}

/// `says` are the words by which it is known; several where it shows in several ways.
fn is_caught(name: &str, says: &str, seeds: u64, attempt: impl Fn(u64) -> Result<(), String>) {
    let Some((seed, text)) = first_failure(seeds, attempt) else {
        panic!("{name} was not found in {seeds} seeds");
    };
    println!("{name}: seed {seed}: {text}");
    assert!(
        says.split(" | ").any(|words| text.contains(words)),
        "{name} was found at seed {seed}, but for another reason: {text}"
    );
}

fn story(seed: u64, change: impl FnOnce(&mut Config)) -> Result<(), String> {
    let mut config = Config::of_seed(seed);
    change(&mut config);
    sim::run(config).map(|_| ())
}

fn cluster(fault: ClusterFault, seeds: u64, says: &str) {
    is_caught(&format!("{fault:?}"), says, seeds, |seed| {
        story(seed, |c| c.cluster_fault = Some(fault))
    });
}

fn node(fault: NodeFault, seeds: u64, says: &str) {
    is_caught(&format!("{fault:?}"), says, seeds, |seed| {
        story(seed, |c| c.node_fault = Some(fault))
    });
}

// --- Total ---------------------------------------------------------------------------------------------------------

#[test]
fn fault_assumes_the_lease_is_there_is_caught() {
    let fault = Some(ClusterFault::AssumesTheLeaseIsThere);
    is_caught("AssumesTheLeaseIsThere", "no Lease of", 500, |seed| {
        laws::single_decisions(seed, 40, fault)
    });
}

// --- Deterministic -------------------------------------------------------------------------------------------------

#[test]
fn fault_acts_in_hash_order_is_caught() {
    let fault = Some(ClusterFault::ActsInHashOrder);
    is_caught("ActsInHashOrder", "asked again", 500, |seed| {
        laws::deterministic(seed, 40, fault)
    });
}

#[test]
fn fault_believes_stale_watches_is_caught() {
    let fault = Some(ClusterFault::BelievesStaleWatches);
    is_caught("BelievesStaleWatches", "in another order", 500, |seed| {
        laws::deterministic(seed, 40, fault)
    });
}

// --- Settles -------------------------------------------------------------------------------------------------------

#[test]
fn fault_writes_again_and_again_is_caught() {
    let fault = Some(ClusterFault::WritesAgainAndAgain);
    is_caught("WritesAgainAndAgain", "never settles", 50, |seed| {
        laws::settles(seed, 20_000, fault)
    });
}

// --- Crash-safe ----------------------------------------------------------------------------------------------------

#[test]
fn fault_leaves_foreign_turns_is_caught() {
    let fault = Some(ClusterFault::LeavesForeignTurns);
    is_caught("LeavesForeignTurns", "with a crash after", 300, |seed| {
        laws::crash_safe(seed, usize::try_from(seed % 60).unwrap(), fault)
    });
}

#[test]
fn fault_renames_retries_is_caught() {
    cluster(
        ClusterFault::RenamesRetries,
        500,
        "no completed turn has that call",
    );
}

#[test]
fn fault_forgets_the_journal_is_caught() {
    node(
        NodeFault::ForgetsTheJournal,
        300,
        "twice | is said not to have started, and had",
    );
}

// --- Safe ----------------------------------------------------------------------------------------------------------

#[test]
fn fault_ignores_writes_in_flight_is_caught() {
    cluster(ClusterFault::IgnoresWritesInFlight, 50, "two writes about");
}

#[test]
fn fault_dispatches_before_completion_is_caught() {
    cluster(
        ClusterFault::DispatchesBeforeCompletion,
        200,
        "before the turn is completed",
    );
}

#[test]
fn fault_forgets_load_sent_is_caught() {
    let fault = Some(ClusterFault::ForgetsLoadSent);
    is_caught("ForgetsLoadSent", "whose capacity is", 50, |seed| {
        story(seed, |c| {
            *c = Config {
                runs: 8,
                own: 6,
                capacity: 1,
                cluster_fault: fault,
                ..Config::calm(seed)
            }
        })
    });
}

#[test]
fn fault_binds_again_is_caught() {
    cluster(ClusterFault::BindsAgain, 50, "is bound and would be bound again");
}

#[test]
fn fault_drives_foreign_turns_is_caught() {
    cluster(
        ClusterFault::DrivesForeignTurns,
        300,
        "was not made by this process",
    );
}

#[test]
fn fault_orphans_at_once_is_caught() {
    cluster(ClusterFault::OrphansAtOnce, 50, "is orphaned although");
}

#[test]
fn fault_writes_to_the_ended_is_caught() {
    cluster(
        ClusterFault::WritesToTheEnded,
        50,
        "has ended and would be written",
    );
}

#[test]
fn fault_skips_the_barrier_is_caught() {
    cluster(ClusterFault::SkipsTheBarrier, 200, "is settled");
}

#[test]
fn fault_ignores_the_incarnation_is_caught() {
    node(
        NodeFault::IgnoresTheIncarnation,
        2_000,
        "had 2 effects | is said not to have started, and had",
    );
}

#[test]
fn fault_reports_before_empty_is_caught() {
    node(NodeFault::ReportsBeforeEmpty, 300, "while processes are left");
}

// --- Explains ------------------------------------------------------------------------------------------------------

#[test]
fn fault_gives_no_reason_is_caught() {
    cluster(ClusterFault::GivesNoReason, 10, "no reason is given");
}

#[test]
fn fault_forgets_to_wake_is_caught() {
    cluster(ClusterFault::ForgetsToWake, 50, "will not look again");
}

// --- Moves on ------------------------------------------------------------------------------------------------------

#[test]
fn fault_wakes_in_the_past_is_caught() {
    cluster(ClusterFault::WakesInThePast, 10, "which is not after");
}

// --- What users are promised ---------------------------------------------------------------------------------------

#[test]
fn fault_ignores_cancel_is_caught() {
    cluster(ClusterFault::IgnoresCancel, 500, "that was cancelled");
}

#[test]
fn fault_forgets_observations_is_caught() {
    cluster(ClusterFault::ForgetsObservations, 200, "the request of");
}

#[test]
fn fault_serves_the_first_only_is_caught() {
    let fault = ClusterFault::ServesTheFirstOnly;
    is_caught("ServesTheFirstOnly", "starves", 3, |seed| {
        sim::fair::check(seed, Some(fault))
    });
}

//! The seeded simulation: thousands of stories in which things go wrong, and the oracle that judges each.
//!
//! `SIM_SEEDS=n` runs that many, `SIM_SEED=x` just one, `SIM_STORY=1` prints what happened in one that failed.

#![allow(clippy::unwrap_used, reason = "tests")]

mod sim;

use sim::Config;
use sim::model::Mood;
use sim::users::{self, Deed};
use sim::{Ev, Sim};
use std::io::Write as _;
use std::time::Instant;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Seeds of a plain run.
const SEEDS: u64 = 5_000;

#[test]
fn every_story_ends_well() {
    let from = number("SIM_SEED");
    let seeds = from.map_or(0..number("SIM_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let begun = Instant::now();
    let count = seeds.end - seeds.start;
    let (mut decisions, mut failures) = (0, Vec::new());
    for seed in seeds {
        match sim::run(Config::of_seed(seed)) {
            Ok(sim) => decisions += sim.decisions,
            Err(text) => failures.push(text),
        }
        if failures.len() >= 10 {
            break;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = count as f64 / seconds;
    // Past the capture of the test harness: the rate is wanted of a good run too.
    let line =
        format!("simulation: {count} seeds in {seconds:.1} s, {rate:.0} seeds/s, {decisions} decisions\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    assert!(
        failures.is_empty(),
        "{} stories went wrong:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// A turn with one short call costs five writes: the turn and its end, the execution and its end, the run's status. The
/// last turn, without calls, costs three.
#[test]
fn a_turn_with_one_call_costs_five_writes() {
    for turns in [1_i64, 3, 7] {
        let mut config = Config {
            runs: 0,
            own: 0,
            ..Config::calm(turns.unsigned_abs())
        };
        config.mood = Mood {
            turns,
            errors: 0,
            plain: true,
        };
        let mut sim = Sim::new(config);
        sim.run_until(5_000).unwrap();
        let before: u64 = sim.api.writes.values().sum();
        let run = users::run("a", "run", serde_json::json!({"toolWaitSeconds": 30}));
        sim.users_left += 1;
        sim.at(5_000, Ev::User(Deed::CreateRun(Box::new(run))));
        sim.run().unwrap();
        let count: u64 = sim.api.writes.values().sum();
        assert_eq!(
            count - before,
            turns.unsigned_abs() * 5 + 3,
            "{turns} turns: {:?}",
            sim.api.writes
        );
    }
}

/// Many equal runs on few places go forward together.
#[test]
fn no_run_starves() {
    for seed in 0..3 {
        sim::fair::check(seed, None).unwrap();
    }
}

/// The same seed tells the same story.
#[test]
fn a_seed_is_a_story() {
    for seed in [1, 7, 12] {
        let tell = || {
            sim::run(Config::of_seed(seed))
                .map(|s| (s.decisions, s.now, s.api.writes, s.effects))
                .ok()
        };
        assert_eq!(tell(), tell(), "seed {seed}");
    }
}

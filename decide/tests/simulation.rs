//! The seeded simulation: thousands of stories in which things go wrong, and the oracle that judges each.
//!
//! `SIM_SEEDS=n` runs that many, `SIM_SEED=x` just one, `SIM_STORY=1` prints what happened in one that failed.

mod sim;

use sim::Config;
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
    println!("{count} seeds in {seconds:.1} s: {rate:.0} seeds/s, {decisions} decisions");
    assert!(failures.is_empty(), "{} stories went wrong:\n{}", failures.len(), failures.join("\n"));
}

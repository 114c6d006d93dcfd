//! Whether many runs that want the same get the same: nobody starves.

use super::api::run_ended;
use super::faults::ClusterFault;
use super::model::Mood;
use super::users::Deed;
use super::{Config, Ev, Sim, users};
use serde_json::json;

/// Runs of the story; far more than there are places.
const RUNS: i64 = 60;
/// Turns of each.
const TURNS: i64 = 12;

/// Equal runs on few places: when the first is done, the last has done at least half as much.
pub fn check(seed: u64, fault: Option<ClusterFault>) -> Result<(), String> {
    let mut config = Config::calm(seed);
    config.runs = 0;
    config.own = 0;
    config.capacity = 2;
    config.mood = Mood {
        turns: TURNS,
        errors: 0,
        plain: true,
    };
    config.cluster_fault = fault;
    let mut sim = Sim::new(config);
    for n in 0..RUNS {
        let run = users::run(
            "a",
            &format!("run-{n}"),
            json!({"toolWaitSeconds": 600, "limits": {"deadlineSeconds": 7200}}),
        );
        sim.users_left += 1;
        sim.at(2_000, Ev::User(Deed::CreateRun(Box::new(run))));
    }
    let mut until = 5_000;
    while !sim.api.runs.values().any(|r| run_ended(r)) {
        sim.run_until(until)?;
        until += 1_000;
        if until > 3_600_000 {
            return Err("no run ends within an hour".into());
        }
    }
    let turns = sim
        .api
        .runs
        .values()
        .map(|r| r.status.as_ref().map_or(0, |s| s.turns));
    let (least, most) = turns.fold((i64::MAX, 0), |(least, most), n| (least.min(n), most.max(n)));
    if most > 2 * least {
        return Err(format!(
            "a run starves: the first has {most} turns, the last {least}"
        ));
    }
    Ok(())
}

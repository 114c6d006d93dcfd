//! Times one start or one kill in three ways, for `cargo xtask bench`.
//!
//! - `bare-spawn GROUP COUNT GAP_MS` and `bare-kill GROUP PROCESSES ROUNDS`: the kernel's calls and nothing else, which
//!   is the floor. `GROUP` is an existing cgroup v2 directory.
//! - As the agent of a `fairlead-supervisor`: `spawn RESULT SPOOL COUNT GAP_MS private|shared BALLAST_MIB` and
//!   `kill RESULT SPOOL PROCESSES ROUNDS`: what a node agent does for one attempt, without Kubernetes.
//!
//! Each prints its samples in microseconds, in one line; as an agent into the file `RESULT`, since a supervisor's agent
//! is started again when it ends.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement that went wrong has no other end"
)]

mod agent;
mod bare;

use std::time::{Duration, Instant};

/// Longest that any one thing measured here may take.
const BOUND: Duration = Duration::from_secs(60);
const MIB: usize = 1024 * 1024;
/// The processes that are killed: started often, ended never by themselves.
const SLEEPER: [&str; 2] = ["sleep", "100000"];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["bare-spawn", group, count, gap] => report(&bare::spawn(group.as_ref(), number(count), gap_ms(gap))),
        ["bare-kill", group, processes, rounds] => {
            report(&bare::kill(group.as_ref(), number(processes), number(rounds)));
        }
        ["spawn", result, spool, count, gap, tmp, ballast] => {
            agent::run(result.as_ref(), spool.as_ref(), |bench| {
                // An agent that holds this much; what it holds must not be copied at a start.
                let held = vec![1u8; number(ballast) as usize * MIB];
                let times = bench.spawn(number(count), gap_ms(gap), tmp == "private");
                std::hint::black_box(held);
                times
            });
        }
        ["kill", result, spool, processes, rounds] => agent::run(result.as_ref(), spool.as_ref(), |bench| {
            bench.kill(number(processes), number(rounds))
        }),
        _ => panic!("unknown arguments {words:?}"),
    }
}

fn number(text: &str) -> u32 {
    text.parse().unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

fn gap_ms(text: &str) -> Duration {
    Duration::from_millis(number(text).into())
}

fn report(samples: &[Duration]) {
    println!("{}", line(samples));
}

fn line(samples: &[Duration]) -> String {
    let samples: Vec<String> = samples
        .iter()
        .map(|sample| sample.as_micros().to_string())
        .collect();
    samples.join(" ")
}

/// Runs `once` so often, its starts at least `gap` apart, and gives what each run says that it took.
fn paced(count: u32, gap: Duration, mut once: impl FnMut(u32) -> Duration) -> Vec<Duration> {
    let mut samples = Vec::new();
    for index in 0..count {
        let start = Instant::now();
        samples.push(once(index));
        std::thread::sleep(gap.saturating_sub(start.elapsed()));
    }
    samples
}

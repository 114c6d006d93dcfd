//! Load for `cargo xtask bench`: writes objects, watches what becomes of them, and prints times as one line of JSON.
//!
//! - `floor SPACED IN_FLIGHT TOTAL`: the API server's part alone, with no program of ours running. The user creates and
//!   deletes, and a second client with the operator's rights ends what it sees; with one write more, a third client binds
//!   it before.
//! - `bound SPACED IN_FLIGHT TOTAL`: executions that are bound when they are made, as the calls of a run are, with the
//!   operator's rights.
//! - `own SPACED IN_FLIGHT TOTAL CGROUP_ROOT...`: the same executions, really executed.
//! - `hold COUNT`: executions that run until standard input ends; says `held` when all do.
//! - `noise SECONDS ALONE`: `true` so often alone, then beside a tool that writes as fast as it can for so long.
//! - `runs COUNT`: so many runs at once, each with three calls in one turn.
//! - `rounds COUNT`: one run with so many turns of one call.
//!
//! `LOAD_NAMESPACE` is where, `LOAD_USER` the kubeconfig of a user with the chart's role `fairlead-edit` there, and
//! `LOAD_OPERATOR`, for `floor` and what is bound here, one with the operator's token. Nothing here has more rights than that.

// A measurement that went wrong has no other end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bound;
mod calls;
mod floor;
mod groups;
mod noise;
mod runs;
mod seen;

use std::time::{Duration, Instant};

use fairlead_crds::ToolExecution;
use futures::{StreamExt, stream};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::Value;

/// Where the chart is installed.
const SYSTEM: &str = "fairlead-system";
/// Between two starts of a spaced series.
const GAP: Duration = Duration::from_millis(100);
/// Longest that any one thing measured here may take.
const LIMIT: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let answer: Value = match words.as_slice() {
        ["floor", spaced, in_flight, total] => floor::measure(n(spaced), n(in_flight), n(total)).await,
        ["bound", spaced, in_flight, total] => bound::measure(n(spaced), n(in_flight), n(total)).await,
        ["noise", seconds, alone] => noise::measure(n(seconds) as u64, n(alone)).await,
        ["own", spaced, in_flight, total, roots @ ..] => {
            calls::own(n(spaced), n(in_flight), n(total), roots).await
        }
        ["hold", count] => calls::hold(n(count)).await,
        ["runs", count] => runs::many(n(count)).await,
        ["rounds", count] => runs::rounds(n(count)).await,
        _ => panic!("unknown arguments {words:?}"),
    };
    println!("{answer}");
}

fn n(text: &str) -> usize {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A client with connections of its own, as the user whose kubeconfig the variable `name` gives.
async fn client(name: &str) -> Client {
    let path = setting(name);
    let config = Kubeconfig::read_from(&path).unwrap_or_else(|error| panic!("read {path}: {error}"));
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
    Client::try_from(config.expect("a configuration")).expect("a client")
}

/// The executions as the user of `name` reaches them.
async fn executions(name: &str) -> Api<ToolExecution> {
    Api::namespaced(client(name).await, &setting("LOAD_NAMESPACE"))
}

fn micros(times: impl IntoIterator<Item = Duration>) -> Vec<f64> {
    times.into_iter().map(|time| time.as_secs_f64() * 1e6).collect()
}

/// Does `once` for the numbers below `total`, `in_flight` of them at a time, and gives how many per second were done.
async fn flood<F: Future<Output = ()>>(in_flight: usize, total: usize, once: impl Fn(usize) -> F) -> f64 {
    let start = Instant::now();
    stream::iter(0..total)
        .map(&once)
        .buffer_unordered(in_flight)
        .collect::<Vec<()>>()
        .await;
    total as f64 / start.elapsed().as_secs_f64()
}

/// Does `once` for the numbers below `count`, its starts at least [`GAP`] apart.
async fn spaced<F: Future<Output = Duration>>(count: usize, once: impl Fn(usize) -> F) -> Vec<Duration> {
    spaced_while(|index| index < count, once).await
}

/// Does `once` for the numbers from 0 while `more` says so, its starts at least [`GAP`] apart.
async fn spaced_while<F: Future<Output = Duration>>(
    more: impl Fn(usize) -> bool,
    once: impl Fn(usize) -> F,
) -> Vec<Duration> {
    let mut times = Vec::new();
    while more(times.len()) {
        let start = Instant::now();
        times.push(once(times.len()).await);
        tokio::time::sleep(GAP.saturating_sub(start.elapsed())).await;
    }
    times
}

//! How long the cluster half needs for one event and the decisions that follow from it, as the world grows: the work
//! per event must not grow with the number of objects. `cargo bench -p fairlead-decide` prints the table.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "a bench")]

use fairlead_crds::values::Time;
use fairlead_crds::{AgentRun, ToolExecution};
use fairlead_decide::cluster::{Event, Settings, World, decide};
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

/// Runs in progress, each with one execution on a node.
const SIZES: [usize; 3] = [100, 1_000, 10_000];
const EVENTS: usize = 2_000;

fn now() -> Time {
    Time::from_second(1_800_000_010).unwrap()
}

fn run(n: usize, version: usize) -> Event {
    let run: AgentRun = serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "AgentRun",
        "metadata": {"name": format!("run-{n}"), "namespace": format!("ns-{}", n % 50), "uid": format!("run-{n}"),
                     "resourceVersion": version.to_string(), "generation": 1,
                     "creationTimestamp": "2027-01-15T08:00:00Z"},
        "spec": {"input": "x", "model": {"providerRef": {"name": "p"}}}
    }))
    .unwrap();
    Event::Run(Arc::new(run))
}

fn execution(n: usize, version: usize) -> Event {
    let execution: ToolExecution = serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ToolExecution",
        "metadata": {"name": format!("own-{n}"), "namespace": format!("ns-{}", n % 50), "uid": format!("own-{n}"),
                     "resourceVersion": version.to_string(), "generation": 1,
                     "creationTimestamp": "2027-01-15T08:00:00Z"},
        "spec": {"tool": {"toolRef": {"name": "t"}}, "binding": {
            "nodeName": format!("node-{}", n % 100), "incarnation": "i", "attempt": 1, "fence": "0".repeat(32),
            "term": 1, "planVersion": 1, "admittedAt": "2027-01-15T08:00:00Z", "callDigest": "0".repeat(64),
            "decisions": [],
            "plan": {"toolGeneration": 1, "command": {"argv": ["x"]}, "timeouts": {}, "network": "None", "outputMaxBytes": 1024,
                     "resources": {"memoryMaxBytes": 1, "cpuMillicores": 1, "maxProcesses": 1, "oomGroup": true}}}}
    }))
    .unwrap();
    Event::Execution(Arc::new(execution))
}

fn world(size: usize) -> World {
    let mut world = World::new(Settings::default());
    for n in 0..size {
        world.absorb(run(n, 1), now());
        world.absorb(execution(n, 1), now());
    }
    world.absorb(Event::Led { term: 1 }, now());
    world
}

/// Nanoseconds per event, with all the decisions it asks for.
fn measure(world: &mut World, events: Vec<Event>) -> u128 {
    let count = u128::try_from(events.len()).unwrap();
    let begun = Instant::now();
    for event in events {
        for key in world.absorb(event, now()) {
            std::hint::black_box(decide(world, &key, now()));
        }
    }
    begun.elapsed().as_nanos() / count
}

fn main() {
    println!("{:>8} {:>16} {:>16}", "objects", "run event ns", "execution ns");
    for size in SIZES {
        let mut world = world(size);
        let runs = (0..EVENTS).map(|n| run(n % size, 2 + n)).collect();
        let runs = measure(&mut world, runs);
        let executions = (0..EVENTS).map(|n| execution(n % size, 2 + n)).collect();
        let executions = measure(&mut world, executions);
        println!("{:>8} {runs:>16} {executions:>16}", size * 2);
    }
}

//! Everything in the kernel guest, where every limit can be set: a control plane, the chart, an operator and a node, and
//! tools that go beyond their limits.
//!
//! `CG-` numbers name the case of a known failure of other systems that a check repeats.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::time::Duration;

use fairlead_crds::API_VERSION;
use serde_json::{Value, json};
use xtask::cgroup::Tree;
use xtask::cluster::Cluster;
use xtask::control_plane::binaries::Binaries;
use xtask::control_plane::{ControlPlane, Options};
use xtask::guest::{self, Guest};
use xtask::install;
use xtask::programs::{Profile, Programs};
use xtask::stack::Stack;

const MIB: u64 = 1024 * 1024;
/// Takes memory until it is stopped: `tail` keeps what may be the last line.
const HOG: &str = "tail /dev/zero";
/// Forks without an end, and goes on when a fork is refused.
const BOMB: &str = "import os, time\nwhile True:\n try:\n  os.fork()\n except OSError:\n  time.sleep(0.01)";
/// What the guest's programs must know of ours.
const HANDED_ON: [&str; 5] = [
    "HOME",
    "PATH",
    "FAIRLEAD_CACHE",
    "KUBEBUILDER_ASSETS",
    "CARGO_TARGET_DIR",
];

#[test]
fn limits_stop_tools_and_the_node_lives() {
    if guest::is_inside() {
        return inside();
    }
    if let Err(why) = guest::available() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
        eprintln!("skipped: {why}");
        return;
    }
    Programs::build(Profile::Debug).expect("build the programs");
    Binaries::ensure().expect("the control plane's programs");
    let mut script = "ip link set lo up\n".to_owned();
    for name in HANDED_ON {
        if let Ok(value) = std::env::var(name) {
            script.push_str(&format!("export {name}={}\n", guest::quoted(&[&value])));
        }
    }
    let program = std::env::current_exe().unwrap();
    let argv = [
        program.to_str().unwrap(),
        "--exact",
        "limits_stop_tools_and_the_node_lives",
        "--nocapture",
    ];
    script.push_str(&format!("exec {}\n", guest::quoted(&argv)));
    let guest = Guest {
        memory_mib: 3_072,
        limit: Duration::from_secs(600),
    };
    let output = guest.run(&script).expect("the guest");
    println!("{}", output.text);
    assert_eq!(output.exit_code, 0, "in the guest:\n{}", output.text);
    assert!(output.text.contains("1 passed"), "in the guest:\n{}", output.text);
}

/// The body of the test, in the guest.
fn inside() {
    let options = Options {
        dir: "/run/plane".into(),
        fsync: false,
    };
    let plane = ControlPlane::start(&options).expect("start a control plane");
    install::chart(plane.cluster(), &[]).expect("install the chart");
    let groups = Tree::named("fairlead").expect("control groups");
    let programs = Programs::there(Profile::Debug);
    let mut stack = Stack::open(plane.dir(), plane.cluster(), &programs, groups).expect("a stack");
    stack.start_operator("operator").expect("start the operator");
    let (node, _) = stack.start_node(0).expect("start the node");
    for name in ["operator", &node] {
        stack
            .wait_ready(name)
            .unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
    let lives = || (stack.process(&node).unwrap(), stack.agent(0).unwrap());
    let before = lives();
    let place = Place(plane.cluster());
    place.0.apply(&tools()).expect("make the tools");
    place
        .0
        .kubectl(&[
            "wait",
            "tools",
            "--all",
            "--for=condition=Accepted",
            "--timeout=60s",
        ])
        .expect("accepted");
    own_limits(&place);
    oom_and_fallback(&place);
    kill_is_no_oom(&place);
    bomb(&place);
    parents_limit(&place, &stack.cgroup_root(0));
    place.ends("after", "Succeeded", "Completed");
    assert_eq!(
        lives(),
        before,
        "supervisor and agent are the ones of the beginning"
    );
}

/// The tools, with what each may use.
fn tools() -> Value {
    let sh = |script: &str| json!(["sh", "-c", script]);
    let own =
        "g=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup); cd $g; cat memory.max pids.max cpu.max";
    let or_light = format!("{HOG} || echo light");
    let deaf = "trap '' TERM; while :; do sleep 1; done";
    let short = json!({"hardSeconds": 1, "graceSeconds": 1});
    let long = json!({"hardSeconds": 100, "graceSeconds": 1});
    let items: Vec<Value> = [
        ("plain", sh(own), json!({}), &long),
        ("whole", sh(&or_light), json!({"memoryMaxBytes": 32 * MIB}), &long),
        (
            "parts",
            sh(&or_light),
            json!({"memoryMaxBytes": 32 * MIB, "oomGroup": false}),
            &long,
        ),
        ("slow", sh(deaf), json!({}), &short),
        (
            "bomb",
            json!(["python3", "-c", BOMB]),
            json!({"maxProcesses": 32}),
            &long,
        ),
        ("beside", json!(["echo", "served"]), json!({}), &long),
        ("parent", sh(HOG), json!({"memoryMaxBytes": 1024 * MIB}), &long),
        ("after", json!(["echo", "served"]), json!({}), &long),
    ]
    .into_iter()
    .map(|(name, argv, resources, timeouts)| {
        json!({
            "apiVersion": API_VERSION, "kind": "Tool", "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "description": "A tool that goes beyond its limits, or beside one.",
                "runner": {"command": {"argv": argv}}, "resources": resources, "timeouts": timeouts,
            },
        })
    })
    .collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// CG-14: a tool that names no limits has some all the same. One process more than the tool may have is its init.
fn own_limits(place: &Place<'_>) {
    let status = place.ends("plain", "Succeeded", "Completed");
    assert_eq!(status["output"]["text"], "2147483648\n257\n200000 100000\n");
    assert_eq!(status["isolation"]["backend"], "CgroupV2");
    assert_eq!(status["isolation"]["missingControllers"], Value::Null, "{status}");
}

/// CG-11: a tool dies as a whole, or goes on with what the kernel left of it, as it asked for.
fn oom_and_fallback(place: &Place<'_>) {
    let status = place.ends("whole", "Failed", "OutOfMemory");
    assert_eq!(status["outcome"], "Unknown");
    assert_eq!(status["result"]["signal"], 9);
    assert!(status["result"]["oomKills"].as_i64().unwrap() > 0, "{status}");
    says(&status, "own limit of 33554432 bytes");
    assert_eq!(status["output"]["text"], "");

    let status = place.ends("parts", "Succeeded", "Completed");
    assert!(
        status["output"]["text"].as_str().unwrap().ends_with("light\n"),
        "{status}"
    );
    assert!(
        status["result"]["oomKills"].as_i64().unwrap() > 0,
        "the kill is counted: {status}"
    );
}

/// CG-10: the hard timeout ends in the same signal and is not called a lack of memory.
fn kill_is_no_oom(place: &Place<'_>) {
    let status = place.ends("slow", "TimedOut", "HardTimeout");
    assert_eq!(status["result"]["signal"], 9, "{status}");
    assert_eq!(status["result"]["oomKills"], 0, "{status}");
}

/// CG-13: beside a fork bomb at its limit others start, and one cancel ends all of it.
fn bomb(place: &Place<'_>) {
    place.starts("bomb");
    place.sees("bomb", "{.status.phase}=Running");
    place.ends("beside", "Succeeded", "Completed");
    let cancel = r#"{"spec":{"desiredState":"Cancelled"}}"#;
    place
        .0
        .kubectl(&["patch", "tx", "bomb", "--type=merge", "--patch", cancel])
        .expect("cancel");
    let status = place.sees("bomb", "{.status.completionTime}");
    assert_eq!(
        (&status["phase"], &status["cleanup"]),
        (&json!("Cancelled"), &json!("Confirmed")),
        "{status}"
    );
    // Of kernels before 6.1 there is no peak.
    assert!(
        status["usage"]["pidsPeak"].as_i64().is_none_or(|peak| peak == 32),
        "{status}"
    );
}

/// CG-09: over the limit of all tools together, though not over its own.
fn parents_limit(place: &Place<'_>, root: &Path) {
    let payload = root.read_dir().unwrap().flatten().map(|entry| entry.path());
    let mut payload = payload.filter(|path| {
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("payload-")
    });
    let limit = payload.next().expect("a payload group").join("memory.max");
    std::fs::write(&limit, (64 * MIB).to_string()).unwrap();
    let status = place.ends("parent", "Failed", "OutOfMemory");
    assert!(status["result"]["oomKills"].as_i64().unwrap() > 0, "{status}");
    says(
        &status,
        "at the 67108864 bytes that all calls on the node have together",
    );
    std::fs::write(&limit, "max").unwrap();
}

/// The message of the condition Succeeded has these words.
fn says(status: &Value, words: &str) {
    let conditions = status["conditions"].as_array().unwrap();
    let succeeded = conditions
        .iter()
        .find(|condition| condition["type"] == "Succeeded");
    let message = succeeded.unwrap()["message"].as_str().unwrap();
    assert!(message.contains(words), "{message}");
}

/// The cluster, and the namespace `default` in it. Each call of kubectl takes seconds here, so there are few.
struct Place<'a>(&'a Cluster);

impl Place<'_> {
    /// Makes an execution of the tool `name`.
    fn starts(&self, name: &str) {
        let execution = json!({
            "apiVersion": API_VERSION, "kind": "ToolExecution", "metadata": {"name": name, "namespace": "default"},
            "spec": {"tool": {"toolRef": {"name": name}}},
        });
        self.0.apply(&execution).expect("make the execution");
    }

    /// The status of an execution, once the path in it is there or has its value (`kubectl wait --for=jsonpath`).
    fn sees(&self, name: &str, path: &str) -> Value {
        let waited = self.0.kubectl(&[
            "wait",
            "tx",
            name,
            &format!("--for=jsonpath={path}"),
            "--timeout=120s",
        ]);
        let text = self
            .0
            .kubectl(&["get", "tx", name, "--output=json"])
            .expect("read the execution");
        let status = serde_json::from_str::<Value>(&text).expect("JSON")["status"].take();
        waited.unwrap_or_else(|error| panic!("{error:#}: {status}"));
        status
    }

    /// Runs a tool to its end, which must be of this phase and reason, and gives its status.
    fn ends(&self, name: &str, phase: &str, reason: &str) -> Value {
        self.starts(name);
        let status = self.sees(name, "{.status.completionTime}");
        println!(
            "{name}: {} {}: {}",
            status["phase"], status["reason"], status["message"]
        );
        assert_eq!(
            (&status["phase"], &status["reason"]),
            (&json!(phase), &json!(reason)),
            "{name}: {status}"
        );
        status
    }
}

//! Limits, under a kernel that has them: each test boots a kernel guest and runs itself there.
//!
//! `CG-` numbers name the case of a known failure of other systems that the test repeats.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is how a test says so"
)]

mod rig;

use std::any::type_name_of_val;
use std::path::Path;

use fairlead_supervisor::cgroup::{CONTROLLERS, Group, Limits, MemoryEvents};
use fairlead_supervisor::probe::probe;
use fairlead_supervisor::step::Step;
use fairlead_supervisor::wire::{Backend, Cause, Event, Request};
use rig::{Agent, Attempt, BOUND, Rig, top, wait};
use xtask::guest::{self, Guest};

const MIB: u64 = 1024 * 1024;
/// Takes memory until it is stopped: `tail` keeps what may be the last line.
const HOG: &str = "tail /dev/zero";
const SIGKILL: i32 = 9;

#[test]
fn fake_agent() {
    rig::be_agent();
}

/// Runs the test's body in the guest: this program again, with this test only. A guest that cannot be started skips the
/// test; with `CI=true` that is a failure.
#[track_caller]
fn in_guest<F: FnOnce()>(body: F) {
    if guest::is_inside() {
        return body();
    }
    if let Err(why) = guest::available() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
        eprintln!("skipped: {why}");
        return;
    }
    let closure = type_name_of_val(&body);
    let name = closure.trim_end_matches("::{{closure}}").rsplit("::").next();
    let program = std::env::current_exe().expect("own path");
    let argv = [
        program.to_str().expect("UTF-8"),
        "--exact",
        name.expect("a test's name"),
        "--nocapture",
    ];
    let output = Guest::default().run_argv(&argv).expect("the guest");
    assert_eq!(output.exit_code, 0, "in the guest:\n{}", output.text);
    assert!(output.text.contains("1 passed"), "in the guest:\n{}", output.text);
    println!("{}", output.text);
}

/// An attempt in a group with these limits.
fn limited(rig: &Rig, number: u32, limits: Limits) -> Attempt {
    let attempt = rig.attempt(number);
    attempt.group().set_limits(&limits).expect("limits");
    attempt
}

fn memory(mib: u64) -> Limits {
    Limits {
        memory_max: Some(mib * MIB),
        ..Limits::default()
    }
}

fn memory_events(group: &Group) -> MemoryEvents {
    group
        .memory_events()
        .expect("memory.events")
        .expect("the controller")
}

/// A counter of a control file.
fn counter(group: &Group, file: &str, name: &str) -> u64 {
    let text = group.read(file).expect("control file");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("{name} in {file}: {text:?}"))
}

/// The supervisor still starts tools, by running one to its end.
fn still_serves(rig: &Rig, agent: &mut Agent, number: u32) {
    let attempt = limited(rig, number, memory(64));
    let (status, output) = agent.run(&attempt, &["sh", "-c", "echo served"]);
    assert_eq!((status, output.as_str()), (0, "served\n"));
}

fn sh(agent: &mut Agent, attempt: &Attempt, script: &str) {
    agent.spawn(attempt, &["sh", "-c", script]);
    agent.spawned(attempt);
}

fn kill_and_forget(agent: &mut Agent, attempt: &Attempt) {
    agent
        .client
        .send(&Request::Kill { key: attempt.key })
        .expect("send");
    agent.emptied(attempt);
    attempt
        .group()
        .remove(BOUND)
        .expect("an empty group can be removed");
}

#[test]
fn the_probe_finds_every_controller_and_leaves_nothing() {
    in_guest(|| {
        let root = Group::create(top().expect("mount").join("probed")).expect("group");
        let found = probe(root.path());
        assert_eq!(
            (found.backend, found.complete()),
            (Backend::CgroupV2, true),
            "{found:?}"
        );
        assert!(root.children().expect("children").is_empty());
        root.remove(BOUND).expect("remove");
    });
}

#[test]
fn a_tool_over_its_memory_limit_dies_with_its_whole_group() {
    in_guest(|| {
        let rig = Rig::start("hog", &[]);
        let (mut agent, _) = rig.agent();
        let attempt = limited(&rig, 1, memory(32));
        // The sleeper takes nothing; it goes because a half-dead tool is worse than a dead one.
        sh(
            &mut agent,
            &attempt,
            &format!("sleep 1000 & {HOG}; echo survived"),
        );
        let exit = agent.exited(&attempt);
        agent.emptied(&attempt);
        assert_eq!((exit.wait_status, exit.cause), (SIGKILL, Cause::None));
        let events = memory_events(attempt.group());
        assert!(events.oom_kill > 0 && events.oom_group_kill == 1, "{events:?}");
        let peak = attempt
            .group()
            .usage()
            .expect("usage")
            .memory_peak
            .expect("memory.peak");
        assert!(peak <= 32 * MIB, "{peak} bytes");
        agent.drained(&attempt);
        assert_eq!(attempt.output(), "");
        still_serves(&rig, &mut agent, 2);
    });
}

#[test]
fn cg_09_and_12_the_counters_tell_whose_limit_it_was() {
    in_guest(|| {
        let rig = Rig::start("whose", &[]);
        let (mut agent, _) = rig.agent();
        let payload = rig.payload(1);
        payload
            .write("memory.max", &(48 * MIB).to_string())
            .expect("limit of the parent");
        let own = limited(&rig, 1, memory(24));
        sh(&mut agent, &own, HOG);
        assert_eq!(agent.exited(&own).wait_status, SIGKILL);
        let events = memory_events(own.group());
        assert!(
            events.oom > 0 && events.oom_kill > 0,
            "at its own limit: {events:?}"
        );

        let parents = limited(&rig, 2, memory(512));
        sh(&mut agent, &parents, HOG);
        assert_eq!(agent.exited(&parents).wait_status, SIGKILL);
        let events = memory_events(parents.group());
        assert_eq!(
            (events.oom, events.max),
            (0, 0),
            "its own limit was not reached: {events:?}"
        );
        assert!(events.oom_kill > 0, "and yet it was killed: {events:?}");
        assert!(
            counter(&payload, "memory.events.local", "oom") > 0,
            "the parent's limit was"
        );
        still_serves(&rig, &mut agent, 3);
    });
}

#[test]
fn cg_10_a_kill_of_ours_is_no_oom() {
    in_guest(|| {
        let rig = Rig::start("ours", &[]);
        let (mut agent, _) = rig.agent();
        let attempt = limited(&rig, 1, memory(64));
        sh(&mut agent, &attempt, "sleep 1000");
        agent
            .client
            .send(&Request::Kill { key: attempt.key })
            .expect("send");
        let exit = agent.exited(&attempt);
        agent.emptied(&attempt);
        // The wait status is that of a kernel's OOM kill; only cause and counters differ.
        assert_eq!((exit.wait_status, exit.cause), (SIGKILL, Cause::Requested));
        assert_eq!(memory_events(attempt.group()), MemoryEvents::default());
    });
}

#[test]
fn cg_13_a_fork_bomb_stays_in_its_group_and_others_start() {
    in_guest(|| {
        let rig = Rig::start("bomb", &[]);
        let (mut agent, _) = rig.agent();
        let limits = Limits {
            pids_max: Some(32),
            ..Limits::default()
        };
        let bomb = limited(&rig, 1, limits);
        // A shell gives up at a fork that fails, so the bomb is a loop of its own.
        let script =
            "import os, time\nwhile True:\n try:\n  os.fork()\n except BlockingIOError:\n  time.sleep(0.01)";
        agent.spawn(&bomb, &["python3", "-c", script]);
        agent.spawned(&bomb);
        wait("refused forks", || {
            counter(bomb.group(), "pids.events", "max") > 0
        });
        assert!(bomb.group().procs().expect("procs").len() <= 32);
        still_serves(&rig, &mut agent, 2);
        let late = rig.attempt(3);
        agent.spawn_into(&late, bomb.group().open().expect("group"), &["true"]);
        let refused = agent.wait(
            "an answer",
            |e| matches!(e, Event::Refused { key, .. } if *key == late.key),
        );
        let Event::Refused { step, errno, .. } = refused else {
            unreachable!()
        };
        assert_eq!(
            (step, errno),
            (Step::Clone, libc::EAGAIN),
            "a full group is its own error"
        );
        kill_and_forget(&mut agent, &bomb);
        still_serves(&rig, &mut agent, 4);
    });
}

#[test]
fn a_busy_tool_is_throttled_to_its_share() {
    in_guest(|| {
        let rig = Rig::start("busy", &[]);
        let (mut agent, _) = rig.agent();
        let limits = Limits {
            cpu_max_millis: Some(100),
            ..Limits::default()
        };
        let attempt = limited(&rig, 1, limits);
        sh(&mut agent, &attempt, "while :; do :; done");
        wait("throttled periods", || {
            counter(attempt.group(), "cpu.stat", "nr_throttled") >= 5
        });
        let periods = counter(attempt.group(), "cpu.stat", "nr_periods");
        let used = counter(attempt.group(), "cpu.stat", "usage_usec");
        // A tenth of a period of 100 ms, and the tick by which the kernel notices late; twice that is allowed.
        assert!(used <= (periods + 1) * 20_000, "{used} µs in {periods} periods");
        kill_and_forget(&mut agent, &attempt);
    });
}

#[test]
fn cg_06_a_limit_that_cannot_be_set_is_an_error_that_names_it() {
    in_guest(|| {
        let root = Group::create(top().expect("mount").join("bare")).expect("group");
        // Nothing is handed on to this child, so it has no file to write a limit to.
        let child = Group::create(root.child("child").path()).expect("group");
        for (limits, file) in [
            (memory(64), "memory.max"),
            (
                Limits {
                    pids_max: Some(8),
                    ..Limits::default()
                },
                "pids.max",
            ),
            (
                Limits {
                    cpu_max_millis: Some(500),
                    ..Limits::default()
                },
                "cpu.max",
            ),
        ] {
            let error = child.set_limits(&limits).expect_err("no controller").to_string();
            assert!(
                error.contains(&format!("{}/{file}", child.path().display())),
                "{error}"
            );
        }
        assert!(
            root.enable_controllers().expect("enable").is_empty(),
            "now all of {CONTROLLERS:?}"
        );
        child.set_limits(&memory(64)).expect("now there is one");
        assert_eq!(child.read("memory.max").expect("read"), (64 * MIB).to_string());
        root.remove(BOUND).expect("remove");
        assert!(!Path::new(root.path()).exists());
    });
}

//! Output: every byte, in order, beyond the quota too, and never in the tool's way.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is how a test says so"
)]

mod rig;

use std::fs;

use fairlead_supervisor::slot::{self, RING_LEN, Stream};
use fairlead_supervisor::wire::{Event, Request};
use rig::{Rig, ready, wait};

#[test]
fn fake_agent() {
    rig::be_agent();
}

#[test]
fn ten_megabytes_arrive_byte_for_byte() {
    if !ready() {
        return;
    }
    let rig = Rig::start("bytes", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    let (status, _) = agent.run(
        &attempt,
        &["sh", "-c", "head -c 10485760 /dev/urandom | tee copy"],
    );
    assert_eq!(status, 0);
    let copy = fs::read(attempt.home.join("copy")).expect("copy");
    let spool = fs::read(attempt.dir.join(slot::FILE_STDOUT)).expect("spool");
    assert_eq!(spool.len(), 10_485_760);
    assert!(spool == copy, "spool and copy differ");
    let output = attempt.journal().output.expect("output").stdout;
    assert_eq!(
        (output.total, output.stored, output.errno, output.ended),
        (10_485_760, 10_485_760, 0, true)
    );
}

#[test]
fn streams_share_a_pipe_in_order_or_have_their_own() {
    if !ready() {
        return;
    }
    let rig = Rig::start("streams", &[]);
    let (mut agent, _) = rig.agent();
    let script = "for i in 1 2 3; do echo o$i; echo e$i >&2; done";
    let shared = rig.attempt(1);
    assert_eq!(
        agent.run(&shared, &["sh", "-c", script]).1,
        "o1\ne1\no2\ne2\no3\ne3\n"
    );
    let mut apart = rig.attempt(2);
    apart.separate = true;
    assert_eq!(agent.run(&apart, &["sh", "-c", script]).1, "o1\no2\no3\n");
    let stderr = fs::read_to_string(apart.dir.join(slot::FILE_STDERR)).expect("stderr");
    assert_eq!(stderr, "e1\ne2\ne3\n");
    let output = apart.journal().output.expect("output");
    assert_eq!((output.stdout.total, output.stderr.total), (9, 9));
}

#[test]
fn beyond_the_quota_the_tail_is_kept_and_counted() {
    if !ready() {
        return;
    }
    let rig = Rig::start("quota", &[]);
    let (mut agent, _) = rig.agent();
    let mut attempt = rig.attempt(1);
    attempt.spawn.store_max_bytes = 100_000;
    let (status, stored) = agent.run(&attempt, &["seq", "1", "200000"]);
    assert_eq!(status, 0, "the tool was not stopped");
    let all: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    assert!(stored == all[..100_000], "the spool is a prefix");
    let output = attempt.journal().output.expect("output").stdout;
    assert_eq!((output.total, output.stored), (all.len() as u64, 100_000));
    let tail = attempt.slot.read_tail(Stream::Stdout, &output).expect("tail");
    assert!(
        tail == all.as_bytes()[all.len() - RING_LEN..],
        "the ring holds the last bytes"
    );
    assert_eq!(
        fs::metadata(attempt.dir.join(slot::FILE_SLOT))
            .expect("stat")
            .len(),
        slot::SLOT_LEN
    );
}

#[test]
fn a_grandchild_that_holds_the_pipe_delays_only_the_end_of_output() {
    if !ready() {
        return;
    }
    let rig = Rig::start("held", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    agent.spawn(&attempt, &["sh", "-c", "(sleep 1000; echo never) & echo hi"]);
    assert_eq!(agent.exited(&attempt).wait_status, 0);
    wait("the leader's words", || attempt.output() == "hi\n");
    let held = |e: &Event| matches!(e, Event::Drained { .. } | Event::Emptied { .. });
    assert!(!agent.events.iter().any(held), "{:?}", agent.events);
    agent
        .client
        .send(&Request::Kill { key: attempt.key })
        .expect("kill");
    agent.emptied(&attempt);
    agent.drained(&attempt);
    assert_eq!(attempt.output(), "hi\n");
}

/// The pump of a rig's supervisor.
fn pump(rig: &Rig) -> Option<i32> {
    let parent = rig.supervisor.id();
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    let is_pump = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("fairlead-pump"))
    };
    pids.into_iter().find(is_pump)
}

#[test]
fn a_stopped_pump_is_replaced_and_no_byte_is_lost_or_late() {
    if !ready() {
        return;
    }
    let rig = Rig::start("stopped", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    agent.spawn(
        &attempt,
        &[
            "sh",
            "-c",
            "for i in $(seq 1 60); do echo line $i; sleep 0.05; done",
        ],
    );
    agent.spawned(&attempt);
    wait("the first line", || attempt.output().starts_with("line 1\n"));
    let stopped = pump(&rig).expect("a pump");
    rig::kill(stopped, libc::SIGSTOP);
    agent.exited(&attempt);
    agent.emptied(&attempt);
    agent.drained(&attempt);
    assert_ne!(pump(&rig), Some(stopped), "another one");
    let all: String = (1..=60).map(|n| format!("line {n}\n")).collect();
    assert_eq!(attempt.output(), all);
}

#[test]
fn a_supervisor_that_was_stopped_keeps_its_pump() {
    if !ready() {
        return;
    }
    let rig = Rig::start("late", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    agent.spawn(&attempt, &["sh", "-c", "echo up; sleep 6; echo down"]);
    agent.spawned(&attempt);
    wait("its word", || attempt.output() == "up\n");
    let before = pump(&rig);
    let supervisor = rig.supervisor.id().cast_signed();
    rig::kill(supervisor, libc::SIGSTOP);
    // Longer than a pump may be silent.
    std::thread::sleep(std::time::Duration::from_secs(4));
    rig::kill(supervisor, libc::SIGCONT);
    agent.exited(&attempt);
    agent.drained(&attempt);
    assert_eq!(pump(&rig), before);
    assert_eq!(attempt.output(), "up\ndown\n");
}

#[test]
fn a_file_that_takes_no_more_is_told_and_the_tool_goes_on() {
    if !ready() {
        return;
    }
    let rig = Rig::start("full", &[]);
    let (mut agent, _) = rig.agent();
    let mut attempt = rig.attempt(1);
    // A device that is always full stands for a full disk.
    attempt.stdout = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .expect("full");
    let (status, _) = agent.run(&attempt, &["seq", "1", "20000"]);
    assert_eq!(status, 0);
    let output = attempt.journal().output.expect("output").stdout;
    let all: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(
        (output.errno, output.stored, output.total),
        (libc::ENOSPC, 0, all.len() as u64)
    );
    let tail = attempt.slot.read_tail(Stream::Stdout, &output).expect("tail");
    assert!(tail == all.as_bytes()[all.len() - RING_LEN..]);
}

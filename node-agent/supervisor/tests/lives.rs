//! Living on: kills, deadlines, escapes, deaths of agent, pump and supervisor.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is how a test says so"
)]

mod rig;

use std::fs;
use std::time::{Duration, Instant};

use fairlead_supervisor::sys;
use fairlead_supervisor::wire::{Cause, EntryPhase, Event, Request};
use rig::{Agent, Attempt, BOUND, Rig, kill, lives, ready, wait};

#[test]
fn fake_agent() {
    rig::be_agent();
}

/// Starts a tool and waits until it printed that many words.
#[track_caller]
fn talking(agent: &mut Agent, attempt: &Attempt, words: usize, script: &str) -> Vec<String> {
    agent.spawn(attempt, &["sh", "-c", script]);
    agent.spawned(attempt);
    wait("the tool's words", || {
        attempt.output().split_whitespace().count() >= words
    });
    attempt.output().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn nobody_escapes_a_kill() {
    if !ready() {
        return;
    }
    let rig = Rig::start("escape", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    // Own session, double fork, ignoring everything; the leader is gone before the kill.
    let inner = r#"trap "" TERM HUP INT; echo $$; while true; do sleep 1000; done"#;
    let words = talking(
        &mut agent,
        &attempt,
        1,
        &format!("setsid sh -c '( {inner} ) & exit 0' & wait; exit 5"),
    );
    assert_eq!(agent.exited(&attempt).wait_status, 5 << 8);
    assert!(attempt.group().populated().expect("events"), "the escapee lives");
    agent
        .client
        .send(&Request::Kill { key: attempt.key })
        .expect("kill");
    agent.emptied(&attempt);
    agent.drained(&attempt);
    assert!(!attempt.group().populated().expect("events"));
    assert!(!lives(words[0].parse().expect("pid")));
    let exit = attempt.journal().exited.expect("exited").exit;
    assert_eq!(exit.cause, Cause::None, "a kill after the end is not its cause");
    attempt.group().remove(BOUND).expect("remove");
}

#[test]
fn a_fork_storm_is_killed() {
    if !ready() {
        return;
    }
    let rig = Rig::start("storm", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    let loops =
        "i=0; while [ $i -lt 8 ]; do (while true; do (true) & wait; done) & i=$((i+1)); done; echo on; wait";
    talking(&mut agent, &attempt, 1, loops);
    agent
        .client
        .send(&Request::Kill { key: attempt.key })
        .expect("kill");
    agent.emptied(&attempt);
    assert_eq!(agent.exited(&attempt).cause, Cause::Requested);
}

#[test]
fn a_signal_reaches_every_member() {
    if !ready() {
        return;
    }
    let rig = Rig::start("signal", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    let member = r#"trap "echo got; exit 0" USR1; echo up; while true; do sleep 0.01; done"#;
    let script = format!("for i in 1 2 3; do setsid sh -c '{member}' & done; {member}");
    talking(&mut agent, &attempt, 4, &script);
    agent
        .client
        .send(&Request::Signal {
            key: attempt.key,
            signo: libc::SIGUSR1 as u32,
        })
        .expect("signal");
    agent.emptied(&attempt);
    agent.drained(&attempt);
    // The short sleeps die of the signal too; what counts is that each of the four handled it.
    assert_eq!(attempt.output().matches("got").count(), 4, "{}", attempt.output());
}

#[test]
fn a_deadline_is_kept_while_the_agent_is_stopped() {
    if !ready() {
        return;
    }
    let rig = Rig::start("deadline", &["--heartbeat-seconds", "3600"]);
    let (mut agent, _) = rig.agent();
    let polite = rig.attempt(1);
    talking(
        &mut agent,
        &polite,
        1,
        r#"trap "exit 3" TERM; echo up; while true; do sleep 0.01; done"#,
    );
    let mut deaf = rig.attempt(2);
    deaf.spawn.grace_ms = 300;
    talking(
        &mut agent,
        &deaf,
        1,
        r#"trap "" TERM; echo up; while true; do sleep 0.01; done"#,
    );
    let mut sudden = rig.attempt(3);
    // It need not have come to a word by then.
    sudden.spawn.deadline_ms = sys::boottime_ms() + 2_000;
    agent.spawn(&sudden, &["sleep", "1000"]);
    agent.spawned(&sudden);
    let soon = sys::boottime_ms() + 200;
    kill(agent.pid, libc::SIGSTOP);
    agent
        .client
        .send(&Request::SetDeadline {
            key: polite.key,
            deadline_ms: soon,
        })
        .expect("send");
    agent
        .client
        .send(&Request::SetDeadline {
            key: deaf.key,
            deadline_ms: soon,
        })
        .expect("send");
    // The polite one has no grace: it dies of the kill.
    let exit = agent.exited(&polite);
    assert_eq!((exit.wait_status, exit.cause), (libc::SIGKILL, Cause::Deadline));
    let exit = agent.exited(&deaf);
    assert_eq!((exit.wait_status, exit.cause), (libc::SIGKILL, Cause::Deadline));
    assert!(exit.boottime_ms >= soon + 300, "the grace is waited for");
    assert_eq!(agent.exited(&sudden).cause, Cause::Deadline);
    for attempt in [&polite, &deaf, &sudden] {
        agent.emptied(attempt);
        agent.wait(
            "deadline",
            |e| matches!(e, Event::DeadlineReached { key, .. } if *key == attempt.key),
        );
    }
    kill(agent.pid, libc::SIGCONT);
}

#[test]
fn a_deadline_with_grace_lets_the_tool_end_itself() {
    if !ready() {
        return;
    }
    let rig = Rig::start("grace", &[]);
    let (mut agent, _) = rig.agent();
    let mut graceful = rig.attempt(1);
    graceful.spawn.grace_ms = 60_000;
    talking(
        &mut agent,
        &graceful,
        1,
        r#"trap "exit 3" TERM; echo up; while true; do sleep 0.01; done"#,
    );
    // Not before it has set its trap.
    let request = Request::SetDeadline {
        key: graceful.key,
        deadline_ms: sys::boottime_ms() + 200,
    };
    agent.client.send(&request).expect("send");
    let exit = agent.exited(&graceful);
    assert_eq!((exit.wait_status, exit.cause), (3 << 8, Cause::Deadline));
}

#[test]
fn the_next_agent_adopts_what_runs() {
    if !ready() {
        return;
    }
    let rig = Rig::start("adopt", &["--adopt-seconds", "60"]);
    let (mut agent, _) = rig.agent();
    let (running, ended) = (rig.attempt(1), rig.attempt(2));
    let words = talking(
        &mut agent,
        &running,
        1,
        "echo $$; while [ ! -e stop ]; do sleep 0.01; done; echo end; exit 4",
    );
    kill(agent.pid, libc::SIGKILL);
    // Sent to a dead agent's socket: must not be done by the next.
    let dead = agent;
    wait("the agent's end", || !lives(dead.pid));
    let next = rig.silent_agent();
    assert!(
        dead.client.send(&Request::Kill { key: running.key }).is_err(),
        "its socket went with it"
    );
    drop(next);
    kill_current(&rig);
    let (mut agent, states) = rig.agent();
    assert_eq!(states.len(), 1);
    assert_eq!(
        (states[0].key, states[0].phase, states[0].emptied),
        (running.key, EntryPhase::Running, false)
    );
    assert_eq!(states[0].pid.to_string(), words[0]);
    kill(agent.pid, libc::SIGKILL);
    wait("the agent's end", || !lives(agent.pid));
    fs::write(running.home.join("stop"), "").expect("stop the tool");
    wait("the exit record", || running.journal().exited.is_some());
    let states;
    (agent, states) = rig.agent();
    assert_eq!(states[0].phase, EntryPhase::Exited);
    if !states[0].drained {
        agent.drained(&running);
    }
    assert_eq!(states[0].wait_status, 4 << 8);
    assert!(running.output().ends_with("end\n"), "output went on");
    assert_eq!(agent.run(&ended, &["true"]).0, 0, "and new work is done");
}

/// Ends the agent that is there now, whoever it is, so that the next connects.
fn kill_current(rig: &Rig) {
    for pid in children(rig.supervisor.id().cast_signed()) {
        if !name(pid).starts_with("fairlead-pump") && is_agent(rig, pid) {
            kill(pid, libc::SIGKILL);
        }
    }
}

fn is_agent(rig: &Rig, pid: i32) -> bool {
    let group = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let own = rig
        .root
        .path()
        .file_name()
        .expect("name")
        .to_string_lossy()
        .into_owned();
    group
        .lines()
        .any(|line| line.starts_with("0::") && line.contains(&own) && line.contains("/agent-"))
}

fn children(parent: i32) -> Vec<i32> {
    fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

fn name(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default()
}

#[test]
fn without_an_agent_groups_are_emptied_within_the_bound() {
    if !ready() {
        return;
    }
    let rig = Rig::start("lost", &["--adopt-seconds", "1"]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    let words = talking(&mut agent, &attempt, 1, "echo $$; exec sleep 1000");
    kill(agent.pid, libc::SIGKILL);
    let _silent = rig.silent_agent();
    wait("the end of the tool", || attempt.journal().exited.is_some());
    let exit = attempt.journal().exited.expect("exited").exit;
    assert_eq!((exit.wait_status, exit.cause), (libc::SIGKILL, Cause::AgentLost));
    assert!(!lives(words[0].parse().expect("pid")));
    wait("an empty group", || !attempt.group().populated().expect("events"));
}

#[test]
fn a_stuck_agent_is_killed_and_its_successor_adopts() {
    if !ready() {
        return;
    }
    // Long enough that an agent which only gets no processor is not taken for stuck.
    let rig = Rig::start("stuck", &["--heartbeat-seconds", "5", "--adopt-seconds", "60"]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    talking(&mut agent, &attempt, 1, "echo up; exec sleep 1000");
    kill(agent.pid, libc::SIGSTOP);
    let (mut next, states) = rig.agent();
    assert_ne!(next.pid, agent.pid);
    assert_eq!(states[0].phase, EntryPhase::Running);
    next.client
        .send(&Request::Kill { key: attempt.key })
        .expect("kill");
    next.emptied(&attempt);
}

#[test]
fn a_killed_pump_loses_no_byte() {
    if !ready() {
        return;
    }
    let rig = Rig::start("pump", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    talking(&mut agent, &attempt, 1_000, "seq 1 300000");
    let supervisor = rig.supervisor.id().cast_signed();
    let mut killed = 0_usize;
    let end = Instant::now() + BOUND;
    while !agent.events.iter().any(|e| matches!(e, Event::Drained { .. })) && Instant::now() < end {
        // Not for ever: one that gets no processor within the pause would never come to a byte.
        let pumps = children(supervisor)
            .into_iter()
            .filter(|pid| name(*pid).starts_with("fairlead-pump"));
        for pid in pumps.take(20 - killed) {
            kill(pid, libc::SIGKILL);
            killed += 1;
        }
        if let Ok(Some(event)) = agent.client.recv_timeout(Duration::from_millis(150)) {
            agent.events.push(event);
        }
    }
    let expected: String = (1..=300_000).map(|n| format!("{n}\n")).collect();
    assert!(killed > 0);
    assert!(
        attempt.output() == expected,
        "killed {killed} pumps, {} bytes",
        attempt.output().len()
    );
}

#[test]
fn a_killed_supervisor_is_reclaimed_by_the_next() {
    if !ready() {
        return;
    }
    let mut rig = Rig::start("reclaim", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    let words = talking(&mut agent, &attempt, 1, "echo $$; exec sleep 1000");
    let tool: i32 = words[0].parse().expect("pid");
    let mut waiting = rig.start_another();
    assert!(
        waiting.try_wait().expect("wait").is_none(),
        "the second waits for the lock"
    );
    rig.supervisor.kill().expect("kill");
    rig.supervisor.wait().expect("wait");
    rig.supervisor = waiting;
    let (_agent, states) = rig.agent();
    assert!(states.is_empty());
    assert!(!lives(tool), "reclaimed before the agent was started");
    assert!(!rig.payload(1).path().exists() && rig.payload(2).path().exists());
    let journal = attempt.journal();
    assert!(journal.intent.is_some() && journal.spawned.is_some() && journal.exited.is_none());
    wait("the old agent's end", || !lives(agent.pid));
}

#[test]
fn told_to_stop_it_ends_everything_and_leaves_nothing() {
    if !ready() {
        return;
    }
    let mut rig = Rig::start("stop", &["--drain-seconds", "3600"]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    talking(
        &mut agent,
        &attempt,
        1,
        "trap '' TERM; echo up; while true; do sleep 1000; done",
    );
    kill(rig.supervisor.id().cast_signed(), libc::SIGTERM);
    let status = rig.supervisor.wait().expect("wait");
    assert!(status.success(), "{status}");
    let exit = attempt.journal().exited.expect("exited").exit;
    assert_eq!((exit.wait_status, exit.cause), (libc::SIGKILL, Cause::Shutdown));
    let left = rig.root.children().expect("children");
    assert!(left.is_empty(), "{left:?}");
    assert!(!lives(agent.pid));
}

#[test]
fn as_the_first_process_of_a_namespace_its_death_is_everybodys() {
    if !ready() {
        return;
    }
    let mut rig = Rig::start_wrapped("pid1", &["unshare", "--pid", "--fork", "--kill-child"]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    talking(
        &mut agent,
        &attempt,
        1,
        "trap '' TERM; setsid sleep 1000 & echo up; sleep 1000",
    );
    let inner = children(rig.supervisor.id().cast_signed());
    assert_eq!(inner.len(), 1, "the supervisor is the only child of unshare");
    kill(inner[0], libc::SIGKILL);
    wait("the end of everybody", || {
        !attempt.group().populated().expect("events")
    });
    let journal = attempt.journal();
    assert!(
        journal.spawned.is_some() && journal.exited.is_none(),
        "its end is not known"
    );
    rig.supervisor.wait().expect("wait");
    rig.supervisor = rig.start_another();
    let (_agent, states) = rig.agent();
    assert!(states.is_empty() && !rig.payload(1).path().exists());
}

#[test]
fn two_hundred_at_once_all_end_and_nothing_is_left() {
    if !ready() {
        return;
    }
    let rig = Rig::start("many", &[]);
    let (mut agent, _) = rig.agent();
    let attempts: Vec<Attempt> = (1..=200).map(|number| rig.attempt(number)).collect();
    for attempt in &attempts {
        agent.spawn(attempt, &["sh", "-c", "echo $$; sleep 0.2; echo end"]);
    }
    for attempt in &attempts {
        assert_eq!(agent.exited(attempt).wait_status, 0);
        agent.emptied(attempt);
        agent.drained(attempt);
        assert!(attempt.output().ends_with("\nend\n"), "{}", attempt.output());
        attempt.group().remove(BOUND).expect("remove");
        agent
            .client
            .send(&Request::Forget { key: attempt.key })
            .expect("forget");
    }
    let last = attempts[199].key;
    agent.client.send(&Request::Kill { key: last }).expect("kill");
    agent.wait("everything is forgotten", |e| *e == Event::Unknown { key: last });
    let open = fs::read_dir(format!("/proc/{}/fd", rig.supervisor.id()))
        .expect("fds")
        .count();
    assert!(open < 20, "{open} descriptors are left open");
    let left = children(rig.supervisor.id().cast_signed());
    assert_eq!(left.len(), 2, "only agent and pump are left: {left:?}");
}

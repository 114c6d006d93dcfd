//! Starting: what runs, as whom, seeing what; and what is refused, at which step.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is how a test says so"
)]

mod rig;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use fairlead_supervisor::step::Step;
use fairlead_supervisor::wire::{Event, Request};
use rig::{Agent, Attempt, BOUND, Rig, UID, ready};

#[test]
fn fake_agent() {
    rig::be_agent();
}

#[track_caller]
fn refused(agent: &mut Agent, attempt: &Attempt) -> (Step, i32) {
    let key = attempt.key;
    match agent.wait(
        "refused",
        |e| matches!(e, Event::Refused { key: k, .. } if *k == key),
    ) {
        Event::Refused { step, errno, .. } => (step, errno),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ends_are_told_and_recorded() {
    if !ready() {
        return;
    }
    let rig = Rig::start("ends", &[]);
    let (mut agent, states) = rig.agent();
    assert!(states.is_empty());
    let cases: [(&[&str], i32); 4] = [
        (&["true"], 0),
        (&["sh", "-c", "exit 7"], 7 << 8),
        (&["sh", "-c", "kill -9 $$"], libc::SIGKILL),
        (&["sh", "-c", "kill -15 $$"], libc::SIGTERM),
    ];
    for (number, (argv, status)) in cases.into_iter().enumerate() {
        let attempt = rig.attempt(number as u32 + 1);
        assert_eq!(agent.run(&attempt, argv).0, status, "{argv:?}");
        let journal = attempt.journal();
        assert!(journal.intent.is_some() && journal.spawned.is_some() && journal.refused.is_none());
        assert_eq!(journal.exited.expect("exited").exit.wait_status, status);
        assert!(journal.output.expect("output").stdout.ended);
        assert!(!attempt.group().populated().expect("populated"));
        attempt.group().remove(BOUND).expect("remove");
        agent
            .client
            .send(&Request::Forget { key: attempt.key })
            .expect("forget");
        agent
            .client
            .send(&Request::Kill { key: attempt.key })
            .expect("kill");
        agent.wait("forgotten", |e| *e == Event::Unknown { key: attempt.key });
    }
}

#[test]
fn a_tool_is_nobody_and_sees_nothing_of_ours() {
    if !ready() {
        return;
    }
    let secret = rig::TempDir(format!("/var/tmp/fairlead-test-secret-{}", std::process::id()).into());
    fs::create_dir_all(&secret.0).expect("dir");
    fs::set_permissions(&secret.0, fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::write(secret.0.join("token"), "do-not-tell").expect("write");
    let rig = Rig::start("nobody", &["--hide", secret.0.to_str().expect("text")]);
    let (mut agent, _) = rig.agent();
    let script = format!(
        "id -u; id -g; id -G; pwd; echo $HOME; ls /proc/self/fd | tr '\\n' ' '; echo; \
         grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|SigBlk|SigIgn):' /proc/self/status; \
         ulimit -n; ulimit -c; umask; echo mine > /tmp/file; echo err > /dev/stderr; \
         cat {0}/token; ls {0}; ls {1}; cat {2}/spool/lock; ls {2}; true",
        secret.0.display(),
        rig.spool().display(),
        rig.dir.0.display(),
    );
    let attempt = rig.attempt(1);
    let (status, output) = agent.run(&attempt, &["sh", "-c", &script]);
    assert_eq!(status, 0, "{output}");
    let lines: Vec<&str> = output.lines().collect();
    let uid = UID.to_string();
    assert_eq!(lines[..5], [&uid, &uid, &uid, "/tmp", "/tmp"], "{output}");
    assert_eq!(lines[5].trim(), "0 1 2 3", "{output}");
    let zeros = "0000000000000000";
    for name in [
        "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "SigBlk", "SigIgn",
    ] {
        assert!(output.contains(&format!("{name}:\t{zeros}")), "{name}: {output}");
    }
    assert!(output.contains("NoNewPrivs:\t1\n256\n0\n0022\nerr\n"), "{output}");
    assert!(!output.contains("do-not-tell"), "{output}");
    assert_eq!(output.matches("Permission denied").count(), 4, "{output}");
    assert!(
        output.ends_with("control\nspool\n"),
        "what is not hidden is seen: {output}"
    );
    assert_eq!(
        fs::read_to_string(attempt.home.join("file")).expect("written"),
        "mine\n"
    );
    assert!(!std::path::Path::new("/tmp/file").exists());
}

#[test]
fn a_tool_shares_no_memory_with_anybody() {
    if !ready() {
        return;
    }
    let rig = Rig::start("shm", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    let name = format!("fairlead-test-{}", std::process::id());
    let script = format!("readlink /proc/self/ns/ipc; echo mine > /dev/shm/{name} && ls /dev/shm");
    let (status, output) = agent.run(&attempt, &["sh", "-c", &script]);
    assert_eq!(status, 0, "{output}");
    let ours = fs::read_link("/proc/self/ns/ipc").expect("our namespace");
    assert!(!output.contains(ours.to_str().expect("text")), "{output}");
    assert!(
        output.ends_with(&format!("\n{name}\n")),
        "it begins empty: {output}"
    );
    assert!(!std::path::Path::new("/dev/shm").join(&name).exists());
}

#[test]
fn what_cannot_start_is_refused_with_its_step() {
    if !ready() {
        return;
    }
    let rig = Rig::start("refused", &["--uid-range", "60000-60999"]);
    let (mut agent, _) = rig.agent();
    let mut number = 0;
    let mut try_one = |agent: &mut Agent, argv: &[&str], change: &dyn Fn(&mut Attempt)| {
        number += 1;
        let mut attempt = rig.attempt(number);
        change(&mut attempt);
        agent.spawn(&attempt, argv);
        let got = refused(agent, &attempt);
        let noted = attempt.journal();
        let written = noted.refused.map(|r| (r.step, r.errno));
        assert_eq!(written, Some(got), "the slot says the same");
        assert!(noted.spawned.is_none() && noted.exited.is_none());
        got
    };
    assert_eq!(
        try_one(&mut agent, &["no-such-program"], &|_| {}),
        (Step::Exec, libc::ENOENT)
    );
    assert_eq!(
        try_one(&mut agent, &["/etc/passwd"], &|_| {}),
        (Step::Exec, libc::EACCES)
    );
    assert_eq!(
        try_one(&mut agent, &["true"], &|a| a.spawn.uid = 0),
        (Step::IdRange, libc::EPERM)
    );
    assert_eq!(
        try_one(&mut agent, &["true"], &|a| a.spawn.gid = 0),
        (Step::IdRange, libc::EPERM)
    );
    assert_eq!(
        try_one(&mut agent, &["true"], &|a| a.spawn.uid = 61_000),
        (Step::IdRange, libc::EPERM)
    );
    assert_eq!(
        try_one(&mut agent, &["true"], &|a| a.spawn.flags |= 1 << 20),
        (Step::Request, libc::EINVAL)
    );
}

#[test]
fn a_group_that_is_gone_and_a_closed_home_are_refusals() {
    if !ready() {
        return;
    }
    let rig = Rig::start("gone", &[]);
    let (mut agent, _) = rig.agent();
    let gone = rig.attempt(1);
    let dir = gone.group().open().expect("open");
    gone.group().remove(BOUND).expect("remove");
    agent.spawn_into(&gone, dir, &["true"]);
    assert_eq!(refused(&mut agent, &gone), (Step::Group, libc::ENOENT));
    let closed = rig.attempt(2);
    fs::set_permissions(&closed.home, fs::Permissions::from_mode(0o000)).expect("chmod");
    agent.spawn(&closed, &["true"]);
    assert_eq!(
        refused(&mut agent, &closed),
        (Step::WorkingDirectory, libc::EACCES)
    );
    agent.emptied(&closed);
    // A request without its descriptors.
    let request = Request::Spawn(rig.attempt(3).spawn);
    agent.client.send(&request).expect("send");
    let bare = agent.wait("refused", |e| {
        matches!(
            e,
            Event::Refused {
                step: Step::Request,
                ..
            }
        )
    });
    assert!(
        matches!(
            bare,
            Event::Refused {
                errno: libc::EBADF,
                ..
            }
        ),
        "{bare:?}"
    );
}

#[test]
fn a_known_key_starts_nothing_and_is_answered_with_its_state() {
    if !ready() {
        return;
    }
    let rig = Rig::start("known", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    agent.spawn(&attempt, &["sh", "-c", "echo once; exec sleep 1000"]);
    let pid = agent.spawned(&attempt);
    rig::wait("its word", || attempt.output() == "once\n");
    agent.spawn(&attempt, &["sh", "-c", "echo twice"]);
    let state = agent.wait("state", |e| matches!(e, Event::State(_)));
    assert!(matches!(state, Event::State(s) if s.pid == pid), "{state:?}");
    agent
        .client
        .send(&Request::Kill { key: attempt.key })
        .expect("kill");
    agent.drained(&attempt);
    assert_eq!(attempt.output(), "once\n");
}

#[test]
fn without_clone3_children_join_by_a_write() {
    if !ready() {
        return;
    }
    let rig = Rig::start_with("noclone3", &[], |command| {
        // SAFETY: the closure makes one system call on constants.
        unsafe { std::os::unix::process::CommandExt::pre_exec(command, refuse_clone3) };
    });
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    let (status, output) = agent.run(&attempt, &["cat", "/proc/self/cgroup"]);
    assert_eq!(status, 0, "{output}");
    assert!(output.contains(&format!("tx-{}", attempt.key)), "{output}");
    let attempt = rig.attempt(2);
    agent.spawn(&attempt, &["sh", "-c", "sleep 1000 & exec sleep 1000"]);
    agent.spawned(&attempt);
    agent
        .client
        .send(&Request::Kill { key: attempt.key })
        .expect("kill");
    agent.emptied(&attempt);
}

/// A system call filter as container runtimes have it: `clone3` answers ENOSYS.
fn refuse_clone3() -> std::io::Result<()> {
    let op = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let answer = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
    let mut filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_clone3 as u32,
        ),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, answer),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: 4,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program points to four valid instructions.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program, 0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn process_groups_serve_where_there_is_no_cgroup() {
    if !ready() {
        return;
    }
    let rig = Rig::start("pgroup", &["--backend", "process-group"]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    assert_eq!(
        agent.run(&attempt, &["sh", "-c", "echo hi; exit 3"]),
        (3 << 8, "hi\n".into())
    );
    let attempt = rig.attempt(2);
    agent.spawn(&attempt, &["sh", "-c", "sleep 1000 & echo $!"]);
    agent.spawned(&attempt);
    agent.exited(&attempt);
    // The exit and the bytes travel apart: the word may reach the file after the exit is told.
    rig::wait("the child's number", || attempt.output().ends_with('\n'));
    let child: i32 = attempt.output().trim().parse().expect("pid");
    assert!(rig::lives(child));
    agent
        .client
        .send(&Request::Kill { key: attempt.key })
        .expect("kill");
    agent.emptied(&attempt);
    agent.drained(&attempt);
    assert!(!rig::lives(child));
}

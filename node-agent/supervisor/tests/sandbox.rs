//! Which network and which processes a tool sees, and that none of them outlives it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use std::io::Read;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use fairlead_supervisor::step::Step;
use fairlead_supervisor::wire::{Event, FLAG_PRIVATE_NETWORK, FLAG_PRIVATE_PIDS, Request};
use rig::{Attempt, Rig, kill, lives, ready, wait};

/// The test program as the agent: see the rig.
#[test]
fn fake_agent() {
    rig::be_agent();
}

/// Tries the listeners of the test, then talks to itself.
fn script(port: u16, abstract_name: &str) -> String {
    format!(
        r#"import socket
def reach(what, family, address):
    try:
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.settimeout(2)
            s.connect(address)
        print(what, "reached")
    except OSError as e:
        print(what, e.strerror)
reach("tcp", socket.AF_INET, ("127.0.0.1", {port}))
reach("abstract", socket.AF_UNIX, "\0{abstract_name}")
with socket.create_server(("127.0.0.1", 0)) as own:
    reach("itself", socket.AF_INET, own.getsockname())
print(",".join(name for _, name in socket.if_nameindex()))
"#
    )
}

#[test]
fn a_private_network_has_a_loopback_device_and_nothing_else() {
    if !ready() {
        return;
    }
    let tcp = TcpListener::bind("127.0.0.1:0").expect("listen");
    let name = format!("fairlead-test-network-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("address");
    let _unix = UnixListener::bind_addr(&address).expect("listen");
    let script = script(tcp.local_addr().expect("address").port(), &name);
    let rig = Rig::start("network", &[]);
    let (mut agent, _) = rig.agent();

    let attempt = rig.attempt(1);
    let (status, output) = agent.run(&attempt, &["python3", "-c", &script]);
    assert_eq!(status, 0, "{output}");
    let expected = "tcp Connection refused\nabstract Connection refused\nitself reached\nlo\n";
    assert_eq!(output, expected);

    let mut attempt = rig.attempt(2);
    attempt.spawn.flags &= !FLAG_PRIVATE_NETWORK;
    let (status, output) = agent.run(&attempt, &["python3", "-c", &script]);
    assert_eq!(status, 0, "{output}");
    assert!(
        output.starts_with("tcp reached\nabstract reached\nitself reached\n"),
        "{output}"
    );
}

#[test]
fn what_lies_outside_has_no_route() {
    if !ready() {
        return;
    }
    let rig = Rig::start("route", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    // The metadata address of clouds, and one of the documentation's (RFC 5737, RFC 3849).
    let script = r#"import socket
for address in ["169.254.169.254", "192.0.2.1", "2001:db8::1"]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.socket(family, socket.SOCK_DGRAM).connect((address, 80))
        print(address, "has a route")
    except OSError as e:
        print("no way:", e.strerror)
"#;
    let (status, output) = agent.run(&attempt, &["python3", "-c", script]);
    let no_way = output.lines().filter(|line| line.starts_with("no way: ")).count();
    assert_eq!((status, no_way), (0, 3), "{output}");
}

/// What it leaves anywhere else would outlive it, be counted nowhere, and be found by the next run.
#[test]
fn a_tool_writes_to_its_home_and_shared_memory_only() {
    if !ready() {
        return;
    }
    let rig = Rig::start("read-only", &[]);
    let (mut agent, _) = rig.agent();
    // Open to everybody, so that nothing but the mount stands in the way.
    let open = rig::TempDir(format!("/var/tmp/fairlead-test-open-{}", std::process::id()).into());
    std::fs::create_dir_all(&open.0).expect("make a directory");
    std::fs::set_permissions(&open.0, std::fs::Permissions::from_mode(0o777)).expect("open it");
    let fifo = open.0.join("fifo");
    let status = std::process::Command::new("mkfifo")
        .args(["-m", "666"])
        .arg(&fifo)
        .status();
    assert!(status.expect("run mkfifo").success());
    let reader = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&fifo)
        .expect("hold the fifo open");
    let script = format!(
        "for dir in /tmp \"$HOME\" /dev/shm {open} /var/tmp /; do \
           if (echo x > $dir/left) 2> $HOME/why; then echo written; else sed 's/.*: //' $HOME/why; fi; done; \
         mount -o remount,rw,bind /var/tmp 2> /dev/null || echo refused; \
         echo seen > {fifo} && echo told",
        open = open.0.display(),
        fifo = fifo.display()
    );
    let attempt = rig.attempt(1);
    let (status, output) = agent.run(&attempt, &["sh", "-c", &script]);
    assert_eq!(status, 0, "{output}");
    let closed = "Read-only file system\n";
    assert_eq!(
        output,
        format!("written\nwritten\nwritten\n{closed}{closed}{closed}refused\ntold\n")
    );
    assert!(!open.0.join("left").exists());
    let mut said = [0; 5];
    (&reader).read_exact(&mut said).expect("read the fifo");
    assert_eq!(&said, b"seen\n");
}

/// An attempt with a PID namespace of its own.
fn apart(rig: &Rig, number: u32) -> Attempt {
    let mut attempt = rig.attempt(number);
    attempt.spawn.flags |= FLAG_PRIVATE_PIDS;
    attempt
}

#[test]
fn a_tool_sees_its_own_processes_only_and_cannot_touch_the_first() {
    if !ready() {
        return;
    }
    let rig = Rig::start("pids", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = apart(&rig, 1);
    let script = "echo $$; cat /proc/1/comm; cat /proc/1/environ; ls -l /proc/1/fd; kill -9 1; kill -STOP 1; \
                  kill -TERM 1; set -- /proc/[0-9]*; echo $#; mount -t proc proc /proc; exit 5";
    let (status, output) = agent.run(&attempt, &["sh", "-c", script]);
    assert_eq!(status, 5 << 8, "{output}");
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..2], ["2", "fairlead-init"], "{output}");
    assert_eq!(output.matches("Permission denied").count(), 2, "{output}");
    // The shell's own number, and how many it counts by itself: the init and the shell.
    assert_eq!(lines.iter().filter(|line| **line == "2").count(), 2, "{output}");
    assert!(output.contains("mount"), "a mount was not refused: {output}");
    let journal = attempt.journal();
    assert_eq!(journal.exited.expect("exited").exit.wait_status, 5 << 8);
    assert!(!attempt.group().populated().expect("populated"));
}

/// Where the supervisor is not the first process of a PID namespace, the kernel ends nobody with it by itself.
#[test]
fn the_supervisors_death_ends_what_runs() {
    if !ready() {
        return;
    }
    for backend in ["auto", "process-group"] {
        let rig = Rig::start(&format!("orphans-{backend}"), &["--backend", backend]);
        let (mut agent, _) = rig.agent();
        let attempt = apart(&rig, 1);
        let script = "setsid sh -c 'trap \"\" TERM; sleep 1000' & sleep 1000";
        agent.spawn(&attempt, &["sh", "-c", script]);
        let first = agent.spawned(&attempt);
        wait("the tool's processes", || members(first).len() >= 4);
        let inside = members(first);
        kill(rig.supervisor.id().cast_signed(), libc::SIGKILL);
        wait("the end of everybody", || inside.iter().all(|pid| !lives(*pid)));
    }
}

#[test]
fn the_leaders_end_is_told_at_once_and_the_rest_goes_with_the_kill() {
    if !ready() {
        return;
    }
    for backend in ["auto", "process-group"] {
        let rig = Rig::start(&format!("rest-{backend}"), &["--backend", backend]);
        let (mut agent, _) = rig.agent();
        let attempt = apart(&rig, 1);
        // One daemon that left the session and lost its parent, one that ignores the polite signal.
        let script =
            "setsid sh -c 'sleep 1000 & echo ready' & sh -c 'trap \"\" TERM; sleep 1000' & wait %1; exit 3";
        agent.spawn(&attempt, &["sh", "-c", script]);
        let first = agent.spawned(&attempt);
        assert_eq!(agent.exited(&attempt).wait_status, 3 << 8, "{backend}");
        assert!(lives(first), "the init waits for the rest");
        let inside = members(first);
        assert!(inside.len() >= 3, "{backend}: {inside:?}");
        let key = attempt.key;
        agent
            .client
            .send(&Request::Signal { key, signo: 15 })
            .expect("signal");
        agent.client.send(&Request::Kill { key }).expect("kill");
        agent.emptied(&attempt);
        agent.drained(&attempt);
        wait("the end of everybody", || inside.iter().all(|pid| !lives(*pid)));
    }
}

#[test]
fn signals_reach_the_leader_and_its_own_end_is_told() {
    if !ready() {
        return;
    }
    let rig = Rig::start("term", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = apart(&rig, 1);
    agent.spawn(&attempt, &["sleep", "1000"]);
    agent.spawned(&attempt);
    let key = attempt.key;
    agent
        .client
        .send(&Request::Signal { key, signo: 15 })
        .expect("signal");
    assert_eq!(agent.exited(&attempt).wait_status, libc::SIGTERM);
    agent.emptied(&attempt);

    let attempt = apart(&rig, 2);
    agent.spawn(&attempt, &["sleep", "1000"]);
    let first = agent.spawned(&attempt);
    kill(first, libc::SIGKILL);
    assert_eq!(
        agent.exited(&attempt).wait_status,
        libc::SIGKILL,
        "the init is killed"
    );
    agent.emptied(&attempt);

    let attempt = apart(&rig, 3);
    agent.spawn(&attempt, &["/no/such/program"]);
    let key = attempt.key;
    let refused = agent.wait(
        "refused",
        |e| matches!(e, Event::Refused { key: k, .. } if *k == key),
    );
    let expected = Event::Refused {
        key,
        step: Step::Exec,
        errno: libc::ENOENT,
    };
    assert_eq!(refused, expected);
    agent.emptied(&attempt);
}

#[test]
fn hundreds_of_orphans_are_reaped_by_the_init() {
    if !ready() {
        return;
    }
    let rig = Rig::start("orphans", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = apart(&rig, 1);
    let script = "i=0; while [ $i -lt 300 ]; do (true & true &) ; i=$((i+1)); done; \
                  until set -- /proc/[0-9]*; [ $# = 2 ]; do :; done; echo $#";
    let (status, output) = agent.run(&attempt, &["sh", "-c", script]);
    assert_eq!(
        (status, output.trim()),
        (0, "2"),
        "the init and the shell are left"
    );
}

/// Everybody below a process, itself included.
fn members(first: i32) -> Vec<i32> {
    let mut found = vec![first];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = std::fs::read_to_string(path).unwrap_or_default();
        found.extend(
            children
                .split_whitespace()
                .filter_map(|word| word.parse::<i32>().ok()),
        );
        next += 1;
    }
    found
}

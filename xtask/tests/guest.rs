//! The kernel guest: it boots, says how its command ended, and leaves nothing of itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use xtask::guest::{self, Guest};

/// Whether the guest can be started; where it must be (`CI=true`), it not being there is a failure.
fn there() -> bool {
    match guest::available() {
        Ok(_) => true,
        Err(why) => {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
            eprintln!("skipped: {why}");
            false
        }
    }
}

#[test]
fn a_guest_has_a_kernel_and_all_controllers_of_its_own() {
    if !there() {
        return;
    }
    let script = "uname -r; cat /sys/fs/cgroup/cgroup.controllers; id -u; echo error >&2; exit 7";
    let output = Guest::default().run(script).expect("the guest");
    assert_eq!(output.exit_code, 7, "{output:?}");
    let lines: Vec<&str> = output.text.lines().collect();
    let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_ne!(lines[0], host.trim(), "another kernel");
    for controller in ["cpu", "memory", "pids"] {
        assert!(lines[1].split(' ').any(|name| name == controller), "{output:?}");
    }
    assert_eq!(lines[2..], ["0", "error"]);
    let killed = Guest::default().run_argv(&["sh", "-c", "kill -9 $$"]).unwrap();
    assert_eq!(killed.exit_code, 137, "{killed:?}");
}

#[test]
fn a_guest_that_does_not_end_is_killed_with_all_it_has() {
    if !there() {
        return;
    }
    let guest = Guest {
        limit: Duration::from_secs(8),
        ..Guest::default()
    };
    let start = Instant::now();
    let error = guest
        .run("sleep 4242 & echo begun; sync; wait")
        .expect_err("too long");
    let took = start.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(format!("{error:#}").contains("begun"), "{error:#}");
    let left: Vec<String> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok())
        .filter(|line| line.contains("linux.uml") && line.contains(&format!("guest/{}-", std::process::id())))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

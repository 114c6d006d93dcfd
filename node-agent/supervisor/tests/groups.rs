//! The cgroup module and the probe on a real kernel.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is how a test says so"
)]

mod rig;

use std::process::{Command, Stdio};
use std::time::Duration;

use fairlead_supervisor::cgroup::{CONTROLLERS, Group, Limits};
use fairlead_supervisor::probe::probe;
use fairlead_supervisor::wire::Backend;
use rig::{BOUND, ready, top};

struct Own(Group);

impl Own {
    fn new(name: &str) -> Own {
        let path = top()
            .expect("mount")
            .join(format!("fairlead-test-{name}-{}", std::process::id()));
        Own(Group::create(path).expect("own group"))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let result = self.0.kill_until_empty(BOUND).and_then(|_| self.0.remove(BOUND));
        if let Err(e) = result {
            eprintln!("left over: {e}");
        }
    }
}

#[test]
fn the_probe_names_what_is_missing_and_leaves_nothing() {
    if !ready() {
        return;
    }
    let own = Own::new("probe");
    let there = own.0.controllers().expect("controllers");
    let found = probe(own.0.path());
    assert_eq!(found.backend, Backend::CgroupV2, "{found:?}");
    let missing: Vec<&str> = CONTROLLERS
        .into_iter()
        .filter(|name| !there.contains(name))
        .collect();
    assert_eq!(found.missing, missing, "{found:?}");
    assert_eq!(found.complete(), missing.is_empty());
    assert!(own.0.children().expect("children").is_empty());
    let host = probe(&top().expect("mount"));
    assert_eq!(host.backend, Backend::ProcessGroup);
    let reason = host.reason.expect("a reason");
    assert!(reason.contains("host's root group"), "{reason}");
    let nowhere = probe(std::path::Path::new("/nonexistent"));
    assert!(nowhere.reason.expect("a reason").contains("/nonexistent"));
}

#[test]
fn a_group_is_filled_counted_killed_and_removed() {
    if !ready() {
        return;
    }
    let own = Own::new("group");
    let group = Group::create(own.0.child("a").path()).expect("create");
    let inner = Group::create(group.child("b").path()).expect("create");
    let again = Group::create(inner.path()).expect_err("never reused");
    assert_eq!(again.errno(), Some(libc::EEXIST));
    assert_eq!(
        inner.usage().expect("usage").cpu_usec,
        Some(0),
        "nothing ever ran"
    );
    let mut child = Command::new("sleep")
        .arg("1000")
        .stdin(Stdio::null())
        .spawn()
        .expect("sleep");
    inner
        .write("cgroup.procs", &child.id().to_string())
        .expect("join");
    assert_eq!(inner.procs().expect("procs"), [child.id().cast_signed()]);
    assert!(group.populated().expect("events"));
    let busy = group.remove(Duration::from_millis(50)).expect_err("in use");
    assert_eq!(busy.errno(), Some(libc::EBUSY), "{busy}");
    assert!(group.kill_until_empty(BOUND).expect("kill"));
    child.wait().expect("wait");
    group.remove(BOUND).expect("children first");
    assert!(!group.path().exists());
    group.remove(BOUND).expect("gone is removed");
    assert!(group.kill_until_empty(BOUND).expect("gone is empty"));
}

#[test]
fn a_limit_that_cannot_be_set_is_an_error_with_path_and_value() {
    if !ready() {
        return;
    }
    let own = Own::new("limits");
    let limits = Limits {
        pids_max: Some(12),
        ..Limits::default()
    };
    let there = own.0.controllers().expect("controllers").contains(&"pids");
    match own.0.set_limits(&limits) {
        Ok(()) => assert!(there && own.0.read("pids.max").expect("read") == "12"),
        Err(e) => {
            assert!(!there, "{e}");
            let text = e.to_string();
            assert!(text.contains("pids.max") && text.contains("\"12\""), "{text}");
        }
    }
}

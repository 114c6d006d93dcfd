//! What `fairlead-node-agent --check-isolation` says of a machine with everything, of one with less, and to somebody
//! without rights: in the kernel guest, and on this machine.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use xtask::cgroup::Tree;
use xtask::guest::{self, Guest, Output};
use xtask::programs::{Profile, Programs};

const ALL: &str = "memory, pids, cpu";

fn agent() -> &'static str {
    static AGENT: OnceLock<String> = OnceLock::new();
    AGENT.get_or_init(|| {
        let programs = Programs::build(Profile::Debug).expect("build the programs");
        programs.path("fairlead-node-agent").display().to_string()
    })
}

/// Runs `script` in the guest with the agent as `$agent`, in a place that every user reaches. `None` where no guest can
/// be started; with `CI=true` that is a failure.
fn in_guest(script: &str) -> Option<Output> {
    if let Err(why) = guest::available() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
        eprintln!("skipped: {why}");
        return None;
    }
    let place = guest::quoted(&[agent()]);
    let script = format!("set -e\ncp {place} /run/agent\nagent=/run/agent\n{script}");
    let output = Guest::default().run(&script).expect("the guest");
    println!("{} (exit code {})", output.text, output.exit_code);
    Some(output)
}

#[track_caller]
fn assert_says(output: &Output, exit_code: i32, lines: &[&str]) {
    assert_eq!(output.exit_code, exit_code, "{}", output.text);
    for line in lines {
        assert!(
            output.text.lines().any(|said| said == *line),
            "no line {line:?} in:\n{}",
            output.text
        );
    }
}

#[test]
fn with_every_controller_it_finds_all_and_leaves_nothing() {
    // The exit code is that of the check, or 9 if it left a group behind.
    let script = "mkdir /sys/fs/cgroup/node
        $agent --check-isolation --cgroup-root /sys/fs/cgroup/node
        test -z \"$(find /sys/fs/cgroup/node -mindepth 1 -type d)\" || exit 9
        rmdir /sys/fs/cgroup/node";
    let Some(output) = in_guest(script) else { return };
    assert_says(
        &output,
        0,
        &[
            "cgroup root: /sys/fs/cgroup/node",
            "backend: CgroupV2",
            "missing controllers: none",
        ],
    );
}

#[test]
fn alone_in_its_own_group_it_finds_all() {
    // Processes in a group keep it from handing controllers on, so the check moves itself aside; others it leaves alone.
    let script = "mkdir /sys/fs/cgroup/node
        sh -c 'echo $$ >/sys/fs/cgroup/node/cgroup.procs && exec /run/agent --check-isolation'
        test -z \"$(find /sys/fs/cgroup/node -mindepth 1 -type d)\" || exit 9";
    let Some(output) = in_guest(script) else { return };
    assert_says(
        &output,
        0,
        &[
            "cgroup root: /sys/fs/cgroup/node",
            "backend: CgroupV2",
            "missing controllers: none",
        ],
    );
}

#[test]
fn beside_others_in_its_own_group_it_says_what_stands_in_the_way() {
    let script = "mkdir /sys/fs/cgroup/node
        echo $$ >/sys/fs/cgroup/node/cgroup.procs
        $agent --check-isolation";
    let Some(output) = in_guest(script) else { return };
    assert_says(
        &output,
        1,
        &["backend: CgroupV2", &format!("missing controllers: {ALL}")],
    );
    let reason = "reason: write \"+memory\" to /sys/fs/cgroup/node/cgroup.subtree_control: ";
    assert!(output.text.contains(reason), "{}", output.text);
}

#[test]
fn with_some_controllers_it_names_those_that_are_missing() {
    let script = "mkdir -p /sys/fs/cgroup/some/node
        echo +pids >/sys/fs/cgroup/some/cgroup.subtree_control
        $agent --check-isolation --cgroup-root /sys/fs/cgroup/some/node";
    let Some(output) = in_guest(script) else { return };
    assert_says(
        &output,
        1,
        &["backend: CgroupV2", "missing controllers: memory, cpu"],
    );
}

#[test]
fn without_rights_it_falls_back_and_says_why() {
    let as_nobody = "mkdir /sys/fs/cgroup/node
        setpriv --reuid 65534 --regid 65534 --clear-groups \\
            $agent --check-isolation --cgroup-root /sys/fs/cgroup/node";
    let Some(output) = in_guest(as_nobody) else { return };
    let missing = format!("missing controllers: {ALL}");
    assert_says(&output, 1, &["backend: ProcessGroup", &missing]);
    assert!(
        output
            .text
            .contains("reason: make group /sys/fs/cgroup/node/probe-"),
        "{}",
        output.text
    );
    assert!(output.text.contains("Permission denied"), "{}", output.text);

    let read_only = "mkdir /sys/fs/cgroup/node
        mount -o remount,ro /sys/fs/cgroup
        $agent --check-isolation --cgroup-root /sys/fs/cgroup/node";
    let output = in_guest(read_only).expect("it was there a moment ago");
    assert_says(&output, 1, &["backend: ProcessGroup", &missing]);
    assert!(output.text.contains("Read-only file system"), "{}", output.text);
}

#[test]
fn the_root_group_of_a_machine_is_never_used() {
    let Some(output) = in_guest("$agent --check-isolation --cgroup-root /sys/fs/cgroup") else {
        return;
    };
    assert_says(&output, 1, &["backend: ProcessGroup"]);
    assert!(output.text.contains("root group"), "{}", output.text);
}

/// On a hybrid host, where other hierarchies have the controllers, some are missing.
#[test]
fn on_this_machine_it_says_what_the_kernel_says() {
    let tree = match Tree::named(&format!("fairlead-check-{}", std::process::id())) {
        Ok(tree) if rustix::process::geteuid().is_root() => tree,
        other => {
            let why = other.map_or_else(|error| format!("{error:#}"), |_| "not root".to_owned());
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
            eprintln!("skipped: {why}");
            return;
        }
    };
    let root = tree.create("node").expect("a group");
    let said = check(&root);
    let there = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap();
    let children = root
        .read_dir()
        .unwrap()
        .flatten()
        .filter(|e| e.path().is_dir())
        .count();
    tree.remove().expect("remove the groups");
    assert_eq!(children, 0, "groups were left");
    let missing: Vec<&str> = ALL
        .split(", ")
        .filter(|name| !there.split_whitespace().any(|c| c == *name))
        .collect();
    println!("{} (exit code {})", said.text, said.exit_code);
    let (code, missing) = match missing.as_slice() {
        [] => (0, "none".to_owned()),
        missing => (1, missing.join(", ")),
    };
    assert_says(
        &said,
        code,
        &["backend: CgroupV2", &format!("missing controllers: {missing}")],
    );
}

fn check(root: &Path) -> Output {
    let output = Command::new(agent())
        .arg("--check-isolation")
        .arg("--cgroup-root")
        .arg(root)
        .output();
    let output = output.expect("start the agent");
    Output {
        text: String::from_utf8_lossy(&output.stdout).into_owned(),
        exit_code: output.status.code().expect("an exit code"),
    }
}

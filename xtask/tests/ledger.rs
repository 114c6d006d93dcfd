//! Processes on record: found again, ended with their owner, and never a stranger instead.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use xtask::ledger::{Ledger, Spec};
use xtask::process::Identity;
use xtask::watchdog::Watchdog;

fn sleeper(name: &str) -> Spec {
    Spec {
        name: name.to_owned(),
        program: "sleep".into(),
        args: vec!["1000".to_owned()],
        env: Vec::new(),
        launcher: false,
    }
}

fn fresh_dir(name: &str) -> PathBuf {
    let dir = xtask::repo::target_dir().join("ledger-tests").join(name);
    let _ = fs::remove_dir_all(&dir);
    dir
}

#[test]
fn what_is_detached_is_found_again_and_started_once() {
    let dir = fresh_dir("again");
    let mut first = Ledger::open(&dir).unwrap();
    assert!(first.ensure(&sleeper("a")).unwrap());
    let process = first.process("a").unwrap().unwrap();
    first.detach().unwrap();
    drop(first);
    assert!(process.is_alive().unwrap());

    let mut second = Ledger::open(&dir).unwrap();
    assert!(!second.ensure(&sleeper("a")).unwrap());
    assert_eq!(second.names().unwrap(), ["a"]);
    assert_eq!(second.process("a").unwrap().unwrap(), process);
    second.stop("a", Duration::from_secs(5)).unwrap();
    assert!(!process.is_alive().unwrap());
    assert!(second.names().unwrap().is_empty());
}

#[test]
fn a_stranger_with_the_number_on_record_is_neither_found_nor_killed() {
    let dir = fresh_dir("stranger");
    let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut ledger = Ledger::open(&dir).unwrap();
    let identity = Identity::of(stranger.id()).unwrap().unwrap();
    let records = [
        Identity {
            start_ticks: identity.start_ticks - 1,
            ..identity.clone()
        },
        Identity {
            boot_id: "another boot".to_owned(),
            ..identity
        },
    ];
    for record in records {
        let mut record = serde_json::to_value(&record).unwrap();
        record["launcher"] = false.into();
        record["argv"] = serde_json::json!(["sleep", "1000"]);
        fs::write(dir.join("pids/a.json"), record.to_string()).unwrap();
        assert!(!ledger.is_running("a").unwrap(), "{record}");
        ledger.stop("a", Duration::from_secs(5)).unwrap();
        assert!(stranger.try_wait().unwrap().is_none(), "{record}");
    }
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn a_program_that_cannot_start_or_ends_at_once_is_an_error_or_not_running() {
    let mut ledger = Ledger::open(&fresh_dir("bad")).unwrap();
    let missing = Spec {
        program: "/no/such/program".into(),
        ..sleeper("missing")
    };
    let error = format!("{:#}", ledger.ensure(&missing).unwrap_err());
    assert!(
        error.contains("missing") && error.contains("/no/such/program"),
        "{error}"
    );
    let short = Spec {
        program: "false".into(),
        ..sleeper("short")
    };
    // Whether it still lives when it is looked at is a race; it must not stay on record as running.
    let _ = ledger.ensure(&short);
    xtask::wait::until(
        "the short program to be seen as ended",
        Duration::from_secs(5),
        Duration::from_millis(5),
        || Ok((!ledger.is_running("short")?).then_some(())),
        String::new,
    )
    .unwrap();
}

#[test]
fn the_watchdog_kills_when_its_owner_goes_and_not_when_released() {
    for released in [false, true] {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap().unwrap();
        let mut watchdog = Watchdog::start().unwrap();
        watchdog.process(identity.pid, identity.start_ticks).unwrap();
        watchdog.process(std::process::id(), 1).unwrap();
        if released {
            watchdog.release().unwrap();
            assert!(identity.is_alive().unwrap());
            child.kill().unwrap();
        } else {
            drop(watchdog);
        }
        child.wait().unwrap();
    }
}

#[test]
fn a_program_that_was_replaced_is_told_from_one_that_was_copied() {
    let dir = fresh_dir("replaced");
    fs::create_dir_all(&dir).unwrap();
    let (program, next) = (dir.join("program"), dir.join("next"));
    fs::copy("/bin/sleep", &program).unwrap();
    let mut ledger = Ledger::open(&dir).unwrap();
    ledger
        .ensure(&Spec {
            program: program.clone(),
            ..sleeper("a")
        })
        .unwrap();
    let process = ledger.process("a").unwrap().unwrap();
    assert!(process.runs(&program).unwrap());

    fs::copy("/bin/sleep", &next).unwrap();
    fs::rename(&next, &program).unwrap();
    assert!(
        process.runs(&program).unwrap(),
        "the same bytes are the same program"
    );

    let mut bytes = fs::read("/bin/sleep").unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&next, bytes).unwrap();
    fs::rename(&next, &program).unwrap();
    assert!(!process.runs(&program).unwrap());

    ledger.stop("a", Duration::ZERO).unwrap();
    assert!(!process.runs(std::path::Path::new("/bin/sleep")).unwrap());
}

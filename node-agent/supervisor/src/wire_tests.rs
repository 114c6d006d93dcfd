//! Every record survives the way there and back; foreign bytes are refused.

use super::*;

fn key(attempt: u32) -> Key {
    Key {
        uid: [7, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255],
        attempt,
    }
}

fn state() -> EntryState {
    EntryState {
        key: key(1),
        pid: 4_000_000,
        phase: EntryPhase::Refused,
        wait_status: -1,
        cause: Cause::Shutdown,
        step: Some(Step::Exec),
        errno: 2,
        emptied: true,
        drained: false,
        deadline_reached: true,
        spawned_ms: 1,
        exited_ms: 2,
        emptied_ms: u64::MAX,
    }
}

#[test]
fn requests_round_trip() {
    let spawn = Spawn {
        key: key(3),
        uid: 60_001,
        gid: 60_002,
        deadline_ms: u64::MAX,
        grace_ms: 3_000,
        nofile: 1_024,
        store_max_bytes: 1 << 40,
        flags: FLAG_CGROUP | FLAG_HOME | FLAG_PRIVATE_MOUNTS,
    };
    for request in [
        Request::Hello { agent_pid: 77 },
        Request::Spawn(spawn),
        Request::Signal {
            key: key(1),
            signo: 15,
        },
        Request::Kill { key: key(2) },
        Request::SetDeadline {
            key: key(2),
            deadline_ms: 99,
        },
        Request::Forget { key: key(u32::MAX) },
        Request::Heartbeat,
    ] {
        assert_eq!(Request::decode(&request.encode()), Ok(request));
        assert!(Event::decode(&request.encode()).is_err(), "a request is no event");
    }
}

#[test]
fn events_round_trip() {
    let state = state();
    let exit = Exit {
        wait_status: 9,
        cause: Cause::Deadline,
        boottime_ms: 5,
        user_us: 6,
        system_us: 7,
        max_rss_kib: 8,
    };
    for event in [
        Event::HelloAck {
            epoch: 4,
            count: 9,
            backend: Backend::ProcessGroup,
        },
        Event::State(state),
        Event::Spawned {
            key: key(1),
            pid: 8,
            boottime_ms: 10,
        },
        Event::Refused {
            key: key(1),
            step: Step::Clone,
            errno: 11,
        },
        Event::DeadlineReached {
            key: key(1),
            boottime_ms: 1,
        },
        Event::Exited { key: key(1), exit },
        Event::Emptied {
            key: key(1),
            boottime_ms: 1,
        },
        Event::Drained {
            key: key(1),
            boottime_ms: 1,
        },
        Event::Unknown { key: key(1) },
        Event::Heartbeat { boottime_ms: 1 },
    ] {
        assert_eq!(Event::decode(&event.encode()), Ok(event));
        assert!(
            Request::decode(&event.encode()).is_err(),
            "an event is no request"
        );
    }
}

#[test]
fn foreign_records_are_refused() {
    let good = Request::Heartbeat.encode();
    assert_eq!(Request::decode(&good[..100]), Err(WireError::Length(100)));
    let mut magic = good;
    magic[0] ^= 1;
    assert!(matches!(Request::decode(&magic), Err(WireError::Magic(_))));
    let mut version = good;
    version[4] = 2;
    assert_eq!(Request::decode(&version), Err(WireError::Version(2)));
    let mut kind = good;
    kind[6] = 99;
    assert_eq!(Request::decode(&kind), Err(WireError::Kind(99)));
    let mut step = Event::Refused {
        key: key(1),
        step: Step::Exec,
        errno: 0,
    }
    .encode();
    step[28] = 200;
    assert_eq!(Event::decode(&step), Err(WireError::Field("step")));
}

#[test]
fn keys_read_and_print_the_uid_of_an_object() {
    let text = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
    let key = Key::parse(text, 2).expect("a uid");
    assert_eq!(key.to_string(), format!("{text}-2"));
    assert_eq!(Key::parse("0f1e", 1), None);
    assert_eq!(Key::parse(&format!("{text}00"), 1), None);
    assert_eq!(Key::parse("zf1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", 1), None);
}

//! Blocks come back as written; anything torn, foreign or corrupt is absent.

use super::*;
use crate::wire::Cause;

struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("fairlead-slot-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("temp dir");
        TempDir(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn intent() -> Intent {
    Intent {
        key: Key {
            uid: [3; 16],
            attempt: 2,
        },
        uid: 60_010,
        gid: 60_010,
        fence: [9; 16],
        epoch: 4,
        incarnation: "b".repeat(TEXT_MAX),
        group: "tx-03030303".repeat(10),
        deadline_ms: 77,
        accepted_unix_ms: 1_700_000_000_000,
    }
}

#[test]
fn all_blocks_come_back_and_a_new_slot_has_none() {
    let dir = TempDir::new("all");
    let slot = Slot::create(&dir.0.join(FILE_SLOT)).expect("create");
    assert_eq!(slot.read().expect("read"), Journal::default());
    assert_eq!(
        std::fs::metadata(dir.0.join(FILE_SLOT)).expect("stat").len(),
        SLOT_LEN
    );
    let exit = Exit {
        wait_status: 256,
        cause: Cause::Deadline,
        boottime_ms: 3,
        user_us: 4,
        system_us: 5,
        max_rss_kib: 6,
    };
    let stream = StreamOutput {
        total: 10,
        stored: 4,
        errno: 28,
        ended: true,
    };
    let journal = Journal {
        intent: Some(intent()),
        spawned: Some(Spawned {
            pid: 12,
            boottime_ms: 1,
            unix_ms: 2,
        }),
        refused: Some(Refused {
            step: Step::Exec,
            errno: 2,
            unix_ms: 3,
        }),
        exited: Some(Exited { exit, unix_ms: 8 }),
        reported: Some(Reported { unix_ms: 9 }),
        output: Some(Output {
            stdout: stream,
            stderr: StreamOutput::default(),
        }),
    };
    slot.write_intent(journal.intent.as_ref().expect("set"))
        .expect("intent");
    write_spawned(slot.as_raw_fd(), &journal.spawned.expect("set")).expect("spawned");
    write_refused(slot.as_raw_fd(), &journal.refused.expect("set")).expect("refused");
    write_exited(slot.as_raw_fd(), &journal.exited.expect("set")).expect("exited");
    slot.write_reported(&journal.reported.expect("set"))
        .expect("reported");
    write_output(slot.as_raw_fd(), &journal.output.expect("set")).expect("output");
    let again = Slot::open(&dir.0.join(FILE_SLOT)).expect("open");
    assert_eq!(again.read().expect("read"), journal);
    let there = Slot::create(&dir.0.join(FILE_SLOT)).expect_err("exists");
    assert_eq!(there.kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn torn_corrupt_and_misplaced_blocks_are_absent() {
    let dir = TempDir::new("torn");
    let slot = Slot::create(&dir.0.join(FILE_SLOT)).expect("create");
    slot.write_intent(&intent()).expect("intent");
    let mut good = [0u8; BLOCK_LEN];
    sys::pread(slot.as_raw_fd(), &mut good, 0).expect("read");
    for cut in [1, 7, 20, 100, 300] {
        let mut torn = [0u8; BLOCK_LEN];
        torn[..cut].copy_from_slice(&good[..cut]);
        sys::pwrite_all(slot.as_raw_fd(), &torn, 0).expect("write");
        assert_eq!(slot.read().expect("read").intent, None, "cut after {cut} bytes");
    }
    for flip in 0..BLOCK_LEN {
        let mut corrupt = good;
        corrupt[flip] ^= 0x10;
        sys::pwrite_all(slot.as_raw_fd(), &corrupt, 0).expect("write");
        assert_eq!(slot.read().expect("read").intent, None, "flipped byte {flip}");
    }
    sys::pwrite_all(slot.as_raw_fd(), &good, BLOCK_LEN as u64).expect("write");
    assert_eq!(
        slot.read().expect("read").spawned,
        None,
        "an intent is no spawned"
    );
    std::fs::write(dir.0.join("short"), &good[..100]).expect("write");
    assert_eq!(
        Slot::open(&dir.0.join("short"))
            .expect("open")
            .read()
            .expect("read"),
        Journal::default()
    );
}

#[test]
fn the_tail_is_the_last_bytes_in_order() {
    let dir = TempDir::new("tail");
    let slot = Slot::create(&dir.0.join(FILE_SLOT)).expect("create");
    let total = RING_LEN + 10;
    let bytes: Vec<u8> = (0..total).map(|i| (i % 251) as u8).collect();
    for (index, byte) in bytes.iter().enumerate() {
        let at = Stream::Stderr.ring_offset() + (index % RING_LEN) as u64;
        sys::pwrite_all(slot.as_raw_fd(), &[*byte], at).expect("write");
    }
    let output = StreamOutput {
        total: total as u64 + 5,
        stored: 5,
        errno: 0,
        ended: false,
    };
    assert_eq!(
        slot.read_tail(Stream::Stderr, &output).expect("tail"),
        bytes[10..]
    );
    let short = StreamOutput {
        total: 8,
        stored: 5,
        errno: 0,
        ended: false,
    };
    assert_eq!(slot.read_tail(Stream::Stdout, &short).expect("tail"), [0, 0, 0]);
}

#[test]
fn attempt_names_read_back_and_others_do_not() {
    let key = Key {
        uid: *b"0123456789abcdef",
        attempt: 12,
    };
    let name = attempt_name(&key);
    assert_eq!(parse_attempt_name(OsStr::new(&name)), Some(key));
    for other in [
        "lock",
        "30313233-3435-3637-3839-616263646566",
        "x-1",
        "30313233343536373839616263646566-1",
    ] {
        assert_eq!(parse_attempt_name(OsStr::new(other)), None, "{other}");
    }
}

#[test]
fn too_long_texts_are_refused() {
    let dir = TempDir::new("long");
    let slot = Slot::create(&dir.0.join(FILE_SLOT)).expect("create");
    let long = Intent {
        group: "g".repeat(TEXT_MAX + 1),
        ..intent()
    };
    assert_eq!(
        slot.write_intent(&long).expect_err("too long").kind(),
        io::ErrorKind::InvalidInput
    );
}

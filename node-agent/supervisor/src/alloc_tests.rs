//! The spawn path asks for no memory: counted, not believed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use fairlead_supervisor::channel::{self, Received};
use fairlead_supervisor::wire::{Backend, Key, RECORD_LEN, Request, Spawn};
use fairlead_supervisor::{command, slot, sys};

use crate::spawn::{Fds, Spawner};
use crate::table::{Entry, Table};

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory of callers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise about `pointer` and `layout` is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A request with its descriptors as it comes out of a socket.
fn received(spool: &File) -> Received {
    let (ours, theirs) = sys::record_pair().expect("pair");
    let command =
        command::command_memfd(&["true", "argument"], &["PATH=/nonexistent:/usr/bin:/bin"]).expect("command");
    let null = File::open("/dev/null").expect("null");
    let fds = [spool.as_fd(), command.as_fd(), null.as_fd(), spool.as_fd()];
    channel::send(ours.as_fd(), &Request::Heartbeat.encode(), &fds).expect("send");
    channel::recv(theirs.as_fd(), &mut [0u8; RECORD_LEN])
        .expect("recv")
        .1
}

#[test]
fn a_spawn_from_request_to_table_allocates_nothing() {
    // SAFETY: no memory is passed.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: not root, so no child can change its user");
    }
    let spool = std::env::temp_dir().join(format!("fairlead-alloc-{}", std::process::id()));
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&spool)
        .expect("spool");
    let mut spawner = Spawner::new(Backend::ProcessGroup, 60_000..=60_000, Vec::new());
    let mut table = Table::new();
    let spawn = Spawn {
        key: Key {
            uid: [1; 16],
            attempt: 1,
        },
        uid: 60_000,
        gid: 60_000,
        deadline_ms: 0,
        grace_ms: 0,
        nofile: 64,
        store_max_bytes: 10,
        flags: 0,
    };
    let mut fds = received(&file);
    let before = COUNT.get();
    let (slot, named) = Fds::take(spawn.flags, &mut fds).expect("descriptors");
    let started = spawner.start(&spawn, named).expect("start");
    slot::write_spawned(
        slot.as_raw_fd(),
        &slot::Spawned {
            pid: started.pid,
            boottime_ms: 1,
            unix_ms: 1,
        },
    )
    .expect("slot");
    let mut entry = Entry::new(spawn.key);
    (entry.slot, entry.hold, entry.stdout) = (Some(slot), Some(started.hold), Some(started.stdout));
    table.put(table.free_place().expect("place"), entry);
    let after = COUNT.get();
    drop(started.register);
    let mut status = 0;
    // SAFETY: `status` is a valid place, and the pid is our own child.
    unsafe { libc::waitpid(started.pid, &mut status, 0) };
    std::fs::remove_file(&spool).expect("remove");
    assert_eq!(after - before, 0, "allocations on the spawn path");
}

//! When the kernel removes the group of an execution.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use crate::LIMIT;

/// Removals below some nodes' cgroup roots, from the moment it is made.
pub struct Removals {
    seen: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Removals {
    /// `roots` are cgroup roots of nodes whose groups for attempts are there.
    pub fn start(roots: &[&str]) -> Self {
        let queue = inotify::init(CreateFlags::CLOEXEC).expect("inotify");
        for root in roots {
            for entry in Path::new(root)
                .read_dir()
                .unwrap_or_else(|error| panic!("list {root}: {error}"))
            {
                let entry = entry.expect("an entry");
                if entry.file_name().to_string_lossy().starts_with("payload-") {
                    let path = entry.path();
                    inotify::add_watch(&queue, &path, WatchFlags::DELETE)
                        .unwrap_or_else(|error| panic!("watch {}: {error}", path.display()));
                }
            }
        }
        let seen = Arc::default();
        let noted = Arc::clone(&seen);
        thread::spawn(move || follow(queue, &noted));
        Self { seen }
    }

    /// When the group of the first attempt of the execution with this UID was removed.
    pub fn of(&self, uid: &str) -> Instant {
        let name = format!("tx-{uid}-1");
        let start = Instant::now();
        loop {
            if let Some(at) = self.seen.lock().unwrap().get(&name) {
                return *at;
            }
            assert!(start.elapsed() < LIMIT, "{name} was not removed");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn follow(queue: OwnedFd, seen: &Mutex<HashMap<String, Instant>>) {
    let mut buffer = vec![std::mem::MaybeUninit::uninit(); 64 * 1024];
    let mut reader = Reader::new(queue, &mut buffer);
    loop {
        let event = reader.next().expect("an inotify event");
        assert!(
            !event.events().contains(ReadFlags::QUEUE_OVERFLOW),
            "removals were lost"
        );
        if let Some(name) = event.file_name() {
            seen.lock()
                .unwrap()
                .insert(name.to_string_lossy().into_owned(), Instant::now());
        }
    }
}

//! The node agent's part of one attempt, without Kubernetes: spool, slot, group, request, answers, removal.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fairlead_supervisor::cgroup::Group;
use fairlead_supervisor::client::{Client, SpawnFds};
use fairlead_supervisor::command::command_memfd;
use fairlead_supervisor::slot::{FILE_SLOT, FILE_STDOUT, Intent, Slot, attempt_name};
use fairlead_supervisor::wire::{
    ENV_EPOCH, ENV_PAYLOAD_GROUP, Event, FLAG_PRIVATE_MOUNTS, FLAG_PRIVATE_NETWORK, FLAG_PRIVATE_PIDS, Key,
    Request, Spawn,
};

use crate::{BOUND, SLEEPER, line, paced};

/// User of the tools, inside the supervisor's default range.
const UID: u32 = 60_001;
/// Longest silence towards the supervisor.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Says Hello, measures, leaves the samples in `result` and goes on saying that it lives until it is killed.
pub(crate) fn run(result: &Path, spool: &Path, measure: impl FnOnce(&mut Bench) -> Vec<Duration>) {
    let client = Client::from_env().expect("started by a supervisor");
    let agent_pid = std::process::id();
    client.send(&Request::Hello { agent_pid }).expect("say hello");
    let epoch = std::env::var(ENV_EPOCH).ok().and_then(|text| text.parse().ok());
    let mut bench = Bench {
        client,
        epoch: epoch.expect("an epoch"),
        payload: std::env::var_os(ENV_PAYLOAD_GROUP)
            .expect("a payload group")
            .into(),
        spool: spool.to_owned(),
        next: 0,
    };
    let samples = measure(&mut bench);
    let partial = result.with_extension("partial");
    fs::write(&partial, line(&samples)).expect("write the samples");
    fs::rename(&partial, result).expect("name the samples");
    loop {
        bench
            .client
            .send(&Request::Heartbeat)
            .expect("the supervisor lives");
        std::thread::sleep(HEARTBEAT);
    }
}

/// A connection with what attempts need.
pub(crate) struct Bench {
    client: Client,
    epoch: u32,
    payload: PathBuf,
    spool: PathBuf,
    next: u32,
}

/// One attempt's files and group.
struct Attempt {
    key: Key,
    directory: PathBuf,
    home: PathBuf,
    slot: Slot,
    group: Group,
}

impl Bench {
    /// From the start of the preparations until the group is removed.
    pub(crate) fn spawn(&mut self, count: u32, gap: Duration, private: bool) -> Vec<Duration> {
        paced(count, gap, |_| {
            let start = Instant::now();
            let attempt = self.prepare();
            self.start(&attempt, &["true"], private);
            self.until(|event| matches!(event, Event::Emptied { key, .. } if *key == attempt.key));
            attempt.group.remove(BOUND).expect("remove the group");
            let took = start.elapsed();
            self.finish(&attempt);
            took
        })
    }

    /// From the request to kill until the group is seen empty.
    pub(crate) fn kill(&mut self, processes: u32, rounds: u32) -> Vec<Duration> {
        let sleeper = SLEEPER.join(" ");
        let script = format!("i=0; while [ $i -lt {processes} ]; do {sleeper} & i=$((i+1)); done; wait");
        let mut samples = Vec::new();
        for _ in 0..rounds {
            let attempt = self.prepare();
            self.start(&attempt, &["sh", "-c", &script], true);
            // All of them execute their own program, and the shell waits.
            let end = Instant::now() + BOUND;
            while sleepers(&attempt.group) < processes as usize {
                assert!(Instant::now() < end, "{processes} processes did not start");
                self.client
                    .send(&Request::Heartbeat)
                    .expect("the supervisor lives");
                std::thread::sleep(Duration::from_millis(50));
            }
            let start = Instant::now();
            let key = attempt.key;
            self.client
                .send(&Request::Kill { key })
                .expect("ask for the kill");
            self.until(|event| matches!(event, Event::Emptied { key: emptied, .. } if *emptied == key));
            assert!(!attempt.group.populated().expect("read cgroup.events"));
            samples.push(start.elapsed());
            attempt.group.remove(BOUND).expect("remove the group");
            self.finish(&attempt);
        }
        samples
    }

    fn prepare(&mut self) -> Attempt {
        self.next += 1;
        let mut uid = [0; 16];
        uid[..4].copy_from_slice(&self.next.to_le_bytes());
        let key = Key { uid, attempt: 1 };
        let name = attempt_name(&key);
        let directory = self.spool.join(&name);
        let home = directory.join("home");
        fs::create_dir_all(&home).expect("make the home");
        chown(&home, Some(UID), Some(UID)).expect("give the home away");
        let slot = Slot::create(&directory.join(FILE_SLOT)).expect("make the slot");
        let group = format!("tx-{name}");
        slot.write_intent(&Intent {
            key,
            uid: UID,
            gid: UID,
            fence: [0; 16],
            epoch: self.epoch,
            incarnation: "bench".to_owned(),
            group: group.clone(),
            deadline_ms: 0,
            accepted_unix_ms: 0,
        })
        .expect("write the intent");
        let group = Group::create(self.payload.join(group)).expect("make the group");
        Attempt {
            key,
            directory,
            home,
            slot,
            group,
        }
    }

    fn start(&self, attempt: &Attempt, argv: &[&str], private: bool) {
        let command =
            command_memfd(argv, &["PATH=/usr/bin:/bin", "HOME=/tmp", "LANG=C"]).expect("the command");
        let stdout = attempt.directory.join(FILE_STDOUT);
        let stdout = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(stdout);
        let stdout = stdout.expect("make the spool file");
        let null = File::open("/dev/null").expect("open /dev/null");
        let home = File::open(&attempt.home).expect("open the home");
        let group = attempt.group.open().expect("open the group");
        let spawn = Spawn {
            key: attempt.key,
            uid: UID,
            gid: UID,
            deadline_ms: 0,
            grace_ms: 0,
            nofile: 1_024,
            store_max_bytes: 1 << 20,
            flags: if private {
                FLAG_PRIVATE_MOUNTS | FLAG_PRIVATE_NETWORK | FLAG_PRIVATE_PIDS
            } else {
                0
            },
        };
        let fds = SpawnFds {
            cgroup: Some(group.as_fd()),
            slot: attempt.slot.as_fd(),
            command: command.as_fd(),
            stdin: null.as_fd(),
            stdout: stdout.as_fd(),
            stderr: None,
            home: Some(home.as_fd()),
        };
        self.client.spawn(&spawn, &fds).expect("ask for the start");
    }

    fn until(&self, fits: impl Fn(&Event) -> bool) {
        let end = Instant::now() + BOUND;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.client.recv_timeout(left.min(HEARTBEAT)) {
                Ok(Some(refused @ Event::Refused { .. })) => panic!("{refused:?}"),
                Ok(Some(event)) if fits(&event) => return,
                Ok(Some(_)) => {}
                Err(e) if e.kind() == std::io::ErrorKind::TimedOut && !left.is_zero() => {
                    self.client
                        .send(&Request::Heartbeat)
                        .expect("the supervisor lives");
                }
                other => panic!("no answer from the supervisor: {other:?}"),
            }
        }
    }

    fn finish(&self, attempt: &Attempt) {
        let key = attempt.key;
        self.client.send(&Request::Forget { key }).expect("forget");
        fs::remove_dir_all(&attempt.directory).expect("remove the spool");
    }
}

fn sleepers(group: &Group) -> usize {
    let processes = group.procs().expect("read cgroup.procs");
    let names = processes
        .iter()
        .filter_map(|pid| fs::read(format!("/proc/{pid}/comm")).ok());
    names
        .filter(|name| name.trim_ascii() == SLEEPER[0].as_bytes())
        .count()
}

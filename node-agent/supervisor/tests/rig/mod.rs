//! A supervisor under test: own cgroup directory, own spool, and an agent that hands its connection to the
//! test. Everything is removed at the end.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use fairlead_supervisor::cgroup::{self, Group};
use fairlead_supervisor::channel;
use fairlead_supervisor::client::{Client, SpawnFds};
use fairlead_supervisor::command::command_memfd;
use fairlead_supervisor::slot::{self, Intent, Journal, Slot};
use fairlead_supervisor::wire::{
    ENV_FD, Event, FLAG_PRIVATE_MOUNTS, FLAG_PRIVATE_NETWORK, Key, RECORD_LEN, Request, Spawn,
};

/// How long anything may take on a busy machine before a test fails.
pub const BOUND: Duration = Duration::from_secs(60);
pub const UID: u32 = 60_123;
const ENV_CONTROL: &str = "FAIRLEAD_TEST_CONTROL";

/// Says why the kernel tier cannot run here. With `CI=true` that is a failure.
pub fn ready() -> bool {
    // SAFETY: no memory is passed.
    let root = unsafe { libc::geteuid() } == 0;
    let why = match top() {
        _ if !root => "not root".to_owned(),
        Err(e) => e.to_string(),
        Ok(_) => return true,
    };
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "kernel tests cannot run: {why}"
    );
    eprintln!("skipped: kernel tests cannot run: {why}");
    false
}

pub fn top() -> std::io::Result<PathBuf> {
    cgroup::own_group("0::/", &fs::read_to_string("/proc/self/mountinfo")?)
}

/// Body of the test that is the fake agent when the supervisor starts this very binary. Sends its
/// connection to the test, then only says that it lives.
pub fn be_agent() {
    let Ok(control) = std::env::var(ENV_CONTROL) else {
        return;
    };
    let Ok(fd) = std::env::var(ENV_FD) else { return };
    let raw: i32 = fd.parse().expect("number");
    // SAFETY: the supervisor left this descriptor open for this process; it stays open to its end.
    let socket = unsafe { BorrowedFd::borrow_raw(raw) };
    let stream = UnixStream::connect(control).expect("the test listens");
    let mut record = [0u8; RECORD_LEN];
    record[..4].copy_from_slice(&std::process::id().to_le_bytes());
    channel::send(stream.as_fd(), &record, &[socket]).expect("hand over");
    drop(stream);
    loop {
        // A full queue means that the supervisor has enough to read; a gone one ends us.
        let sent = channel::send(socket, &Request::Heartbeat.encode(), &[]);
        if sent.is_err_and(|e| e.kind() != std::io::ErrorKind::WouldBlock) {
            std::process::exit(0);
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// A directory that is removed at the end.
pub struct TempDir(pub PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A supervisor with its surroundings.
pub struct Rig {
    pub dir: TempDir,
    pub root: Group,
    pub supervisor: Child,
    listener: UnixListener,
    options: Vec<String>,
}

impl Rig {
    pub fn start(name: &str, options: &[&str]) -> Rig {
        Rig::start_with(name, options, |_| {})
    }

    /// Below another program that starts it.
    pub fn start_wrapped(name: &str, wrapper: &[&str]) -> Rig {
        Rig::launch(name, &[], |inner| {
            let mut outer = Command::new(wrapper[0]);
            outer
                .args(&wrapper[1..])
                .arg(inner.get_program())
                .args(inner.get_args());
            for (key, value) in inner.get_envs() {
                outer.env(key, value.expect("only set"));
            }
            outer
        })
    }

    pub fn start_with(name: &str, options: &[&str], prepare: impl FnOnce(&mut Command)) -> Rig {
        Rig::launch(name, options, |mut command| {
            prepare(&mut command);
            command
        })
    }

    fn launch(name: &str, options: &[&str], change: impl FnOnce(Command) -> Command) -> Rig {
        let unique = format!("fairlead-test-{name}-{}", std::process::id());
        let dir = TempDir(Path::new("/var/tmp").join(&unique));
        fs::create_dir_all(&dir.0).expect("temp dir");
        open_to_all(&dir.0);
        let root = Group::create(top().expect("mount").join(&unique)).expect("own group");
        let listener = UnixListener::bind(dir.0.join("control")).expect("listen");
        listener.set_nonblocking(true).expect("nonblocking");
        let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
        let supervisor = change(Rig::command(&dir.0, &root, &options))
            .spawn()
            .expect("start supervisor");
        Rig {
            dir,
            root,
            supervisor,
            listener,
            options,
        }
    }

    fn command(dir: &Path, root: &Group, options: &[String]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairlead-supervisor"));
        command
            .arg("--agent")
            .arg(std::env::current_exe().expect("own path"));
        command.arg("--spool").arg(dir.join("spool"));
        if !options.iter().any(|o| o == "process-group") {
            command.arg("--cgroup-root").arg(root.path());
        }
        command
            .args(options)
            .args(["--", "fake_agent", "--exact", "--nocapture"]);
        command.env(ENV_CONTROL, dir.join("control"));
        command
    }

    /// Starts another supervisor at the same place.
    pub fn start_another(&self) -> Child {
        Rig::command(&self.dir.0, &self.root, &self.options)
            .spawn()
            .expect("start supervisor")
    }

    pub fn spool(&self) -> PathBuf {
        self.dir.0.join("spool")
    }

    /// The next agent that was started, before its Hello.
    pub fn silent_agent(&self) -> Agent {
        let mut found = None;
        wait("an agent", || {
            found = self.listener.accept().ok();
            found.is_some()
        });
        let (stream, _) = found.expect("accepted");
        let mut record = [0u8; RECORD_LEN];
        let mut got = None;
        wait("the agent's connection", || {
            got = channel::recv(stream.as_fd(), &mut record)
                .ok()
                .filter(|(len, _)| *len > 0);
            got.is_some()
        });
        let (_, mut fds) = got.expect("received");
        let client = Client::from_fd(fds.take(0).expect("descriptor")).expect("client");
        let pid = i32::from_le_bytes([record[0], record[1], record[2], record[3]]);
        Agent {
            client,
            pid,
            events: Vec::new(),
        }
    }

    /// The next agent, with the states it was told after its Hello.
    pub fn agent(&self) -> (Agent, Vec<fairlead_supervisor::wire::EntryState>) {
        let mut agent = self.silent_agent();
        agent
            .client
            .send(&Request::Hello {
                agent_pid: agent.pid.cast_unsigned(),
            })
            .expect("hello");
        let ack = agent.wait("hello ack", |e| matches!(e, Event::HelloAck { .. }));
        let Event::HelloAck { count, .. } = ack else {
            unreachable!()
        };
        let mut states = Vec::new();
        while states.len() < count as usize {
            if let Event::State(state) = agent.wait("state", |e| matches!(e, Event::State(_))) {
                states.push(state);
            }
            agent.events.clear();
        }
        (agent, states)
    }

    /// Group below which attempts are made in that epoch.
    pub fn payload(&self, epoch: u32) -> Group {
        self.root.child(&format!("payload-{epoch}"))
    }

    pub fn attempt(&self, number: u32) -> Attempt {
        let key = Key {
            uid: [number as u8; 16],
            attempt: 1,
        };
        let name = slot::attempt_name(&key);
        let dir = self.spool().join(&name);
        fs::create_dir_all(&dir).expect("spool dir");
        let slot = Slot::create(&dir.join(slot::FILE_SLOT)).expect("slot");
        let home = dir.join("home");
        fs::create_dir(&home).expect("home");
        std::os::unix::fs::chown(&home, Some(UID), Some(UID)).expect("chown");
        let payload = self.payload(1);
        let group = payload
            .path()
            .exists()
            .then(|| Group::create(payload.path().join(format!("tx-{name}"))).expect("group"));
        slot.write_intent(&Intent {
            key,
            uid: UID,
            gid: UID,
            fence: [1; 16],
            epoch: 1,
            incarnation: "test".into(),
            group: format!("tx-{name}"),
            deadline_ms: 0,
            accepted_unix_ms: 0,
        })
        .expect("intent");
        let create = |name| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(dir.join(name))
                .expect("spool file")
        };
        let (stdout, stderr) = (create(slot::FILE_STDOUT), create(slot::FILE_STDERR));
        Attempt {
            key,
            dir,
            slot,
            home,
            group,
            stdout,
            stderr,
            separate: false,
            spawn: plain(key),
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
        if self.root.path().exists() {
            let result = self
                .root
                .kill_until_empty(BOUND)
                .and_then(|_| self.root.remove(BOUND));
            if let Err(e) = result {
                eprintln!("left over: {e}");
            }
        }
    }
}

fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("chmod");
}

fn plain(key: Key) -> Spawn {
    Spawn {
        key,
        uid: UID,
        gid: UID,
        deadline_ms: 0,
        grace_ms: 0,
        nofile: 256,
        store_max_bytes: u64::MAX,
        flags: FLAG_PRIVATE_MOUNTS | FLAG_PRIVATE_NETWORK,
    }
}

/// Waits for a condition, with a bound.
#[track_caller]
pub fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + BOUND;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {BOUND:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a signal to one process of the test's own making.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: numbers only.
    unsafe { libc::kill(pid, signal) };
}

/// Whether a process of that number is there and no zombie.
pub fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The agent's connection, driven by the test.
pub struct Agent {
    pub client: Client,
    pub pid: i32,
    pub events: Vec<Event>,
}

impl Agent {
    pub fn spawn(&self, attempt: &Attempt, argv: &[&str]) {
        self.send_spawn(
            attempt,
            attempt.group.as_ref().map(|g| g.open().expect("group")),
            argv,
        );
    }

    /// Into a group whose directory was opened before.
    pub fn spawn_into(&self, attempt: &Attempt, group: OwnedFd, argv: &[&str]) {
        self.send_spawn(attempt, Some(group), argv);
    }

    fn send_spawn(&self, attempt: &Attempt, group: Option<OwnedFd>, argv: &[&str]) {
        let env = ["PATH=/usr/bin:/bin", "HOME=/tmp", "LANG=C"];
        let command = command_memfd(argv, &env).expect("command");
        let null = File::open("/dev/null").expect("null");
        let home = File::open(&attempt.home).expect("home");
        let fds = SpawnFds {
            cgroup: group.as_ref().map(AsFd::as_fd),
            slot: attempt.slot.as_fd(),
            command: command.as_fd(),
            stdin: null.as_fd(),
            stdout: attempt.stdout.as_fd(),
            stderr: attempt.separate.then(|| attempt.stderr.as_fd()),
            home: Some(home.as_fd()),
        };
        self.client.spawn(&attempt.spawn, &fds).expect("send spawn");
    }

    /// The next event that fits; the others are kept in `events`.
    #[track_caller]
    pub fn wait(&mut self, what: &str, fits: impl Fn(&Event) -> bool) -> Event {
        let end = Instant::now() + BOUND;
        if let Some(at) = self.events.iter().position(&fits) {
            return self.events.remove(at);
        }
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let event = match self.client.recv_timeout(left) {
                Ok(Some(event)) => event,
                other => panic!("{what}: {other:?}; seen {:?}", self.events),
            };
            if fits(&event) {
                return event;
            }
            if !matches!(event, Event::Heartbeat { .. }) {
                self.events.push(event);
            }
        }
    }

    #[track_caller]
    pub fn spawned(&mut self, attempt: &Attempt) -> i32 {
        let key = attempt.key;
        let fits = |e: &Event| matches!(e, Event::Spawned { key: k, .. } | Event::Refused { key: k, .. } if *k == key);
        match self.wait("spawned", fits) {
            Event::Spawned { pid, .. } => pid,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub fn exited(&mut self, attempt: &Attempt) -> fairlead_supervisor::wire::Exit {
        let key = attempt.key;
        match self.wait(
            "exited",
            |e| matches!(e, Event::Exited { key: k, .. } if *k == key),
        ) {
            Event::Exited { exit, .. } => exit,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub fn emptied(&mut self, attempt: &Attempt) {
        let key = attempt.key;
        self.wait(
            "emptied",
            |e| matches!(e, Event::Emptied { key: k, .. } if *k == key),
        );
    }

    #[track_caller]
    pub fn drained(&mut self, attempt: &Attempt) {
        let key = attempt.key;
        self.wait(
            "drained",
            |e| matches!(e, Event::Drained { key: k, .. } if *k == key),
        );
    }

    /// Runs a command to its end and gives its wait status and output.
    #[track_caller]
    pub fn run(&mut self, attempt: &Attempt, argv: &[&str]) -> (i32, String) {
        self.spawn(attempt, argv);
        self.spawned(attempt);
        let exit = self.exited(attempt);
        self.emptied(attempt);
        self.drained(attempt);
        (exit.wait_status, attempt.output())
    }
}

/// What an agent prepares for one attempt.
pub struct Attempt {
    pub key: Key,
    pub dir: PathBuf,
    pub slot: Slot,
    pub home: PathBuf,
    pub group: Option<Group>,
    pub stdout: File,
    pub stderr: File,
    pub separate: bool,
    pub spawn: Spawn,
}

impl Attempt {
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.join(slot::FILE_STDOUT)).expect("stdout")).into_owned()
    }

    pub fn journal(&self) -> Journal {
        self.slot.read().expect("slot")
    }

    pub fn group(&self) -> &Group {
        self.group.as_ref().expect("a cgroup attempt")
    }

    /// Descriptor number, for messages.
    pub fn raw(&self) -> i32 {
        self.slot.as_raw_fd()
    }
}

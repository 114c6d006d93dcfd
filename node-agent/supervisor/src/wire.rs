//! The records the supervisor and the node agent exchange.
//!
//! Each record is one `SOCK_SEQPACKET` message of exactly [`RECORD_LEN`] bytes, written field by field
//! in little-endian order, so both sides may be built separately. The first eight bytes are the same in
//! every version: magic, version, kind. A record with another magic, version or length is refused.
//!
//! Requests go from the agent to the supervisor, events the other way. Everything is keyed by the
//! execution's UID and its attempt. Nothing here is a queue of history: the supervisor repeats the
//! state of an entry until it could be sent, and `Hello` is answered with all entries.

use crate::step::Step;

/// Length of every record, in bytes.
pub const RECORD_LEN: usize = 128;
/// Version of the record layout. Both sides must have the same one.
pub const VERSION: u16 = 1;
/// Environment variable with the number of the descriptor the agent inherits.
pub const ENV_FD: &str = "FAIRLEAD_SUPERVISOR_FD";
/// Environment variable with the supervisor's epoch number.
pub const ENV_EPOCH: &str = "FAIRLEAD_EPOCH";
/// Environment variable with the absolute path of the group below which the agent makes one group per
/// attempt. Not set with the process-group backend.
pub const ENV_PAYLOAD_GROUP: &str = "FAIRLEAD_PAYLOAD_GROUP";
/// Most descriptors a single record carries.
pub const MAX_FDS: usize = 8;
/// Seconds between two heartbeats, in each direction.
pub const HEARTBEAT_SECONDS: u64 = 1;

/// Spawn flag: the first descriptor is the directory of the attempt's cgroup.
pub const FLAG_CGROUP: u32 = 1;
/// Spawn flag: stderr has a spool file of its own instead of sharing the pipe of stdout.
pub const FLAG_SEPARATE_STDERR: u32 = 1 << 1;
/// Spawn flag: the last descriptor is the run's home directory, which becomes the working directory.
pub const FLAG_HOME: u32 = 1 << 2;
/// Spawn flag: own mount namespace in which the home directory is `/tmp`, the agent's files are hidden, and nothing else
/// can be written to but its own `/proc`. Needs [`FLAG_HOME`], and a kernel with `mount_setattr` (Linux 5.12).
pub const FLAG_PRIVATE_MOUNTS: u32 = 1 << 3;

/// Spawn flag: own network namespace, with a loopback device only (network_namespaces(7)).
pub const FLAG_PRIVATE_NETWORK: u32 = 1 << 4;

/// Spawn flag: own PID namespace, whose first process is an init of the supervisor's, with a `/proc` of its own
/// (pid_namespaces(7)). Needs [`FLAG_PRIVATE_MOUNTS`], since `/proc` is mounted.
pub const FLAG_PRIVATE_PIDS: u32 = 1 << 5;

/// First four bytes of every record.
pub const MAGIC: u32 = u32::from_le_bytes(*b"FLSV");

/// Identity of one attempt of one execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// UID of the `ToolExecution`, as 16 bytes.
    pub uid: [u8; 16],
    /// Attempt number, from 1.
    pub attempt: u32,
}

impl std::fmt::Display for Key {
    /// The UID in its hyphenated form, a hyphen, the attempt: the same text as in group and spool names.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, byte) in self.uid.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        write!(f, "-{}", self.attempt)
    }
}

impl Key {
    /// Reads the hyphenated UID of a Kubernetes object. `None` if it is not 32 hexadecimal digits.
    pub fn parse(uid: &str, attempt: u32) -> Option<Key> {
        let mut bytes = [0u8; 16];
        let mut digits = 0usize;
        for c in uid.chars().filter(|c| *c != '-') {
            let value = c.to_digit(16)?;
            let byte = bytes.get_mut(digits / 2)?;
            *byte = (*byte << 4) | u8::try_from(value).ok()?;
            digits += 1;
        }
        (digits == 32).then_some(Key { uid: bytes, attempt })
    }
}

/// How processes of one execution are kept together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// One cgroup v2 group per attempt.
    CgroupV2,
    /// A session and process group per attempt. Without [`FLAG_PRIVATE_PIDS`] a process that makes its own session
    /// escapes; with it everybody ends with the init.
    ProcessGroup,
}

/// Why the supervisor itself began to kill a group. The first reason stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// The supervisor did not kill: the leader ended by itself or by the hand of somebody else.
    #[default]
    None,
    /// The agent asked with `Kill`.
    Requested,
    /// The deadline of the entry passed.
    Deadline,
    /// No agent said Hello and then that it lives within the bound.
    AgentLost,
    /// The supervisor was told to stop.
    Shutdown,
}

impl Cause {
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Cause> {
        [
            Cause::None,
            Cause::Requested,
            Cause::Deadline,
            Cause::AgentLost,
            Cause::Shutdown,
        ]
        .into_iter()
        .find(|cause| cause.code() == code)
    }
}

/// The wish to start a process. Its descriptors travel with it; see [`crate::client::SpawnFds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spawn {
    /// Which attempt.
    pub key: Key,
    /// User of the tool: never 0, and inside the supervisor's `--uid-range`.
    pub uid: u32,
    /// Group of the tool: never 0. Supplementary groups are dropped.
    pub gid: u32,
    /// Absolute `CLOCK_BOOTTIME` milliseconds at which the group gets SIGTERM; 0 = none.
    pub deadline_ms: u64,
    /// Milliseconds from the deadline's SIGTERM to the kill; 0 = kill at once.
    pub grace_ms: u32,
    /// Soft and hard `RLIMIT_NOFILE`; 0 = leave the supervisor's own.
    pub nofile: u32,
    /// Bytes of each stream that go to its spool file; later ones go to the tail ring of the slot.
    pub store_max_bytes: u64,
    /// `FLAG_*` bits.
    pub flags: u32,
}

/// From the agent to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// First message of every agent. Answered with [`Event::HelloAck`] and one [`Event::State`] per entry.
    Hello {
        /// Process id of the agent, for the log.
        agent_pid: u32,
    },
    /// Start a process. A known key is answered with its [`Event::State`] and starts nothing.
    Spawn(Spawn),
    /// Send a signal to every process of the group.
    Signal {
        /// Which attempt.
        key: Key,
        /// Signal number, 1–64.
        signo: u32,
    },
    /// Kill the group, again and again until it is empty.
    Kill {
        /// Which attempt.
        key: Key,
    },
    /// Replace the deadline.
    SetDeadline {
        /// Which attempt.
        key: Key,
        /// Absolute `CLOCK_BOOTTIME` milliseconds; 0 = none.
        deadline_ms: u64,
    },
    /// The end is reported: drop the entry as soon as it is exited and emptied, and what its pipes still hold with it.
    Forget {
        /// Which attempt.
        key: Key,
    },
    /// The agent lives. Any other request says so too.
    Heartbeat,
}

/// Life of an entry as far as the supervisor saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntryPhase {
    /// Cloned, `exec` not reached yet.
    #[default]
    Starting,
    /// The program runs.
    Running,
    /// The leader was reaped; `wait_status` is set.
    Exited,
    /// No program of ours ran; `step` and `errno` are set.
    Refused,
}

/// All that is known of one entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryState {
    /// Which attempt.
    pub key: Key,
    /// Process id of the first process, the leader or the init of its PID namespace; 0 if none was made.
    pub pid: i32,
    /// How far it came.
    pub phase: EntryPhase,
    /// Raw wait status of the leader (`waitpid(2)`), valid when exited.
    pub wait_status: i32,
    /// Why the supervisor killed, if it did.
    pub cause: Cause,
    /// Step at which a refused spawn ended.
    pub step: Option<Step>,
    /// Error number of that step; 0 if the child died there without one.
    pub errno: i32,
    /// No process is left in the group.
    pub emptied: bool,
    /// Every writer closed the output pipes and all bytes are in their files.
    pub drained: bool,
    /// The deadline passed and the supervisor acted on it.
    pub deadline_reached: bool,
    /// `CLOCK_BOOTTIME` milliseconds of the successful exec; 0 = not yet.
    pub spawned_ms: u64,
    /// `CLOCK_BOOTTIME` milliseconds at which the leader was reaped; 0 = not yet.
    pub exited_ms: u64,
    /// `CLOCK_BOOTTIME` milliseconds at which the group was seen empty; 0 = not yet.
    pub emptied_ms: u64,
}

/// The end of a leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Raw wait status (`waitpid(2)`).
    pub wait_status: i32,
    /// Why the supervisor killed, if it did.
    pub cause: Cause,
    /// `CLOCK_BOOTTIME` milliseconds.
    pub boottime_ms: u64,
    /// User CPU time of the leader and the children it waited for, in microseconds.
    pub user_us: u64,
    /// System CPU time of the same, in microseconds.
    pub system_us: u64,
    /// Largest resident set among them, in KiB.
    pub max_rss_kib: u64,
}

/// From the supervisor to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Answer to Hello; `count` State events follow.
    HelloAck {
        /// Number of this supervisor's start, part of its group names.
        epoch: u32,
        /// How many State events follow.
        count: u32,
        /// How processes are kept together.
        backend: Backend,
    },
    /// All that is known of one entry: after Hello, and as answer to a Spawn of a known key.
    State(EntryState),
    /// The program runs.
    Spawned {
        /// Which attempt.
        key: Key,
        /// Process id of the leader, or of the init of its PID namespace where it has one.
        pid: i32,
        /// `CLOCK_BOOTTIME` milliseconds.
        boottime_ms: u64,
    },
    /// Nothing of ours ran: `outcome` is `NotStarted`.
    Refused {
        /// Which attempt.
        key: Key,
        /// Where the spawn ended.
        step: Step,
        /// Error number there; 0 if the child died without one.
        errno: i32,
    },
    /// The deadline passed; SIGTERM or the kill was sent.
    DeadlineReached {
        /// Which attempt.
        key: Key,
        /// `CLOCK_BOOTTIME` milliseconds.
        boottime_ms: u64,
    },
    /// The leader was reaped.
    Exited {
        /// Which attempt.
        key: Key,
        /// How.
        exit: Exit,
    },
    /// No process is left in the group.
    Emptied {
        /// Which attempt.
        key: Key,
        /// `CLOCK_BOOTTIME` milliseconds.
        boottime_ms: u64,
    },
    /// All output is in its files.
    Drained {
        /// Which attempt.
        key: Key,
        /// `CLOCK_BOOTTIME` milliseconds.
        boottime_ms: u64,
    },
    /// The supervisor has no such entry: answer to Signal, Kill, SetDeadline of an unknown key.
    Unknown {
        /// Which attempt.
        key: Key,
    },
    /// The supervisor lives.
    Heartbeat {
        /// `CLOCK_BOOTTIME` milliseconds.
        boottime_ms: u64,
    },
}

/// Why a record was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// Not [`RECORD_LEN`] bytes, but this many.
    Length(usize),
    /// The first four bytes are not ours.
    Magic(u32),
    /// Another version of the layout.
    Version(u16),
    /// A kind this side does not know.
    Kind(u16),
    /// A field holds a value outside its set.
    Field(&'static str),
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WireError::Length(n) => write!(f, "record of {n} bytes, expected {RECORD_LEN}"),
            WireError::Magic(m) => write!(f, "record with magic {m:#x}, expected {MAGIC:#x}"),
            WireError::Version(v) => write!(f, "record of version {v}, expected {VERSION}"),
            WireError::Kind(k) => write!(f, "record of unknown kind {k}"),
            WireError::Field(name) => write!(f, "record field {name} holds a value outside its set"),
        }
    }
}

impl std::error::Error for WireError {}

impl From<WireError> for std::io::Error {
    fn from(error: WireError) -> Self {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;

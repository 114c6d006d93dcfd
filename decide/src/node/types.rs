//! Words of the node half: what is observed, what is done, and why nothing is.

use fairlead_crds::{ErrorClass, ExecutionOutput, IsolationBackend, ToolExecution, ToolExecutionStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// A point in time on both clocks of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Milliseconds of `CLOCK_BOOTTIME`: for every duration and limit.
    pub boot_ms: u64,
    /// Milliseconds since 1970 of the wall clock: only for times that people read.
    pub unix_ms: i64,
}

/// What is fixed for the life of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name of the node.
    pub name: String,
    /// Identity of its memory: an attempt bound to another one is not started.
    pub incarnation: String,
    /// What owns the processes.
    pub backend: IsolationBackend,
    /// Controllers whose limits cannot be set here.
    pub missing_controllers: Vec<String>,
    /// First user number for runs.
    pub first_user: u32,
    /// Last user number for runs.
    pub last_user: u32,
    /// Number of the supervisor's start.
    pub epoch: u32,
}

/// One attempt of one execution.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptKey {
    /// UID of the `ToolExecution`.
    pub uid: String,
    /// Attempt number, from 1.
    pub attempt: u32,
}

impl fmt::Display for AttemptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.uid, self.attempt)
    }
}

/// What shares a user number and a private `/tmp`: a run, by its UID, or an execution without one, by its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunKey(pub String);

/// What a decision is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// An attempt.
    Attempt(AttemptKey),
    /// A run's user number and directory.
    Run(RunKey),
}

/// Where an object is in the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// Why the supervisor killed a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It did not.
    None,
    /// The agent asked for it.
    Requested,
    /// The hard timeout passed.
    Deadline,
    /// No agent for too long.
    AgentLost,
    /// The supervisor was told to stop.
    Shutdown,
}

/// How a leader ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// The end of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// How.
    pub wait: Wait,
    /// Why the supervisor killed, if it did.
    pub cause: Cause,
    /// When.
    pub at: Moment,
}

/// A spawn that ended before the tool's program ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Name of the step.
    pub step: String,
    /// Error number there; 0 if the child died without one.
    pub errno: i32,
}

/// One thing the supervisor said of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessFact {
    /// The program runs.
    Spawned(Moment),
    /// Nothing of ours ran.
    Refused(Refused),
    /// The leader was reaped.
    Exited(Exit),
    /// No process is left in its group.
    Emptied(Moment),
    /// All output is in its files.
    Drained,
    /// The hard timeout passed, and the group is being stopped for it.
    DeadlineReached(Moment),
    /// The supervisor knows nothing of it.
    NoEntry(Moment),
}

/// What the journal of an attempt holds at a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which attempt.
    pub key: AttemptKey,
    /// User number it was given; `None` if the record is torn, which is before anything was asked for.
    pub user: Option<u32>,
    /// Incarnation under which it was to start.
    pub incarnation: String,
    /// Supervisor epoch in which it was to start.
    pub epoch: u32,
    /// When it was accepted.
    pub accepted: Moment,
    /// Hard timeout, `CLOCK_BOOTTIME` milliseconds.
    pub deadline_ms: u64,
    /// The program ran.
    pub spawned: Option<Moment>,
    /// Nothing ran.
    pub refused: Option<Refused>,
    /// The leader ended.
    pub exited: Option<Exit>,
    /// The end is known to be stored by the API.
    pub reported: bool,
    /// Its group is still there.
    pub group: bool,
    /// Its group is there and no processor time was ever used in it.
    pub group_unused: bool,
}

/// What the supervisor knows of an attempt at a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which attempt.
    pub key: AttemptKey,
    /// What it said, in the order in which it happened.
    pub facts: Vec<ProcessFact>,
}

/// Everything at start-up: the API's list, the journal, and the supervisor's entries.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When it was taken.
    pub at: Moment,
    /// Executions bound here that have not ended, from a consistent list.
    pub live: Vec<Arc<ToolExecution>>,
    /// Every execution bound here, ended or not, by UID, from a consistent list taken after `live`.
    pub kept: BTreeMap<String, (ObjectRef, RunKey)>,
    /// The journal.
    pub held: Vec<Held>,
    /// The supervisor's entries.
    pub entries: Vec<Entry>,
    /// Directories of runs with the user number that owns each.
    pub runs: Vec<(RunKey, u32)>,
}

/// Why an attempt could not be started; nothing of it ran, and what was made for it is gone or will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFailure {
    /// One word, of `conditions::reason`.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
    /// Whose fault it is.
    pub class: ErrorClass,
    /// Whether something of the attempt is left on the node.
    pub leaves: bool,
}

/// What was read when an attempt had ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collected {
    /// Canonical output and its digest.
    pub output: ExecutionOutput,
    /// Something about the output that must be said: bytes that were dropped, a write error.
    pub output_note: Option<String>,
    /// `cpu.stat` usage, milliseconds.
    pub cpu_millis: Option<i64>,
    /// `memory.peak`, bytes.
    pub memory_peak_bytes: Option<i64>,
    /// `pids.peak`.
    pub pids_peak: Option<i64>,
    /// `memory.events` oom_kill.
    pub oom_kills: i64,
    /// Whose limit that was; `None` without a kill.
    pub oom_at: Option<OomAt>,
    /// Why the group could not be removed, with its processes.
    pub clean_up: Result<(), String>,
}

/// Which limit the kernel killed at (cgroup-v2.rst, `memory.events.local`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomAt {
    /// `memory.max` of the attempt's own group.
    Own,
    /// `memory.max` of the group of all attempts, in bytes, which was reached so often since the supervisor started.
    AllTools {
        /// Bytes.
        max_bytes: i64,
        /// Times.
        reached: i64,
    },
    /// Neither of the two: what holds the node agent as well, or the machine, was out of memory.
    Above,
}

/// Why a status write did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportFailure {
    /// May succeed later: no connection, 409, 429, 5xx.
    Transient,
    /// Not allowed, 403: rights may return, and saying less would not help.
    Forbidden,
    /// Refused for what it says: 400, 422, too large.
    Refused,
    /// The object is not there.
    NotFound,
}

/// How much a status write says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// That it runs.
    Running,
    /// The whole end.
    Final,
    /// The end without its output.
    Minimal,
    /// Only a condition, when not even the end can be stored.
    Condition,
    /// The end again, with its clean-up confirmed.
    CleanedUp,
}

/// A start.
#[derive(Clone, Debug)]
pub struct Start {
    /// Which attempt.
    pub key: AttemptKey,
    /// Its run.
    pub run: RunKey,
    /// User number of the run.
    pub user: u32,
    /// Hard timeout, `CLOCK_BOOTTIME` milliseconds.
    pub deadline_ms: u64,
    /// The execution, with its binding.
    pub object: Arc<ToolExecution>,
}

/// A status write.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which attempt.
    pub key: AttemptKey,
    /// Where its object is.
    pub object: ObjectRef,
    /// How much it says.
    pub level: Level,
    /// All that the agent's field manager holds from then on.
    pub status: ToolExecutionStatus,
}

/// Something to do.
#[derive(Clone, Debug)]
pub enum Action {
    /// Make slot, group and files, and ask the supervisor for the process.
    Start(Box<Start>),
    /// Send a signal to every process of the group.
    Signal {
        /// Which attempt.
        key: AttemptKey,
        /// Signal number.
        signal: u32,
    },
    /// Kill the group until it is empty.
    Kill {
        /// Which attempt.
        key: AttemptKey,
    },
    /// Look how many bytes of output there are.
    Measure {
        /// Which attempt.
        key: AttemptKey,
    },
    /// Read counters and output, and remove the group.
    Collect {
        /// Which attempt.
        key: AttemptKey,
        /// Name of the execution, for the canonical output.
        name: String,
        /// Most bytes of canonical output.
        max_bytes: usize,
        /// Whether processes may be left, so that the group cannot be removed.
        populated: bool,
    },
    /// Write the status; when the end is stored, note that in the journal.
    Report(Box<Report>),
    /// Try again to empty and remove the group.
    CleanUp {
        /// Which attempt.
        key: AttemptKey,
        /// Epoch of the supervisor under which it was started, and so of its group.
        epoch: u32,
    },
    /// Read the object back.
    Read {
        /// UID it must have.
        uid: String,
        /// Where it is.
        object: ObjectRef,
    },
    /// Remove group, slot and bytes.
    Discard {
        /// Which attempt.
        key: AttemptKey,
        /// As in `CleanUp`.
        epoch: u32,
    },
    /// Remove a run's directory, after which its user number is free.
    RemoveRun {
        /// Which run.
        run: RunKey,
    },
}

/// Something that was observed.
#[derive(Clone, Debug)]
pub enum Event {
    /// Start-up.
    Resynced(Box<Snapshot>),
    /// UIDs of live executions whose objects cannot be read. An attempt of one that the coming [`Event::Resynced`] finds
    /// only in the journal is neither started nor killed nor discarded.
    Unreadable(BTreeSet<String>),
    /// A live execution whose plan has a version and a form that are not known; the plan that stands in it is none. An
    /// attempt that is not known yet ends with a refusal. Comes after [`Event::Resynced`].
    TooNew(Arc<ToolExecution>),
    /// The node's agent is to end: nothing new is started, and what runs is stopped.
    Draining {
        /// When what still runs is killed, whatever its grace; `CLOCK_BOOTTIME` milliseconds.
        kill_at: u64,
    },
    /// An action was handed to the executor.
    Begun {
        /// The action.
        action: Box<Action>,
        /// When.
        at: Moment,
    },
    /// An execution as the watch shows it.
    Seen(Arc<ToolExecution>),
    /// All live executions, from a list of the watch.
    Listed(Vec<Arc<ToolExecution>>),
    /// An execution left the watch: ended, moved or deleted.
    Left {
        /// Its UID.
        uid: String,
    },
    /// UIDs of every execution bound here, from a list that may be a little old.
    Existing(BTreeSet<String>),
    /// Answer to `Read`.
    ReadBack {
        /// UID that was looked for.
        uid: String,
        /// When.
        at: Moment,
        /// The object, `None` when there is none of that UID; an error when it could not be read.
        result: Result<Option<Arc<ToolExecution>>, ()>,
    },
    /// The supervisor said something.
    Process {
        /// Of which attempt.
        key: AttemptKey,
        /// What.
        fact: ProcessFact,
    },
    /// A `Kill` could not be sent to the supervisor.
    KillUnsent {
        /// Of which attempt.
        key: AttemptKey,
        /// When.
        at: Moment,
    },
    /// Answer to `Start`: the process is asked for.
    StartEnded {
        /// Which attempt.
        key: AttemptKey,
        /// When.
        at: Moment,
        /// Whether it was asked for.
        result: Result<(), StartFailure>,
    },
    /// Answer to `Measure`.
    Measured {
        /// Which attempt.
        key: AttemptKey,
        /// When.
        at: Moment,
        /// Bytes written so far.
        bytes: u64,
    },
    /// Answer to `Collect`.
    CollectEnded {
        /// Which attempt.
        key: AttemptKey,
        /// When.
        at: Moment,
        /// What was read.
        collected: Box<Collected>,
    },
    /// Answer to `Report`.
    ReportEnded {
        /// Which attempt.
        key: AttemptKey,
        /// When.
        at: Moment,
        /// How much it said.
        level: Level,
        /// Whether it is stored.
        result: Result<(), ReportFailure>,
    },
    /// Answer to `CleanUp`.
    CleanUpEnded {
        /// Which attempt.
        key: AttemptKey,
        /// When.
        at: Moment,
        /// Why it is still there.
        result: Result<(), String>,
    },
    /// Answer to `Discard`.
    DiscardEnded {
        /// Which attempt.
        key: AttemptKey,
        /// When.
        at: Moment,
        /// Why something is still there.
        result: Result<(), String>,
    },
    /// Answer to `RemoveRun`.
    RunRemoved {
        /// Which run.
        run: RunKey,
        /// When.
        at: Moment,
        /// Why it is still there.
        result: Result<(), String>,
    },
}

/// Why nothing is done although something is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Because {
    /// An action is under way.
    InProgress(&'static str),
    /// The process runs as asked.
    Running,
    /// The supervisor has been asked for the process and has not answered.
    AwaitingSpawn,
    /// The leader ended; its descendants have a moment to finish.
    Descendants,
    /// A signal was sent; the grace runs.
    Grace,
    /// The group was killed and is not empty yet.
    Emptying,
    /// The group is empty; the last bytes are on their way.
    Draining,
    /// It failed before and is tried again later.
    Backoff(&'static str),
    /// Every user number is taken.
    NoFreeUser,
    /// The directory of its run is just being removed.
    RunLeaving,
    /// The object is being deleted, so nothing is started any more.
    Leaving,
    /// The node's agent is to end, so nothing is started any more.
    NodeDraining,
    /// Its object cannot be read, so nobody knows what is wanted.
    Unreadable,
    /// Its end is stored; its bytes are kept until the object is gone.
    Kept,
}

/// What to do about one key.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// What to do now, in this order.
    pub actions: Vec<Action>,
    /// When to decide again at the latest, `CLOCK_BOOTTIME` milliseconds; later than now.
    pub wake: Option<u64>,
    /// Why nothing (more) is done.
    pub because: Vec<Because>,
}

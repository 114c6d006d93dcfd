//! The snapshot of the node half.

use super::types::*;
use fairlead_crds::{ToolExecution, ToolExecutionStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All that a node agent knows.
#[derive(Clone, Debug)]
pub struct World {
    /// What is fixed for the life of the agent.
    pub node: Node,
    /// Attempts that were seen and are not discarded.
    pub attempts: BTreeMap<AttemptKey, Attempt>,
    /// Runs that hold a user number.
    pub runs: BTreeMap<RunKey, Run>,
    /// User numbers in use.
    pub users: BTreeMap<u32, RunKey>,
    /// Highest attempt ever taken up, by UID, until the deletion is seen: a stale list cannot re-run anything.
    pub high_water: BTreeMap<String, u32>,
    /// UIDs whose deletion was seen, of this and of the last period: a late event cannot bring one back.
    pub(super) tombstones: [BTreeSet<String>; 2],
    /// User number that was given out last.
    pub(super) last_user: u32,
    /// When what still runs is killed, `CLOCK_BOOTTIME` milliseconds, once the agent is to end.
    pub(super) draining: Option<u64>,
    /// UIDs of live executions whose objects cannot be read.
    pub(super) unreadable: BTreeSet<String>,
}

/// A run's share of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its user number.
    pub user: u32,
    /// Attempts that use or may use it.
    pub attempts: BTreeSet<AttemptKey>,
    /// Its removal is under way.
    pub removing: bool,
    /// When a removal that failed is tried again.
    pub retry_at: u64,
}

/// Where the object of an attempt stands.
#[derive(Clone, Debug)]
pub enum Presence {
    /// Not ended, as last seen.
    Live(Arc<ToolExecution>),
    /// Its end is stored, by us or by another.
    Ended(ObjectRef),
    /// Deleted, or bound anew with a higher attempt or to another node: nothing is written any more.
    Gone,
}

/// An action that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// `Start`.
    Start,
    /// `Collect`.
    Collect,
    /// `Report`.
    Report(Level),
    /// `CleanUp`.
    CleanUp,
    /// `Discard`.
    Discard,
}

/// What is known of the process of an attempt. Facts only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The supervisor was, or may have been, asked for it.
    pub requested: Option<Moment>,
    /// It could not be asked for; nothing ran.
    pub start_failed: Option<StartFailure>,
    /// The program ran.
    pub spawned: Option<Moment>,
    /// The spawn ended before the program ran.
    pub refused: Option<Refused>,
    /// The leader ended.
    pub exited: Option<Exit>,
    /// No process is left.
    pub emptied: Option<Moment>,
    /// All output is in its files.
    pub drained: bool,
    /// The hard timeout passed.
    pub deadline_reached: Option<Moment>,
    /// Nobody can say how it ended.
    pub lost: bool,
    /// When SIGTERM was sent for a cancel.
    pub term_at: Option<u64>,
    /// When the kill was asked for.
    pub kill_at: Option<u64>,
    /// When it is asked for again, since the request did not reach the supervisor. How long the kill may take counts
    /// from the first one all the same.
    pub kill_again_at: Option<u64>,
    /// We asked for the kill, for descendants of a leader that had ended.
    pub leftovers: bool,
    /// It was told to end only because the node's agent is to end.
    pub drained_away: bool,
    /// Bytes of output last seen, and when they last grew or began to be watched.
    pub output: Option<(u64, u64)>,
    /// When output is measured again.
    pub measure_at: u64,
}

impl Process {
    /// Whether processes of it may be there.
    pub fn alive(&self) -> bool {
        self.requested.is_some()
            && self.start_failed.is_none()
            && self.refused.is_none()
            && self.emptied.is_none()
            && !self.lost
    }

    /// Whether anything was ever recorded of it.
    pub fn begun(&self) -> bool {
        self.requested.is_some() || self.start_failed.is_some() || self.lost
    }
}

/// One attempt.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Where its object stands.
    pub presence: Presence,
    /// The object may have changed: it is read back before anything is started or written.
    pub unsure: bool,
    /// Its run; `None` for a leftover whose object is gone and whose record is torn.
    pub run: Option<RunKey>,
    /// Hard timeout, `CLOCK_BOOTTIME` milliseconds; 0 before the start.
    pub deadline_ms: u64,
    /// Supervisor epoch in which it was started.
    pub epoch: u32,
    /// It was started under an earlier supervisor, and nobody saw its group gone.
    pub unseen: bool,
    /// Its process.
    pub process: Process,
    /// What was read at its end.
    pub collected: Option<Box<Collected>>,
    /// Its group is gone.
    pub clean: bool,
    /// The end as it was written, kept while its clean-up is not confirmed.
    pub written: Option<Box<ToolExecutionStatus>>,
    /// What is under way.
    pub doing: Option<Doing>,
    /// A read-back is under way.
    pub reading: bool,
    /// When a read-back that failed is tried again.
    pub read_at: u64,
    /// `Running` was written, or refused for good: it is not written again.
    pub running_settled: bool,
    /// Status writes of the end that were refused for good, one after the other.
    pub refusals: u32,
    /// Status writes that failed for the moment, one after the other.
    pub failures: u32,
    /// When a write is tried again.
    pub report_at: u64,
    /// When clean-up is tried again.
    pub clean_at: u64,
}

impl Attempt {
    pub(super) fn new(presence: Presence, run: Option<RunKey>) -> Self {
        Self {
            presence,
            unsure: false,
            run,
            deadline_ms: 0,
            epoch: 0,
            unseen: false,
            process: Process::default(),
            collected: None,
            clean: false,
            written: None,
            doing: None,
            reading: false,
            read_at: 0,
            running_settled: false,
            refusals: 0,
            failures: 0,
            report_at: 0,
            clean_at: 0,
        }
    }

    /// Whether no group of it is left.
    pub fn is_clean(&self) -> bool {
        self.clean || !self.process.begun()
    }

    /// Whether nothing is left to do but to keep its bytes.
    pub fn closed(&self) -> bool {
        matches!(self.presence, Presence::Ended(_))
            && !self.process.alive()
            && self.is_clean()
            && self.written.is_none()
            && self.doing.is_none()
    }
}

impl World {
    /// A world in which nothing was observed yet.
    pub fn new(node: Node) -> Self {
        let last_user = node.last_user;
        Self {
            node,
            attempts: BTreeMap::new(),
            runs: BTreeMap::new(),
            users: BTreeMap::new(),
            high_water: BTreeMap::new(),
            tombstones: [BTreeSet::new(), BTreeSet::new()],
            last_user,
            draining: None,
            unreadable: BTreeSet::new(),
        }
    }

    /// The user number of a run: its own, else the next free one after the last given out.
    pub fn user_for(&self, run: &RunKey) -> Option<u32> {
        if let Some(run) = self.runs.get(run) {
            return Some(run.user);
        }
        let (first, last) = (self.node.first_user, self.node.last_user);
        (self.last_user.saturating_add(1)..=last)
            .chain(first..=self.last_user.min(last))
            .find(|user| *user >= first && !self.users.contains_key(user))
    }

    /// Keys of the attempts of one execution.
    pub(super) fn attempts_of(&self, uid: &str) -> Vec<AttemptKey> {
        let from = AttemptKey {
            uid: uid.to_owned(),
            attempt: 0,
        };
        let to = AttemptKey {
            uid: uid.to_owned(),
            attempt: u32::MAX,
        };
        self.attempts
            .range(from..=to)
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Whether anything is kept that a list of what exists could make superfluous.
    pub fn remembers(&self) -> bool {
        let tombstones = self.tombstones.iter().any(|set| !set.is_empty());
        !self.attempts.is_empty() || !self.high_water.is_empty() || tombstones
    }

    /// Whether nobody can say what is wanted of an attempt, since its object cannot be read and was not known before.
    pub(super) fn is_unreadable(&self, key: &AttemptKey, attempt: &Attempt) -> bool {
        !attempt.is_live() && self.unreadable.contains(&key.uid)
    }

    /// Number of attempts whose processes may be there, whose end is not stored yet, or with an action under way.
    pub fn unfinished(&self) -> usize {
        let open = |(key, attempt): &(&AttemptKey, &Attempt)| {
            let unsaid = attempt.is_live() && attempt.process.begun();
            let busy = attempt.process.alive() || unsaid || attempt.doing.is_some();
            busy && !self.is_unreadable(key, attempt)
        };
        self.attempts.iter().filter(open).count()
    }

    /// Number of attempts whose processes may be there.
    pub fn running(&self) -> usize {
        self.attempts
            .values()
            .filter(|attempt| attempt.process.alive())
            .count()
    }
}

/// The UID of an object; empty only for one that never was in an API server.
pub(super) fn uid_of(object: &ToolExecution) -> &str {
    object.metadata.uid.as_deref().unwrap_or_default()
}

/// The attempt its binding asks for, if it is bound to `node`.
pub(super) fn attempt_of(object: &ToolExecution, node: &str) -> Option<u32> {
    let binding = object
        .spec
        .binding
        .as_ref()
        .filter(|binding| binding.node_name == node)?;
    u32::try_from(binding.attempt).ok()
}

/// The run it belongs to, itself if none.
pub(super) fn run_of(object: &ToolExecution) -> RunKey {
    RunKey(
        object
            .spec
            .run_ref
            .as_ref()
            .map_or_else(|| uid_of(object).to_owned(), |run| run.uid.clone()),
    )
}

/// Where it is.
pub(super) fn ref_of(object: &ToolExecution) -> ObjectRef {
    ObjectRef {
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        name: object.metadata.name.clone().unwrap_or_default(),
    }
}

/// Its resource version, for telling older from newer; 0 where it is not a number.
pub(super) fn version_of(object: &ToolExecution) -> u64 {
    object
        .metadata
        .resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

/// Whether its end is stored.
pub(super) fn has_ended(object: &ToolExecution) -> bool {
    object
        .status
        .as_ref()
        .and_then(|status| status.phase)
        .is_some_and(|phase| phase.is_terminal())
}

//! Writes on their way, and when those that failed may be tried again.

use super::types::{Action, Because, Key, ObjectKey, WriteFailure, WriteFailureKind};
use super::world::key_of;
use crate::time::plus_millis;
use fairlead_crds::values::Time;
use std::collections::{BTreeMap, BTreeSet};

/// What is written about: at most one write per subject is on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The turns of a run, by the run's UID.
    Turn(String),
    /// A run's own status or its deletion.
    Run(String),
    /// An execution.
    Execution(ObjectKey),
    /// A tool.
    Tool(ObjectKey),
    /// A provider, or the look at it.
    Provider(ObjectKey),
}

impl Subject {
    /// What an action writes about; nothing for those that write nothing.
    pub fn of(action: &Action) -> Option<Self> {
        Some(match action {
            Action::CreateTurn { run, .. } => Self::Turn(run.metadata.uid.clone().unwrap_or_default()),
            Action::EndTurn { turn, .. } => Self::Turn(turn.spec.run_ref.uid.clone()),
            Action::WriteRun { run, .. } | Action::DeleteRun { run } => {
                Self::Run(run.metadata.uid.clone().unwrap_or_default())
            }
            Action::CreateExecution { run, name, .. } => Self::Execution(ObjectKey::new(
                run.metadata.namespace.clone().unwrap_or_default(),
                name.clone(),
            )),
            Action::Bind { execution, .. }
            | Action::Cancel { execution }
            | Action::WriteExecution { execution, .. }
            | Action::DeleteExecution { execution } => Self::Execution(key_of(&execution.metadata)),
            Action::WriteTool { tool, .. } => Self::Tool(key_of(&tool.metadata)),
            Action::WriteProvider { provider, .. } | Action::CheckProvider { provider } => {
                Self::Provider(key_of(&provider.metadata))
            }
            Action::Ask { .. } | Action::StopAsking { .. } | Action::Want { .. } => return None,
        })
    }

    /// The key that is decided again when a write about this subject ends.
    pub fn key(&self, action: &Action) -> Key {
        match self {
            Self::Turn(uid) | Self::Run(uid) => Key::Run(uid.clone()),
            Self::Tool(key) => Key::Tool(key.clone()),
            Self::Provider(key) => Key::Provider(key.clone()),
            Self::Execution(key) => match action {
                Action::CreateExecution { run, .. } => Key::Run(run.metadata.uid.clone().unwrap_or_default()),
                Action::Bind { execution, .. }
                | Action::Cancel { execution }
                | Action::WriteExecution { execution, .. } => execution
                    .spec
                    .run_ref
                    .as_ref()
                    .map_or_else(|| Key::Execution(key.clone()), |run| Key::Run(run.uid.clone())),
                _ => Key::Execution(key.clone()),
            },
        }
    }
}

#[derive(Clone, Debug)]
struct BackOff {
    since: Time,
    failures: u32,
    until: Time,
    message: String,
}

/// The book of writes.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    in_flight: BTreeSet<Subject>,
    failed: BTreeMap<Subject, BackOff>,
}

/// Longest pause between two tries of a write.
const LONGEST_PAUSE_MILLIS: i64 = 30_000;

impl Writes {
    /// A write is on its way.
    pub fn begin(&mut self, subject: Subject) {
        self.in_flight.insert(subject);
    }

    /// A write came to its end at `now`.
    pub fn end(&mut self, subject: &Subject, result: Result<(), WriteFailure>, now: Time) {
        self.in_flight.remove(subject);
        let Err(failure) = result else {
            self.failed.remove(subject);
            return;
        };
        let before = self.failed.get(subject);
        let failures = before.map_or(0, |b| b.failures) + 1;
        let since = before.map_or(now, |b| b.since);
        // A lost race is settled by the state that was read back with it; pause only if it goes on being lost.
        let pause = match failure.kind {
            WriteFailureKind::Conflict if failures == 1 => 0,
            _ => (100_i64 << failures.min(9)).min(LONGEST_PAUSE_MILLIS),
        };
        let until = plus_millis(now, pause);
        self.failed.insert(
            subject.clone(),
            BackOff {
                since,
                failures,
                until,
                message: failure.message,
            },
        );
    }

    /// Whether a write about `subject` is on its way.
    pub fn in_flight(&self, subject: &Subject) -> bool {
        self.in_flight.contains(subject)
    }

    /// Forgets what failed. What is on its way will still come to its end.
    pub fn forgive(&mut self) {
        self.failed.clear();
    }

    /// Forgets what failed about a subject that is gone.
    pub fn done(&mut self, subject: &Subject) {
        self.failed.remove(subject);
    }

    /// Why nothing may be written about `subject` at `now`, and when to look again, if that is so.
    pub fn blocked(&self, subject: &Subject, now: Time) -> Option<(Because, Option<Time>)> {
        if self.in_flight.contains(subject) {
            return Some((Because::WriteInFlight, None));
        }
        let back_off = self.failed.get(subject).filter(|b| b.until > now)?;
        Some((
            Because::BackingOff {
                message: back_off.message.clone(),
            },
            Some(back_off.until),
        ))
    }

    /// Since when writes about `subject` fail, and what the server said to the last one.
    pub fn last_failure(&self, subject: &Subject) -> Option<(Time, &str)> {
        self.failed.get(subject).map(|b| (b.since, b.message.as_str()))
    }
}

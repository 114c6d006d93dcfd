//! How an event corrects the world.

use super::types::*;
use super::world::*;
use fairlead_crds::{ErrorClass, ToolExecution, conditions::reason};
use std::collections::BTreeSet;
use std::sync::Arc;

/// First pause after a write that failed for the moment; it doubles up to [`BACKOFF_MAX_MS`].
const BACKOFF_MS: u64 = 500;
const BACKOFF_MAX_MS: u64 = 30_000;
/// Pause after every way to write the end was refused, before the round begins anew: rights may return.
const REFUSED_PAUSE_MS: u64 = 60_000;
/// Pause between two tries to clean up.
const CLEAN_PAUSE_MS: u64 = 15_000;
/// Pause between two tries to read an object back.
const READ_PAUSE_MS: u64 = 2_000;
/// Pause between two looks at the output of a leader's descendants.
const MEASURE_PAUSE_MS: u64 = 250;
/// Ways to write the end, each tried once a round: whole, without output, as a condition.
const WAYS_TO_WRITE: u32 = 3;

type Dirty = BTreeSet<Key>;

impl World {
    /// Corrects the world by one event, and names what must be decided because of it.
    pub fn absorb(&mut self, event: Event) -> Vec<Key> {
        let mut dirty = Dirty::new();
        match event {
            Event::Resynced(snapshot) => self.resync(*snapshot, &mut dirty),
            Event::Begun { action, at } => self.begun(&action, at, &mut dirty),
            Event::Seen(object) => self.seen(object, &mut dirty),
            Event::Listed(objects) => self.listed(objects, &mut dirty),
            Event::Left { uid } => {
                for key in self.attempts_of(&uid) {
                    self.with(key, &mut dirty, |attempt| attempt.unsure |= attempt.is_live());
                }
            }
            Event::Existing(uids) => {
                self.doubt(
                    |key, attempt| !attempt.is_gone() && !uids.contains(&key.uid),
                    &mut dirty,
                );
                self.forget_gone(&uids);
            }
            Event::ReadBack { uid, at, result } => self.read_back(&uid, at, result, &mut dirty),
            Event::Process { key, fact } => self.with(key, &mut dirty, |attempt| attempt.process.learn(fact)),
            Event::StartEnded { key, at, result } => {
                self.with(key, &mut dirty, |attempt| attempt.start_ended(at, result));
            }
            Event::Measured { key, at, bytes } => {
                self.with(key, &mut dirty, |attempt| attempt.process.measured(at, bytes));
            }
            Event::CollectEnded { key, at, collected } => self.with(key, &mut dirty, |attempt| {
                attempt.doing = None;
                attempt.clean = collected.clean_up.is_ok();
                if !attempt.clean {
                    attempt.clean_at = at.boot_ms + CLEAN_PAUSE_MS;
                }
                attempt.collected = Some(collected);
            }),
            Event::ReportEnded {
                key,
                at,
                level,
                result,
            } => {
                self.with(key, &mut dirty, |attempt| attempt.report_ended(at, level, result));
            }
            Event::CleanUpEnded { key, at, result } => {
                self.with(key, &mut dirty, |attempt| attempt.clean_up_ended(at, &result));
            }
            Event::DiscardEnded { key, at, result } => self.discard_ended(key, at, &result, &mut dirty),
            Event::RunRemoved { run, at, result } => self.run_removed(run, at, &result, &mut dirty),
        }
        self.release_own_runs(&mut dirty);
        dirty.into_iter().collect()
    }

    fn with(&mut self, key: AttemptKey, dirty: &mut Dirty, change: impl FnOnce(&mut Attempt)) {
        if let Some(attempt) = self.attempts.get_mut(&key) {
            change(attempt);
            dirty.insert(Key::Attempt(key));
        }
    }

    /// Attempts that `which` names are read back before anything is started or written for them.
    fn doubt(&mut self, which: impl Fn(&AttemptKey, &Attempt) -> bool, dirty: &mut Dirty) {
        for (key, attempt) in &mut self.attempts {
            if which(key, attempt) {
                attempt.unsure = true;
                dirty.insert(Key::Attempt(key.clone()));
            }
        }
    }

    /// Drops what was kept of executions that are gone for at least one period.
    fn forget_gone(&mut self, existing: &BTreeSet<String>) {
        let [older, newer] = &mut self.tombstones;
        *older = std::mem::take(newer);
        let attempts: BTreeSet<&String> = self.attempts.keys().map(|key| &key.uid).collect();
        self.high_water
            .retain(|uid, _| existing.contains(uid) || attempts.contains(uid));
    }

    fn begun(&mut self, action: &Action, at: Moment, dirty: &mut Dirty) {
        match action {
            Action::Start(start) => self.start_begun(start, dirty),
            Action::Signal { key, .. } => {
                self.with(key.clone(), dirty, |attempt| {
                    attempt.process.term_at = Some(at.boot_ms)
                });
            }
            Action::Kill { key } => self.with(key.clone(), dirty, |attempt| attempt.process.kill_begun(at)),
            Action::Measure { key } => self.with(key.clone(), dirty, |attempt| {
                attempt.process.measure_at = at.boot_ms + MEASURE_PAUSE_MS;
            }),
            Action::Collect { key, .. } => {
                self.with(key.clone(), dirty, |attempt| attempt.doing = Some(Doing::Collect));
            }
            Action::Report(report) => self.with(report.key.clone(), dirty, |attempt| {
                attempt.doing = Some(Doing::Report(report.level));
                let ends = matches!(report.level, Level::Final | Level::Minimal);
                if ends && !attempt.is_clean() {
                    attempt.written = Some(Box::new(report.status.clone()));
                }
            }),
            Action::CleanUp { key } => {
                self.with(key.clone(), dirty, |attempt| attempt.doing = Some(Doing::CleanUp));
            }
            Action::Discard { key } => {
                self.with(key.clone(), dirty, |attempt| attempt.doing = Some(Doing::Discard));
            }
            Action::Read { uid, .. } => {
                for key in self.attempts_of(uid) {
                    self.with(key, dirty, |attempt| attempt.reading = true);
                }
            }
            Action::RemoveRun { run } => {
                if let Some(run) = self.runs.get_mut(run) {
                    run.removing = true;
                }
                dirty.insert(Key::Run(run.clone()));
            }
        }
    }

    fn start_begun(&mut self, start: &Start, dirty: &mut Dirty) {
        let epoch = self.node.epoch;
        self.join_run(&start.run, start.user, &start.key);
        self.last_user = start.user;
        self.with(start.key.clone(), dirty, |attempt| {
            attempt.doing = Some(Doing::Start);
            attempt.deadline_ms = start.deadline_ms;
            attempt.epoch = epoch;
        });
    }

    pub(super) fn join_run(&mut self, run: &RunKey, user: u32, key: &AttemptKey) {
        self.users.entry(user).or_insert_with(|| run.clone());
        let entry = self.runs.entry(run.clone());
        let entry = entry.or_insert_with(|| Run {
            user,
            attempts: BTreeSet::new(),
            removing: false,
            retry_at: 0,
        });
        entry.attempts.insert(key.clone());
    }

    pub(super) fn seen(&mut self, object: Arc<ToolExecution>, dirty: &mut Dirty) {
        let uid = uid_of(&object).to_owned();
        if uid.is_empty() || self.tombstones.iter().any(|set| set.contains(&uid)) {
            return;
        }
        let bound = attempt_of(&object, &self.node.name);
        for key in self.attempts_of(&uid) {
            if bound.is_none_or(|attempt| key.attempt < attempt) {
                self.with(key, dirty, |attempt| attempt.presence = Presence::Gone);
            }
        }
        let Some(attempt) = bound else { return };
        let key = AttemptKey {
            uid: uid.clone(),
            attempt,
        };
        if self.attempts.contains_key(&key) {
            return self.with(key, dirty, |attempt| attempt.update(object));
        }
        let known = self
            .high_water
            .get(&uid)
            .is_some_and(|highest| *highest >= attempt);
        if known || has_ended(&object) {
            return;
        }
        self.high_water.insert(uid, attempt);
        let run = Some(run_of(&object));
        self.attempts
            .insert(key.clone(), Attempt::new(Presence::Live(object), run));
        dirty.insert(Key::Attempt(key));
    }

    fn listed(&mut self, objects: Vec<Arc<ToolExecution>>, dirty: &mut Dirty) {
        let uids: BTreeSet<String> = objects.iter().map(|object| uid_of(object).to_owned()).collect();
        for object in objects {
            self.seen(object, dirty);
        }
        self.doubt(
            |key, attempt| attempt.is_live() && !uids.contains(&key.uid),
            dirty,
        );
    }

    fn read_back(
        &mut self,
        uid: &str,
        at: Moment,
        result: Result<Option<Arc<ToolExecution>>, ()>,
        dirty: &mut Dirty,
    ) {
        for key in self.attempts_of(uid) {
            self.with(key, dirty, |attempt| {
                attempt.reading = false;
                match &result {
                    Err(()) => attempt.read_at = at.boot_ms + READ_PAUSE_MS,
                    Ok(Some(_)) => attempt.unsure = false,
                    Ok(None) => {
                        attempt.unsure = false;
                        attempt.presence = Presence::Gone;
                    }
                }
            });
        }
        match result {
            Ok(Some(object)) => self.seen(object, dirty),
            Ok(None) => {
                if let Some(newest) = self.tombstones.last_mut() {
                    newest.insert(uid.to_owned());
                }
            }
            Err(()) => {}
        }
    }

    fn discard_ended(&mut self, key: AttemptKey, at: Moment, result: &Result<(), String>, dirty: &mut Dirty) {
        if result.is_err() {
            return self.with(key, dirty, |attempt| {
                attempt.doing = None;
                attempt.clean_at = at.boot_ms + CLEAN_PAUSE_MS;
            });
        }
        let run = self.attempts.remove(&key).and_then(|attempt| attempt.run);
        if let Some(run) = run {
            self.leave_run(&run, &key, dirty);
        }
        if self.attempts_of(&key.uid).is_empty() && self.tombstones.iter().any(|set| set.contains(&key.uid)) {
            self.high_water.remove(&key.uid);
        }
    }

    fn leave_run(&mut self, run: &RunKey, key: &AttemptKey, dirty: &mut Dirty) {
        if let Some(entry) = self.runs.get_mut(run)
            && entry.attempts.remove(key)
        {
            dirty.insert(Key::Run(run.clone()));
        }
    }

    fn run_removed(&mut self, run: RunKey, at: Moment, result: &Result<(), String>, dirty: &mut Dirty) {
        match result {
            Ok(()) => {
                // An attempt that waits for this looks again by itself.
                if let Some(gone) = self.runs.remove(&run) {
                    self.users.remove(&gone.user);
                }
            }
            Err(_) => {
                if let Some(entry) = self.runs.get_mut(&run) {
                    entry.removing = false;
                    entry.retry_at = at.boot_ms + CLEAN_PAUSE_MS;
                }
                dirty.insert(Key::Run(run));
            }
        }
    }

    /// An execution without a run gives its directory and user number back as soon as it is closed.
    fn release_own_runs(&mut self, dirty: &mut Dirty) {
        let closed: Vec<(RunKey, AttemptKey)> = dirty
            .iter()
            .filter_map(|key| match key {
                Key::Attempt(key) => Some(key),
                Key::Run(_) => None,
            })
            .filter_map(|key| {
                let attempt = self.attempts.get(key).filter(|attempt| attempt.closed())?;
                let run = attempt.run.clone().filter(|run| run.0 == key.uid)?;
                Some((run, key.clone()))
            })
            .collect();
        for (run, key) in closed {
            self.leave_run(&run, &key, dirty);
        }
    }
}

impl Attempt {
    pub(super) fn is_live(&self) -> bool {
        matches!(self.presence, Presence::Live(_))
    }

    fn is_gone(&self) -> bool {
        matches!(self.presence, Presence::Gone)
    }

    fn update(&mut self, object: Arc<ToolExecution>) {
        match &self.presence {
            Presence::Gone => {}
            Presence::Ended(_) => {
                let failed = super::status::with_failed_clean_up(&object);
                if self.is_clean() && self.written.is_none() && failed.is_some() {
                    self.written = failed.map(Box::new);
                }
            }
            Presence::Live(known) if version_of(&object) < version_of(known) => {}
            Presence::Live(_) => {
                self.presence = if has_ended(&object) {
                    Presence::Ended(ref_of(&object))
                } else {
                    Presence::Live(object)
                };
            }
        }
    }

    fn start_ended(&mut self, at: Moment, result: Result<(), StartFailure>) {
        self.doing = None;
        match result {
            Ok(()) => {
                self.process.requested.get_or_insert(at);
            }
            Err(failure) => {
                self.process.start_failed = Some(failure);
                self.clean = true;
            }
        }
    }

    fn report_ended(&mut self, at: Moment, level: Level, result: Result<(), ReportFailure>) {
        self.doing = None;
        match result {
            Ok(()) => self.reported(at, level),
            Err(failure) => {
                let ends = matches!(level, Level::Final | Level::Minimal);
                if ends {
                    self.written = None;
                }
                self.report_failed(at, level, &failure);
            }
        }
    }

    fn reported(&mut self, at: Moment, level: Level) {
        self.failures = 0;
        match level {
            Level::Running => self.running_settled = true,
            Level::Condition => {
                self.refusals = 0;
                self.report_at = at.boot_ms + REFUSED_PAUSE_MS;
            }
            Level::CleanedUp => self.written = None,
            Level::Final | Level::Minimal => {
                if let Presence::Live(object) = &self.presence {
                    self.presence = Presence::Ended(ref_of(object));
                }
                self.unsure = false;
                self.collected = None;
            }
        }
    }

    fn report_failed(&mut self, at: Moment, level: Level, failure: &ReportFailure) {
        match failure {
            ReportFailure::Transient => {
                let pause = BACKOFF_MS << self.failures.min(6);
                self.report_at = at.boot_ms + pause.min(BACKOFF_MAX_MS);
                self.failures = self.failures.saturating_add(1);
            }
            ReportFailure::NotFound => {
                self.unsure = true;
                self.report_at = at.boot_ms + BACKOFF_MS;
            }
            ReportFailure::Refused => {
                self.unsure = true;
                match level {
                    Level::Running => self.running_settled = true,
                    Level::CleanedUp => self.written = None,
                    Level::Final | Level::Minimal | Level::Condition => {
                        self.refusals += 1;
                        if self.refusals >= WAYS_TO_WRITE {
                            self.refusals = 0;
                            self.report_at = at.boot_ms + REFUSED_PAUSE_MS;
                        }
                    }
                }
            }
        }
    }

    fn clean_up_ended(&mut self, at: Moment, result: &Result<(), String>) {
        self.doing = None;
        match result {
            Ok(()) => {
                self.clean = true;
                self.process.emptied.get_or_insert(at);
                // Without the status that said otherwise, as after a restart, it is read back to be corrected.
                self.unsure |= self.written.is_none();
            }
            Err(_) => self.clean_at = at.boot_ms + CLEAN_PAUSE_MS,
        }
    }
}

impl Process {
    /// Adds one fact. What is known already stays.
    pub(super) fn learn(&mut self, fact: ProcessFact) {
        match fact {
            ProcessFact::Spawned(at) => {
                self.requested.get_or_insert(at);
                self.spawned.get_or_insert(at);
            }
            ProcessFact::Refused(refused) => {
                self.requested.get_or_insert(Moment::default());
                self.refused.get_or_insert(refused);
            }
            ProcessFact::Exited(exit) => {
                self.requested.get_or_insert(exit.at);
                self.exited.get_or_insert(exit);
            }
            ProcessFact::Emptied(at) => {
                self.emptied.get_or_insert(at);
            }
            ProcessFact::Drained => self.drained = true,
            ProcessFact::DeadlineReached(at) => {
                self.deadline_reached.get_or_insert(at);
            }
            ProcessFact::NoEntry(at) => {
                if self.exited.is_none() && self.refused.is_none() && self.start_failed.is_none() {
                    self.lost = true;
                }
                self.drained = true;
                self.emptied.get_or_insert(at);
            }
        }
    }

    fn kill_begun(&mut self, at: Moment) {
        self.kill_at.get_or_insert(at.boot_ms);
        let by_itself = self.exited.is_some_and(|exit| exit.cause == Cause::None);
        self.leftovers = by_itself && self.term_at.is_none() && self.deadline_reached.is_none();
    }

    fn measured(&mut self, at: Moment, bytes: u64) {
        let since = match self.output {
            Some((known, since)) if known >= bytes => since,
            Some(_) => at.boot_ms,
            None => self.exited.map_or(at.boot_ms, |exit| exit.at.boot_ms),
        };
        self.output = Some((bytes, since));
    }
}

/// The world after a restart.
impl World {
    fn resync(&mut self, snapshot: Snapshot, dirty: &mut Dirty) {
        *self = Self::new(self.node.clone());
        for (run, user) in &snapshot.runs {
            self.users.insert(*user, run.clone());
            let run_state = Run {
                user: *user,
                attempts: BTreeSet::new(),
                removing: false,
                retry_at: 0,
            };
            self.runs.insert(run.clone(), run_state);
        }
        for object in &snapshot.live {
            self.seen(Arc::clone(object), dirty);
        }
        for held in &snapshot.held {
            self.hold(held, &snapshot);
        }
        for entry in &snapshot.entries {
            self.adopt_entry(entry, &snapshot);
        }
        for held in &snapshot.held {
            self.judge_held(held, snapshot.at, &snapshot);
        }
        dirty.extend(self.attempts.keys().cloned().map(Key::Attempt));
        dirty.extend(self.runs.keys().cloned().map(Key::Run));
    }

    fn presence_of(&self, key: &AttemptKey, snapshot: &Snapshot) -> (Presence, Option<RunKey>) {
        match snapshot.kept.get(&key.uid) {
            // A live object that was bound anew is in the list with its higher attempt.
            Some((_, run)) if self.is_live(&key.uid) => (Presence::Gone, Some(run.clone())),
            Some((object, run)) => (Presence::Ended(object.clone()), Some(run.clone())),
            None => (Presence::Gone, None),
        }
    }

    fn is_live(&self, uid: &str) -> bool {
        self.attempts_of(uid)
            .iter()
            .any(|key| self.attempts.get(key).is_some_and(Attempt::is_live))
    }

    fn hold(&mut self, held: &Held, snapshot: &Snapshot) {
        let known = self
            .attempts
            .get(&held.key)
            .and_then(|attempt| attempt.run.clone());
        if !self.attempts.contains_key(&held.key) {
            let (presence, run) = self.presence_of(&held.key, snapshot);
            self.attempts
                .insert(held.key.clone(), Attempt::new(presence, run));
        }
        if !snapshot.kept.contains_key(&held.key.uid)
            && let Some(newest) = self.tombstones.last_mut()
        {
            newest.insert(held.key.uid.clone());
        }
        let highest = self.high_water.entry(held.key.uid.clone()).or_default();
        *highest = (*highest).max(held.key.attempt);
        let by_user = held.user.and_then(|user| self.users.get(&user).cloned());
        let run = known
            .or_else(|| self.attempts.get(&held.key)?.run.clone())
            .or(by_user);
        let run = run.unwrap_or_else(|| RunKey(held.key.uid.clone()));
        if let Some(user) = held.user {
            let closed = held.reported && !held.group && run.0 == held.key.uid;
            if !closed {
                let user = self.runs.get(&run).map_or(user, |run| run.user);
                self.join_run(&run, user, &held.key);
            }
        }
        if let Some(attempt) = self.attempts.get_mut(&held.key) {
            attempt.run = Some(run);
            attempt.deadline_ms = held.deadline_ms;
            attempt.epoch = held.epoch;
            attempt.clean = !held.group;
            if let (true, Presence::Live(object)) = (held.reported, &attempt.presence) {
                attempt.presence = Presence::Ended(ref_of(object));
            }
            let process = &mut attempt.process;
            if held.user.is_some() {
                process.requested = Some(held.accepted);
            }
            process.spawned = held.spawned;
            process.refused = held.refused.clone();
            process.exited = held.exited;
        }
    }

    fn adopt_entry(&mut self, entry: &Entry, snapshot: &Snapshot) {
        if !self.attempts.contains_key(&entry.key) {
            let (presence, run) = self.presence_of(&entry.key, snapshot);
            self.attempts
                .insert(entry.key.clone(), Attempt::new(presence, run));
        }
        let node_epoch = self.node.epoch;
        if let Some(attempt) = self.attempts.get_mut(&entry.key) {
            attempt.epoch = node_epoch;
            attempt.clean = false;
            attempt.process.requested.get_or_insert(snapshot.at);
            for fact in &entry.facts {
                attempt.process.learn(fact.clone());
            }
        }
    }

    /// What the journal alone says of an attempt that the supervisor does not know.
    fn judge_held(&mut self, held: &Held, at: Moment, snapshot: &Snapshot) {
        if snapshot.entries.iter().any(|entry| entry.key == held.key) {
            return;
        }
        let same_life = held.epoch == self.node.epoch && held.incarnation == self.node.incarnation;
        let Some(attempt) = self.attempts.get_mut(&held.key) else {
            return;
        };
        let process = &mut attempt.process;
        if process.refused.is_some() || held.user.is_none() {
            return;
        }
        process.drained = true;
        if process.exited.is_some() {
            process.emptied = Some(at);
        } else if process.spawned.is_none() && (!held.group || held.group_unused) && same_life {
            // This supervisor never got the request, and takes none from an agent that is dead.
            *process = Process::default();
        } else if process.spawned.is_none() && held.group_unused {
            process.start_failed = Some(StartFailure {
                reason: reason::SUPERVISION_LOST,
                message: "the node's supervisor ended before it started the command".to_owned(),
                class: ErrorClass::Local,
            });
        } else {
            process.lost = true;
            process.emptied = Some(at);
        }
    }
}

//! How an event corrects the world.

use super::facts::{CLEAN_PAUSE_MS, MEASURE_PAUSE_MS, READ_PAUSE_MS, UNSENT_PAUSE_MS};
use super::types::*;
use super::world::*;
use fairlead_crds::ToolExecution;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) type Dirty = BTreeSet<Key>;

impl World {
    /// Corrects the world by one event, and names what must be decided because of it.
    pub fn absorb(&mut self, event: Event) -> Vec<Key> {
        let mut dirty = Dirty::new();
        match event {
            Event::Resynced(snapshot) => self.resync(*snapshot, &mut dirty),
            Event::Unreadable(uids) => self.cannot_read(uids, &mut dirty),
            Event::TooNew(object) => self.too_new(object, &mut dirty),
            Event::Draining { kill_at } => {
                self.draining = Some(kill_at);
                dirty.extend(self.attempts.keys().cloned().map(Key::Attempt));
            }
            Event::Begun { action, at } => self.begun(&action, at, &mut dirty),
            Event::Seen(object) => self.seen(object, &mut dirty),
            Event::Listed(objects) => self.listed(objects, &mut dirty),
            Event::Left { uid } => {
                self.unreadable.remove(&uid);
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
            Event::KillUnsent { key, at } => self.with(key, &mut dirty, |attempt| {
                attempt.process.kill_again_at = Some(at.boot_ms + UNSENT_PAUSE_MS);
            }),
            Event::StartEnded { key, at, result } => {
                self.with(key, &mut dirty, |attempt| attempt.start_ended(at, result));
            }
            Event::Measured { key, at, bytes } => {
                self.with(key, &mut dirty, |attempt| attempt.process.measured(at, bytes));
            }
            Event::CollectEnded { key, at, collected } => {
                self.with(key, &mut dirty, |attempt| attempt.collect_ended(at, collected));
            }
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

    fn cannot_read(&mut self, uids: BTreeSet<String>, dirty: &mut Dirty) {
        let before = std::mem::replace(&mut self.unreadable, uids);
        let keys = before.iter().flat_map(|uid| self.attempts_of(uid));
        dirty.extend(keys.map(Key::Attempt));
    }

    /// Nothing of a new one ran, since its start is refused by its version. What another version of the agent began, or
    /// what was refused already, is not touched.
    fn too_new(&mut self, object: Arc<ToolExecution>, dirty: &mut Dirty) {
        let Some(attempt) = attempt_of(&object, &self.node.name) else {
            return;
        };
        let uid = uid_of(&object).to_owned();
        if !self.attempts.contains_key(&AttemptKey { uid, attempt }) {
            self.seen(object, dirty);
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
                let draining = self.draining.is_some();
                self.with(key.clone(), dirty, |attempt| {
                    attempt.told_to_end(draining);
                    attempt.process.term_at = Some(at.boot_ms);
                });
            }
            Action::Kill { key } => {
                let draining = self.draining.is_some();
                self.with(key.clone(), dirty, |attempt| {
                    attempt.told_to_end(draining);
                    attempt.process.kill_begun(at);
                });
            }
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
            Action::CleanUp { key, .. } => {
                self.with(key.clone(), dirty, |attempt| attempt.doing = Some(Doing::CleanUp));
            }
            Action::Discard { key, .. } => {
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
        // Two runs never share a number: one that comes too late gets another when it starts something again.
        if self.users.entry(user).or_insert_with(|| run.clone()) != run {
            return;
        }
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
        let readable_again = self.unreadable.remove(&uid);
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
            if readable_again && !has_ended(&object) {
                let again = Presence::Live(Arc::clone(&object));
                return self.with(key, dirty, |attempt| attempt.presence = again);
            }
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
                if let Some(gone) = self.runs.remove(&run)
                    && self.users.get(&gone.user) == Some(&run)
                {
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

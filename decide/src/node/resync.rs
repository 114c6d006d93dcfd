//! The world after a restart: from the API's list, the journal and the supervisor's entries.

use super::absorb::Dirty;
use super::types::*;
use super::world::*;
use fairlead_crds::{ErrorClass, IsolationBackend, conditions::reason};
use std::collections::BTreeSet;
use std::sync::Arc;

impl World {
    pub(super) fn resync(&mut self, snapshot: Snapshot, dirty: &mut Dirty) {
        let (draining, unreadable) = (self.draining, std::mem::take(&mut self.unreadable));
        *self = Self {
            draining,
            unreadable,
            ..Self::new(self.node.clone())
        };
        for (run, user) in &snapshot.runs {
            self.users.entry(*user).or_insert_with(|| run.clone());
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
            let closed = run.0 == held.key.uid && self.is_over(held, snapshot);
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
            if held.user.is_some() || held.spawned.is_some() || held.exited.is_some() {
                process.requested = Some(held.accepted);
            }
            process.spawned = held.spawned;
            process.refused = held.refused.clone();
            process.exited = held.exited;
        }
    }

    /// Whether nothing more will run or be reported of it, so that its own run may be gone and its user number be with
    /// another run.
    fn is_over(&self, held: &Held, snapshot: &Snapshot) -> bool {
        let ended = held.reported
            || self
                .attempts
                .get(&held.key)
                .is_some_and(|attempt| !attempt.is_live());
        let ends = |fact: &ProcessFact| matches!(fact, ProcessFact::Emptied(_) | ProcessFact::Refused(_));
        let alive = |entry: &Entry| entry.key == held.key && !entry.facts.iter().any(ends);
        ended && !held.group && !snapshot.entries.iter().any(alive)
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
        let grouped = self.node.backend == IsolationBackend::CgroupV2;
        let Some(attempt) = self.attempts.get_mut(&held.key) else {
            return;
        };
        // An earlier supervisor's group can only be looked at; without groups there is nothing to look at.
        attempt.unseen = held.epoch != self.node.epoch && (held.group || !grouped);
        let process = &mut attempt.process;
        if process.refused.is_some() || process.requested.is_none() {
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
                leaves: false,
            });
        } else {
            process.lost = true;
            process.emptied = Some(at);
        }
    }
}

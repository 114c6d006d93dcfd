//! The calls that wait for a slot, in the orders in which they are asked for, so that no event needs a walk over all.

use super::types::ObjectKey;
use super::world::Waiter;
use fairlead_crds::ToolExecution;
use fairlead_crds::conditions::reason;
use fairlead_crds::values::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Calls among which a namespace is shared fairly.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// Those of a run, by its UID.
    Run(String),
    /// A user's own execution, which stands alone, by its name.
    Own(String),
}

/// What a call's object says of its waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    /// Nothing that the queue said, or there is no object.
    Nothing,
    /// That no node is ready.
    NoReadyNode,
    /// That every node is full.
    ConcurrencyLimit,
}

impl Told {
    /// What `reason` says.
    pub(super) fn by(why: &str) -> Self {
        match why {
            reason::NO_READY_NODE => Self::NoReadyNode,
            reason::CONCURRENCY_LIMIT => Self::ConcurrencyLimit,
            _ => Self::Nothing,
        }
    }

    /// What an execution says, if there is one.
    pub(super) fn of(execution: Option<&ToolExecution>) -> Self {
        let status = execution.and_then(|x| x.status.as_ref());
        status
            .and_then(|s| s.reason.as_deref())
            .map_or(Self::Nothing, Self::by)
    }
}

/// The calls of a group, oldest first, by since when they wait and name.
pub(super) type Calls = BTreeSet<(Time, String)>;

#[derive(Clone, Debug)]
struct Entry {
    waiter: Waiter,
    /// Nothing while a write about it is on its way: what it will say is not known.
    told: Option<Told>,
}

/// The calls that wait for a slot, by the name their execution has or will have.
#[derive(Clone, Debug, Default)]
pub struct Waiting {
    calls: BTreeMap<ObjectKey, Entry>,
    by_namespace: BTreeMap<String, BTreeMap<Group, Calls>>,
    by_told: BTreeMap<Told, BTreeSet<(Time, ObjectKey)>>,
}

impl Waiting {
    /// How many.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Whether the call of that name waits.
    pub fn contains_key(&self, key: &ObjectKey) -> bool {
        self.calls.contains_key(key)
    }

    /// The call of that name, if it waits.
    pub fn get(&self, key: &ObjectKey) -> Option<&Waiter> {
        self.calls.get(key).map(|entry| &entry.waiter)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Waiter)> {
        self.calls.iter().map(|(key, entry)| (key, &entry.waiter))
    }

    /// Takes a call in. One that waits already keeps the earlier time of the two, and what it was told.
    pub fn insert(&mut self, key: ObjectKey, waiter: Waiter) {
        let told = self
            .calls
            .get(&key)
            .map_or(Some(Told::Nothing), |entry| entry.told);
        let known = self.remove(&key);
        let since = known.map_or(waiter.since, |w| w.since.min(waiter.since));
        let groups = self.by_namespace.entry(key.namespace.clone()).or_default();
        let calls = groups.entry(group_of(&key, &waiter)).or_default();
        calls.insert((since, key.name.clone()));
        let waiter = Waiter { since, ..waiter };
        self.calls.insert(key.clone(), Entry { waiter, told: None });
        self.tell(&key, told);
    }

    /// Takes a call out.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<Waiter> {
        self.tell(key, None);
        let Entry { waiter, .. } = self.calls.remove(key)?;
        let group = group_of(key, &waiter);
        if let Some(groups) = self.by_namespace.get_mut(&key.namespace) {
            if let Some(calls) = groups.get_mut(&group) {
                calls.remove(&(waiter.since, key.name.clone()));
                if calls.is_empty() {
                    groups.remove(&group);
                }
            }
            if groups.is_empty() {
                self.by_namespace.remove(&key.namespace);
            }
        }
        Some(waiter)
    }

    /// Takes all calls of a run out.
    pub fn remove_run(&mut self, uid: &str) {
        let group = Group::Run(uid.to_owned());
        let of_run = self.by_namespace.iter().flat_map(|(namespace, groups)| {
            let calls = groups.get(&group).into_iter().flatten();
            calls.map(|(_, name)| ObjectKey::new(namespace.clone(), name.clone()))
        });
        for key in of_run.collect::<Vec<_>>() {
            self.remove(&key);
        }
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// What the object of a call says now, as far as that is known.
    pub(super) fn tell(&mut self, key: &ObjectKey, told: Option<Told>) {
        let Some(entry) = self.calls.get_mut(key).filter(|entry| entry.told != told) else {
            return;
        };
        let at = (entry.waiter.since, key.clone());
        if let Some(calls) = entry.told.and_then(|old| self.by_told.get_mut(&old)) {
            calls.remove(&at);
        }
        entry.told = told;
        if let Some(told) = told {
            self.by_told.entry(told).or_default().insert(at);
        }
    }

    /// The groups of each namespace.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = (&str, &BTreeMap<Group, Calls>)> {
        self.by_namespace
            .iter()
            .map(|(name, groups)| (name.as_str(), groups))
    }

    /// The calls whose objects say something else than `told`, each list oldest first.
    pub(super) fn told_otherwise(&self, told: Told) -> impl Iterator<Item = &BTreeSet<(Time, ObjectKey)>> {
        self.by_told
            .iter()
            .filter(move |(said, _)| **said != told)
            .map(|(_, calls)| calls)
    }
}

fn group_of(key: &ObjectKey, waiter: &Waiter) -> Group {
    let own = || Group::Own(key.name.clone());
    waiter.run.clone().map_or_else(own, Group::Run)
}

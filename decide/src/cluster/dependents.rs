//! Who names a tool or a provider, so that a change of it is looked at by those at once and by nobody else.

use super::types::{Key, ObjectKey};
use super::world::{RequestState, World};
use fairlead_crds::AgentRun;
use std::collections::{BTreeMap, BTreeSet};

/// An object that others name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Named {
    /// A tool.
    Tool(ObjectKey),
    /// A provider.
    Provider(ObjectKey),
}

/// Runs that have not ended, and users' own executions that have no node yet, by what they name.
#[derive(Clone, Debug, Default)]
pub(super) struct Dependents {
    by_named: BTreeMap<Named, BTreeSet<Key>>,
    named_by: BTreeMap<Key, BTreeSet<Named>>,
}

impl Dependents {
    /// `key` names exactly those.
    pub(super) fn set(&mut self, key: Key, names: BTreeSet<Named>) {
        self.remove(&key);
        if names.is_empty() {
            return;
        }
        for named in &names {
            let keys = self.by_named.entry(named.clone()).or_default();
            keys.insert(key.clone());
        }
        self.named_by.insert(key, names);
    }

    /// `key` names nothing any more.
    pub(super) fn remove(&mut self, key: &Key) {
        for named in self.named_by.remove(key).into_iter().flatten() {
            if let Some(keys) = self.by_named.get_mut(&named) {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_named.remove(&named);
                }
            }
        }
    }

    fn of(&self, named: &Named) -> impl Iterator<Item = &Key> {
        self.by_named.get(named).into_iter().flatten()
    }
}

/// What a run names.
pub(super) fn names_of(run: &AgentRun) -> BTreeSet<Named> {
    let key =
        |name: &String| ObjectKey::new(run.metadata.namespace.clone().unwrap_or_default(), name.clone());
    let tools = run.spec.tools.iter().filter_map(|t| t.tool_ref.as_ref());
    tools
        .map(|tool| Named::Tool(key(&tool.name)))
        .chain([Named::Provider(key(&run.spec.model.provider_ref.name))])
        .collect()
}

impl World {
    /// What is known of an object changed: whoever names it and may wait for it is looked at.
    pub(super) fn wake_dependents(&self, named: &Named, dirty: &mut BTreeSet<Key>) {
        let asks = |uid: &String| {
            let request = self.runs.get(uid).and_then(|s| s.request.as_ref());
            request.is_some_and(|r| matches!(r.state, RequestState::Sent))
        };
        let waits = |key: &&Key| !matches!(key, Key::Run(uid) if asks(uid));
        dirty.extend(self.dependents.of(named).filter(waits).cloned());
        if matches!(named, Named::Tool(_)) && !self.waiting.is_empty() {
            dirty.insert(Key::Queue);
        }
    }
}

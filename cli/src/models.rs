//! Which model a run asks. A run may leave that to its provider; then only its turns say which it was.

use crate::connect::Target;
use fairlead_crds::reading::Readable;
use fairlead_crds::{AgentRun, AgentTurn};
use futures::StreamExt;
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use std::collections::BTreeMap;

/// Turns asked for at the same time.
const AT_ONCE: usize = 16;

/// The models of turns that were read, by namespace and name of the turn; none where the turn cannot be read.
#[derive(Debug, Default)]
pub struct Models {
    of_turns: BTreeMap<(String, String), Option<String>>,
}

impl Models {
    /// The model that a run names, else that of its latest turn, if it is known.
    pub fn of(&self, run: &AgentRun) -> Option<String> {
        let turn = || self.of_turns.get(&latest_turn(run)?).cloned().flatten();
        run.spec.model.name.clone().or_else(turn)
    }

    /// Reads the latest turn of each run that names no model. A turn says that once and for all, so each is read once.
    pub async fn learn(&mut self, target: &Target, runs: &[DynamicObject]) {
        let parsed = runs
            .iter()
            .filter_map(|run| run.clone().try_parse::<AgentRun>().ok());
        let unknown: Vec<(String, String)> = parsed
            .filter(|run| run.spec.model.name.is_none())
            .filter_map(|run| latest_turn(&run))
            .filter(|turn| !self.of_turns.contains_key(turn))
            .collect();
        let read = futures::stream::iter(unknown).map(async |(namespace, name)| {
            let turns: Api<Readable<AgentTurn>> = Api::namespaced(target.client.clone(), &namespace);
            let turn = turns
                .get_opt(&name)
                .await
                .ok()
                .flatten()
                .and_then(|turn| turn.0.ok());
            ((namespace, name), turn.map(|turn| turn.spec.model))
        });
        let read: Vec<_> = read.buffer_unordered(AT_ONCE).collect().await;
        self.of_turns.extend(read);
    }

    /// One turn and its model.
    #[cfg(test)]
    pub fn with(namespace: &str, turn: &str, model: &str) -> Self {
        let turn = (namespace.to_owned(), turn.to_owned());
        Self {
            of_turns: BTreeMap::from([(turn, Some(model.to_owned()))]),
        }
    }
}

fn latest_turn(run: &AgentRun) -> Option<(String, String)> {
    let turn = run.status.as_ref()?.current_turn.clone()?;
    Some((run.namespace().unwrap_or_default(), turn))
}

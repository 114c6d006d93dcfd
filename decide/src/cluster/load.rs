//! What is in flight: per node, per namespace, per run.

use super::types::ObjectKey;
use std::collections::BTreeMap;

/// Bindings that were seen or sent and have not ended.
#[derive(Clone, Debug, Default)]
pub struct Load {
    placed: BTreeMap<ObjectKey, (String, Option<String>)>,
    nodes: BTreeMap<String, usize>,
    namespaces: BTreeMap<String, usize>,
    runs: BTreeMap<String, usize>,
}

impl Load {
    /// Counts an execution on a node; it moves if it stood elsewhere.
    pub fn put(&mut self, key: &ObjectKey, node: &str, run: Option<&str>) {
        if self
            .placed
            .get(key)
            .is_some_and(|(at, of)| at == node && of.as_deref() == run)
        {
            return;
        }
        self.take(key);
        self.placed
            .insert(key.clone(), (node.to_owned(), run.map(str::to_owned)));
        *self.nodes.entry(node.to_owned()).or_default() += 1;
        *self.namespaces.entry(key.namespace.clone()).or_default() += 1;
        if let Some(run) = run {
            *self.runs.entry(run.to_owned()).or_default() += 1;
        }
    }

    /// Counts an execution no more. Whether it was counted.
    pub fn take(&mut self, key: &ObjectKey) -> bool {
        let Some((node, run)) = self.placed.remove(key) else {
            return false;
        };
        lower(&mut self.nodes, &node);
        lower(&mut self.namespaces, &key.namespace);
        if let Some(run) = run {
            lower(&mut self.runs, &run);
        }
        true
    }

    /// The node an execution is counted on.
    pub fn node_of(&self, key: &ObjectKey) -> Option<&str> {
        self.placed.get(key).map(|(node, _)| node.as_str())
    }

    /// Executions in flight on a node.
    pub fn on_node(&self, node: &str) -> usize {
        self.nodes.get(node).copied().unwrap_or(0)
    }

    /// Executions in flight of a namespace.
    pub fn of_namespace(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).copied().unwrap_or(0)
    }

    /// Executions in flight of a run.
    pub fn of_run(&self, run: &str) -> usize {
        self.runs.get(run).copied().unwrap_or(0)
    }

    /// The executions on a node.
    pub fn executions_on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a ObjectKey> {
        self.placed
            .iter()
            .filter(move |(_, (at, _))| at == node)
            .map(|(key, _)| key)
    }
}

fn lower(map: &mut BTreeMap<String, usize>, key: &str) {
    if let Some(count) = map.get_mut(key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            map.remove(key);
        }
    }
}

//! What the operator watches, as events of the core. A watch that starts again gives a consistent list, and what is
//! missing in it is gone.

use fairlead_crds::names::{COMPONENT_NODE_AGENT, LABEL_COMPONENT, node_lease};
use fairlead_crds::reading::Readable;
use fairlead_crds::{AgentRun, AgentTurn, ModelProvider, Tool, ToolExecution};
use fairlead_decide::cluster::{Event, NodeLease, ObjectKey, key_of};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use tokio::sync::mpsc;

/// What a source says.
#[derive(Debug)]
pub enum Observed {
    /// An event of the core.
    Event(Event),
    /// A source has given its first list.
    Synced(&'static str),
}

/// How the objects of a kind become events.
struct Kind<K> {
    name: &'static str,
    seen: fn(Arc<K>) -> Option<Event>,
    gone: fn(ObjectKey, String) -> Event,
    /// For objects because of which calls are made: one that cannot be read any more makes none.
    unreadable: Option<fn(ObjectKey, u64) -> Event>,
}

/// Names of the sources; all of them must have given their list before anything is decided.
pub const SOURCES: &[&str] = &[
    "agentruns",
    "agentturns",
    "toolexecutions",
    "tools",
    "modelproviders",
    "leases",
];

const RUNS: Kind<AgentRun> = Kind {
    name: "agentruns",
    seen: |o| Some(Event::Run(o)),
    gone: |_, uid| Event::RunGone { uid },
    unreadable: None,
};

const TURNS: Kind<AgentTurn> = Kind {
    name: "agentturns",
    seen: |o| Some(Event::Turn(o)),
    gone: |key, _| Event::TurnGone(key),
    unreadable: None,
};

const EXECUTIONS: Kind<ToolExecution> = Kind {
    name: "toolexecutions",
    seen: |o| Some(Event::Execution(o)),
    gone: |key, _| Event::ExecutionGone(key),
    unreadable: None,
};

const TOOLS: Kind<Tool> = Kind {
    name: "tools",
    seen: |o| Some(Event::Tool(o)),
    gone: |key, _| Event::ToolGone(key),
    unreadable: Some(|key, version| Event::ToolUnreadable { key, version }),
};

const PROVIDERS: Kind<ModelProvider> = Kind {
    name: "modelproviders",
    seen: |o| Some(Event::Provider(o)),
    gone: |key, _| Event::ProviderGone(key),
    unreadable: Some(|key, version| Event::ProviderUnreadable { key, version }),
};

const LEASES: Kind<Lease> = Kind {
    name: "leases",
    seen: |o| node_of(&o).map(Event::Node),
    gone: |key, _| Event::NodeGone { name: key.name },
    unreadable: Some(|key, _| Event::NodeGone { name: key.name }),
};

/// Watches everything until `out` is closed. Never ends otherwise: a broken watch is taken up again.
pub async fn watch_all(client: Client, namespace: String, capacity: u32, out: mpsc::Sender<Observed>) {
    let any = watcher::Config::default;
    let nodes = any().labels(&format!("{LABEL_COMPONENT}={COMPONENT_NODE_AGENT}"));
    // Runs come after what belongs to them: a run without its records looks like one whose calls were never made.
    let (listed, records) = tokio::sync::watch::channel(0_usize);
    let runs_api = Api::all(client.clone());
    let runs_out = out.clone();
    let watch_runs = async move {
        let mut records = records;
        if records.wait_for(|n| *n == 2).await.is_ok() {
            watch(runs_api, any(), RUNS, runs_out, None).await;
        }
    };
    let leases_api = Api::namespaced(client.clone(), &namespace);
    tokio::join!(
        watch_runs,
        watch(Api::all(client.clone()), any(), TURNS, out.clone(), Some(&listed)),
        watch(
            Api::all(client.clone()),
            any(),
            EXECUTIONS,
            out.clone(),
            Some(&listed)
        ),
        watch(Api::all(client.clone()), any(), TOOLS, out.clone(), None),
        watch(Api::all(client), any(), PROVIDERS, out.clone(), None),
        watch_with_default(leases_api, nodes, LEASES, capacity, out),
    );
}

/// Node Leases that name no capacity get the operator's default.
async fn watch_with_default(
    api: Api<Readable<Lease>>,
    config: watcher::Config,
    kind: Kind<Lease>,
    capacity: u32,
    out: mpsc::Sender<Observed>,
) {
    let (tap, mut taps) = mpsc::channel(64);
    let forward = async {
        while let Some(mut observed) = taps.recv().await {
            if let Observed::Event(Event::Node(lease)) = &mut observed
                && lease.capacity == 0
            {
                lease.capacity = usize::try_from(capacity).unwrap_or(1);
            }
            if out.send(observed).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(watch(api, config, kind, tap, None), forward);
}

async fn watch<K>(
    api: Api<Readable<K>>,
    config: watcher::Config,
    kind: Kind<K>,
    out: mpsc::Sender<Observed>,
    tell: Option<&tokio::sync::watch::Sender<usize>>,
) where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let mut inventory = Inventory::default();
    let mut synced = false;
    let mut events = std::pin::pin!(watcher(api, config).backoff(fairlead_installation::watch_backoff()));
    while let Some(event) = events.next().await {
        let told = match event {
            Err(error) => {
                tracing::warn!(kind = kind.name, %error, "watch interrupted, taking it up again");
                Vec::new()
            }
            Ok(watcher::Event::Init) => {
                inventory.begin();
                Vec::new()
            }
            Ok(watcher::Event::InitApply(object) | watcher::Event::Apply(object)) => {
                let (key, uid) = identity(&object);
                let replaced = inventory.see(key.clone(), uid);
                let gone = replaced.map(|uid| Observed::Event((kind.gone)(key, uid)));
                gone.into_iter().chain(seen(&kind, object)).collect()
            }
            Ok(watcher::Event::InitDone) => {
                let gone = inventory.complete().into_iter();
                let mut told: Vec<_> = gone
                    .map(|(key, uid)| Observed::Event((kind.gone)(key, uid)))
                    .collect();
                if !std::mem::replace(&mut synced, true) {
                    told.push(Observed::Synced(kind.name));
                }
                told
            }
            Ok(watcher::Event::Delete(object)) => {
                let (key, uid) = identity(&object);
                inventory.lose(&key);
                vec![Observed::Event((kind.gone)(key, uid))]
            }
        };
        for observed in told {
            let first_list = matches!(observed, Observed::Synced(_));
            if out.send(observed).await.is_err() {
                return;
            }
            if let Some(tell) = tell.filter(|_| first_list) {
                tell.send_modify(|count| *count += 1);
            }
        }
    }
}

fn identity<K: Resource<DynamicType = ()>>(object: &Readable<K>) -> (ObjectKey, String) {
    (key_of(object.meta()), object.uid().unwrap_or_default())
}

/// What the core was told to be there, by name with the UID; and during a list what it has named so far.
#[derive(Debug, Default)]
struct Inventory {
    told: BTreeMap<ObjectKey, String>,
    listed: Option<BTreeSet<ObjectKey>>,
}

impl Inventory {
    /// A list begins; one before may not have come to its end, but what it named was told.
    fn begin(&mut self) {
        self.listed = Some(BTreeSet::new());
    }

    /// An object is there. Gives the UID of another that had its name, and was not seen to go.
    fn see(&mut self, key: ObjectKey, uid: String) -> Option<String> {
        if let Some(listed) = &mut self.listed {
            listed.insert(key.clone());
        }
        let old = self.told.insert(key, uid.clone())?;
        (old != uid).then_some(old)
    }

    fn lose(&mut self, key: &ObjectKey) {
        self.told.remove(key);
    }

    /// The list is complete: what was told and is not in it is gone.
    fn complete(&mut self) -> Vec<(ObjectKey, String)> {
        let Some(listed) = self.listed.take() else {
            return Vec::new();
        };
        self.told.extract_if(.., |key, _| !listed.contains(key)).collect()
    }
}

/// An object that cannot be read is a warning, not a dead watch. Of what grants something, the earlier state is not left
/// in force.
fn seen<K>(kind: &Kind<K>, object: Readable<K>) -> Vec<Observed>
where
    K: Resource<DynamicType = ()> + Clone,
{
    let (key, _) = identity(&object);
    let version = object
        .resource_version()
        .and_then(|v| v.parse().ok())
        .unwrap_or(0);
    match (object.0, kind.unreadable) {
        (Ok(object), _) => (kind.seen)(Arc::new(object))
            .map(Observed::Event)
            .into_iter()
            .collect(),
        (Err(unread), Some(event)) => {
            tracing::warn!(kind = kind.name, object = %unread, "object cannot be read, not using it");
            vec![Observed::Event(event(key, version))]
        }
        (Err(unread), None) => {
            tracing::warn!(kind = kind.name, object = %unread, "object cannot be read, going on with what was read before");
            Vec::new()
        }
    }
}

/// What the Lease of a node agent says; nothing for one that was not written by an agent.
fn node_of(lease: &Lease) -> Option<NodeLease> {
    let annotations = lease.annotations();
    let number = |name: &str| annotations.get(name).and_then(|v| v.parse::<i64>().ok());
    let renewed = lease.spec.as_ref().and_then(|s| s.renew_time.as_ref())?;
    Some(NodeLease {
        name: lease.name_any(),
        incarnation: annotations.get(node_lease::INCARNATION)?.clone(),
        capacity: number(node_lease::CAPACITY)
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(0),
        plan_version: number(node_lease::PLAN_VERSION)?,
        renewed: renewed.0.to_string(),
        // Only a hint for the first look after a start: what counts later is that the record moves.
        looks_recent: jiff::Timestamp::now().duration_since(renewed.0).as_secs().abs() < 20,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("a", name)
    }

    #[test]
    fn what_a_broken_list_named_is_told_gone_by_the_next_one() {
        let mut inventory = Inventory::default();
        inventory.begin();
        inventory.see(key("x"), "1".into());
        inventory.begin();
        inventory.see(key("y"), "2".into());
        assert_eq!(inventory.complete(), [(key("x"), "1".to_owned())]);
        inventory.begin();
        assert_eq!(inventory.complete(), [(key("y"), "2".to_owned())]);
    }

    #[test]
    fn another_object_of_the_same_name_is_told_as_one_that_went() {
        let mut inventory = Inventory::default();
        inventory.begin();
        assert_eq!(inventory.see(key("x"), "1".into()), None);
        assert_eq!(inventory.complete(), []);
        assert_eq!(inventory.see(key("x"), "1".into()), None);
        assert_eq!(inventory.see(key("x"), "2".into()), Some("1".to_owned()));
        inventory.lose(&key("x"));
        assert_eq!(inventory.see(key("x"), "3".into()), None);
        inventory.begin();
        assert_eq!(inventory.complete(), [(key("x"), "3".to_owned())]);
    }
}

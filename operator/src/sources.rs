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
use std::collections::BTreeMap;
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

/// Watches everything until `out` is closed. Never ends otherwise: a broken watch is taken up again.
pub async fn watch_all(client: Client, namespace: String, capacity: u32, out: mpsc::Sender<Observed>) {
    let any = watcher::Config::default;
    let nodes = any().labels(&format!("{LABEL_COMPONENT}={COMPONENT_NODE_AGENT}"));
    let runs = Kind::<AgentRun> {
        name: "agentruns",
        seen: |o| Some(Event::Run(o)),
        gone: |_, uid| Event::RunGone { uid },
    };
    let turns = Kind::<AgentTurn> {
        name: "agentturns",
        seen: |o| Some(Event::Turn(o)),
        gone: |key, _| Event::TurnGone(key),
    };
    let executions = Kind::<ToolExecution> {
        name: "toolexecutions",
        seen: |o| Some(Event::Execution(o)),
        gone: |key, _| Event::ExecutionGone(key),
    };
    let tools = Kind::<Tool> {
        name: "tools",
        seen: |o| Some(Event::Tool(o)),
        gone: |key, _| Event::ToolGone(key),
    };
    let providers = Kind::<ModelProvider> {
        name: "modelproviders",
        seen: |o| Some(Event::Provider(o)),
        gone: |key, _| Event::ProviderGone(key),
    };
    let leases = Kind::<Lease> {
        name: "leases",
        seen: |o| node_of(&o).map(Event::Node),
        gone: |key, _| Event::NodeGone { name: key.name },
    };
    // Runs come after what belongs to them: a run without its records looks like one whose calls were never made.
    let (listed, records) = tokio::sync::watch::channel(0_usize);
    let runs_api = Api::all(client.clone());
    let runs_out = out.clone();
    let watch_runs = async move {
        let mut records = records;
        if records.wait_for(|n| *n == 2).await.is_ok() {
            watch(runs_api, any(), runs, runs_out, None).await;
        }
    };
    let leases_api = Api::namespaced(client.clone(), &namespace);
    tokio::join!(
        watch_runs,
        watch(Api::all(client.clone()), any(), turns, out.clone(), Some(&listed)),
        watch(
            Api::all(client.clone()),
            any(),
            executions,
            out.clone(),
            Some(&listed)
        ),
        watch(Api::all(client.clone()), any(), tools, out.clone(), None),
        watch(Api::all(client), any(), providers, out.clone(), None),
        watch_with_default(leases_api, nodes, leases, capacity, out),
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
    let mut known: BTreeMap<ObjectKey, String> = BTreeMap::new();
    let mut listed: BTreeMap<ObjectKey, String> = BTreeMap::new();
    let mut synced = false;
    let mut events = std::pin::pin!(watcher(api, config).backoff(fairlead_installation::watch_backoff()));
    while let Some(event) = events.next().await {
        let told = match event {
            Err(error) => {
                tracing::warn!(kind = kind.name, %error, "watch interrupted, taking it up again");
                Vec::new()
            }
            Ok(watcher::Event::Init) => {
                listed.clear();
                Vec::new()
            }
            Ok(watcher::Event::InitApply(object)) => {
                let old = known.get(&key_of(object.meta())).cloned();
                listed.insert(key_of(object.meta()), object.uid().unwrap_or_default());
                replaced(&kind, &object, old)
                    .into_iter()
                    .chain(seen(&kind, object))
                    .collect()
            }
            Ok(watcher::Event::InitDone) => {
                let mut told = missing(&kind, &known, &listed);
                known = std::mem::take(&mut listed);
                if !std::mem::replace(&mut synced, true) {
                    told.push(Observed::Synced(kind.name));
                }
                told
            }
            Ok(watcher::Event::Apply(object)) => {
                let old = known.insert(key_of(object.meta()), object.uid().unwrap_or_default());
                replaced(&kind, &object, old)
                    .into_iter()
                    .chain(seen(&kind, object))
                    .collect()
            }
            Ok(watcher::Event::Delete(object)) => {
                let key = key_of(object.meta());
                known.remove(&key);
                vec![Observed::Event((kind.gone)(
                    key,
                    object.uid().unwrap_or_default(),
                ))]
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

/// What was known and is not in a new list is gone.
fn missing<K>(
    kind: &Kind<K>,
    known: &BTreeMap<ObjectKey, String>,
    listed: &BTreeMap<ObjectKey, String>,
) -> Vec<Observed> {
    let gone = known.iter().filter(|(key, _)| !listed.contains_key(*key));
    gone.map(|(key, uid)| Observed::Event((kind.gone)(key.clone(), uid.clone())))
        .collect()
}

/// The object that stood under the same name before, gone without our having seen it go.
fn replaced<K>(kind: &Kind<K>, object: &Readable<K>, old: Option<String>) -> Option<Observed>
where
    K: Resource<DynamicType = ()>,
{
    let old = old.filter(|uid| Some(uid) != object.meta().uid.as_ref())?;
    Some(Observed::Event((kind.gone)(key_of(object.meta()), old)))
}

/// An object that cannot be read is a warning, not a dead watch.
fn seen<K>(kind: &Kind<K>, object: Readable<K>) -> Vec<Observed>
where
    K: Resource<DynamicType = ()> + Clone,
{
    match object.0 {
        Ok(object) => (kind.seen)(Arc::new(object))
            .map(Observed::Event)
            .into_iter()
            .collect(),
        Err(unread) => {
            tracing::warn!(kind = kind.name, object = %unread, "object cannot be read, ignoring it");
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

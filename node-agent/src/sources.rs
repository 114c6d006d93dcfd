//! What the API server says of executions bound to this node.

use crate::agent::{Input, Listing};
use crate::host::Host;
use anyhow::Context;
use fairlead_crds::names::LABEL_RUN_UID;
use fairlead_crds::{ExecutionPhase, ToolExecution};
use fairlead_decide::node::{Event, ObjectRef, RunKey};
use futures::StreamExt;
use kube::api::ListParams;
use kube::core::{DeserializeGuard, ObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// Seconds after which the server ends a watch, and so after which a dead connection is noticed.
const WATCH_SECONDS: u32 = 45;
const PAGE: u32 = 500;
/// Longest wait for one page of a list.
const LIST_BOUND: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(1);

fn bound_here(node: &str) -> String {
    format!("spec.binding.nodeName={node}")
}

/// Executions bound to `node` whose end is not stored. An absent phase matches.
fn live_here(node: &str) -> String {
    let ended = ExecutionPhase::TERMINAL
        .iter()
        .map(|phase| format!(",status.phase!={phase}"));
    bound_here(node) + &ended.collect::<String>()
}

/// Watches live executions of this node until `out` is closed. The first complete list comes as [`Input::Listed`],
/// together with the journal; a broken watch is taken up again.
pub(crate) async fn watch(client: Client, host: Arc<Host>, out: UnboundedSender<Input>) {
    let api: Api<DeserializeGuard<ToolExecution>> = Api::all(client.clone());
    let config = watcher::Config::default()
        .fields(&live_here(&host.node.name))
        .timeout(WATCH_SECONDS)
        .page_size(PAGE);
    let mut stream = watcher(api, config).default_backoff().boxed();
    let mut listing = Vec::new();
    let mut unreadable = BTreeSet::new();
    let mut first = true;
    while let Some(event) = stream.next().await {
        let input = match event {
            Ok(watcher::Event::Init) => {
                listing.clear();
                unreadable.clear();
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                match readable(object) {
                    Ok(object) => listing.push(object),
                    Err(uid) => unreadable.extend(uid),
                }
                continue;
            }
            Ok(watcher::Event::InitDone) if first => {
                first = false;
                let live = std::mem::take(&mut listing);
                let unreadable = std::mem::take(&mut unreadable);
                Input::Listed(Box::new(first_listing(&client, &host, live, unreadable).await))
            }
            Ok(watcher::Event::InitDone) => {
                let unreadable = Event::Unreadable(std::mem::take(&mut unreadable));
                if out.send(Input::Event(unreadable)).is_err() {
                    return;
                }
                Input::Event(Event::Listed(std::mem::take(&mut listing)))
            }
            Ok(watcher::Event::Apply(object)) => match readable(object) {
                Ok(object) => Input::Event(Event::Seen(object)),
                Err(_) => continue,
            },
            Ok(watcher::Event::Delete(object)) => {
                let uid = match object.0 {
                    Ok(object) => object.metadata.uid,
                    Err(invalid) => invalid.metadata.uid,
                };
                Input::Event(Event::Left {
                    uid: uid.unwrap_or_default(),
                })
            }
            Err(error) => {
                tracing::warn!(%error, "the watch of executions broke");
                continue;
            }
        };
        if out.send(input).is_err() {
            return;
        }
    }
}

/// The object, or the UID of one that cannot be read.
fn readable(object: DeserializeGuard<ToolExecution>) -> Result<Arc<ToolExecution>, Option<String>> {
    match object.0 {
        Ok(mut object) => {
            // Who wrote which field is of no use here, and as large as the rest.
            object.metadata.managed_fields = None;
            Ok(Arc::new(object))
        }
        Err(invalid) => {
            let (namespace, name) = (invalid.metadata.namespace, invalid.metadata.name);
            tracing::error!(
                ?namespace,
                ?name,
                error = invalid.error,
                "an execution cannot be read, and is left alone"
            );
            Err(invalid.metadata.uid)
        }
    }
}

/// The list of the watch, completed by what exists at all and by the journal. Tries until it succeeds.
async fn first_listing(
    client: &Client,
    host: &Arc<Host>,
    live: Vec<Arc<ToolExecution>>,
    unreadable: BTreeSet<String>,
) -> Listing {
    loop {
        match try_listing(client, host).await {
            Ok((kept, held, runs)) => {
                return Listing {
                    live,
                    kept,
                    held,
                    runs,
                    unreadable,
                };
            }
            Err(error) => tracing::warn!(error = format!("{error:#}"), "read the node's state"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

type Kept = BTreeMap<String, (ObjectRef, RunKey)>;
type Stored = (Kept, Vec<fairlead_decide::node::Held>, Vec<(RunKey, u32)>);

async fn try_listing(client: &Client, host: &Arc<Host>) -> anyhow::Result<Stored> {
    let metas = metadata(client.clone(), &host.node.name).await?;
    let kept = metas.into_iter().filter_map(kept).collect();
    let host = Arc::clone(host);
    let (held, runs) = tokio::task::spawn_blocking(move || {
        let held = host
            .spool
            .held(host.link.epoch, |key, epoch| host.group_of(key, epoch))?;
        anyhow::Ok((held, host.spool.runs()?))
    })
    .await
    .context("read the spool")??;
    Ok((kept, held, runs))
}

fn kept(meta: ObjectMeta) -> Option<(String, (ObjectRef, RunKey))> {
    let uid = meta.uid?;
    let run = meta
        .labels
        .and_then(|mut labels| labels.remove(LABEL_RUN_UID))
        .unwrap_or_else(|| uid.clone());
    let object = ObjectRef {
        namespace: meta.namespace?,
        name: meta.name?,
    };
    Some((uid, (object, RunKey(run))))
}

/// UIDs of every execution bound to `node`, ended or not, from a consistent list.
pub(crate) async fn existing(client: Client, node: &str) -> anyhow::Result<BTreeSet<String>> {
    let metas = metadata(client, node).await?;
    Ok(metas.into_iter().filter_map(|meta| meta.uid).collect())
}

/// A consistent list of metadata only: outputs are large, and not needed.
async fn metadata(client: Client, node: &str) -> anyhow::Result<Vec<ObjectMeta>> {
    let api: Api<ToolExecution> = Api::all(client);
    let base = ListParams::default().fields(&bound_here(node)).limit(PAGE);
    let mut params = base.clone();
    let mut metas = Vec::new();
    loop {
        let page = tokio::time::timeout(LIST_BOUND, api.list_metadata(&params)).await;
        let page = page
            .context("list executions: no answer in time")?
            .context("list executions")?;
        metas.extend(page.items.into_iter().map(|item| item.metadata));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = base.clone().continue_token(&token),
            None => return Ok(metas),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watch_leaves_out_every_end() {
        let selector = live_here("node-1");
        assert!(
            selector.starts_with("spec.binding.nodeName=node-1,"),
            "{selector}"
        );
        for phase in ExecutionPhase::TERMINAL {
            assert!(
                selector.contains(&format!(",status.phase!={phase}")),
                "{selector}"
            );
        }
    }
}

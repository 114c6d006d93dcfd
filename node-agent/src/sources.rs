//! What the API server says of executions bound to this node.

use crate::agent::{Input, Listing};
use crate::guard::Guarded;
use crate::host::Host;
use anyhow::Context;
use fairlead_crds::names::LABEL_RUN_UID;
use fairlead_crds::reading::{Readable, Unreadable};
use fairlead_crds::{ExecutionPhase, ToolExecution};
use fairlead_decide::node::{Event, ObjectRef, RunKey};
use futures::StreamExt;
use kube::api::{ListParams, Request};
use kube::core::{ObjectList, ObjectMeta, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Resource};
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
    let api: Api<Guarded> = Api::all(client.clone());
    let config = watcher::Config::default()
        .fields(&live_here(&host.node.name))
        .timeout(WATCH_SECONDS)
        .page_size(PAGE);
    let mut stream = watcher(api, config)
        .backoff(fairlead_installation::watch_backoff())
        .boxed();
    let mut listing = List::default();
    let mut first = true;
    while let Some(event) = stream.next().await {
        let input = match event {
            Ok(watcher::Event::Init) => {
                listing = List::default();
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                listing.take(object);
                continue;
            }
            Ok(watcher::Event::InitDone) if first => {
                first = false;
                let list = std::mem::take(&mut listing);
                Input::Listed(Box::new(first_listing(&client, &host, list).await))
            }
            Ok(watcher::Event::InitDone) => {
                let list = std::mem::take(&mut listing);
                let (last, before) = list.events();
                if before
                    .into_iter()
                    .any(|event| out.send(Input::Event(event)).is_err())
                {
                    return;
                }
                Input::Event(last)
            }
            Ok(watcher::Event::Apply(object)) => match object {
                Guarded::Whole(object) => Input::Event(Event::Seen(Arc::from(object))),
                Guarded::TooNew(object) => Input::Event(Event::TooNew(Arc::from(object))),
                Guarded::Unreadable(unread) => {
                    warn_unreadable(&unread);
                    continue;
                }
            },
            Ok(watcher::Event::Delete(object)) => Input::Event(Event::Left {
                uid: object.meta().uid.clone().unwrap_or_default(),
            }),
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

/// A complete list of the watch.
#[derive(Default)]
struct List {
    live: Vec<Arc<ToolExecution>>,
    too_new: Vec<Arc<ToolExecution>>,
    /// UIDs of those of which nothing, or not the plan, is known.
    unreadable: BTreeSet<String>,
}

impl List {
    fn take(&mut self, object: Guarded) {
        match object {
            Guarded::Whole(object) => self.live.push(Arc::from(object)),
            Guarded::TooNew(object) => {
                self.unreadable.extend(object.metadata.uid.clone());
                self.too_new.push(Arc::from(object));
            }
            Guarded::Unreadable(unread) => {
                warn_unreadable(&unread);
                self.unreadable.extend(unread.metadata.uid);
            }
        }
    }

    /// The last event and those that come before it.
    fn events(self) -> (Event, Vec<Event>) {
        let mut before = vec![Event::Unreadable(self.unreadable)];
        before.extend(self.too_new.into_iter().map(Event::TooNew));
        (Event::Listed(self.live), before)
    }
}

fn warn_unreadable(unread: &Unreadable) {
    tracing::error!(execution = %unread, "an execution cannot be read, and is left alone");
}

/// The list of the watch, completed by what exists at all and by the journal. Tries until it succeeds.
async fn first_listing(client: &Client, host: &Arc<Host>, list: List) -> Listing {
    loop {
        match try_listing(client, host).await {
            Ok((kept, held, runs)) => {
                return Listing {
                    live: list.live,
                    kept,
                    held,
                    runs,
                    unreadable: list.unreadable,
                    too_new: list.too_new,
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
    let base = ListParams::default().fields(&bound_here(node)).limit(PAGE);
    let mut params = base.clone();
    let mut metas = Vec::new();
    loop {
        let page = tokio::time::timeout(LIST_BOUND, page_of_metadata(&client, &params)).await;
        let page = page
            .context("list executions: no answer in time")?
            .context("list executions")?;
        metas.extend(page.items.into_iter().map(|item| item.meta().clone()));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = base.clone().continue_token(&token),
            None => return Ok(metas),
        }
    }
}

/// The client library's `list_metadata`, but with items that cannot make each other unreadable: metadata has the fields
/// that were written, as deep as they are.
async fn page_of_metadata(client: &Client, params: &ListParams) -> kube::Result<ObjectList<Metadata>> {
    let request = Request::new(ToolExecution::url_path(&(), None)).list_metadata(params);
    client.request(request.map_err(kube::Error::BuildRequest)?).await
}

type Metadata = Readable<PartialObjectMeta<ToolExecution>>;

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

//! The node's Lease: that its agent lives, what it can do, and the identity of its memory.

use crate::host::Host;
use anyhow::{Context, Result};
use fairlead_admin::{ReadyToken, Shutdown};
use fairlead_crds::PLAN_VERSION;
use fairlead_crds::names::{COMPONENT_NODE_AGENT, LABEL_COMPONENT, MANAGER_NODE_AGENT, node_lease};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

const RENEW: Duration = Duration::from_secs(10);
/// Pause after a renewal that failed.
const RETRY: Duration = Duration::from_secs(2);
/// Said in the Lease; the agent is not ready when its last renewal is older.
const DURATION_SECONDS: i32 = 40;
const BOUND: Duration = Duration::from_secs(8);

/// Version of plans that an agent can carry out which is to end: none, so that nothing more is bound to its node.
const NO_PLAN: i64 = 0;

/// The end of the agent, as the Lease takes part in it.
pub(crate) struct Ending {
    /// Begun when nothing more is to be bound to the node.
    pub(crate) shutdown: Shutdown,
    /// Told once the Lease says so.
    pub(crate) said: Arc<Notify>,
}

/// Renews the Lease for ever. Once the shutdown began it says so there.
pub(crate) async fn keep(
    client: Client,
    host: Arc<Host>,
    namespace: String,
    capacity: u32,
    ready: ReadyToken,
    ending: Ending,
) {
    let Ending { shutdown, said } = ending;
    let api: Api<Lease> = Api::namespaced(client, &namespace);
    let acquired = jiff::Timestamp::now();
    let mut last = None;
    loop {
        if let Some(silence) = host.link.silence() {
            // Nothing can be started or killed here: as good as gone, until it speaks again.
            let message = format!("the supervisor has said nothing for {} s", silence.as_secs());
            tracing::error!(message, "the node's Lease is not renewed");
            ready.set_not_ready(message);
            tokio::time::sleep(RETRY).await;
            continue;
        }
        let sent = Instant::now();
        let ending = shutdown.begun();
        let plan_version = if ending { NO_PLAN } else { PLAN_VERSION };
        let pause = match renew(&api, &host, capacity, plan_version, acquired).await {
            Ok(()) => {
                last = Some(sent);
                ready.set_ready();
                if ending {
                    said.notify_one();
                }
                RENEW
            }
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "renew the node's Lease");
                let duration = Duration::from_secs(DURATION_SECONDS.unsigned_abs().into());
                if last.is_none_or(|last: Instant| last.elapsed() > duration) {
                    ready.set_not_ready(format!("{error:#}"));
                }
                RETRY
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause.saturating_sub(sent.elapsed())) => {}
            () = shutdown.wait(), if !ending => {}
        }
    }
}

async fn renew(
    api: &Api<Lease>,
    host: &Host,
    capacity: u32,
    plan_version: i64,
    acquired: jiff::Timestamp,
) -> Result<()> {
    let lease = lease(host, capacity, plan_version, acquired);
    let params = PatchParams::apply(MANAGER_NODE_AGENT).force();
    let name = &host.node.name;
    let patch = Patch::Apply(&lease);
    let written = tokio::time::timeout(BOUND, api.patch(name, &params, &patch)).await;
    written
        .context("no answer in time")
        .and_then(|written| Ok(written?))
        .with_context(|| format!("write Lease {name}"))?;
    Ok(())
}

fn lease(host: &Host, capacity: u32, plan_version: i64, acquired: jiff::Timestamp) -> Lease {
    let node = &host.node;
    let annotations = [
        (node_lease::INCARNATION, node.incarnation.clone()),
        (node_lease::BACKEND, node.backend.to_string()),
        (
            node_lease::MISSING_CONTROLLERS,
            node.missing_controllers.join(","),
        ),
        (node_lease::CAPACITY, capacity.to_string()),
        (node_lease::PLAN_VERSION, plan_version.to_string()),
    ];
    let owned = |(key, value): (&str, String)| (key.to_owned(), value);
    Lease {
        metadata: ObjectMeta {
            name: Some(node.name.clone()),
            labels: Some(BTreeMap::from([(
                LABEL_COMPONENT.to_owned(),
                COMPONENT_NODE_AGENT.to_owned(),
            )])),
            annotations: Some(annotations.into_iter().map(owned).collect()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.name.clone()),
            lease_duration_seconds: Some(DURATION_SECONDS),
            acquire_time: Some(MicroTime(acquired)),
            renew_time: Some(MicroTime(jiff::Timestamp::now())),
            ..LeaseSpec::default()
        }),
    }
}

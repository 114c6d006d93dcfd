//! Whether the cluster has what the operator's promises rest on: the CRDs and the admission policies of the chart.

use anyhow::{Context, Result, bail};
use fairlead_admin::ReadyToken;
use fairlead_crds::names::ADMISSION_POLICIES;
use fairlead_crds::{CRD_REVISION, CRD_REVISION_ANNOTATION, all_crds};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt};
use std::time::Duration;

const AGAIN_WHEN_MISSING: Duration = Duration::from_secs(2);
const AGAIN_WHEN_THERE: Duration = Duration::from_secs(60);

/// Keeps `ready` true while all is there. Never ends.
pub async fn keep_checking(client: Client, ready: ReadyToken) {
    loop {
        let pause = match check(&client).await {
            Ok(()) => {
                ready.set_ready();
                AGAIN_WHEN_THERE
            }
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "the installation is not whole");
                ready.set_not_ready(format!("{error:#}"));
                AGAIN_WHEN_MISSING
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn check(client: &Client) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for name in all_crds().iter().filter_map(|c| c.metadata.name.as_deref()) {
        let found = crds
            .get_opt(name)
            .await
            .with_context(|| format!("read the CustomResourceDefinition {name}"))?;
        let Some(found) = found else {
            bail!("CustomResourceDefinition {name} is missing; install the chart")
        };
        let revision = found
            .annotations()
            .get(CRD_REVISION_ANNOTATION)
            .and_then(|v| v.parse::<u32>().ok());
        if revision.is_none_or(|r| r < CRD_REVISION) {
            bail!(
                "CustomResourceDefinition {name} is older than this operator; upgrade the chart with its CRDs"
            );
        }
    }
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    for name in ADMISSION_POLICIES {
        let found = policies
            .get_opt(name)
            .await
            .with_context(|| format!("read the ValidatingAdmissionPolicy {name}"))?;
        if found.is_none() {
            bail!("ValidatingAdmissionPolicy {name} is missing; install the chart");
        }
    }
    Ok(())
}

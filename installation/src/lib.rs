//! What our programs share towards a cluster: how a broken watch is taken up again, and whether the cluster has what
//! their promises rest on: the CRDs of the chart, and its admission policies with bindings that deny. RBAC alone cannot
//! say that an agent writes only what is bound to its node, or that a deposed leader binds nothing; a program without
//! these rules is not ready.

#[cfg(test)]
mod tests;
mod watching;

pub use watching::watch_backoff;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use fairlead_admin::ReadyToken;
use fairlead_crds::names::ADMISSION_POLICIES;
use fairlead_crds::{CRD_REVISION, CRD_REVISION_ANNOTATION};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::Status;
use kube::{Api, Client, ResourceExt};

const AGAIN_WHEN_MISSING: Duration = Duration::from_secs(2);
const AGAIN_WHEN_THERE: Duration = Duration::from_secs(60);
/// What heals every finding. `helm upgrade` also puts back what was changed or removed by hand.
const FIX: &str = "run `helm upgrade` with the chart of this version";
/// The validation action that refuses a request; `Warn` and `Audit` let it pass.
const DENY: &str = "Deny";

/// Whether an answer says that a request is larger than the server takes. etcd's own refusal arrives as an internal error.
pub fn is_too_large(status: &Status) -> bool {
    status.code == 413 || (status.code == 500 && status.message.contains("too large"))
}

/// What one program needs to be there, beside every admission policy.
#[derive(Clone, Debug)]
pub struct Needs {
    /// What the program calls itself in messages, for example `node agent`.
    pub program: &'static str,
    /// Names of the CustomResourceDefinitions it reads or writes.
    pub crds: Vec<String>,
}

impl Needs {
    /// Keeps `ready` true while all is there, and says once in the log what is missing. Looks every 2 s while
    /// something is missing and every 60 s otherwise, since a policy may be removed from under a program that runs. Never
    /// ends.
    pub async fn keep_checking(self, client: Client, ready: ReadyToken) {
        let mut said = String::new();
        loop {
            let missing = match self.check(&client).await {
                Ok(()) => String::new(),
                Err(error) => format!("{error:#}"),
            };
            if missing.is_empty() {
                ready.set_ready();
            } else {
                ready.set_not_ready(missing.clone());
            }
            if said != missing {
                if missing.is_empty() {
                    tracing::info!("the installation is whole again");
                } else {
                    tracing::warn!(error = missing, "the installation is not whole");
                }
                said.clone_from(&missing);
            }
            let pause = if missing.is_empty() {
                AGAIN_WHEN_THERE
            } else {
                AGAIN_WHEN_MISSING
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Looks once.
    ///
    /// # Errors
    /// The first thing that is missing, older than this program or not in force, with its name and the fix; or that it
    /// could not be read.
    pub async fn check(&self, client: &Client) -> Result<()> {
        for name in &self.crds {
            self.check_crd(client, name).await?;
        }
        for name in ADMISSION_POLICIES {
            check_policy(client, name).await?;
        }
        Ok(())
    }

    async fn check_crd(&self, client: &Client, name: &str) -> Result<()> {
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        // Metadata only: a schema is large, and the annotation says which it is.
        let found = crds.get_metadata_opt(name).await;
        let found = found.with_context(|| format!("read the CustomResourceDefinition {name}"))?;
        let Some(found) = found else {
            bail!("CustomResourceDefinition {name} is missing; {FIX}")
        };
        let revision = found
            .annotations()
            .get(CRD_REVISION_ANNOTATION)
            .and_then(|text| text.parse::<u32>().ok());
        if revision.is_none_or(|revision| revision < CRD_REVISION) {
            bail!(
                "CustomResourceDefinition {name} is older than this {}; {FIX}",
                self.program
            );
        }
        Ok(())
    }
}

/// A policy does nothing by itself: its binding puts it in force, and says whether what it finds is refused.
async fn check_policy(client: &Client, name: &str) -> Result<()> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let found = policies.get_metadata_opt(name).await;
    let found = found.with_context(|| format!("read the ValidatingAdmissionPolicy {name}"))?;
    if found.is_none() {
        bail!("ValidatingAdmissionPolicy {name} is missing; {FIX}");
    }
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let found = bindings.get_opt(name).await;
    let found = found.with_context(|| format!("read the ValidatingAdmissionPolicyBinding {name}"))?;
    let Some(spec) = found.map(|found| found.spec.unwrap_or_default()) else {
        bail!(
            "ValidatingAdmissionPolicyBinding {name} is missing, without which the policy of that name refuses nothing; \
             {FIX}"
        )
    };
    if spec.policy_name.as_deref() != Some(name) {
        bail!(
            "ValidatingAdmissionPolicyBinding {name} has spec.policyName {:?}, not its own; {FIX}",
            spec.policy_name.unwrap_or_default()
        );
    }
    let actions = spec.validation_actions.unwrap_or_default();
    if !actions.iter().any(|action| action == DENY) {
        bail!(
            "ValidatingAdmissionPolicyBinding {name} has spec.validationActions [{}], without {DENY}, so it refuses \
             nothing; {FIX}",
            actions.join(", ")
        );
    }
    Ok(())
}

//! `check`: whether the installation is whole.

use crate::args;
use crate::connect::Target;
use crate::exit::Exit;
use crate::findings::{self, Finding, Verdict};
use crate::text::{self, Paint};
use anyhow::{Context, Result};
use fairlead_crds::names::{COMPONENT_NODE_AGENT, LABEL_COMPONENT, LEADER_LEASE};
use fairlead_crds::values::Time;
use futures::future::join_all;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::ListParams;
use std::io::Write;
use std::time::Duration;

/// How long a Lease that looks old by our clock is watched before it is called old: clocks differ, and an agent renews
/// every 10 s.
const OBSERVE: Duration = Duration::from_secs(12);
const OBSERVE_EVERY: Duration = Duration::from_secs(1);

/// Makes every check, prints what it found, and tells by the exit code whether one failed.
pub async fn run(target: &Target, options: &args::Check) -> Result<Exit> {
    let version = target
        .client
        .apiserver_version()
        .await
        .context("ask the API server for its version")?;
    let mut all = vec![findings::server_version(&version)];
    all.extend(crds(target).await);
    all.extend(policies(target).await);
    all.extend(leases(target, &options.install_namespace).await);
    let text = match options.output {
        Some(form) => text::object(&all, form)?,
        None => findings::lines(&all, Paint::for_stream(&std::io::stdout()))
            .iter()
            .map(|line| format!("{line}\n"))
            .collect(),
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("write to standard output")?;
    let failed = all.iter().any(|finding| finding.verdict == Verdict::Fail);
    Ok(if failed { Exit::Failure } else { Exit::Success })
}

async fn crds(target: &Target) -> Vec<Finding> {
    let api: Api<CustomResourceDefinition> = Api::all(target.client.clone());
    match api.list(&ListParams::default()).await {
        Ok(there) => {
            let wanted = fairlead_crds::all_crds()
                .into_iter()
                .filter_map(|crd| crd.metadata.name);
            wanted.map(|name| findings::crd(&name, &there.items)).collect()
        }
        Err(error) => vec![Finding::not_readable("CRDs", "customresourcedefinitions", &error)],
    }
}

async fn policies(target: &Target) -> Vec<Finding> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(target.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(target.client.clone());
    let all = ListParams::default();
    let (policies, bindings) = match tokio::join!(policies.list(&all), bindings.list(&all)) {
        (Ok(policies), Ok(bindings)) => (policies, bindings),
        (Err(error), _) => {
            return vec![Finding::not_readable(
                "admission policies",
                "validatingadmissionpolicies",
                &error,
            )];
        }
        (_, Err(error)) => {
            return vec![Finding::not_readable(
                "admission policies",
                "validatingadmissionpolicybindings",
                &error,
            )];
        }
    };
    let names: Vec<String> = policies
        .into_iter()
        .filter_map(|policy| policy.metadata.name)
        .collect();
    let denying = bindings.into_iter().filter_map(|binding| binding.spec);
    let denying = denying.filter(|spec| {
        spec.validation_actions
            .iter()
            .flatten()
            .any(|action| action == "Deny")
    });
    let bound: Vec<String> = denying.filter_map(|spec| spec.policy_name).collect();
    findings::policies(&names, &bound)
}

async fn leases(target: &Target, namespace: &str) -> Vec<Finding> {
    let api: Api<Lease> = Api::namespaced(target.client.clone(), namespace);
    let nodes = ListParams::default().labels(&format!("{LABEL_COMPONENT}={COMPONENT_NODE_AGENT}"));
    let (leader, nodes) = match tokio::join!(api.get_opt(LEADER_LEASE), api.list(&nodes)) {
        (Ok(leader), Ok(nodes)) => (leader, nodes.items),
        (Err(error), _) | (_, Err(error)) => {
            return vec![Finding::not_readable(
                "operator and nodes",
                &format!("leases in {namespace}"),
                &error,
            )];
        }
    };
    let leads = async {
        let fresh = match &leader {
            Some(lease) => is_fresh(&api, lease).await,
            None => false,
        };
        findings::leader(leader.as_ref(), fresh, namespace)
    };
    let of_nodes = nodes
        .iter()
        .map(|lease| async { findings::node(lease, is_fresh(&api, lease).await, namespace) });
    let (leads, of_nodes) = tokio::join!(leads, join_all(of_nodes));
    let mut all = vec![leads];
    all.extend(of_nodes);
    if nodes.is_empty() {
        all.push(Finding::fail(
            "nodes",
            "no node agent has a Lease: nothing can run",
            format!("see: kubectl --namespace {namespace} get daemonset,pods"),
        ));
    }
    all
}

/// Whether a Lease was renewed within its time by our clock, or is seen to be renewed.
async fn is_fresh(api: &Api<Lease>, lease: &Lease) -> bool {
    if is_recent(lease, Time::now()) {
        return true;
    }
    let name = lease.metadata.name.clone().unwrap_or_default();
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    let moves = async {
        loop {
            tokio::time::sleep(OBSERVE_EVERY).await;
            match api.get(&name).await {
                Ok(now) if renewed(&now) != renewed(lease) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    };
    tokio::time::timeout(OBSERVE, moves).await.unwrap_or(false)
}

fn is_recent(lease: &Lease, now: Time) -> bool {
    let Some(spec) = &lease.spec else {
        return false;
    };
    let (Some(renewed), Some(life)) = (&spec.renew_time, spec.lease_duration_seconds) else {
        return false;
    };
    (now.as_second() - renewed.0.as_second()).abs() <= i64::from(life)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_lease_is_recent_within_its_own_time() {
        let lease: Lease = serde_json::from_value(json!({
            "metadata": {}, "spec": {"renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15},
        }))
        .unwrap();
        let at = |text: &str| is_recent(&lease, text.parse().unwrap());
        assert!(at("2026-01-01T00:00:15Z"));
        assert!(!at("2026-01-01T00:00:16Z"));
        assert!(!is_recent(&Lease::default(), Time::now()));
    }
}

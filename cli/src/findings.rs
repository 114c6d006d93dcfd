//! What a check of the installation found, from what was read to lines.

use crate::text::{Paint, Tone};
use fairlead_crds::names::{ADMISSION_POLICIES, LEADER_LEASE, node_lease};
use fairlead_crds::{CRD_REVISION, CRD_REVISION_ANNOTATION};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::version::Info;
use serde::Serialize;

/// Oldest minor version of Kubernetes 1 that serves all that is needed.
const OLDEST_MINOR: u32 = 32;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, and something is worth knowing.
    Warn,
    /// Does not work.
    Fail,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked.
    pub check: String,
    /// How it ended.
    pub verdict: Verdict,
    /// What was seen.
    pub seen: String,
    /// What to do about it, on a failure or a warning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn ok(check: impl Into<String>, seen: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            verdict: Verdict::Ok,
            seen: seen.into(),
            fix: None,
        }
    }

    /// Works, and something is worth knowing.
    pub fn warn(check: impl Into<String>, seen: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            verdict: Verdict::Warn,
            seen: seen.into(),
            fix: Some(fix.into()),
        }
    }

    /// Does not work.
    pub fn fail(check: impl Into<String>, seen: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            verdict: Verdict::Fail,
            seen: seen.into(),
            fix: Some(fix.into()),
        }
    }

    /// The check could not be made, which is no better than a failure: nobody knows.
    pub fn not_readable(check: impl Into<String>, what: &str, error: &kube::Error) -> Self {
        let fix = match error {
            kube::Error::Api(status) if status.is_forbidden() => {
                format!("run it as somebody who may list {what}")
            }
            _ => "check the connection to the API server".to_owned(),
        };
        Self::fail(check, format!("list {what}: {error}"), fix)
    }
}

/// Findings as lines.
pub fn lines(findings: &[Finding], paint: Paint) -> Vec<String> {
    let mut lines = Vec::new();
    for finding in findings {
        let (word, tone) = match finding.verdict {
            Verdict::Ok => ("OK  ", Tone::Good),
            Verdict::Warn => ("WARN", Tone::Warning),
            Verdict::Fail => ("FAIL", Tone::Bad),
        };
        lines.push(format!(
            "{}  {}: {}",
            paint.tone(tone, word),
            finding.check,
            finding.seen
        ));
        lines.extend(finding.fix.iter().map(|fix| format!("      fix: {fix}")));
    }
    lines
}

/// The API server is not older than what the chart needs.
pub fn server_version(version: &Info) -> Finding {
    let digits = |text: &str| {
        text.chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
            .parse::<u32>()
    };
    match (digits(&version.major), digits(&version.minor)) {
        (Ok(major), Ok(minor)) if (major, minor) >= (1, OLDEST_MINOR) => {
            Finding::ok("API server", &version.git_version)
        }
        _ => Finding::fail(
            "API server",
            format!("version {} is older than 1.{OLDEST_MINOR}", version.git_version),
            format!("upgrade the cluster to Kubernetes 1.{OLDEST_MINOR} or later"),
        ),
    }
}

/// The CRD called `name` is there, served, and not older than this program.
pub fn crd(name: &str, there: &[CustomResourceDefinition]) -> Finding {
    let check = format!("CRD {name}");
    let install = "install or upgrade the chart with crds.enabled=true";
    let Some(crd) = there
        .iter()
        .find(|crd| crd.metadata.name.as_deref() == Some(name))
    else {
        return Finding::fail(check, "not there", install);
    };
    let revision = crd
        .metadata
        .annotations
        .as_ref()
        .and_then(|map| map.get(CRD_REVISION_ANNOTATION));
    let Some(revision) = revision.and_then(|text| text.parse::<u32>().ok()) else {
        return Finding::fail(
            check,
            format!("has no annotation {CRD_REVISION_ANNOTATION}"),
            install,
        );
    };
    let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_ref());
    let served = conditions.is_some_and(|list| {
        list.iter()
            .any(|c| c.type_ == "Established" && c.status == "True")
    });
    if revision < CRD_REVISION {
        Finding::fail(
            check,
            format!("revision {revision} is older than {CRD_REVISION}"),
            install,
        )
    } else if !served {
        Finding::fail(
            check,
            "not Established",
            format!("see: kubectl describe crd {name}"),
        )
    } else {
        Finding::ok(check, format!("revision {revision}"))
    }
}

/// Every admission policy of the chart is there, and has a binding that denies.
///
/// `there` are the policies of the cluster, `bound` the policies that a binding with action Deny names.
pub fn policies(there: &[String], bound: &[String]) -> Vec<Finding> {
    let fix =
        "install or upgrade the chart: without its policies rights that RBAC cannot express are not enforced";
    let mut findings = Vec::new();
    for policy in ADMISSION_POLICIES {
        let seen = match (
            there.iter().any(|name| name == policy),
            bound.iter().any(|name| name == policy),
        ) {
            (true, true) => continue,
            (true, false) => "no binding denies by it",
            (false, _) => "not there",
        };
        findings.push(Finding::fail(format!("admission policy {policy}"), seen, fix));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            "admission policies",
            format!("all {} are in force", ADMISSION_POLICIES.len()),
        ));
    }
    findings
}

/// The operator's leader Lease is held and moves. `fresh` says whether it was seen to move or is recent.
pub fn leader(lease: Option<&Lease>, fresh: bool, namespace: &str) -> Finding {
    let check = "operator";
    let fix =
        format!("see: kubectl --namespace {namespace} get pods,leases; kubectl logs deploy/{LEADER_LEASE}");
    let Some(spec) = lease.and_then(|lease| lease.spec.as_ref()) else {
        return Finding::fail(
            check,
            format!("there is no Lease {namespace}/{LEADER_LEASE}"),
            fix,
        );
    };
    match spec
        .holder_identity
        .as_deref()
        .filter(|holder| !holder.is_empty())
    {
        None => Finding::fail(check, "nobody leads", fix),
        Some(holder) if !fresh => Finding::fail(check, format!("{holder} stopped renewing its Lease"), fix),
        Some(holder) => Finding::ok(
            check,
            format!("{holder} leads, term {}", spec.lease_transitions.unwrap_or(0)),
        ),
    }
}

/// The Lease of one node agent moves, and what it says of its node.
pub fn node(lease: &Lease, fresh: bool, namespace: &str) -> Finding {
    let name = lease.metadata.name.clone().unwrap_or_default();
    let said = |key: &str| {
        lease
            .metadata
            .annotations
            .as_ref()
            .and_then(|map| map.get(key))
            .cloned()
    };
    let check = format!("node {name}");
    if !fresh {
        let fix = format!(
            "see the agent's log: kubectl --namespace {namespace} logs -l app.kubernetes.io/component=node-agent"
        );
        return Finding::fail(
            check,
            "its agent stopped renewing its Lease; nothing new is placed there",
            fix,
        );
    }
    let backend = said(node_lease::BACKEND).unwrap_or_else(|| "unknown".to_owned());
    let capacity = said(node_lease::CAPACITY).unwrap_or_else(|| "unknown".to_owned());
    let seen = format!("{backend}, capacity {capacity}");
    let missing = said(node_lease::MISSING_CONTROLLERS).filter(|text| !text.is_empty());
    match (backend.as_str(), missing) {
        ("CgroupV2", None) => Finding::ok(check, seen),
        ("CgroupV2", Some(missing)) => Finding::warn(
            check,
            format!("{seen}, missing controllers {missing}: their limits are not enforced there"),
            "boot the node with the unified cgroup v2 hierarchy and delegate these controllers",
        ),
        _ => Finding::warn(
            check,
            format!("{seen}: no limits, and processes are owned by process group only"),
            "give the agent a writable cgroup v2 tree",
        ),
    }
}

#[cfg(test)]
mod tests;

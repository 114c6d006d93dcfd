//! Which package may not link which, read from cargo's own resolution.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Problem;

/// Programs and libraries of ours that no program may link: the whole-system tests and the tools.
const NEVER_SHIPPED: &[&str] = &["fairlead-e2e", "xtask"];
/// Asynchronous and network crates.
const CLIENTS: &[&str] = &[
    "tokio",
    "hyper",
    "kube",
    "kube-client",
    "kube-runtime",
    "reqwest",
    "axum",
];

/// A package, what it may not link, and why.
pub const FORBIDDEN: &[(&str, &[&str], &str)] = &[
    ("fairlead-crds", CLIENTS, "the vocabulary has no behaviour"),
    (
        "fairlead-crds",
        &["fairlead-decide", "fairlead-admin", "fairlead-supervisor"],
        "all depend on it",
    ),
    ("fairlead-decide", CLIENTS, "the core does no IO"),
    (
        "fairlead-decide",
        &["rand", "fairlead-admin", "fairlead-supervisor"],
        "the core does no IO and draws nothing",
    ),
    (
        "fairlead-supervisor",
        CLIENTS,
        "the privileged program stays small",
    ),
    (
        "fairlead-supervisor",
        &[
            "kube-core",
            "k8s-openapi",
            "serde_json",
            "fairlead-crds",
            "fairlead-decide",
            "fairlead-admin",
        ],
        "it knows neither Kubernetes nor policy",
    ),
    (
        "fairlead-operator",
        &["fairlead-node-agent", "fairlead-supervisor"],
        "it starts no process",
    ),
    (
        "fairlead-node-agent",
        &["fairlead-operator"],
        "it decides nothing about whether a call is allowed",
    ),
    (
        "kubectl-fairlead",
        &[
            "fairlead-operator",
            "fairlead-node-agent",
            "fairlead-supervisor",
            "fairlead-decide",
        ],
        "it reads objects only",
    ),
    (
        "fairlead-installation",
        &["fairlead-decide", "fairlead-supervisor"],
        "it looks and decides nothing",
    ),
    (
        "fairlead-admin",
        &["fairlead-decide", "fairlead-crds", "kube-client"],
        "it stays narrow",
    ),
];

/// Crates that nothing may link, whatever asks for them.
const BANNED: &[(&str, &str)] = &[
    (
        "ring",
        "two TLS providers in one program make the client panic at start; aws-lc-rs is ours",
    ),
    ("openssl", "aws-lc-rs is the one TLS provider"),
    ("openssl-sys", "aws-lc-rs is the one TLS provider"),
    ("native-tls", "aws-lc-rs is the one TLS provider"),
];

/// Checks every arrow.
pub fn check(root: &Path) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for (package, forbidden, why) in FORBIDDEN {
        let linked = linked_by(root, &["--package", package])?;
        problems.extend(found(package, &linked, forbidden, why));
    }
    for package in crate::programs::Programs::PACKAGES {
        let linked = linked_by(root, &["--package", package])?;
        problems.extend(found(
            package,
            &linked,
            NEVER_SHIPPED,
            "tests and tools do not ship",
        ));
    }
    let all = linked_by(root, &["--workspace"])?;
    for (name, why) in BANNED {
        problems.extend(found("workspace", &all, &[*name], why));
    }
    Ok(problems)
}

fn found(package: &str, linked: &BTreeSet<String>, forbidden: &[&str], why: &str) -> Vec<Problem> {
    let wrong = forbidden.iter().filter(|name| linked.contains(**name));
    wrong
        .map(|name| Problem::new(package, format!("links {name}, which is forbidden: {why}")))
        .collect()
}

/// Names of the packages that a selection links, itself not among them.
fn linked_by(root: &Path, selection: &[&str]) -> Result<BTreeSet<String>> {
    let mut command = Command::new("cargo");
    command.current_dir(root).args([
        "tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}",
    ]);
    command.args(selection);
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let text = String::from_utf8(output.stdout).context("read cargo tree as UTF-8")?;
    Ok(text
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_arrow_is_named_with_its_reason() {
        let linked = BTreeSet::from(["tokio".to_owned(), "serde".to_owned()]);
        let problems = found("fairlead-decide", &linked, CLIENTS, "the core does no IO");
        assert_eq!(
            problems,
            [Problem::new(
                "fairlead-decide",
                "links tokio, which is forbidden: the core does no IO"
            )]
        );
    }
}

//! The chart: linted, rendered with several values and accepted by a real API server, strict about its values, and
//! gentle to what runs when it is upgraded or uninstalled.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fairlead_e2e::*;
use serde_json::{Value, json};
use xtask::programs::{Profile, Programs};
use xtask::{install, repo};

/// How long the control plane may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn chart() -> String {
    repo::chart().display().to_string()
}

/// Values of real installations, each with what must appear in what is rendered.
const CASES: [(&str, &[&str], &[&str]); 5] = [
    (
        "defaults",
        &[],
        &[
            "kind: DaemonSet",
            "kind: CustomResourceDefinition",
            "helm.sh/resource-policy: keep",
        ],
    ),
    (
        "registry",
        &[
            "image.registry=registry.example.com/fairlead",
            "image.tag=1.2.3",
            "imagePullSecrets[0].name=pull",
            "commonLabels.team=platform",
            "operator.replicas=1",
            "operator.podDisruptionBudget.enabled=false",
        ],
        &[
            "registry.example.com/fairlead/fairlead-operator:1.2.3",
            "team: platform",
            "- name: pull",
        ],
    ),
    (
        "unprivileged",
        &[
            "nodeAgent.privileged=false",
            "nodeAgent.runtimeClassName=cgroup-writable",
            "nodeAgent.capacity=8",
            "nodeAgent.isolation=required",
            "nodeAgent.uidRange.first=500000",
            "nodeAgent.uidRange.last=500999",
            "nodeAgent.spool.hostPath=/data/fairlead",
            "nodeAgent.tolerations[0].operator=Exists",
            "nodeAgent.priorityClassName=system-node-critical",
        ],
        &[
            "--uid-range=500000-500999",
            "--backend\n        - cgroup-v2",
            "--backend\n        - cgroup-v2",
            "runtimeClassName: cgroup-writable",
            "path: \"/data/fairlead\"",
            "SYS_ADMIN",
        ],
    ),
    (
        "closed",
        &[
            "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring",
            "networkPolicy.nodeAgentEgress[0].ports[0].port=443",
            "networkPolicy.operatorEgress[0].ports[0].port=443",
            "rbac.aggregateToDefaultRoles=false",
            "listenAddress=[::]",
            "operator.metricsPort=9090",
        ],
        &[
            "policyTypes: [Ingress, Egress]",
            "--metrics-addr=[::]:9090",
            "name: monitoring",
        ],
    ),
    (
        "without-crds",
        &["crds.enabled=false", "networkPolicy.enabled=false"],
        &["kind: Deployment"],
    ),
];

fn render(values: &[&str]) -> anyhow::Result<String> {
    let chart = chart();
    let mut args = vec!["template", install::RELEASE, &chart, "--namespace", "rendered"];
    values.iter().for_each(|value| args.extend(["--set", *value]));
    cluster().cluster().helm(&args)
}

#[test]
fn helm_lint_is_clean() {
    let said = cluster().cluster().helm(&["lint", "--strict", &chart()]).unwrap();
    assert!(
        said.contains("0 chart(s) failed") && !said.contains("[WARNING]"),
        "{said}"
    );
}

#[tokio::test]
async fn the_server_accepts_what_is_rendered_from_several_values() {
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "rendered"}});
    create(&admin().await, "", &space).await.unwrap();
    for (name, values, parts) in CASES {
        let text = render(values).unwrap();
        for part in parts {
            assert!(text.contains(part), "{name}: no {part:?} in\n{text}");
        }
        let path = cluster().dir().join(format!("{name}.yaml"));
        fs::write(&path, &text).unwrap();
        let path = path.display().to_string();
        let args = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--dry-run=server",
            "-f",
            &path,
        ];
        let said = cluster()
            .cluster()
            .kubectl(&args)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let objects = text.lines().filter(|line| line.starts_with("kind: ")).count();
        assert_eq!(said.lines().count(), objects, "{name}: {said}");
    }
    let without = render(CASES[4].1).unwrap();
    assert!(!without.contains("CustomResourceDefinition") && !without.contains("NetworkPolicy"));
    assert!(!render(&["crds.keep=false"]).unwrap().contains("resource-policy"));
    assert!(!render(CASES[3].1).unwrap().contains("aggregate-to"));
}

#[test]
fn values_that_are_unknown_or_wrong_are_refused() {
    for (value, parts) in [
        ("operator.replica=3", ["replica", "additional properties"]),
        ("nodeagent.capacity=3", ["nodeagent", "additional properties"]),
        ("nodeAgent.capacity=many", ["/nodeAgent/capacity", "integer"]),
        (
            "nodeAgent.uidRange.first=0",
            ["/nodeAgent/uidRange/first", "minimum"],
        ),
        (
            "nodeAgent.spool.hostPath=relative",
            ["/nodeAgent/spool/hostPath", "pattern"],
        ),
        ("image.pullPolicy=Sometimes", ["/image/pullPolicy", "one of"]),
        ("operator.metricsPort=70000", ["/operator/metricsPort", "maximum"]),
        ("crds.keep=maybe", ["/crds/keep", "boolean"]),
        (
            "nodeAgent.drainSeconds=61",
            ["nodeAgent.terminationGracePeriodSeconds", "raise it"],
        ),
        (
            "nodeAgent.uidRange.first=300000",
            ["nodeAgent.uidRange", "exchange them"],
        ),
    ] {
        let said = render(&[value]).expect_err(value).to_string();
        println!(
            "REFUSED {value}: {}",
            said.split_once("failed with")
                .map_or(said.as_str(), |(_, said)| said)
        );
        for part in parts {
            assert!(said.contains(part), "{value}: no {part:?} in {said}");
        }
    }
}

/// Paths of all leaves of `value`; a list or an empty object is a leaf.
fn leaves(path: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (name, member) in members {
                leaves(&format!("{path}.{name}"), member, found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

fn templates(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            templates(&path, text);
        } else {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// Whether some template reads the value at `path`, or the whole of a value it is in. In the templates of a part the
/// part's own values are the dot.
fn is_read(path: &str, text: &str) -> bool {
    let part = [".operator", ".nodeAgent"]
        .into_iter()
        .find(|part| path.starts_with(&format!("{part}.")));
    let mut path = path;
    loop {
        let whole = format!(".Values{path}");
        let inner = part
            .and_then(|part| path.strip_prefix(part))
            .filter(|inner| !inner.is_empty());
        let words: BTreeSet<&str> = text
            .split(|c: char| !(c.is_alphanumeric() || c == '.' || c == '$'))
            .map(|word| word.trim_start_matches('$'))
            .collect();
        if words.iter().any(|word| word.ends_with(&whole)) || inner.is_some_and(|inner| words.contains(inner))
        {
            return true;
        }
        match path.rsplit_once('.') {
            Some((parent, _)) if !parent.is_empty() && Some(parent) != part => path = parent,
            _ => return false,
        }
    }
}

#[test]
fn every_value_is_read_by_a_template_and_known_to_the_schema() {
    let mut text = String::new();
    templates(&repo::chart().join("templates"), &mut text);
    let values = fs::read_to_string(repo::chart().join("values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&values).unwrap();
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(repo::chart().join("values.schema.json")).unwrap()).unwrap();
    let mut found = Vec::new();
    leaves("", &values, &mut found);
    assert!(found.len() > 40, "{found:?}");
    for path in found {
        assert!(is_read(&path, &text), "no template reads {path}");
        let mut at = &schema;
        for name in path.split('.').skip(1) {
            if at["properties"].is_null() {
                break; // an open object of Kubernetes, such as resources
            }
            at = &at["properties"][name];
            assert!(!at.is_null(), "the schema does not know {path}");
        }
    }
    assert!(
        !is_read(".operator.unread", &text),
        "the check itself sees a value that nothing reads"
    );
}

/// Names of the release's objects of `kind`.
fn ours(kind: &str) -> BTreeSet<String> {
    let said = cluster()
        .cluster()
        .kubectl(&["get", kind, "--output=name"])
        .unwrap();
    let names = said
        .lines()
        .filter_map(|line| line.split_once('/'))
        .map(|(_, name)| name.to_owned());
    names
        .filter(|name| name.starts_with("fairlead-") || name.ends_with(".fairlead.dev"))
        .collect()
}

async fn policies_are_the_ones_our_parts_look_for() {
    let expected: BTreeSet<String> = fairlead_crds::names::ADMISSION_POLICIES
        .iter()
        .map(|name| (*name).to_owned())
        .collect();
    assert_eq!(ours("validatingadmissionpolicies"), expected);
    assert_eq!(ours("validatingadmissionpolicybindings"), expected);
    let policies = wait_for("the server to check the policies", LIMIT, || async {
        let get = ["get", "validatingadmissionpolicies", "--output=json"];
        let said = cluster().cluster().kubectl(&get).map_err(|e| e.to_string())?;
        let policies: Value = serde_json::from_str(&said).map_err(|e| e.to_string())?;
        // Before it has looked at them there are no warnings either.
        let mut all = policies["items"].as_array().unwrap().iter();
        let checked = all.all(|p| p["status"]["observedGeneration"] == p["metadata"]["generation"]);
        if checked { Ok(policies) } else { Err(said) }
    })
    .await;
    for policy in policies["items"].as_array().unwrap() {
        let name = &policy["metadata"]["name"];
        assert_eq!(policy["spec"]["failurePolicy"], "Fail", "{name}");
        assert_eq!(
            policy["status"]["typeChecking"]["expressionWarnings"],
            Value::Null,
            "{name}"
        );
        for rule in policy["spec"]["validations"].as_array().unwrap() {
            let message = rule["message"].as_str().unwrap_or_default();
            assert!(
                message.contains(": "),
                "{name}: a message names its field: {message:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_upgrade_keeps_the_leader_and_an_uninstall_keeps_the_record() {
    let plane = cluster();
    policies_are_the_ones_our_parts_look_for().await;
    let space = namespace("kept").await;
    create(&admin().await, &space, &run("task")).await.unwrap();
    install::chart(plane.cluster(), &["operator.nodeCapacity=5"]).unwrap();
    let lease = leases(admin().await)
        .get(fairlead_crds::names::LEADER_LEASE)
        .await
        .unwrap();
    let spec = lease.spec.unwrap();
    assert_eq!(
        spec.lease_transitions.map(i64::from),
        Some(TERM),
        "the term survives an upgrade"
    );
    assert_eq!(spec.holder_identity.as_deref(), Some("test"));
    let args = [
        "get",
        "deployment",
        "fairlead-operator",
        "--namespace",
        install::NAMESPACE,
        "--output=jsonpath={.spec.template.spec.containers[0].args}",
    ];
    assert!(
        plane
            .cluster()
            .kubectl(&args)
            .unwrap()
            .contains("--node-capacity=5")
    );

    plane
        .cluster()
        .helm(&["uninstall", install::RELEASE, "--namespace", install::NAMESPACE])
        .unwrap();
    for kind in [
        "validatingadmissionpolicies",
        "clusterroles",
        "clusterrolebindings",
    ] {
        assert!(ours(kind).is_empty(), "{kind} are left");
    }
    assert_eq!(ours("crd").len(), fairlead_crds::all_crds().len());
    let runs = objects(&admin().await, &space, fairlead_crds::API_VERSION, "AgentRun");
    runs.get("task").await.expect("the record is kept");
    install::chart(plane.cluster(), &[]).expect("the chart takes over the CRDs it left");
    policies_are_the_ones_our_parts_look_for().await;
}

/// The arguments of the container of `workload` in what is rendered.
fn arguments(rendered: &str, workload: &str) -> Vec<String> {
    let documents = rendered
        .split("\n---\n")
        .filter(|text| text.contains(&format!("kind: {workload}\n")));
    let parsed: Vec<Value> = documents
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect();
    assert_eq!(parsed.len(), 1, "one {workload}");
    let container = &parsed[0]["spec"]["template"]["spec"]["containers"][0];
    let words = container["args"].as_array().unwrap().iter();
    words.map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// Checks that `program` knows every flag in `arguments`, and that only the supervisor gets its values apart.
fn known(program: &Path, arguments: &[String]) {
    let output = Command::new(program).arg("--help").output().unwrap();
    let help = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let known: BTreeSet<&str> = help
        .split(|c: char| !(c.is_alphanumeric() || c == '-'))
        .filter(|word| word.starts_with("--"))
        .collect();
    for flag in arguments.iter().filter(|word| word.starts_with("--")) {
        let name = flag.split_once('=').map_or(flag.as_str(), |(name, _)| name);
        assert!(
            known.contains(name),
            "{} does not know {name}:\n{help}",
            program.display()
        );
    }
}

#[test]
fn the_programs_know_every_flag_the_chart_gives_them() {
    let programs = Programs::build(Profile::Debug).unwrap();
    let rendered = render(&[]).unwrap();
    known(
        &programs.dir.join("fairlead-operator"),
        &arguments(&rendered, "Deployment"),
    );
    let all = arguments(&rendered, "DaemonSet");
    let at = all.iter().position(|word| word == "--").unwrap();
    let (supervisor, agent) = (&all[..at], &all[at + 1..]);
    known(&programs.dir.join("fairlead-supervisor"), supervisor);
    assert!(
        supervisor.iter().all(|word| !word.contains('=')),
        "{supervisor:?}"
    );
    known(&programs.dir.join("fairlead-node-agent"), agent);
}

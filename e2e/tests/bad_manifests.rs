//! Every bad manifest gets an answer that names field, rule and fix. Here: what the API server refuses, in the words a
//! user of `kubectl apply` reads; and that the decision core has the words for what the operator must answer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fairlead_crds::values::Time;
use fairlead_crds::{AgentRun, ToolExecutionSpec, ToolSpec};
use fairlead_decide::cluster::{Action, Event, Key, Settings, World, decide};
use fairlead_decide::tool_check::accept;
use fairlead_e2e::bad_manifests::{BadManifest, Expect, all};
use fairlead_e2e::*;
use serde_json::Value;
use xtask::install;

/// What is missing in `answer` of what the manifest's head asks for.
fn missing(manifest: &BadManifest, answer: &str) -> Vec<String> {
    let absent = manifest
        .says
        .iter()
        .filter(|part| !answer.contains(part.as_str()));
    absent
        .map(|part| format!("{}: expected {part:?} in: {answer}", manifest.name))
        .collect()
}

fn apply(kubeconfig: &Path, namespace: &str, object: &Value) -> Result<String, String> {
    let args = ["apply", "--namespace", namespace, "--filename=-"];
    let answer = cluster().cluster().kubectl_as(kubeconfig, &args, Some(object));
    answer.map_err(|error| error.to_string())
}

#[tokio::test]
async fn the_server_refuses_what_it_can_judge() {
    let manifests: Vec<BadManifest> = all()
        .into_iter()
        .filter(|m| m.expect == Expect::Refused)
        .collect();
    assert!(manifests.len() >= 40, "only {}", manifests.len());
    let mut spaces = Vec::new();
    for _ in 0..4 {
        let space = namespace("bad").await;
        user(&space, "author", "fairlead-edit").await;
        let path = cluster().dir().join(format!("{space}.kubeconfig"));
        install::kubeconfig_for(cluster().cluster(), &token(&space, "author").await, &path).unwrap();
        spaces.push((space, path));
    }
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for (space, kubeconfig) in &spaces {
            scope.spawn(|| {
                while let Some(manifest) = manifests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    faults
                        .lock()
                        .unwrap()
                        .extend(refusal(manifest, space, kubeconfig));
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// Applies the documents of `manifest` under a name of their own and gives what is wrong with the answer to the last.
fn refusal(manifest: &BadManifest, space: &str, kubeconfig: &Path) -> Vec<String> {
    let named = |object: &Value| {
        let mut object = object.clone();
        if object["metadata"]["name"] == "bad" {
            object["metadata"]["name"] = Value::from(manifest.name.as_str());
        }
        object
    };
    for good in manifest.good() {
        if let Err(error) = apply(kubeconfig, space, &named(good)) {
            return vec![format!(
                "{}: a document before the bad one was refused: {error}",
                manifest.name
            )];
        }
    }
    match apply(kubeconfig, space, &named(manifest.bad())) {
        Ok(said) => vec![format!("{}: was not refused: {said}", manifest.name)],
        Err(error) => {
            let said = error
                .split_once("failed with")
                .map_or(error.as_str(), |(_, said)| said);
            println!(
                "REFUSED {}: {}",
                manifest.name,
                said.split_once(": ").map_or(said, |(_, said)| said)
            );
            missing(manifest, &error)
        }
    }
}

#[test]
fn the_core_judges_what_the_server_cannot() {
    let manifests: Vec<BadManifest> = all()
        .into_iter()
        .filter(|m| m.expect != Expect::Refused)
        .collect();
    assert!(manifests.len() >= 15, "only {}", manifests.len());
    let mut faults = Vec::new();
    for manifest in &manifests {
        let answer = judge(manifest);
        println!("JUDGED {}: {answer}", manifest.name);
        faults.extend(missing(manifest, &answer));
    }
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// Why the core fails a bad run at its first sight.
fn failure(run: &Value) -> String {
    let now = Time::from_second(1_800_000_000).unwrap();
    let mut run: AgentRun = serde_json::from_value(run.clone()).unwrap();
    run.metadata.uid = Some("bad".to_owned());
    run.metadata.resource_version = Some("1".to_owned());
    let mut world = World::new(Settings::default());
    world.absorb(Event::Led { term: 1 }, now);
    world.absorb(Event::Run(run.into()), now);
    let actions = decide(&world, &Key::Run("bad".to_owned()), now).actions;
    let told = actions.iter().find_map(|action| match action {
        Action::WriteRun { status, .. } => status.failure.as_ref().map(|f| f.message.clone()),
        _ => None,
    });
    told.unwrap_or_else(|| format!("not failed: {actions:?}"))
}

/// What the core says of a bad run, of a bad Tool, or of a bad call of the good Tool before it.
fn judge(manifest: &BadManifest) -> String {
    if manifest.expect == Expect::FailedRun {
        return failure(manifest.bad());
    }
    let tool = match manifest.expect {
        Expect::DeniedCall => &manifest.good()[0],
        _ => manifest.bad(),
    };
    let tool: ToolSpec = serde_json::from_value(tool["spec"].clone()).unwrap();
    match (manifest.expect, accept(&tool)) {
        (Expect::DeniedCall, Ok(tool)) => {
            let call: ToolExecutionSpec = serde_json::from_value(manifest.bad()["spec"].clone()).unwrap();
            tool.validate(&call.arguments)
                .err()
                .map_or("fits".to_owned(), |fault| fault.to_string())
        }
        (_, Ok(_)) => "accepted".to_owned(),
        (_, Err(faults)) => faults
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; "),
    }
}

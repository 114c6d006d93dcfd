//! Bad manifests that the API server cannot judge: the operator does, in a condition or by denying the call.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_crds::conditions::{self, kind, reason};
use fairlead_crds::{ExecutionPhase, Outcome, RunPhase, Tool};
use fairlead_e2e::bad_manifests::{self, BadManifest, Expect};
use fairlead_e2e::fleet::*;
use fairlead_e2e::{admin, namespace, wait_for};
use kube::Api;

async fn answer(ns: &str, manifest: &BadManifest) -> String {
    for object in manifest.good() {
        made(ns, object).await;
    }
    let bad = made(ns, manifest.bad()).await;
    let name = bad["metadata"]["name"].as_str().unwrap().to_owned();
    match manifest.expect {
        Expect::AcceptedCondition => {
            let tools: Api<Tool> = Api::namespaced(admin().await, ns);
            wait_for(&format!("the verdict on {name}"), SOON, || async {
                let tool = tools.get(&name).await.map_err(|e| e.to_string())?;
                let status = tool.status.unwrap_or_default();
                let verdict = conditions::find(&status.conditions, kind::ACCEPTED).ok_or("no verdict yet")?;
                assert_eq!(verdict.status, "False", "{name}: {verdict:?}");
                Ok::<_, String>(verdict.message.clone())
            })
            .await
        }
        Expect::DeniedCall => {
            let status = ended_execution(ns, &name, SOON).await.status.unwrap();
            assert_eq!(status.phase, Some(ExecutionPhase::Denied), "{name}: {status:?}");
            assert_eq!(status.outcome, Some(Outcome::NotStarted), "{name}: {status:?}");
            status.message.unwrap()
        }
        Expect::FailedRun => {
            let status = ended_run(ns, &name, SOON).await.status.unwrap();
            assert_eq!(status.phase, Some(RunPhase::Failed), "{name}: {status:?}");
            assert_eq!(status.turns, 0, "{name}: {status:?}");
            let failure = status.failure.unwrap();
            assert_eq!(failure.reason, reason::INVALID_PARAMETERS, "{name}");
            failure.message
        }
        Expect::Refused => unreachable!("refused at admission; tested with the CRDs"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_admission_cannot_judge_is_judged_by_the_operator() {
    drop(fleet(1));
    let mut judged = 0;
    for manifest in bad_manifests::all()
        .iter()
        .filter(|m| m.expect != Expect::Refused)
    {
        let ns = namespace("judged").await;
        let said = answer(&ns, manifest).await;
        println!("{}: {said}", manifest.name);
        for part in &manifest.says {
            assert!(
                said.contains(part.as_str()),
                "{}: expected {part:?} in {said:?}",
                manifest.name
            );
        }
        judged += 1;
    }
    assert!(judged > 0, "no bad manifest is left for the operator");
    println!("{judged} bad manifests were judged by the operator");
}

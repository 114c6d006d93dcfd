//! What somebody stored however deep is refused where it stands, and harms nobody else.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_crds::conditions::{find, kind, reason, refusal};
use fairlead_crds::reading::Readable;
use fairlead_crds::{
    API_VERSION, AgentRun, ExecutionPhase, ModelProvider, Outcome, RunPhase, Tool, ToolExecution,
};
use fairlead_e2e::fleet::*;
use fairlead_e2e::model::{Model, calls};
use fairlead_e2e::{admin, namespace, wait_for};
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, PostParams, Request};
use kube::core::Resource;
use rustix::process::Signal;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::fmt::Debug;

/// Longest line of a log.
const LINE_MAX: usize = 4096;

fn nested(levels: usize) -> String {
    "{\"a\":".repeat(levels - 1) + "{}" + &"}".repeat(levels - 1)
}

/// Creates an object from text: no value of that depth is ever made here.
async fn store<K: Resource<DynamicType = ()>>(ns: &str, name: &str, spec: &str) {
    let text = format!(
        r#"{{"apiVersion":"{API_VERSION}","kind":"{}","metadata":{{"name":"{name}"}},"spec":{spec}}}"#,
        K::kind(&())
    );
    let request = Request::new(K::url_path(&(), Some(ns)))
        .create(&PostParams::default(), text.into_bytes())
        .unwrap();
    let stored = admin().await.request::<IgnoredAny>(request).await;
    stored.unwrap_or_else(|error| panic!("create {name}: {error}"));
}

async fn store_execution(ns: &str, name: &str, levels: usize) {
    let spec = format!(
        r#"{{"tool":{{"toolRef":{{"name":"look"}}}},"arguments":{}}}"#,
        nested(levels)
    );
    store::<ToolExecution>(ns, name, &spec).await;
}

async fn store_tool(ns: &str, name: &str, levels: usize) {
    let spec = format!(
        r#"{{"description":"d","runner":{{"command":{{"argv":["/bin/true"]}}}},"timeouts":{{"hardSeconds":9,"graceSeconds":1}},
        "inputSchema":{{"type":"object","x":{}}}}}"#,
        nested(levels)
    );
    store::<Tool>(ns, name, &spec).await;
}

async fn store_run(ns: &str, name: &str, levels: usize) {
    let spec = format!(
        r#"{{"input":"go","model":{{"providerRef":{{"name":"model"}},"parameters":{}}}}}"#,
        nested(levels)
    );
    store::<AgentRun>(ns, name, &spec).await;
}

async fn store_provider(ns: &str, name: &str, levels: usize) {
    let spec = format!(
        r#"{{"wireApi":"Scripted","defaultModel":"m","script":[{{"respond":{{"toolCalls":[
        {{"id":"a","name":"look","arguments":{}}}]}}}}]}}"#,
        nested(levels)
    );
    store::<ModelProvider>(ns, name, &spec).await;
}

/// Waits until `judged` is said of an object.
async fn until<K, T>(ns: &str, name: &str, judged: impl Fn(&K) -> Option<T>) -> T
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api: Api<Readable<K>> = Api::namespaced(admin().await, ns);
    wait_for(&format!("the verdict on {name}"), SOON, || async {
        let object = api.get(name).await.map_err(|e| e.to_string())?;
        let object = object.0.map_err(|e| e.to_string())?;
        judged(&object).ok_or_else(|| format!("{:?}", object.meta().resource_version))
    })
    .await
}

async fn assert_refused(ns: &str, levels: usize) {
    let status = until(ns, &format!("execution-{levels}"), |x: &ToolExecution| {
        x.status
            .clone()
            .filter(|s| s.phase.is_some_and(ExecutionPhase::is_terminal))
    })
    .await;
    assert_eq!(status.phase, Some(ExecutionPhase::Denied), "{status:?}");
    assert_eq!(status.reason.as_deref(), Some(refusal::INVALID_ARGUMENT));
    assert_eq!(status.outcome, Some(Outcome::NotStarted));
    assert!(
        status
            .message
            .unwrap()
            .starts_with("spec.arguments: more than 32 ")
    );

    let accepted = until(ns, &format!("tool-{levels}"), |tool: &Tool| {
        find(&tool.status.as_ref()?.conditions, kind::ACCEPTED).cloned()
    })
    .await;
    assert_eq!(
        (accepted.status.as_str(), accepted.reason.as_str()),
        ("False", reason::INVALID_SCHEMA)
    );
    assert!(
        accepted.message.contains("spec.inputSchema: more than 32 "),
        "{accepted:?}"
    );

    let status = until(ns, &format!("run-{levels}"), |run: &AgentRun| {
        run.status
            .clone()
            .filter(|s| s.phase.is_some_and(RunPhase::is_terminal))
    })
    .await;
    assert_eq!(status.phase, Some(RunPhase::Failed), "{status:?}");
    assert_eq!(
        status.failure.unwrap().reason,
        reason::INVALID_PARAMETERS,
        "the run's parameters"
    );

    let ready = until(ns, &format!("provider-{levels}"), |provider: &ModelProvider| {
        find(&provider.status.as_ref()?.conditions, kind::READY).cloned()
    })
    .await;
    assert_eq!(ready.status, "False", "{ready:?}");
    assert!(
        ready
            .message
            .contains("respond.toolCalls[0].arguments: more than 32 "),
        "{ready:?}"
    );
}

/// A run whose model calls the tool once, and then answers.
async fn assert_healthy(ns: &str, name: &str) {
    made(ns, &run_with(name, "model", &["look"])).await;
    let run = ended_run(ns, name, SOON).await;
    let status = run.status.as_ref().unwrap();
    assert_eq!(status.phase, Some(RunPhase::Succeeded), "{status:?}");
    let turns = turns_of(ns, &run).await;
    let call = &turns[0].status.as_ref().unwrap().tool_calls[0];
    assert_eq!(call.error, None);
}

/// Kills a part and waits until its successor is ready.
async fn begin_again() {
    let (operator, agent) = {
        let fleet = fleet(1);
        (
            fleet.process("operator").unwrap().expect("an operator"),
            fleet.agent(0).unwrap().expect("an agent"),
        )
    };
    assert!(operator.signal(Signal::KILL).unwrap() && agent.signal(Signal::KILL).unwrap());
    wait_for("the operator to be gone", SOON, || async {
        match fleet(1).is_running("operator").unwrap_or(true) {
            true => Err("still there"),
            false => Ok(()),
        }
    })
    .await;
    wait_for("another agent", SOON, || async {
        let now = fleet(1).agent(0).map_err(|e| e.to_string())?;
        now.filter(|now| now.pid != agent.pid)
            .map(drop)
            .ok_or_else(|| "not yet".to_owned())
    })
    .await;
    let mut fleet = fleet(1);
    fleet.start_operator("operator").expect("start an operator");
    for name in ["operator", &node(0)] {
        fleet
            .wait_ready(name)
            .unwrap_or_else(|error| panic!("{name}: {error:#}"));
    }
}

fn assert_short_lines() {
    for name in ["operator", &node(0)] {
        let log = std::fs::read_to_string(fleet(1).log(name)).expect("read the log");
        let long = log.lines().find(|line| line.len() > LINE_MAX);
        assert!(
            long.is_none(),
            "{name} logs {} bytes in a line",
            long.unwrap().len()
        );
        assert!(!log.contains("recursion limit"), "{name}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_nested_too_deep_is_refused_and_harms_nobody() {
    drop(fleet(1));
    let ns = namespace("nesting").await;
    let deep = nested(125);
    let model = Model::start(vec![calls(&[("a", "look", "{}")])]).await;
    let wild = Model::start(vec![calls(&[("a", "look", &deep), ("b", "look", "{}")])]).await;
    made(&ns, &model.provider("model")).await;
    made(&ns, &wild.provider("wild")).await;
    made(&ns, &shell_tool("look", "echo looked")).await;

    for levels in [33, 150, 5_000] {
        store_execution(&ns, &format!("execution-{levels}"), levels).await;
        store_tool(&ns, &format!("tool-{levels}"), levels).await;
        store_run(&ns, &format!("run-{levels}"), levels).await;
        store_provider(&ns, &format!("provider-{levels}"), levels).await;
    }
    for levels in [33, 150, 5_000] {
        assert_refused(&ns, levels).await;
    }

    made(&ns, &run_with("wild", "wild", &["look"])).await;
    let run = ended_run(&ns, "wild", SOON).await;
    assert_eq!(run.status.as_ref().unwrap().phase, Some(RunPhase::Succeeded));
    let turns = turns_of(&ns, &run).await;
    let [refused, made_call] = &turns[0].status.as_ref().unwrap().tool_calls[..] else {
        panic!("{:?}", turns[0].status);
    };
    let error = refused.error.as_ref().expect("the call was refused");
    assert_eq!(error.reason, refusal::INVALID_ARGUMENT);
    assert!(
        refused.arguments.is_empty() && error.text.len() < 1024,
        "{error:?}"
    );
    assert_eq!(made_call.error, None);
    let told = wild.requests()[1].to_string();
    assert!(told.contains("more than 32 objects and lists"), "{told}");

    assert_healthy(&ns, "before").await;
    begin_again().await;
    assert_healthy(&ns, "after").await;
    let own = own_execution("own", "look", "x");
    made(&ns, &own).await;
    let own = ended_execution(&ns, "own", SOON).await;
    assert_eq!(own.status.unwrap().phase, Some(ExecutionPhase::Succeeded));
    assert_short_lines();
}

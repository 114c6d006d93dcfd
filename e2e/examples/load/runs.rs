//! Runs on a scripted provider.

use std::time::{Duration, Instant};

use fairlead_crds::{API_VERSION, AgentRun, ExecutionPhase, ModelProvider, RunPhase};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use crate::calls::tool;
use crate::seen::Seen;
use crate::{LIMIT, client, executions, flood, micros, setting};

const CALLS: usize = 3;

/// So many runs at once, each with three calls side by side.
pub async fn many(count: usize) -> Value {
    let calls: Vec<Value> = (0..CALLS)
        .map(|call| json!({"id": format!("c{call}"), "name": "true"}))
        .collect();
    provider(
        "three",
        &[
            json!({"when": {"turn": 1}, "respond": {"toolCalls": calls}}),
            end(),
        ],
    )
    .await;
    tool("true", &["true"]).await;
    let seen = Seen::start(executions("LOAD_USER").await).await;
    let runs = runs().await;
    let start = Instant::now();
    flood(32, count, |index| {
        make(&runs, format!("many-{index}"), "three", 4)
    })
    .await;
    let ended = ended(&runs, count).await;
    let wrong: Vec<_> = ended
        .iter()
        .filter(|run| phase(run) != Some(RunPhase::Succeeded))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} runs did not succeed, first {:?}",
        wrong.len(),
        wrong[0].status
    );
    let all = seen.all();
    assert_eq!(all.len(), count * CALLS, "executions");
    let last = all
        .iter()
        .filter_map(|times| times.ended.as_ref().map(|(at, ..)| *at))
        .max()
        .expect("ends");
    let trips = all.iter().map(|times| {
        let (at, phase, why) = times.ended.as_ref().expect("an end");
        assert_eq!(*phase, ExecutionPhase::Succeeded, "{why}");
        *at - times.added
    });
    let answer = json!({
        "perSecond": all.len() as f64 / (last - start).as_secs_f64(),
        "roundTrip": micros(trips),
    });
    remove(&runs).await;
    answer
}

/// One run with so many turns of one call: the time from each call to the next, as a watching client sees it.
pub async fn rounds(count: usize) -> Value {
    let mut steps: Vec<Value> = (1..=count)
        .map(|turn| json!({"when": {"turn": turn}, "respond": {"toolCalls": [{"id": format!("c{turn}"), "name": "true"}]}}))
        .collect();
    steps.push(end());
    provider("rounds", &steps).await;
    tool("true", &["true"]).await;
    let seen = Seen::start(executions("LOAD_USER").await).await;
    let runs = runs().await;
    make(&runs, "rounds".to_owned(), "rounds", count + 1).await;
    let ended = ended(&runs, 1).await;
    assert_eq!(
        phase(&ended[0]),
        Some(RunPhase::Succeeded),
        "{:?}",
        ended[0].status
    );
    let mut added: Vec<Instant> = seen.all().iter().map(|times| times.added).collect();
    added.sort_unstable();
    assert_eq!(added.len(), count, "calls");
    let rounds = added.windows(2).map(|pair| pair[1] - pair[0]);
    let answer = json!({"rounds": micros(rounds)});
    remove(&runs).await;
    answer
}

fn end() -> Value {
    json!({"respond": {"text": "Done."}})
}

async fn runs() -> Api<AgentRun> {
    Api::namespaced(client("LOAD_USER").await, &setting("LOAD_NAMESPACE"))
}

async fn provider(name: &str, steps: &[Value]) {
    let object = json!({
        "apiVersion": API_VERSION, "kind": "ModelProvider", "metadata": {"name": name},
        "spec": {"wireApi": "Scripted", "defaultModel": "scripted", "script": steps},
    });
    let provider: ModelProvider = serde_json::from_value(object).expect("a provider");
    let api = Api::namespaced(client("LOAD_USER").await, &setting("LOAD_NAMESPACE"));
    match api.create(&PostParams::default(), &provider).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        other => drop(other.expect("create the provider")),
    }
}

async fn make(api: &Api<AgentRun>, name: String, provider: &str, turns: usize) {
    let object = json!({
        "apiVersion": API_VERSION, "kind": "AgentRun", "metadata": {"name": name},
        "spec": {
            "input": "Go.", "model": {"providerRef": {"name": provider}}, "tools": [{"toolRef": {"name": "true"}}],
            "limits": {"maxTurns": turns},
        },
    });
    let run = serde_json::from_value(object).expect("a run");
    api.create(&PostParams::default(), &run)
        .await
        .expect("create the run");
}

fn phase(run: &AgentRun) -> Option<RunPhase> {
    run.status.as_ref().and_then(|status| status.phase)
}

/// All runs, once as many as that have ended. No time that is reported is taken here, so it asks seldom.
async fn ended(api: &Api<AgentRun>, count: usize) -> Vec<AgentRun> {
    let start = Instant::now();
    loop {
        let all = api.list(&ListParams::default()).await.expect("list runs").items;
        let done = all
            .iter()
            .filter(|run| phase(run).is_some_and(RunPhase::is_terminal))
            .count();
        if done == count {
            return all;
        }
        assert!(
            start.elapsed() < LIMIT,
            "{done} of {count} runs ended within {LIMIT:?}"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Deletes the runs and waits until the garbage collector has taken their executions.
async fn remove(runs: &Api<AgentRun>) {
    runs.delete_collection(&DeleteParams::default(), &ListParams::default())
        .await
        .expect("delete the runs");
    let executions = executions("LOAD_USER").await;
    let start = Instant::now();
    while !executions
        .list(&ListParams::default().limit(1))
        .await
        .expect("list executions")
        .items
        .is_empty()
    {
        assert!(start.elapsed() < LIMIT, "executions were left after {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

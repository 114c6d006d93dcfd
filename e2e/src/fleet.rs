//! The real programs beside the control plane of a test program: operators, and nodes with their agents.

use crate::{admin, cluster_for_programs, create, objects};
use fairlead_crds::{API_VERSION, AgentRun, AgentTurn, ToolExecution};
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use xtask::cgroup::Tree;
use xtask::programs::{Profile, Programs};
use xtask::stack::{Stack, node_name};

/// How long anything short may take on a busy machine before a test fails.
pub const SOON: Duration = Duration::from_secs(60);

/// The programs of this test program: an operator called `operator` and `nodes` nodes, all ready. They end with the
/// program. Whoever asks first decides how many nodes there are.
pub fn fleet(nodes: u32) -> MutexGuard<'static, Stack> {
    static FLEET: OnceLock<Mutex<Stack>> = OnceLock::new();
    let fleet = FLEET.get_or_init(|| {
        let plane = cluster_for_programs();
        let programs = Programs::build(Profile::Debug).expect("build the programs");
        let groups = Tree::named(&format!("fairlead-e2e-{}", std::process::id())).expect("a control group");
        let mut stack = Stack::open(plane.dir(), plane.cluster(), &programs, groups).expect("a stack");
        stack.start_operator("operator").expect("start the operator");
        let names: Vec<_> = (0..nodes)
            .map(|n| stack.start_node(n).expect("start a node").0)
            .collect();
        for name in names.iter().map(String::as_str).chain(["operator"]) {
            stack
                .wait_ready(name)
                .unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
        Mutex::new(stack)
    });
    fleet.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Name of node number `index`.
pub fn node(index: u32) -> String {
    node_name(index)
}

/// Runs of a namespace.
pub async fn runs(namespace: &str) -> Api<AgentRun> {
    Api::namespaced(admin().await, namespace)
}

/// Turns of a namespace.
pub async fn turns(namespace: &str) -> Api<AgentTurn> {
    Api::namespaced(admin().await, namespace)
}

/// Executions of a namespace.
pub async fn executions(namespace: &str) -> Api<ToolExecution> {
    Api::namespaced(admin().await, namespace)
}

/// Creates `object` as the administrator.
///
/// # Panics
/// When the server refuses.
pub async fn made(namespace: &str, object: &Value) -> Value {
    create(&admin().await, namespace, object)
        .await
        .unwrap_or_else(|error| panic!("create {object}: {error}"))
}

/// A Tool that runs a shell script, which finds its parameter `arg` as `$1`.
pub fn shell_tool(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "Tool", "metadata": {"name": name},
        "spec": {
            "description": "Runs a script.",
            "inputSchema": {"type": "object", "properties": {"arg": {"type": "string"}}, "additionalProperties": false},
            "runner": {"command": {"argv": ["/bin/sh", "-c", script, "tool", "{{arg}}"]}},
            "timeouts": {"hardSeconds": 120, "graceSeconds": 1},
        },
    })
}

/// A scripted provider with these steps.
pub fn script(name: &str, steps: &Value) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "ModelProvider", "metadata": {"name": name},
        "spec": {"wireApi": "Scripted", "defaultModel": "scripted", "script": steps},
    })
}

/// A run on `provider` that is offered `tools`.
pub fn run_with(name: &str, provider: &str, tools: &[&str]) -> Value {
    let tools: Vec<_> = tools.iter().map(|t| json!({"toolRef": {"name": t}})).collect();
    json!({
        "apiVersion": API_VERSION, "kind": "AgentRun", "metadata": {"name": name},
        "spec": {"input": "Do it.", "model": {"providerRef": {"name": provider}}, "tools": tools},
    })
}

/// A user's own execution of `tool`.
pub fn own_execution(name: &str, tool: &str, arg: &str) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "ToolExecution", "metadata": {"name": name},
        "spec": {"tool": {"toolRef": {"name": tool}}, "arguments": {"arg": arg}},
    })
}

/// Waits until a run has ended, and gives it.
pub async fn ended_run(namespace: &str, name: &str, limit: Duration) -> AgentRun {
    let api = runs(namespace).await;
    crate::wait_for(&format!("the end of run {namespace}/{name}"), limit, || async {
        let run = api.get(name).await.map_err(|e| e.to_string())?;
        let phase = run.status.as_ref().and_then(|s| s.phase);
        match phase.is_some_and(fairlead_crds::RunPhase::is_terminal) {
            true => Ok(run),
            false => Err(format!("{:?}", run.status)),
        }
    })
    .await
}

/// Waits until an execution has ended, and gives it.
pub async fn ended_execution(namespace: &str, name: &str, limit: Duration) -> ToolExecution {
    let api = executions(namespace).await;
    crate::wait_for(
        &format!("the end of execution {namespace}/{name}"),
        limit,
        || async {
            let execution = api.get(name).await.map_err(|e| e.to_string())?;
            let phase = execution.status.as_ref().and_then(|s| s.phase);
            match phase.is_some_and(fairlead_crds::ExecutionPhase::is_terminal) {
                true => Ok(execution),
                false => Err(format!("{:?}", execution.status)),
            }
        },
    )
    .await
}

/// The turns of a run, in order.
pub async fn turns_of(namespace: &str, run: &AgentRun) -> Vec<AgentTurn> {
    let label = format!(
        "{}={}",
        fairlead_crds::names::LABEL_RUN_UID,
        run.metadata.uid.clone().unwrap_or_default()
    );
    let list = turns(namespace)
        .await
        .list(&ListParams::default().labels(&label))
        .await
        .expect("list turns");
    let mut all = list.items;
    all.sort_by_key(|t| (t.spec.index, t.spec.attempt));
    all
}

/// The executions of a run, in the order of their creation.
pub async fn executions_of(namespace: &str, run: &AgentRun) -> Vec<ToolExecution> {
    let label = format!(
        "{}={}",
        fairlead_crds::names::LABEL_RUN_UID,
        run.metadata.uid.clone().unwrap_or_default()
    );
    let list = executions(namespace)
        .await
        .list(&ListParams::default().labels(&label))
        .await
        .expect("list executions");
    let mut all = list.items;
    all.sort_by_key(|x| x.spec.binding.as_ref().map(|b| b.admitted_at));
    all
}

/// What the API server's audit log says was written below `namespace` by Fairlead's parts: user, verb, resource with
/// subresource, name.
pub fn writes_in(namespace: &str) -> Vec<(String, String, String, String)> {
    let log = std::fs::read_to_string(cluster_for_programs().audit_log()).expect("read the audit log");
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    log.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|e| e["stage"] == "ResponseComplete" && e["objectRef"]["namespace"] == namespace)
        .filter(|e| !matches!(e["verb"].as_str(), Some("get" | "list" | "watch")))
        .filter(|e| text(&e["user"]["username"]).contains(":fairlead-"))
        .map(|e| {
            let reference = &e["objectRef"];
            let resource = match reference["subresource"].as_str() {
                Some(sub) => format!("{}/{sub}", text(&reference["resource"])),
                None => text(&reference["resource"]),
            };
            let user = text(&e["user"]["username"])
                .rsplit(':')
                .next()
                .unwrap_or_default()
                .to_owned();
            (user, text(&e["verb"]), resource, text(&reference["name"]))
        })
        .collect()
}

/// Untyped access, for what the typed kinds do not show.
pub async fn untyped(namespace: &str, kind: &str) -> Api<kube::api::DynamicObject> {
    objects(&admin().await, namespace, API_VERSION, kind)
}

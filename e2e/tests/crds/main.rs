//! The kinds as a real API server serves them: accepted, selectable, readable, defaulted, explained, and strict about
//! what may follow what.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod explain;
mod phases;

use fairlead_e2e::*;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use xtask::{generate, repo};

const CRD: (&str, &str) = ("apiextensions.k8s.io/v1", "CustomResourceDefinition");

#[test]
fn the_server_accepts_every_crd_by_either_kind_of_apply() {
    generate::run(&generate::Gen { check: true }).unwrap();
    let directory = repo::root().join("crds/yaml").display().to_string();
    let server_side = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "-f",
        &directory,
    ];
    for args in [
        server_side.as_slice(),
        &["apply", "--dry-run=server", "-f", &directory],
    ] {
        let said = cluster().cluster().kubectl(args).unwrap();
        assert_eq!(said.lines().count(), fairlead_crds::all_crds().len(), "{said}");
    }
}

#[tokio::test]
async fn the_server_finds_no_fault_with_the_schemas() {
    cluster();
    let api = objects(&admin().await, "", CRD.0, CRD.1);
    for crd in fairlead_crds::all_crds() {
        let name = crd.metadata.name.unwrap();
        let live = api.get(&name).await.unwrap();
        let conditions = live.data["status"]["conditions"].as_array().unwrap().clone();
        let is = |kind: &str| {
            conditions
                .iter()
                .any(|c| c["type"] == kind && c["status"] == "True")
        };
        assert!(is("Established") && is("NamesAccepted"), "{name}: {conditions:?}");
        assert!(!is("NonStructuralSchema"), "{name}: {conditions:?}");
    }
}

#[tokio::test]
async fn executions_can_be_selected_by_node_and_phase() {
    cluster();
    let namespace = namespace("select").await;
    let operator = operator().await;
    let run = create(&admin().await, &namespace, &run("task")).await.unwrap();
    for (name, node) in [("one", "n1"), ("two", "n1"), ("three", "n2")] {
        create(&operator, &namespace, &run_execution(name, &run, node))
            .await
            .unwrap();
    }
    create(&admin().await, &namespace, &execution("unbound"))
        .await
        .unwrap();
    merge_status(&operator, &namespace, &execution("two"), &succeeded(1, 'a'))
        .await
        .unwrap();

    let api = objects(
        &admin().await,
        &namespace,
        fairlead_crds::API_VERSION,
        "ToolExecution",
    );
    let live = "status.phase!=Succeeded,status.phase!=Failed";
    for (selector, expected) in [
        ("spec.binding.nodeName=n1".to_owned(), vec!["one", "two"]),
        ("spec.binding.nodeName=".to_owned(), vec!["unbound"]),
        (format!("spec.binding.nodeName=n1,{live}"), vec!["one"]),
        ("status.phase=Succeeded".to_owned(), vec!["two"]),
        ("spec.runRef.name=task".to_owned(), vec!["one", "three", "two"]),
        ("spec.runRef.name=".to_owned(), vec!["unbound"]),
        (live.to_owned(), vec!["one", "three", "unbound"]),
    ] {
        let found = api.list(&ListParams::default().fields(&selector)).await.unwrap();
        let names: Vec<String> = found
            .items
            .into_iter()
            .filter_map(|item| item.metadata.name)
            .collect();
        assert_eq!(names, expected, "{selector}");
    }
}

#[tokio::test]
async fn kubectl_finds_the_turns_and_executions_of_a_run_by_its_name() {
    let namespace = namespace("of-run").await;
    let operator = operator().await;
    for name in ["task", "other"] {
        let run = create(&admin().await, &namespace, &run(name)).await.unwrap();
        let turn = turn(&format!("{name}-t1"), &run);
        create(&operator, &namespace, &turn).await.unwrap();
        let call = run_execution(&format!("{name}-1"), &run, "n1");
        create(&operator, &namespace, &call).await.unwrap();
    }
    let of_run = [
        "get",
        "turns,tx",
        "--field-selector=spec.runRef.name=task",
        "--output=name",
        "--namespace",
        &namespace,
    ];
    let found = cluster().cluster().kubectl(&of_run).unwrap();
    let found: Vec<&str> = found.lines().collect();
    assert_eq!(
        found,
        [
            "agentturn.fairlead.dev/task-t1",
            "toolexecution.fairlead.dev/task-1"
        ]
    );
}

/// Makes one ended object of each kind.
async fn one_of_each(namespace: &str) {
    let (admin, operator) = (admin().await, operator().await);
    let task = create(&admin, namespace, &run("task")).await.unwrap();
    let calls =
        json!([{"callId": "a", "tool": "word", "stage": 1}, {"callId": "b", "tool": "word", "stage": 1}]);
    let mut call = succeeded(1, 'a');
    call["reason"] = json!("Completed");
    call["result"] = json!({"exitCode": 0});
    call["usage"] = json!({"wallMillis": 12});
    let answered = json!({"phase": "Completed", "completionTime": "2026-01-01T00:00:01Z", "latencyMillis": 34,
        "finishReason": "tool_calls", "toolCalls": calls});
    let ended = json!({"phase": "Succeeded", "completionTime": "2026-01-01T00:00:03Z", "turns": 2, "toolCalls": 1,
        "usage": {"totalTokens": 99}, "conditions": [condition("Succeeded", "Answered")]});
    merge_status(&operator, namespace, &task, &ended).await.unwrap();
    for (maker, object, status) in [
        (
            &admin,
            tool("word"),
            json!({"conditions": [condition("Accepted", "Valid")]}),
        ),
        (
            &admin,
            provider("script"),
            json!({"conditions": [condition("Ready", "Ready")]}),
        ),
        (&operator, run_execution("task-1", &task, "n1"), call),
        (&operator, turn("task-t1", &task), answered),
    ] {
        create(maker, namespace, &object).await.unwrap();
        merge_status(&operator, namespace, &object, &status)
            .await
            .unwrap();
    }
}

/// For each kind: the columns, and the cells of the object that [`one_of_each`] makes.
const TABLES: [(&str, &str, &str); 5] = [
    (
        "runs",
        "NAME PHASE REASON TURNS TOOLS AGE TOKENS MODEL PROVIDER MESSAGE",
        "task Succeeded Answered 2 1 AGE 99 script",
    ),
    (
        "turns",
        "NAME RUN TURN ATTEMPT PHASE REASON FINISH FIRSTCALL MILLIS AGE",
        "task-t1 task 1 1 Completed tool_calls word 34 AGE",
    ),
    (
        "tx",
        "NAME PHASE REASON TOOL RUN NODE EXIT MILLIS AGE MESSAGE",
        "task-1 Succeeded Completed word task n1 0 12 AGE",
    ),
    (
        "tools",
        "NAME SIDEEFFECT ACCEPTED REASON AGE MESSAGE",
        "word Write True Valid AGE",
    ),
    (
        "llm",
        "NAME API MODEL READY REASON AGE MESSAGE",
        "script Scripted m True Ready AGE",
    ),
];

#[tokio::test]
async fn kubectl_get_reads_well() {
    let namespace = namespace("columns").await;
    one_of_each(&namespace).await;
    let get = |kind: &str, output: &str| {
        cluster()
            .cluster()
            .kubectl(&["get", kind, "--namespace", &namespace, output])
            .unwrap()
    };
    for (kind, head, row) in TABLES {
        let table = get(kind, "--output=wide");
        println!("{table}");
        let lines: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0], head.split(' ').collect::<Vec<_>>(), "{table}");
        let expected: Vec<&str> = row.split(' ').collect();
        assert_eq!(lines[1].len(), expected.len(), "{table}");
        for (index, cell) in lines[1].iter().enumerate() {
            let wanted = expected[index];
            assert!(wanted == "AGE" || *cell == wanted, "{table}");
        }
    }
    let all = get("fairlead", "--output=name");
    assert_eq!(
        all.lines().count(),
        5,
        "one object of each kind is in the category: {all}"
    );
}

fn condition(kind: &str, reason: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

#[tokio::test]
async fn defaults_reach_into_objects_that_were_left_out() {
    let namespace = namespace("defaults").await;
    let admin = admin().await;
    let task = create(&admin, &namespace, &run("task")).await.unwrap();
    assert_eq!(
        task["spec"],
        json!({
            "input": "Say a word.", "model": {"providerRef": {"name": "script"}, "maxOutputTokens": 4096},
            "serviceAccountName": "default", "toolWaitSeconds": 30,
            "limits": {"maxTurns": 64, "maxToolCalls": 200, "deadlineSeconds": 7200, "maxTurnOutputBytes": 200_000},
        })
    );
    let mut partly = run("partly");
    partly["spec"]["limits"] = json!({"maxTurns": 3});
    let partly = create(&admin, &namespace, &partly).await.unwrap();
    assert_eq!(
        partly["spec"]["limits"],
        json!({"maxTurns": 3, "maxToolCalls": 200, "deadlineSeconds": 7200, "maxTurnOutputBytes": 200_000})
    );
    let word = create(&admin, &namespace, &tool("word")).await.unwrap();
    assert_eq!(
        word["spec"],
        json!({
            "description": "Prints a word.", "inputSchema": {"type": "object"}, "sideEffect": "Write",
            "parallelSafe": false, "network": "None", "runner": {"command": {"argv": ["echo", "word"]}},
            "timeouts": {"hardSeconds": 3600, "graceSeconds": 3}, "resources": {"oomGroup": true},
            "output": {"maxBytes": 50_000},
        })
    );
    let script = create(&admin, &namespace, &provider("script")).await.unwrap();
    assert_eq!(
        script["spec"],
        json!({
            "wireApi": "Scripted", "defaultModel": "m", "stream": true,
            "timeouts": {"connectSeconds": 10, "firstByteSeconds": 120, "idleSeconds": 60, "totalSeconds": 600},
            "retry": {"transient": 2}, "script": [{"respond": {"text": "Done."}}],
        })
    );
    let own = create(&admin, &namespace, &execution("own")).await.unwrap();
    assert_eq!(
        own["spec"],
        json!({"tool": {"toolRef": {"name": "word"}}, "serviceAccountName": "default"})
    );
}

/// A default within a list would be taken for a change by every apply.
#[tokio::test]
async fn the_quickstart_applied_again_changes_nothing() {
    let namespace = namespace("again").await;
    let quickstart = repo::root().join("examples/quickstart").display().to_string();
    let apply = || {
        let args = ["apply", "--namespace", &namespace, "--filename", &quickstart];
        cluster().cluster().kubectl(&args).unwrap()
    };
    let first = apply();
    assert!(first.lines().all(|line| line.ends_with(" created")), "{first}");
    let second = apply();
    assert!(
        second.lines().all(|line| line.ends_with(" unchanged")),
        "{second}"
    );
    assert_eq!(second.lines().count(), first.lines().count());
}

#[tokio::test]
async fn conditions_of_two_managers_live_side_by_side() {
    let namespace = namespace("apply").await;
    let operator = operator().await;
    create(&admin().await, &namespace, &execution("own"))
        .await
        .unwrap();
    let api = objects(&operator, &namespace, fairlead_crds::API_VERSION, "ToolExecution");
    let apply = async |manager: &str, conditions: Value| {
        let body = json!({"apiVersion": fairlead_crds::API_VERSION, "kind": "ToolExecution",
            "status": {"phase": "Queued", "conditions": conditions}});
        let parameters = PatchParams::apply(manager).force();
        api.patch_status("own", &parameters, &Patch::Apply(&body))
            .await
            .unwrap()
            .data["status"]["conditions"]
            .clone()
    };
    let kinds = |conditions: &Value| -> Vec<String> {
        conditions
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["type"].as_str().unwrap().to_owned())
            .collect()
    };
    apply("fairlead-operator", json!([condition("Admitted", "Valid")])).await;
    let both = apply(
        "fairlead-node-agent",
        json!([condition("CleanedUp", "Completed")]),
    )
    .await;
    assert_eq!(kinds(&both), ["Admitted", "CleanedUp"]);
    let changed = apply("fairlead-operator", json!([condition("Admitted", "Other")])).await;
    assert_eq!(kinds(&changed), ["Admitted", "CleanedUp"]);
    assert_eq!(changed[0]["reason"], "Other");
    let left = apply("fairlead-operator", json!([])).await;
    assert_eq!(
        kinds(&left),
        ["CleanedUp"],
        "an apply takes away its own entry only"
    );
}

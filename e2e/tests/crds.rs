//! The kinds as a real API server serves them: accepted, selectable, readable, defaulted, explained, and strict about
//! what may follow what.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_e2e::*;
use kube::Client;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Map, Value, json};
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
async fn kubectl_get_reads_well() {
    let namespace = namespace("columns").await;
    let operator = operator().await;
    let task = create(&admin().await, &namespace, &run("task")).await.unwrap();
    create(&admin().await, &namespace, &tool("word")).await.unwrap();
    create(&admin().await, &namespace, &provider("script"))
        .await
        .unwrap();
    create(&operator, &namespace, &run_execution("task-1", &task, "n1"))
        .await
        .unwrap();
    let mut status = succeeded(1, 'a');
    status["reason"] = json!("Completed");
    status["result"] = json!({"exitCode": 0});
    status["usage"] = json!({"wallMillis": 12});
    merge_status(&operator, &namespace, &execution("task-1"), &status)
        .await
        .unwrap();
    create(&operator, &namespace, &turn("task-t1", &task))
        .await
        .unwrap();
    let calls =
        json!([{"callId": "a", "tool": "word", "stage": 1}, {"callId": "b", "tool": "word", "stage": 1}]);
    let answered = json!({"phase": "Completed", "completionTime": "2026-01-01T00:00:01Z", "latencyMillis": 34,
        "finishReason": "tool_calls", "toolCalls": calls});
    merge_status(&operator, &namespace, &turn("task-t1", &task), &answered)
        .await
        .unwrap();
    let ended = json!({"phase": "Succeeded", "completionTime": "2026-01-01T00:00:03Z", "turns": 2, "toolCalls": 1,
        "usage": {"totalTokens": 99}, "conditions": [condition("Succeeded", "Answered")]});
    merge_status(&operator, &namespace, &task, &ended).await.unwrap();
    let accepted = json!({"conditions": [condition("Accepted", "Valid")]});
    merge_status(&operator, &namespace, &tool("word"), &accepted)
        .await
        .unwrap();
    let ready = json!({"conditions": [condition("Ready", "Ready")]});
    merge_status(&operator, &namespace, &provider("script"), &ready)
        .await
        .unwrap();

    for (kind, head, row) in [
        (
            "runs",
            "NAME PHASE REASON TURNS TOOLS AGE TOKENS MODEL PROVIDER",
            "task Succeeded Answered 2 1 AGE 99 script",
        ),
        (
            "turns",
            "NAME RUN TURN ATTEMPT PHASE FINISH FIRSTCALL MILLIS AGE",
            "task-t1 task 1 1 Completed tool_calls word 34 AGE",
        ),
        (
            "tx",
            "NAME PHASE REASON TOOL RUN NODE EXIT MILLIS AGE",
            "task-1 Succeeded Completed word task n1 0 12 AGE",
        ),
        (
            "tools",
            "NAME SIDEEFFECT ACCEPTED REASON AGE",
            "word Write True Valid AGE",
        ),
        (
            "llm",
            "NAME API MODEL READY REASON AGE",
            "script Scripted m True Ready AGE",
        ),
    ] {
        let args = ["get", kind, "--namespace", &namespace, "--output=wide"];
        let table = cluster().cluster().kubectl(&args).unwrap();
        println!("{table}");
        let lines: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0], head.split(' ').collect::<Vec<_>>(), "{table}");
        let age = head.split(' ').position(|column| column == "AGE").unwrap();
        let expected: Vec<&str> = row.split(' ').collect();
        for (index, cell) in lines[1].iter().enumerate() {
            assert!(index == age || *cell == expected[index], "{table}");
        }
    }
    let all = cluster()
        .cluster()
        .kubectl(&["get", "fairlead", "--namespace", &namespace, "--output=name"])
        .unwrap();
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
            "parallelSafe": false, "runner": {"command": {"argv": ["echo", "word"]}},
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
            "retry": {"transient": 2}, "script": [{"when": {}, "respond": {"text": "Done.", "delayMillis": 0}}],
        })
    );
    let own = create(&admin, &namespace, &execution("own")).await.unwrap();
    assert_eq!(
        own["spec"],
        json!({"tool": {"toolRef": {"name": "word"}}, "serviceAccountName": "default"})
    );
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

/// Makes an object of its own in `namespace`, brings it into `state`, and returns the answer to `step`.
async fn step(
    client: &Client,
    namespace: &str,
    object: &Value,
    state: &Value,
    step: &Value,
) -> kube::Result<Value> {
    let made = create(client, namespace, object).await.unwrap();
    if !state.is_null() {
        merge_status(client, namespace, &made, state).await.unwrap();
    }
    merge_status(client, namespace, &made, step).await
}

#[tokio::test]
async fn phases_follow_each_other_as_the_types_say() {
    use fairlead_crds::ExecutionPhase;
    let namespace = namespace("phases").await;
    let operator = operator().await;
    let task = create(&admin().await, &namespace, &run("task")).await.unwrap();
    for (a, from) in ExecutionPhase::ALL.iter().enumerate() {
        for (b, to) in ExecutionPhase::ALL.iter().enumerate() {
            let object = run_execution(&format!("x-{a}-{b}"), &task, "n1");
            let mut next = execution_status(*to, 1);
            if from == to || from.is_terminal() && to.is_terminal() {
                continue;
            }
            let expected = from.successors().contains(to);
            if (*from, *to) == (ExecutionPhase::Running, ExecutionPhase::Queued) {
                next["attempts"] = json!([{"n": 1}, {"n": 2}]);
            }
            if from.is_terminal() {
                next["completionTime"] = json!(null);
            }
            let answer = step(&operator, &namespace, &object, &execution_status(*from, 1), &next).await;
            if expected {
                answer.unwrap_or_else(|error| panic!("{from} → {to}: {error}"));
            } else {
                refused(&format!("{from} → {to}"), answer, &["status.phase"]);
            }
        }
    }
}

fn execution_status(phase: fairlead_crds::ExecutionPhase, attempts: i64) -> Value {
    let mut status = json!({"phase": phase.as_str(), "startTime": "2026-01-01T00:00:01Z"});
    status["attempts"] = (1..=attempts).map(|n| json!({"n": n})).collect();
    if phase.is_terminal() {
        status["completionTime"] = json!("2026-01-01T00:00:02Z");
    }
    status
}

#[tokio::test]
async fn statuses_that_contradict_themselves_or_the_past_are_refused() {
    let namespace = namespace("rules").await;
    let operator = operator().await;
    let admin = admin().await;
    let task = create(&admin, &namespace, &run("task")).await.unwrap();
    let (early, end) = (json!("2026-01-01T00:00:01Z"), json!("2026-01-01T00:00:02Z"));
    let object = |name: &str| run_execution(name, &task, "n1");
    for (what, made, state, next, says) in [
        (
            "an end without a time",
            object("a"),
            json!(null),
            json!({"phase": "Failed"}),
            "status.completionTime",
        ),
        (
            "a time without an end",
            object("b"),
            json!(null),
            json!({"completionTime": end}),
            "status.completionTime",
        ),
        (
            "Running without a start",
            object("c"),
            json!(null),
            json!({"phase": "Running"}),
            "status.startTime",
        ),
        (
            "back to Queued without an attempt",
            object("d"),
            running(1, 'a'),
            json!({"phase": "Queued"}),
            "back to Queued",
        ),
        (
            "another time of the end",
            object("e"),
            succeeded(1, 'a'),
            json!({"completionTime": early}),
            "final once set",
        ),
        (
            "a turn's end without a time",
            turn("t1", &task),
            json!(null),
            json!({"phase": "Failed"}),
            "completionTime",
        ),
        (
            "a completed turn that changes",
            turn("t2", &task),
            json!({"phase": "Completed", "completionTime": end,
            "message": "a"}),
            json!({"message": "b"}),
            "a turn that has ended is final",
        ),
    ] {
        refused(
            what,
            step(&operator, &namespace, &made, &state, &next).await,
            &[says],
        );
    }
    for (what, state, next, says) in [
        (
            "a run's end without a time",
            json!(null),
            json!({"phase": "Failed"}),
            "status.completionTime",
        ),
        (
            "a run back to Running",
            json!({"phase": "Cancelled", "completionTime": end}),
            json!({"phase": "Running", "completionTime": null}),
            "a terminal phase is final",
        ),
        (
            "an end without the phase",
            json!(null),
            json!({"completionTime": end}),
            "status.completionTime",
        ),
    ] {
        let run = create(
            &admin,
            &namespace,
            &run(&what.to_lowercase().replace([' ', '\''], "-")),
        )
        .await
        .unwrap();
        if !state.is_null() {
            merge_status(&operator, &namespace, &run, &state).await.unwrap();
        }
        refused(
            what,
            merge_status(&operator, &namespace, &run, &next).await,
            &[says],
        );
    }
    let turn = create(&operator, &namespace, &turn("t3", &task)).await.unwrap();
    let patch = json!({"spec": {"model": "other"}});
    refused(
        "another model in a turn",
        merge(&admin, &namespace, &turn, &patch).await,
        &["written once"],
    );
}

/// A number as the descriptions write it: 7,200.
fn written(number: &Value) -> String {
    let text = format!("{:.0}", number.as_f64().unwrap());
    let (sign, digits) = text
        .strip_prefix('-')
        .map_or(("", text.as_str()), |digits| ("-", digits));
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    format!("{sign}{out}")
}

/// What only the operator writes needs no default and no bounds in words.
const OPERATORS: [&str; 4] = ["spec.binding", "spec.runRef", "spec.turn", "spec.callId"];

/// Complains about every field below `schema` whose description does not say what `kubectl explain` should.
fn explain(path: &str, schema: &Map<String, Value>, complaints: &mut Vec<String>) {
    if let Some(Value::Object(item)) = schema.get("items") {
        explain(path, item, complaints);
    }
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, field) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let (path, field) = (format!("{path}.{name}"), field.as_object().unwrap());
        explain(&path, field, complaints);
        let text = field
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .replace('\n', " ");
        if !text.ends_with('.') {
            complaints.push(format!("{path}: no sentence: {text:?}"));
        }
        if OPERATORS.iter().any(|prefix| path.contains(prefix)) || path.contains("agentturns") {
            continue;
        }
        let mut numbers: Vec<&Value> = ["minimum", "maximum", "maxLength", "maxItems"]
            .iter()
            .filter_map(|key| field.get(*key))
            .collect();
        let default = field.get("default");
        numbers.extend(default.filter(|value| value.is_number()));
        for number in numbers {
            if !text.contains(&written(number)) {
                complaints.push(format!("{path}: does not name {}: {text:?}", written(number)));
            }
        }
        let number = matches!(
            field.get("type").and_then(Value::as_str),
            Some("integer" | "number")
        );
        let says = ["by default", "equired", "without it", "Without it"]
            .iter()
            .any(|part| text.contains(part));
        if number && !says && !required.contains(&name.as_str()) {
            complaints.push(format!("{path}: names no default: {text:?}"));
        }
        if let Some(format) = field.get("format").and_then(Value::as_str) {
            if !["int32", "int64", "date-time"].contains(&format) {
                complaints.push(format!("{path}: the server does not know format {format}"));
            }
        }
    }
}

#[test]
fn every_field_of_every_spec_is_explained_with_its_bounds_and_default() {
    let mut complaints = Vec::new();
    for crd in fairlead_crds::all_crds() {
        let name = crd.spec.names.plural.clone();
        let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
        let spec = schema["openAPIV3Schema"]["properties"]["spec"]
            .as_object()
            .unwrap();
        explain(&format!("{name}.spec"), spec, &mut complaints);
    }
    assert!(
        complaints.is_empty(),
        "{} complaints:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}

#[test]
fn kubectl_explain_prints_the_sentences() {
    let said = cluster()
        .cluster()
        .kubectl(&["explain", "agentrun.spec"])
        .unwrap();
    println!("{said}");
    for part in [
        "toolWaitSeconds\t<integer>",
        "0 to 600; 30 by default",
        "input\t<string> -required-",
    ] {
        assert!(said.contains(part), "{part:?} in {said}");
    }
}

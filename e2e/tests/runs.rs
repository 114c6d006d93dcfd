//! Runs on the real thing: order, results, writes, waits, cancels, limits, retention.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_crds::conditions::{self, kind};
use fairlead_crds::{Cleanup, ExecutionPhase, Outcome, RunPhase};
use fairlead_e2e::fleet::*;
use fairlead_e2e::model::{Model, calls};
use fairlead_e2e::{admin, merge, namespace, wait_for};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

fn results(request: &Value) -> BTreeMap<String, String> {
    request["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["role"] == "tool")
        .map(|m| {
            (
                m["tool_call_id"].as_str().unwrap().to_owned(),
                m["content"].as_str().unwrap().to_owned(),
            )
        })
        .collect()
}

/// A model that makes two calls one after the other, then two beside each other and one after them, then answers.
async fn five_calls() -> Model {
    Model::start(vec![
        calls(&[
            ("a", "serial", r#"{"arg":"one"}"#),
            ("b", "serial", r#"{"arg":"two"}"#),
        ]),
        calls(&[
            ("c", "beside", r#"{"arg":"x"}"#),
            ("d", "beside", r#"{"arg":"y"}"#),
            ("e", "serial", r#"{"arg":"z"}"#),
        ]),
        json!({"role": "assistant", "content": "All done."}),
    ])
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn three_turns_and_five_calls_keep_their_order_and_their_bytes() {
    drop(fleet(1));
    let ns = namespace("order").await;
    let model = five_calls().await;
    made(&ns, &model.provider("model")).await;
    made(
        &ns,
        &shell_tool("serial", "printf '%s\\n\\303\\244\\000end' \"$1\"; date +%s%N"),
    )
    .await;
    // Each waits for the other: only calls beside each other ever end.
    let rendezvous =
        "touch \"$1\"; until [ -e x ] && [ -e y ]; do sleep 0.05; done; printf 'beside %s' \"$1\"";
    let mut beside = shell_tool("beside", rendezvous);
    beside["spec"]["parallelSafe"] = json!(true);
    made(&ns, &beside).await;
    made(&ns, &run_with("five", "model", &["serial", "beside"])).await;
    let run = ended_run(&ns, "five", SOON).await;
    let status = run.status.clone().unwrap();
    assert_eq!(status.phase, Some(RunPhase::Succeeded), "{status:?}");
    assert_eq!((status.turns, status.tool_calls), (3, 5));
    assert_eq!(status.answer.as_ref().unwrap().text, "All done.");
    assert_eq!(status.usage.as_ref().unwrap().total_tokens, 45);

    let executions = executions_of(&ns, &run).await;
    let by_call: BTreeMap<_, _> = executions
        .iter()
        .map(|x| (x.spec.call_id.clone().unwrap(), x))
        .collect();
    let began = |id: &str| by_call[id].status.as_ref().unwrap().start_time.unwrap();
    let ended = |id: &str| by_call[id].status.as_ref().unwrap().completion_time.unwrap();
    assert!(
        ended("a") <= began("b"),
        "calls that are not parallelSafe come one after the other"
    );
    assert!(ended("b") <= began("c"), "turns come one after the other");
    assert!(
        began("d") < ended("c") && began("c") < ended("d"),
        "parallelSafe calls run beside each other"
    );
    assert!(
        ended("c").max(ended("d")) <= began("e"),
        "a stage waits for all of the one before it"
    );

    let requests = model.requests();
    assert_eq!(requests.len(), 3);
    let last = results(&requests[2]);
    assert_eq!(last.len(), 5);
    for (id, text) in &last {
        let stored = &by_call[id].status.as_ref().unwrap().output.as_ref().unwrap().text;
        assert_eq!(stored.as_bytes(), text.as_bytes(), "result of call {id}");
    }
    let second = results(&requests[1]);
    assert!(
        second.iter().all(|(id, text)| last[id] == *text),
        "a result never changes"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_models_text_is_kept_as_it_is_whatever_characters_it_holds() {
    drop(fleet(1));
    let ns = namespace("text").await;
    let text = "del \u{7f}, next line \u{85}, separator \u{2028}, mark \u{feff}, nothing \u{1}, tab\t, umlaut ä, smile 😀.";
    let model = Model::start(vec![json!({"role": "assistant", "content": text})]).await;
    made(&ns, &model.provider("model")).await;
    made(&ns, &run_with("wild", "model", &[])).await;
    let run = ended_run(&ns, "wild", SOON).await;
    let status = run.status.clone().unwrap();
    assert_eq!(status.phase, Some(RunPhase::Succeeded), "{status:?}");
    assert_eq!(status.answer.unwrap().text, text);
    let turn = &turns_of(&ns, &run).await[0];
    assert_eq!(turn.status.as_ref().unwrap().message.as_deref(), Some(text));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_with_one_short_call_costs_exactly_five_writes() {
    drop(fleet(1));
    let ns = namespace("writes").await;
    made(&ns, &script("model", &json!([
        {"when": {"turn": 1}, "respond": {"toolCalls": [{"id": "a", "name": "short", "arguments": {"arg": "1"}}]}},
        {"when": {"turn": 2}, "respond": {"toolCalls": [{"id": "b", "name": "short", "arguments": {"arg": "2"}}]}},
        {"respond": {"text": "Done."}}
    ])))
    .await;
    made(&ns, &shell_tool("short", "echo $1")).await;
    made(&ns, &run_with("cheap", "model", &["short"])).await;
    let run = ended_run(&ns, "cheap", SOON).await;
    assert_eq!(
        run.status.as_ref().unwrap().phase,
        Some(RunPhase::Succeeded),
        "{:?}",
        run.status
    );
    // The server's own record of a write may come after its answer: the last of them is the run's end.
    let counts = wait_for("the records of all writes", SOON, || async {
        let mut counts: BTreeMap<(String, String, String), usize> = BTreeMap::new();
        for (user, verb, resource, _) in writes_in(&ns) {
            *counts.entry((user, verb, resource)).or_default() += 1;
        }
        // What concerns the run alone; the status of the Tool and of the ModelProvider is written once each.
        counts.retain(|(_, _, resource), _| {
            !resource.starts_with("tools") && !resource.starts_with("modelproviders")
        });
        let enough = counts.values().sum::<usize>() >= 13;
        if enough { Ok(counts) } else { Err(counts) }
    })
    .await;
    println!("writes of a run with two calls in three turns: {counts:#?}");
    let of = |user: &str, verb: &str, resource: &str| {
        counts
            .get(&(user.to_owned(), verb.to_owned(), resource.to_owned()))
            .copied()
            .unwrap_or(0)
    };
    assert_eq!(of("fairlead-operator", "create", "agentturns"), 3);
    assert_eq!(of("fairlead-operator", "patch", "agentturns/status"), 3);
    assert_eq!(of("fairlead-operator", "create", "toolexecutions"), 2);
    assert_eq!(of("fairlead-node-agent", "patch", "toolexecutions/status"), 2);
    assert_eq!(of("fairlead-operator", "patch", "agentruns/status"), 3);
    // 5 for each of the two turns with a call, 3 for the turn with the answer.
    assert_eq!(counts.values().sum::<usize>(), 13, "{counts:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_call_is_handed_back_and_can_be_waited_for() {
    drop(fleet(1));
    let ns = namespace("handle").await;
    made(&ns, &shell_tool("long", "echo begin; sleep 10; echo end $1")).await;
    made(&ns, &script("model", &json!([
        {"when": {"turn": 1}, "respond": {"toolCalls": [{"id": "a", "name": "long", "arguments": {"arg": "x"}}]}},
        {"when": {"turn": 2, "resultMatches": "\"execution_id\":\"([^\"]+)\""},
         "respond": {"toolCalls": [
            {"id": "g", "name": "get_tool_execution", "arguments": {"execution_id": "{{1}}"}},
            {"id": "w", "name": "wait_tool_execution", "arguments": {"execution_id": "{{1}}", "timeout_seconds": 60}}]}},
        {"when": {"turn": 3, "lastTool": "wait_tool_execution", "resultMatches": "(end x)"}, "respond": {"text": "It said {{1}}."}}
    ])))
    .await;
    let mut run = run_with("patient", "model", &["long"]);
    run["spec"]["toolWaitSeconds"] = json!(1);
    made(&ns, &run).await;
    let run = ended_run(&ns, "patient", SOON).await;
    let status = run.status.clone().unwrap();
    assert_eq!(status.phase, Some(RunPhase::Succeeded), "{status:?}");
    assert_eq!(status.answer.unwrap().text, "It said end x.");
    let executions = executions_of(&ns, &run).await;
    assert_eq!(executions.len(), 1, "looking and waiting are not executions");
    let held = executions[0].status.clone().unwrap();
    assert!(
        conditions::is_true(&held.conditions, kind::BACKGROUNDED),
        "{held:?}"
    );
    assert!(
        status
            .transitions
            .iter()
            .any(|t| t.phase == RunPhase::WaitingForTools),
        "{:?}",
        status.transitions
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_can_cancel_what_it_started() {
    drop(fleet(1));
    let ns = namespace("model-cancel").await;
    made(&ns, &shell_tool("endless", "echo begin; sleep 600")).await;
    made(&ns, &script("model", &json!([
        {"when": {"turn": 1}, "respond": {"toolCalls": [{"id": "a", "name": "endless"}]}},
        {"when": {"turn": 2, "resultMatches": "\"execution_id\":\"([^\"]+)\""},
         "respond": {"toolCalls": [{"id": "c", "name": "cancel_tool_execution", "arguments": {"execution_id": "{{1}}"}}]}},
        {"when": {"turn": 3, "resultMatches": "\"state\":\"(Cancelled)\""}, "respond": {"text": "{{1}}"}}
    ])))
    .await;
    let mut run = run_with("changed-mind", "model", &["endless"]);
    run["spec"]["toolWaitSeconds"] = json!(10);
    made(&ns, &run).await;
    let run = ended_run(&ns, "changed-mind", SOON).await;
    assert_eq!(
        run.status.as_ref().unwrap().phase,
        Some(RunPhase::Succeeded),
        "{:?}",
        run.status
    );
    let executions = executions_of(&ns, &run).await;
    assert_eq!(
        executions[0].status.as_ref().unwrap().phase,
        Some(ExecutionPhase::Cancelled)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_ends_when_nothing_of_it_is_left() {
    drop(fleet(1));
    let ns = namespace("cancel").await;
    made(
        &ns,
        &shell_tool(
            "stubborn",
            "trap '' TERM; (setsid sleep 600 &) ; echo begin; while :; do sleep 1; done",
        ),
    )
    .await;
    made(
        &ns,
        &script(
            "model",
            &json!([{"respond": {"toolCalls": [{"id": "a", "name": "stubborn"}]}}]),
        ),
    )
    .await;
    let object = made(&ns, &run_with("doomed", "model", &["stubborn"])).await;
    let api = executions(&ns).await;
    wait_for("the tool to run", SOON, || async {
        let list = api.list(&Default::default()).await.map_err(|e| e.to_string())?;
        let running = list
            .items
            .iter()
            .any(|x| x.status.as_ref().and_then(|s| s.phase) == Some(ExecutionPhase::Running));
        if running {
            Ok(())
        } else {
            Err(format!("{:?}", list.items))
        }
    })
    .await;
    merge(
        &admin().await,
        &ns,
        &object,
        &json!({"spec": {"desiredState": "Cancelled"}}),
    )
    .await
    .unwrap();
    let run = ended_run(&ns, "doomed", SOON).await;
    let status = run.status.clone().unwrap();
    assert_eq!(status.phase, Some(RunPhase::Cancelled), "{status:?}");
    assert!(
        conditions::is_true(&status.conditions, kind::CLEANED_UP),
        "{status:?}"
    );
    let executions = executions_of(&ns, &run).await;
    let held = executions[0].status.clone().unwrap();
    assert_eq!(
        (held.phase, held.cleanup),
        (Some(ExecutionPhase::Cancelled), Some(Cleanup::Confirmed)),
        "{held:?}"
    );
    let group = held.isolation.unwrap().group.unwrap();
    let group = fleet(1).cgroup_root(0).join(group);
    removed(&group).await;
}

/// Waits until a group is removed, which comes after its end is told.
async fn removed(group: &Path) {
    wait_for("the group to be removed", SOON, || async {
        if group.exists() { Err(group) } else { Ok(()) }
    })
    .await;
}

/// Executions that end in five ways, each called `x-` and the name of its tool.
async fn five_ends(ns: &str) {
    let mut slow = shell_tool("slow", "echo begin; sleep 600");
    slow["spec"]["timeouts"] = json!({"hardSeconds": 600, "graceSeconds": 1});
    for tool in [
        shell_tool("fails", "echo oops >&2; exit 7"),
        shell_tool("killed", "kill -9 $$"),
        shell_tool("leaves", "sleep 600 & echo started"),
        slow,
    ] {
        made(ns, &tool).await;
    }
    let mut absent = shell_tool("absent", "true");
    absent["spec"]["runner"]["command"]["argv"] = json!(["/no/such/program"]);
    made(ns, &absent).await;
    let mut impatient = own_execution("x-slow", "slow", "");
    impatient["spec"]["timeoutSeconds"] = json!(1);
    for (name, tool) in [
        ("x-fails", "fails"),
        ("x-killed", "killed"),
        ("x-leaves", "leaves"),
        ("x-absent", "absent"),
    ] {
        made(ns, &own_execution(name, tool, "")).await;
    }
    made(ns, &impatient).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_of_executions_say_how_they_ended() {
    drop(fleet(1));
    let ns = namespace("ends").await;
    five_ends(&ns).await;
    let mut seen = BTreeMap::new();
    for name in ["x-fails", "x-killed", "x-leaves", "x-absent", "x-slow"] {
        let status = ended_execution(&ns, name, SOON).await.status.unwrap();
        println!(
            "{name}: {:?} {:?} {:?} {:?}",
            status.phase, status.reason, status.outcome, status.message
        );
        seen.insert(name, status);
    }
    let of = |name: &str| {
        (
            seen[name].phase.unwrap(),
            seen[name].reason.clone().unwrap(),
            seen[name].outcome.unwrap(),
        )
    };
    assert_eq!(
        of("x-fails"),
        (ExecutionPhase::Failed, "NonZeroExit".into(), Outcome::Completed)
    );
    assert_eq!(seen["x-fails"].result.as_ref().unwrap().exit_code, Some(7));
    assert_eq!(seen["x-fails"].output.as_ref().unwrap().text, "oops\n");
    assert_eq!(
        of("x-killed"),
        (ExecutionPhase::Failed, "Signalled".into(), Outcome::Unknown)
    );
    assert_eq!(
        of("x-leaves"),
        (
            ExecutionPhase::Succeeded,
            "LeftoverProcessesKilled".into(),
            Outcome::Completed
        )
    );
    assert_eq!(
        of("x-absent"),
        (ExecutionPhase::Failed, "StartFailed".into(), Outcome::NotStarted)
    );
    assert_eq!(
        of("x-slow"),
        (ExecutionPhase::TimedOut, "HardTimeout".into(), Outcome::Unknown)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_gets_wrong_is_told_to_it_and_its_siblings_go_on() {
    drop(fleet(1));
    let ns = namespace("wrong").await;
    let model = Model::start(vec![calls(&[
        ("a", "no-such-tool", "{}"),
        ("a", "echo", r#"{"arg":"fine"}"#),
        ("b", "echo", "{not json"),
        ("c", "echo", r#"{"other":1}"#),
        ("d", "echo", r#"{"arg":"-n"}"#),
    ])])
    .await;
    made(&ns, &model.provider("model")).await;
    made(&ns, &shell_tool("echo", "echo $1")).await;
    made(&ns, &run_with("clumsy", "model", &["echo"])).await;
    let run = ended_run(&ns, "clumsy", SOON).await;
    assert_eq!(
        run.status.as_ref().unwrap().phase,
        Some(RunPhase::Succeeded),
        "{:?}",
        run.status
    );
    let turn = &turns_of(&ns, &run).await[0];
    let told = turn.status.as_ref().unwrap().tool_calls.clone();
    let reasons: Vec<_> = told
        .iter()
        .map(|c| c.error.as_ref().map(|e| e.reason.clone()))
        .collect();
    let invalid = Some("INVALID_ARGUMENT".to_owned());
    assert_eq!(
        reasons,
        [
            Some("TOOL_NOT_FOUND".into()),
            None,
            invalid.clone(),
            invalid.clone(),
            invalid
        ],
        "{told:#?}"
    );
    assert_eq!(
        told[1].original_call_id.as_deref(),
        Some("a"),
        "a second call of one id gets an id of its own"
    );
    assert_ne!(told[1].call_id, "a");
    let answers = results(&model.requests()[1]);
    assert_eq!(answers[&told[1].call_id], "fine\n");
    assert!(answers["c"].contains("other"), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_end_a_run_with_a_reason_that_names_them() {
    drop(fleet(1));
    let ns = namespace("limits").await;
    made(&ns, &shell_tool("again", "echo again")).await;
    made(
        &ns,
        &script(
            "model",
            &json!([{"respond": {"toolCalls": [
        {"id": "a", "name": "again"}, {"id": "b", "name": "again"}]}}]),
        ),
    )
    .await;
    made(
        &ns,
        &script(
            "slow",
            &json!([{"respond": {"text": "late", "delayMillis": 600_000}}]),
        ),
    )
    .await;
    for (name, provider, limits, reason) in [
        ("turns", "model", json!({"maxTurns": 2}), "MaxTurnsExceeded"),
        (
            "calls",
            "model",
            json!({"maxToolCalls": 1}),
            "MaxToolCallsExceeded",
        ),
        (
            "deadline",
            "slow",
            json!({"deadlineSeconds": 2}),
            "DeadlineExceeded",
        ),
        ("nobody", "absent", json!({}), "ProviderNotFound"),
    ] {
        let mut run = run_with(name, provider, &["again"]);
        run["spec"]["limits"] = limits;
        made(&ns, &run).await;
        let run = ended_run(&ns, name, SOON * 2).await;
        let status = run.status.unwrap();
        let failure = status
            .failure
            .clone()
            .unwrap_or_else(|| panic!("{name}: {status:?}"));
        println!("{name}: {} {}", failure.reason, failure.message);
        assert_eq!(
            (status.phase, failure.reason.as_str()),
            (Some(RunPhase::Failed), reason),
            "{status:?}"
        );
        assert!(status.completion_time.is_some());
    }
    let capped = ended_run(&ns, "calls", SOON).await;
    assert!(
        executions_of(&ns, &capped).await.is_empty(),
        "no call beyond the limit is made"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_run_goes_after_its_time_with_all_that_belongs_to_it() {
    drop(fleet(1));
    let ns = namespace("ttl").await;
    made(&ns, &shell_tool("echo", "echo $1")).await;
    made(&ns, &script("model", &json!([
        {"when": {"turn": 1}, "respond": {"toolCalls": [{"id": "a", "name": "echo", "arguments": {"arg": "x"}}]}},
        {"respond": {"text": "Done."}}])))
    .await;
    let mut run = run_with("short-lived", "model", &["echo"]);
    // Long enough to look at it once more.
    run["spec"]["ttlSecondsAfterFinished"] = json!(15);
    made(&ns, &run).await;
    let run = ended_run(&ns, "short-lived", SOON).await;
    let stored = executions_of(&ns, &run)
        .await
        .first()
        .and_then(|x| x.status.clone())
        .unwrap()
        .stored
        .unwrap();
    let bytes = fleet(1).spool(0).join(&stored.id);
    assert!(bytes.exists(), "{} is not there", bytes.display());
    let mut own = own_execution("mine", "echo", "y");
    own["spec"]["ttlSecondsAfterFinished"] = json!(0);
    made(&ns, &own).await;
    let (all_runs, all_executions, all_turns) = (runs(&ns).await, executions(&ns).await, turns(&ns).await);
    wait_for("everything to be gone", SOON, || async {
        let left = all_runs
            .list(&Default::default())
            .await
            .map_err(|e| e.to_string())?
            .items
            .len()
            + all_executions
                .list(&Default::default())
                .await
                .map_err(|e| e.to_string())?
                .items
                .len()
            + all_turns
                .list(&Default::default())
                .await
                .map_err(|e| e.to_string())?
                .items
                .len();
        if left == 0 && !bytes.exists() {
            Ok(())
        } else {
            Err(format!("{left} objects, bytes: {}", bytes.exists()))
        }
    })
    .await;
}

/// The first thing a reader tries.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_readme_shows_works_as_it_stands() {
    drop(fleet(1));
    let ns = namespace("readme").await;
    let readme = std::fs::read_to_string(xtask::repo::root().join("README.md")).unwrap();
    let (_, rest) = readme.split_once("```yaml\n").unwrap();
    let (manifest, _) = rest.split_once("```").unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
    assert_eq!(objects.len(), 3);
    for object in &objects {
        made(&ns, object).await;
    }
    let status = ended_run(&ns, "how-full", SOON).await.status.unwrap();
    assert_eq!(status.phase, Some(RunPhase::Succeeded), "{status:?}");
    assert_eq!((status.turns, status.tool_calls), (2, 1));
}

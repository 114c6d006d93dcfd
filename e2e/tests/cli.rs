//! `kubectl-fairlead` against a real API server, with the rights of somebody who may only look.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_e2e as e2e;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use xtask::install;
use xtask::programs::{Profile, Programs};

fn program() -> PathBuf {
    static BUILT: OnceLock<Programs> = OnceLock::new();
    BUILT
        .get_or_init(|| Programs::build(Profile::Debug).unwrap())
        .path("kubectl-fairlead")
}

/// A kubeconfig of somebody who has ClusterRole `role` in `namespace`, in a file named after it.
async fn kubeconfig(namespace: &str, role: &str) -> PathBuf {
    e2e::user(namespace, "looker", role).await;
    let token = e2e::token(namespace, "looker").await;
    let path = e2e::cluster().dir().join(format!("{namespace}.kubeconfig"));
    install::kubeconfig_for(e2e::cluster().cluster(), &token, &path).unwrap();
    path
}

struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

fn command(kubeconfig: &PathBuf, namespace: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command
        .args(args)
        .args(["--namespace", namespace, "--kubeconfig"])
        .arg(kubeconfig);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

async fn ended(command: &mut Command) -> Ended {
    let limit = Duration::from_secs(60);
    let output = tokio::time::timeout(limit, command.output())
        .await
        .expect("it ends")
        .expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended {
        code: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

fn at(second: u32) -> String {
    format!("2026-01-01T00:00:{second:02}Z")
}

fn end_of_run(phase: &str, reason: &str) -> Value {
    let status = if phase == "Succeeded" { "True" } else { "False" };
    json!({
        "phase": phase, "startTime": at(0), "completionTime": at(9), "turns": 2, "toolCalls": 1,
        "conditions": [{"type": "Succeeded", "status": status, "reason": reason, "message": "",
                        "lastTransitionTime": at(9)}],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_followed_from_before_it_exists_to_its_answer() {
    let namespace = e2e::namespace("cli-watch").await;
    let config = kubeconfig(&namespace, "view").await;
    let operator = e2e::operator().await;
    let watch = command(&config, &namespace, &["watch", "one", "--timeout", "50"])
        .spawn()
        .unwrap();

    let run = e2e::create(&e2e::admin().await, &namespace, &e2e::run("one"))
        .await
        .unwrap();
    let turn = e2e::create(&operator, &namespace, &e2e::turn("one-t1", &run))
        .await
        .unwrap();
    let completed = json!({
        "phase": "Completed", "startTime": at(1), "completionTime": at(2), "latencyMillis": 40,
        "toolCalls": [{"callId": "c1", "tool": "word", "arguments": {"n": 1}, "executionName": "one-1-x", "stage": 1}],
    });
    e2e::merge_status(&operator, &namespace, &turn, &completed)
        .await
        .unwrap();
    let execution = e2e::create(&operator, &namespace, &e2e::run_execution("one-1-x", &run, "n-1"))
        .await
        .unwrap();
    let agent = e2e::node_agent("n-1").await;
    e2e::merge_status(&agent, &namespace, &execution, &e2e::succeeded(1, 'a'))
        .await
        .unwrap();
    let mut status = end_of_run("Succeeded", "Answered");
    status["answer"] = json!({"text": "It said word.", "truncated": false, "turnRef": "one-t2"});
    e2e::merge_status(&operator, &namespace, &run, &status)
        .await
        .unwrap();

    let limit = Duration::from_secs(60);
    let output = tokio::time::timeout(limit, watch.wait_with_output())
        .await
        .expect("it ends")
        .unwrap();
    let story = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{story}");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "It said word.\n",
        "{story}"
    );
    let told = [
        "      TIME  WHAT\n",
        "turn 1 makes 1 call in 40 ms",
        "call word {\"n\":1} → one-1-x",
        "word Succeeded",
        "run    Succeeded",
    ];
    let places: Vec<Option<usize>> = told.iter().map(|line| story.find(line)).collect();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{places:?} in\n{story}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_says_how_a_run_ended() {
    let namespace = e2e::namespace("cli-codes").await;
    let config = kubeconfig(&namespace, "view").await;
    let operator = e2e::operator().await;
    for (name, phase, reason, code) in [
        ("fails", "Failed", "MaxTurnsExceeded", 1),
        ("stops", "Cancelled", "Cancelled", 2),
    ] {
        let run = e2e::create(&e2e::admin().await, &namespace, &e2e::run(name))
            .await
            .unwrap();
        e2e::merge_status(&operator, &namespace, &run, &end_of_run(phase, reason))
            .await
            .unwrap();
        let ended = ended(&mut command(&config, &namespace, &["watch", name])).await;
        assert_eq!(
            (ended.code, ended.out.as_str()),
            (Some(code), ""),
            "{}",
            ended.err
        );
    }
    let missing = ended(&mut command(
        &config,
        &namespace,
        &["watch", "nobody", "--timeout", "1"],
    ))
    .await;
    assert_eq!(missing.code, Some(3), "{}", missing.err);
    assert!(
        missing.err.contains("there is no agentrun") && missing.err.contains("nobody"),
        "{}",
        missing.err
    );
    let wrong = ended(&mut command(&config, &namespace, &["watch"])).await;
    assert_eq!(wrong.code, Some(3), "{}", wrong.err);
    let elsewhere = ended(&mut command(&config, "kube-system", &["watch", "x"])).await;
    assert_eq!(elsewhere.code, Some(4), "no rights there: {}", elsewhere.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_printed_byte_for_byte() {
    let namespace = e2e::namespace("cli-output").await;
    let config = kubeconfig(&namespace, "view").await;
    let (operator, agent) = (e2e::operator().await, e2e::node_agent("n-2").await);
    let mut object = e2e::execution("own");
    let own = e2e::create(&e2e::admin().await, &namespace, &object)
        .await
        .unwrap();
    let early = ended(&mut command(&config, &namespace, &["output", "own"])).await;
    assert_eq!((early.code, early.out.as_str()), (Some(1), ""), "{}", early.err);

    object["spec"]["binding"] = e2e::binding("n-2", 1, 'b');
    e2e::merge(
        &operator,
        &namespace,
        &own,
        &json!({"spec": {"binding": object["spec"]["binding"]}}),
    )
    .await
    .unwrap();
    let text = "no newline at the end, é \u{1b}[31m and\ttab";
    let mut status = e2e::succeeded(1, 'b');
    status["output"] =
        json!({"text": text, "truncated": true, "totalBytes": 1_000_000, "sha256": "0".repeat(64)});
    status["stored"] = json!({"nodeName": "n-2", "id": "u-1"});
    e2e::merge_status(&agent, &namespace, &own, &status)
        .await
        .unwrap();
    let whole = ended(&mut command(&config, &namespace, &["output", "own"])).await;
    assert_eq!((whole.code, whole.out.as_str()), (Some(0), text), "{}", whole.err);
    assert!(
        ["1,000,000 bytes", "node n-2", "/u-1/stdout", &"0".repeat(64)]
            .iter()
            .all(|part| whole.err.contains(part)),
        "{}",
        whole.err
    );
    let none = ended(&mut command(&config, &namespace, &["output", "none"])).await;
    assert_eq!(none.code, Some(3), "{}", none.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_in_every_form() {
    let namespace = e2e::namespace("cli-runs").await;
    let config = kubeconfig(&namespace, "view").await;
    let run = e2e::create(&e2e::admin().await, &namespace, &e2e::run("listed"))
        .await
        .unwrap();
    let operator = e2e::operator().await;
    e2e::create(&operator, &namespace, &e2e::turn("listed-t2", &run))
        .await
        .unwrap();
    let mut status = end_of_run("Succeeded", "Answered");
    status["currentTurn"] = json!("listed-t2");
    e2e::merge_status(&operator, &namespace, &run, &status)
        .await
        .unwrap();
    let table = ended(&mut command(&config, &namespace, &["runs", "--once"])).await;
    assert_eq!(table.code, Some(0), "{}", table.err);
    assert!(
        table.out.contains("listed   Succeeded   Answered   2       1"),
        "{}",
        table.out
    );
    let wide = ended(&mut command(
        &config,
        &namespace,
        &["runs", "--once", "--output", "wide"],
    ))
    .await;
    let cells: Vec<Vec<&str>> = wide
        .out
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(&cells[0][6..9], ["TOKENS", "MODEL", "PROVIDER"], "{}", wide.out);
    assert_eq!(
        &cells[1][7..9],
        ["m", "script"],
        "the run names no model: {}",
        wide.out
    );
    let json = ended(&mut command(&config, &namespace, &["runs", "--output", "json"])).await;
    let list: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        list["items"][0]["metadata"]["uid"], run["metadata"]["uid"],
        "{list}"
    );
    assert_eq!(list["items"][0]["kind"], "AgentRun", "{list}");
    let yaml = ended(&mut command(&config, &namespace, &["runs", "--output", "yaml"])).await;
    assert!(yaml.out.contains("name: listed"), "{}", yaml.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_in_a_pipe_are_a_table_that_grows() {
    let namespace = e2e::namespace("cli-pipe").await;
    let config = kubeconfig(&namespace, "view").await;
    let admin = e2e::admin().await;
    e2e::create(&admin, &namespace, &e2e::run("first")).await.unwrap();
    let mut child = command(&config, &namespace, &["runs"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = tokio::time::timeout(Duration::from_secs(60), lines.next_line());
        line.await.expect("a line comes").unwrap().expect("it goes on")
    };
    let mut said = vec![next().await, next().await];
    e2e::create(&admin, &namespace, &e2e::run("second"))
        .await
        .unwrap();
    said.push(next().await);
    let phase = said[0].find("PHASE").unwrap();
    for (line, name) in said[1..].iter().zip(["first", "second"]) {
        assert!(line.starts_with(name), "{said:#?}");
        assert_eq!(line.find("Pending"), Some(phase), "{said:#?}");
        assert!(!line.contains('\u{1b}'), "{said:#?}");
    }
    child.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn check_names_what_is_missing_and_is_content_when_all_is_there() {
    let namespace = e2e::namespace("cli-check").await;
    let config = e2e::cluster().kubeconfig().to_path_buf();
    let nobody = ended(&mut command(&config, &namespace, &["check"])).await;
    assert_eq!(nobody.code, Some(1), "{}{}", nobody.out, nobody.err);
    assert!(
        nobody.out.contains("OK    CRD agentruns.fairlead.dev"),
        "{}",
        nobody.out
    );
    assert!(nobody.out.contains("OK    admission policies"), "{}", nobody.out);
    assert!(
        nobody.out.contains("FAIL  nodes: no node agent has a Lease"),
        "{}",
        nobody.out
    );

    let now = || format!("{:.6}", jiff::Timestamp::now());
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "n-3", "labels": {"app.kubernetes.io/component": "node-agent"}, "annotations": {
            "fairlead.dev/isolation-backend": "CgroupV2", "fairlead.dev/missing-controllers": "",
            "fairlead.dev/capacity": "32"}},
        "spec": {"holderIdentity": "n-3", "leaseDurationSeconds": 600, "renewTime": now()},
    });
    e2e::create(&e2e::admin().await, install::NAMESPACE, &lease)
        .await
        .unwrap();
    let leader = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                        "metadata": {"name": "fairlead-operator"}});
    let held = json!({"spec": {"holderIdentity": "test", "leaseDurationSeconds": 600, "renewTime": now()}});
    e2e::merge(&e2e::admin().await, install::NAMESPACE, &leader, &held)
        .await
        .unwrap();
    let whole = ended(&mut command(&config, &namespace, &["check"])).await;
    assert_eq!(whole.code, Some(0), "{}{}", whole.out, whole.err);
    assert!(
        whole.out.contains("OK    operator: test leads, term 5"),
        "{}",
        whole.out
    );
    assert!(
        whole.out.contains("OK    node n-3: CgroupV2, capacity 32"),
        "{}",
        whole.out
    );
    let json = ended(&mut command(&config, &namespace, &["check", "--output", "json"])).await;
    let findings: Value = serde_json::from_str(&json.out).unwrap();
    assert!(
        findings
            .as_array()
            .unwrap()
            .iter()
            .all(|finding| finding["verdict"] == "Ok"),
        "{findings}"
    );
}

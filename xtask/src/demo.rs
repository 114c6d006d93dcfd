//! `cargo xtask demo`: the quickstart from nothing to an answer, with the evidence that a tool really ran.

mod evidence;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::control_plane::binaries::Binaries;
use crate::programs::{Profile, Programs};
use crate::repo;
use crate::up::{self, Steps, Up};
use evidence::Evidence;

/// The run and the execution that `examples/quickstart` makes.
const RUN: &str = "hello";
const OWN_CALL: &str = "own-call";
const NAMESPACE: &str = "default";

/// What `demo` shall do.
#[derive(Clone, Debug, clap::Args)]
pub struct Demo {
    /// Cargo profile of our programs.
    #[arg(long, value_enum, default_value = "debug")]
    pub profile: Profile,
    /// When all this began, in nanoseconds since 1970, so that what came before this program is counted.
    #[arg(long, value_name = "NANOSECONDS")]
    pub since: Option<u64>,
}

/// Brings everything up, applies the quickstart, follows its run to the answer, and shows what ran.
pub fn run(demo: &Demo) -> Result<()> {
    let began = began(demo.since);
    let mut taken = vec![(
        "these tools built".to_owned(),
        began.elapsed().unwrap_or_default(),
    )];
    let mut steps = Steps::new();
    let binaries = Binaries::ensure()?;
    steps.done("control plane's programs there");
    taken.append(&mut steps.taken);
    taken.extend(
        up::up(&Up {
            nodes: 1,
            profile: demo.profile,
        })?
        .taken,
    );

    let cluster = Kubectl {
        program: &binaries.kubectl,
        kubeconfig: &up::state_dir().join("kubeconfig"),
    };
    let mut steps = Steps::new();
    remove_earlier(&cluster)?;
    let quickstart = repo::root().join("examples/quickstart");
    println!("\n$ kubectl apply -f examples/quickstart");
    print!(
        "{}",
        cluster.run(&["apply", "--filename", &quickstart.display().to_string()])?
    );
    steps.done("quickstart applied");
    println!("\n$ kubectl fairlead watch {RUN}");
    watch(&cluster, demo.profile)?;
    println!();
    steps.done("run answered");
    let evidence = evidence(&cluster)?;
    println!("\n{}", evidence.text());
    steps.done("evidence read");
    taken.append(&mut steps.taken);
    println!("\n{}", shares(&taken, began.elapsed().unwrap_or_default()));
    println!("\n{}", next(&cluster, demo.profile));
    evidence.verify()
}

fn began(since: Option<u64>) -> SystemTime {
    since.map_or_else(SystemTime::now, |nanos| UNIX_EPOCH + Duration::from_nanos(nanos))
}

/// kubectl, as the administrator of the control plane of `up`.
struct Kubectl<'a> {
    program: &'a Path,
    kubeconfig: &'a Path,
}

impl Kubectl<'_> {
    fn run(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(self.program);
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig)
            .args(["--namespace", NAMESPACE])
            .args(args);
        let output = command.output().with_context(|| format!("start {command:?}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{command:?} failed with {}: {}", output.status, said.trim());
        }
        String::from_utf8(output.stdout).with_context(|| format!("read the output of {command:?} as UTF-8"))
    }

    fn get(&self, args: &[&str]) -> Result<Value> {
        let text = self.run(&[&["get", "--output=json"], args].concat())?;
        serde_json::from_str(&text).with_context(|| format!("read the answer of kubectl get {args:?}"))
    }
}

/// Removes the run and the execution of an earlier demo: both are immutable, and a finished one stays finished.
fn remove_earlier(cluster: &Kubectl<'_>) -> Result<()> {
    let there = cluster.run(&[
        "get",
        "crd",
        "agentruns.fairlead.dev",
        "--ignore-not-found",
        "--output=name",
    ])?;
    if there.is_empty() {
        bail!("the chart brought no CRD agentruns.fairlead.dev");
    }
    let limit = "--timeout=60s";
    cluster.run(&["delete", "agentrun", RUN, "--ignore-not-found", limit])?;
    cluster
        .run(&["delete", "toolexecution", OWN_CALL, "--ignore-not-found", limit])
        .map(drop)
}

/// Follows the run with our own command, as a user would.
fn watch(cluster: &Kubectl<'_>, profile: Profile) -> Result<()> {
    let program = Programs::there(profile).path("kubectl-fairlead");
    let mut command = Command::new(program);
    command
        .args(["watch", RUN, "--namespace", NAMESPACE, "--kubeconfig"])
        .arg(cluster.kubeconfig);
    let status = command.status().with_context(|| format!("start {command:?}"))?;
    if !status.success() {
        let logs = up::state_dir();
        bail!("{command:?} ended with {status}; logs are in {}", logs.display());
    }
    Ok(())
}

fn evidence(cluster: &Kubectl<'_>) -> Result<Evidence> {
    let run = cluster.get(&["agentrun", RUN])?;
    let uid = run["metadata"]["uid"].as_str().unwrap_or_default();
    let executions = cluster.get(&[
        "toolexecutions",
        "--selector",
        &format!("fairlead.dev/run-uid={uid}"),
    ])?;
    let provider = run["spec"]["model"]["providerRef"]["name"]
        .as_str()
        .unwrap_or_default();
    let provider = cluster.get(&["modelprovider", provider])?;
    Evidence::read(&run, &executions, &provider)
}

/// Wall time of each step and its share of the whole.
fn shares(taken: &[(String, Duration)], total: Duration) -> String {
    let whole = total.as_secs_f64().max(0.001);
    let mut text = String::from("where the time went\n");
    for (what, took) in taken {
        let seconds = took.as_secs_f64();
        text.push_str(&format!(
            "{seconds:>7.1} s  {:>3.0} %  {what}\n",
            seconds / whole * 100.0
        ));
    }
    text.push_str(&format!("{whole:>7.1} s        all of it"));
    text
}

fn next(cluster: &Kubectl<'_>, profile: Profile) -> String {
    let environment = up::environment(cluster.kubeconfig, &Programs::there(profile).dir, cluster.program);
    let lines = [
        environment.as_str(),
        "kubectl get runs,turns,tx; kubectl describe run hello; kubectl fairlead output own-call",
        "kubectl delete run hello; edit and apply examples/quickstart again; make down removes it all",
    ];
    format!("try next\n  {}", lines.join("\n").replace('\n', "\n  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_whole() {
        let taken = [
            ("a".to_owned(), Duration::from_secs(3)),
            ("b".to_owned(), Duration::from_secs(1)),
        ];
        assert_eq!(
            shares(&taken, Duration::from_secs(4)),
            "where the time went\n    3.0 s   75 %  a\n    1.0 s   25 %  b\n    4.0 s        all of it"
        );
    }
}

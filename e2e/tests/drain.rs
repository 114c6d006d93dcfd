//! A node agent that is told to end: what runs is stopped and reported, and nothing more is bound to its node.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_crds::names::node_lease;
use fairlead_crds::{ExecutionPhase, Outcome};
use fairlead_e2e::fleet::*;
use fairlead_e2e::{admin, leases, namespace, wait_for};
use rustix::process::Signal;
use std::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_and_reports_what_runs() {
    drop(fleet(1));
    let ns = namespace("drain").await;
    made(&ns, &shell_tool("long", "sleep 300")).await;
    made(&ns, &own_execution("long", "long", "x")).await;
    let api = executions(&ns).await;
    wait_for("the execution to run", SOON, || async {
        let one = api.get("long").await.map_err(|e| e.to_string())?;
        match one.status.as_ref().and_then(|status| status.phase) {
            Some(ExecutionPhase::Running) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let process = fleet(1)
        .process(&node(0))
        .expect("look at the process")
        .expect("the supervisor runs");
    let since = Instant::now();
    assert!(process.signal(Signal::TERM).expect("send a signal"));
    let ended = ended_execution(&ns, "long", SOON).await;
    println!("reported {:?} after SIGTERM", since.elapsed());
    let status = ended.status.expect("status");
    assert_eq!(
        (status.phase, status.reason.as_deref(), status.outcome),
        (
            Some(ExecutionPhase::Failed),
            Some("NodeDraining"),
            Some(Outcome::Unknown)
        ),
        "{:?}",
        status.message
    );
    wait_for("the node's processes to end", SOON, || async {
        match fleet(1).is_running(&node(0)) {
            Ok(false) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    println!("ended {:?} after SIGTERM", since.elapsed());
    let lease = leases(admin().await).get(&node(0)).await.expect("the Lease");
    assert_eq!(
        lease.metadata.annotations.unwrap_or_default()[node_lease::PLAN_VERSION],
        "0"
    );
}

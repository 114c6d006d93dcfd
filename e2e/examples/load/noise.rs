//! A tool that writes as fast as it can, and what others notice of it.

use std::time::{Duration, Instant};

use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::bound::Binder;
use crate::floor::delete;
use crate::seen::Seen;
use crate::{executions, micros, spaced_while};

/// `true` on the first node, alone and beside `yes` there for `seconds`. Says `alone` and `flooding UID`, and waits for
/// a line of standard input after each, so that somebody can measure.
pub async fn measure(seconds: u64, alone: usize) -> Value {
    let short = Binder::of("true", &["true"]).await;
    let noisy = Binder::of("yes", &["yes"]).await;
    let (user, operator) = (executions("LOAD_USER").await, executions("LOAD_OPERATOR").await);
    let seen = Seen::start(executions("LOAD_USER").await).await;
    let once = async |name: String, index: usize| short.round_trip(&seen, &name, 0, index).await;
    let quiet = spaced_while(
        |index| index < alone,
        |index| once(format!("quiet-{index}"), index),
    )
    .await;
    say_and_wait("alone");
    let name = "noise";
    operator
        .create(&PostParams::default(), &noisy.execution(name, 0, 1))
        .await
        .expect("create");
    let times = seen
        .wait(name, |times| times.running.is_some() || times.ended.is_some())
        .await;
    assert!(times.ended.is_none(), "{times:?}");
    say_and_wait(&format!("flooding {}", times.uid));
    let until = Instant::now() + Duration::from_secs(seconds);
    let beside = spaced_while(
        |_| Instant::now() < until,
        |index| once(format!("beside-{index}"), index),
    )
    .await;
    let cancel = Patch::Merge(json!({"spec": {"desiredState": "Cancelled"}}));
    user.patch(name, &PatchParams::default(), &cancel)
        .await
        .expect("cancel");
    seen.wait(name, |times| times.ended.is_some()).await;
    let status = user.get(name).await.expect("read it").status.unwrap_or_default();
    say_and_wait("ended");
    delete(&user, name).await;
    let bytes = status.output.map_or(0, |output| output.total_bytes);
    json!({"quiet": micros(quiet), "beside": micros(beside), "bytes": bytes})
}

/// Nothing else goes on meanwhile, so it may block.
fn say_and_wait(line: &str) {
    println!("{line}");
    std::io::stdin()
        .read_line(&mut String::new())
        .expect("read standard input");
}

//! Output: what is hard about it, and that its canonical text, its spool file and its digest agree.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_crds::canonical::sha256_hex;
use fairlead_crds::{ExecutionPhase, ToolExecution};
use fairlead_e2e::fleet::*;
use fairlead_e2e::{cluster_for_programs, namespace};
use std::process::Command;

async fn run_tool(ns: &str, name: &str, program: &str) -> (ToolExecution, Vec<u8>) {
    made(ns, &shell_tool(name, program)).await;
    made(ns, &own_execution(name, name, "")).await;
    let execution = ended_execution(ns, name, SOON).await;
    let status = execution.status.clone().unwrap();
    assert_eq!(
        status.phase,
        Some(ExecutionPhase::Succeeded),
        "{name}: {status:?}"
    );
    let stored = status.stored.expect("a place in the spool");
    let dir = fleet(1).spool(0).join(&stored.id);
    let bytes =
        std::fs::read(dir.join("stdout")).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let output = status.output.unwrap();
    assert_eq!(
        output.sha256,
        sha256_hex(&bytes),
        "{name}: digest of the spool file"
    );
    assert_eq!(output.total_bytes, i64::try_from(bytes.len()).unwrap(), "{name}");
    assert!(
        output.text.len() <= 50_000,
        "{name}: {} bytes of text",
        output.text.len()
    );
    assert_eq!(
        output.truncated,
        bytes.len() > 50_000 || output.text.contains("<persisted-output"),
        "{name}"
    );
    (execution, bytes)
}

/// What the plugin prints for an execution.
fn printed(ns: &str, name: &str) -> Vec<u8> {
    let plugin = xtask::programs::Programs::there(xtask::programs::Profile::Debug).path("kubectl-fairlead");
    let output = Command::new(plugin)
        .args(["--namespace", ns, "output", name])
        .env("KUBECONFIG", cluster_for_programs().kubeconfig())
        .output()
        .expect("run the plugin");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn hard_output_is_kept_whole_and_told_within_its_limit() {
    drop(fleet(1));
    let ns = namespace("output").await;
    let lines: String = (1..=1_000_000).map(|n| format!("{n:09}\n")).collect();
    for (name, program, expected) in [
        ("ten-megabytes", "seq -f '%09.0f' 1 1000000", lines.into_bytes()),
        (
            "not-utf8",
            "printf 'a\\377\\376b\\303'",
            b"a\xff\xfeb\xc3".to_vec(),
        ),
        ("no-newline", "printf 'no newline'", b"no newline".to_vec()),
        ("nul", "printf 'a\\000b'", b"a\0b".to_vec()),
        (
            "many-a",
            "head -c 200000 /dev/zero | tr '\\0' A",
            vec![b'A'; 200_000],
        ),
        ("nothing", "true", Vec::new()),
    ] {
        let (execution, bytes) = run_tool(&ns, name, program).await;
        assert!(
            bytes == expected,
            "{name}: {} bytes in the spool, {} were written",
            bytes.len(),
            expected.len()
        );
        let text = execution.status.unwrap().output.unwrap().text;
        if bytes.len() > 50_000 {
            assert!(
                text.contains("<persisted-output") && text.contains(name),
                "{name}: {}",
                &text[..200]
            );
        }
        assert!(
            printed(&ns, name) == text.as_bytes(),
            "{name}: the plugin prints the canonical text"
        );
    }
}

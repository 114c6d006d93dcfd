//! `output`: the canonical text of a tool execution, byte for byte.

use crate::args;
use crate::connect::Target;
use crate::exit::Exit;
use crate::text;
use anyhow::{Context, Result};
use fairlead_crds::reading::Readable;
use fairlead_crds::{ExecutionPhase, ToolExecution, ToolExecutionStatus};
use kube::Api;
use std::io::{ErrorKind, Write};

/// Prints the output; what is to be said about it goes to standard error.
pub async fn run(target: &Target, options: &args::Output) -> Result<Exit> {
    let api: Api<Readable<ToolExecution>> = Api::namespaced(target.client.clone(), &target.namespace);
    let name = &options.execution;
    let found = api
        .get_opt(name)
        .await
        .with_context(|| format!("get toolexecution {}/{name}", target.namespace))?;
    let Some(Readable(execution)) = found else {
        eprintln!(
            "error: there is no toolexecution {}/{name}; see: kubectl get tx --namespace {0}",
            target.namespace
        );
        return Ok(Exit::NotFound);
    };
    let execution = execution.context("read the toolexecution")?;
    let status = execution.status.unwrap_or_default();
    let Some(output) = &status.output else {
        eprintln!("error: {}", missing(name, &status));
        return Ok(Exit::Failure);
    };
    let bytes = match options.output {
        None => output.text.clone().into_bytes(),
        Some(form) => text::object(output, form)?.into_bytes(),
    };
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(&bytes).and_then(|()| stdout.flush());
    // A reader that has seen enough, such as head, is no failure.
    if written
        .as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::BrokenPipe)
    {
        return Ok(Exit::Success);
    }
    written.context("write the output to standard output")?;
    if let Some(note) = truncation(&status) {
        eprintln!("{note}");
    }
    Ok(Exit::Success)
}

/// Why there is no output.
fn missing(name: &str, status: &ToolExecutionStatus) -> String {
    let reason = status.reason.as_deref().unwrap_or("no reason given");
    let wait = format!("see: kubectl get tx {name} --watch");
    match status.phase {
        None => format!("{name} has not ended: its output is written when it does; {wait}"),
        Some(phase @ (ExecutionPhase::Queued | ExecutionPhase::Running)) => {
            format!("{name} is {phase}: its output is written when it ends; {wait}")
        }
        Some(phase) => {
            let message = status.message.as_deref().unwrap_or("nothing was started");
            format!(
                "{name} ended {phase} ({reason}) without output: {}; see: kubectl describe tx {name}",
                message.trim_end_matches('.')
            )
        }
    }
}

/// What is said when the text is not the whole output: its size, and where the bytes are that were kept.
fn truncation(status: &ToolExecutionStatus) -> Option<String> {
    let output = status.output.as_ref().filter(|output| output.truncated)?;
    let head = format!(
        "cut: these {} bytes of text stand for {} bytes of output",
        text::grouped(output.text.len() as i64),
        text::grouped(output.total_bytes)
    );
    let Some(stored) = &status.stored else {
        return Some(format!("{head}; the rest was not kept"));
    };
    Some(format!(
        "{head}\nkept on node {}: <spool>/{}/stdout, sha256 {}\n\
         <spool> is the directory of that node's agent (--spool; nodeAgent.spool.hostPath of the chart, /var/lib/fairlead \
         by default)",
        stored.node_name, stored.id, output.sha256
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_crds::{ExecutionOutput, StoredOutput};

    fn status(truncated: bool) -> ToolExecutionStatus {
        ToolExecutionStatus {
            output: Some(ExecutionOutput {
                text: "x".repeat(1024),
                truncated,
                total_bytes: 10_485_760,
                sha256: "c0ffee".into(),
            }),
            stored: Some(StoredOutput {
                node_name: "node-0".into(),
                id: "u-1".into(),
            }),
            ..ToolExecutionStatus::default()
        }
    }

    #[test]
    fn a_cut_is_said_with_the_place_of_the_whole() {
        assert_eq!(truncation(&status(false)), None);
        assert_eq!(
            truncation(&status(true)).unwrap(),
            "cut: these 1,024 bytes of text stand for 10,485,760 bytes of output\n\
             kept on node node-0: <spool>/u-1/stdout, sha256 c0ffee\n\
             <spool> is the directory of that node's agent (--spool; nodeAgent.spool.hostPath of the chart, \
             /var/lib/fairlead by default)"
        );
    }

    #[test]
    fn missing_output_says_whether_it_may_still_come() {
        let mut status = ToolExecutionStatus::default();
        assert_eq!(
            missing("tx", &status),
            "tx has not ended: its output is written when it does; see: kubectl get tx tx --watch"
        );
        status.phase = Some(ExecutionPhase::Running);
        assert_eq!(
            missing("tx", &status),
            "tx is Running: its output is written when it ends; see: kubectl get tx tx --watch"
        );
        status.phase = Some(ExecutionPhase::Denied);
        status.reason = Some("INVALID_ARGUMENT".into());
        status.message = Some("/path: expected a string".into());
        assert_eq!(
            missing("tx", &status),
            "tx ended Denied (INVALID_ARGUMENT) without output: /path: expected a string; \
             see: kubectl describe tx tx"
        );
    }
}

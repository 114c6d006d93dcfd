//! `output`: the canonical text of a tool execution, byte for byte.

use crate::args;
use crate::connect::Target;
use crate::exit::Exit;
use crate::text;
use anyhow::{Context, Result};
use fairlead_crds::{ExecutionPhase, ToolExecution, ToolExecutionStatus};
use kube::Api;
use std::io::{ErrorKind, Write};

/// Prints the output; what is to be said about it goes to standard error.
pub async fn run(target: &Target, options: &args::Output) -> Result<Exit> {
    let api: Api<ToolExecution> = Api::namespaced(target.client.clone(), &target.namespace);
    let name = &options.execution;
    let found = api
        .get_opt(name)
        .await
        .with_context(|| format!("get toolexecution {}/{name}", target.namespace))?;
    let Some(execution) = found else {
        eprintln!(
            "there is no toolexecution {}/{name}; see: kubectl get tx",
            target.namespace
        );
        return Ok(Exit::NotFound);
    };
    let status = execution.status.unwrap_or_default();
    let Some(output) = &status.output else {
        eprintln!("{}", missing(name, &status));
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
    match status.phase {
        None => format!("{name} has not started yet: there is no output"),
        Some(phase @ (ExecutionPhase::Queued | ExecutionPhase::Running)) => {
            format!("{name} is {phase}: its output is written when it ends")
        }
        Some(phase) => {
            let message = status.message.as_deref().unwrap_or("nothing was started");
            format!("{name} ended {phase} ({reason}) without output: {message}")
        }
    }
}

/// What is said when the text is not the whole output.
fn truncation(status: &ToolExecutionStatus) -> Option<String> {
    let output = status.output.as_ref().filter(|output| output.truncated)?;
    let shown = text::grouped(output.text.len() as i64);
    let total = text::grouped(output.total_bytes);
    let kept = match &status.stored {
        Some(stored) => format!(
            "every byte is kept on node {} in spool directory {}",
            stored.node_name, stored.id
        ),
        None => "the rest was not kept".to_owned(),
    };
    Some(format!(
        "truncated: {shown} bytes of text stand for {total} bytes of output; {kept}"
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
                sha256: String::new(),
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
            "truncated: 1,024 bytes of text stand for 10,485,760 bytes of output; \
             every byte is kept on node node-0 in spool directory u-1"
        );
    }

    #[test]
    fn missing_output_says_whether_it_may_still_come() {
        let mut status = ToolExecutionStatus::default();
        assert_eq!(
            missing("tx", &status),
            "tx has not started yet: there is no output"
        );
        status.phase = Some(ExecutionPhase::Running);
        assert_eq!(
            missing("tx", &status),
            "tx is Running: its output is written when it ends"
        );
        status.phase = Some(ExecutionPhase::Denied);
        status.reason = Some("INVALID_ARGUMENT".into());
        status.message = Some("/path: expected a string".into());
        assert_eq!(
            missing("tx", &status),
            "tx ended Denied (INVALID_ARGUMENT) without output: /path: expected a string"
        );
    }
}

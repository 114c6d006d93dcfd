//! Logs: one JSON object per line on standard error.

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

/// What no setting turns on: at a failed parse `kube_client::client` logs the whole answer of the API server, at a
/// refusal at `DEBUG` its text, and its `builder` every error that its caller logs as well. What is said of
/// certificates stays.
const NEVER: [&str; 3] = [
    "kube_client::client=off",
    "kube_client::client::builder=off",
    "kube_client::client::tls=warn",
];

/// Logs everything of the process as JSON lines to standard error (standard output is left to results).
///
/// `RUST_LOG` filters, in the form of `tracing_subscriber::EnvFilter`; `default_filter` stands in where it is unset or
/// empty. Bodies of requests and answers of the Kubernetes client are never logged, whatever the filter says. Call
/// once per process, first.
///
/// From then on a panic ends the process: one that ended its task only would leave what the task was to report unsaid,
/// and somebody waiting for it for ever. Every program may be killed at any instruction, and starts again.
///
/// # Errors
/// When a filter is malformed, or when a subscriber was installed before.
pub fn init_telemetry(default_filter: &str) -> Result<()> {
    let text = std::env::var("RUST_LOG").unwrap_or_default();
    let text = if text.is_empty() { default_filter } else { &text };
    let filter = filter(text)?;
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_writer(std::io::stderr)
        .with_env_filter(filter)
        .try_init()
        .map_err(|error| anyhow::anyhow!("install the log subscriber: {error}"))?;
    end_on_panic();
    Ok(())
}

fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |what| {
        tell(what);
        std::process::abort();
    }));
}

fn filter(text: &str) -> Result<EnvFilter> {
    let filter = EnvFilter::try_new(text).with_context(|| format!("read the log filter {text:?}"))?;
    NEVER.iter().try_fold(filter, |filter, directive| {
        let directive: Directive = directive
            .parse()
            .with_context(|| format!("read the log directive {directive:?}"))?;
        Ok(filter.add_directive(directive))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::process::ExitStatusExt;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Runs this test program once more, as one in which a thread panics and the rest goes on.
    #[test]
    fn a_panic_of_any_thread_ends_the_process() {
        const INSIDE: &str = "FAIRLEAD_TEST_PANICS";
        if std::env::var_os(INSIDE).is_some() {
            end_on_panic();
            let _ = std::thread::spawn(|| panic!("on purpose")).join();
            std::process::exit(0);
        }
        let name = "telemetry::tests::a_panic_of_any_thread_ends_the_process";
        let ended = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", name])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        assert_eq!(ended.status.signal(), Some(6), "SIGABRT: {ended:?}");
        assert!(
            String::from_utf8_lossy(&ended.stderr).contains("on purpose"),
            "{ended:?}"
        );
    }

    #[test]
    fn bodies_are_not_logged_whatever_is_asked_for() {
        for asked in [
            "info",
            "trace",
            "kube_client=trace",
            "kube_client::client=trace,kube_client::client::builder=trace",
        ] {
            let lines = Lines::default();
            let writer = lines.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_env_filter(filter(asked).unwrap())
                .with_writer(move || writer.clone())
                .finish();
            tracing::subscriber::with_default(subscriber, || {
                tracing::warn!(target: "kube_client::client", "a body");
                tracing::error!(target: "kube_client::client::builder", "a body");
                tracing::warn!(target: "kube_client::client::tls", "a certificate");
            });
            let said = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
            assert!(!said.contains("a body"), "{asked}: {said}");
            assert!(said.contains("a certificate"), "{asked}: {said}");
        }
        assert!(filter("operator=loud").is_err());
    }
}

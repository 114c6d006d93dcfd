//! Logs: one JSON object per line on standard error.

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

/// Logs everything of the process as JSON lines to standard error (standard output is left to results).
///
/// `RUST_LOG` filters, in the form of `tracing_subscriber::EnvFilter`; `default_filter` stands in where it is unset or
/// empty. Call once per process, first.
///
/// # Errors
/// When a filter is malformed, or when a subscriber was installed before.
pub fn init_telemetry(default_filter: &str) -> Result<()> {
    let text = std::env::var("RUST_LOG").unwrap_or_default();
    let text = if text.is_empty() { default_filter } else { &text };
    let filter = EnvFilter::try_new(text).with_context(|| format!("read the log filter {text:?}"))?;
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_writer(std::io::stderr)
        .with_env_filter(filter)
        .try_init()
        .map_err(|error| anyhow::anyhow!("install the log subscriber: {error}"))
}

//! One token that every long task of a process waits on.

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Told when the process shall end. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    token: CancellationToken,
}

impl Shutdown {
    /// A shutdown that only [`Shutdown::begin`] begins.
    pub fn new() -> Self {
        Self::default()
    }

    /// A shutdown that begins at SIGTERM or SIGINT. A second signal ends the process at once, with status 130.
    ///
    /// # Errors
    /// When the handlers cannot be installed. Must be called within a tokio runtime.
    pub fn on_signals() -> Result<Self> {
        let shutdown = Self::new();
        let mut terminate = signal(SignalKind::terminate()).context("install the handler of SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("install the handler of SIGINT")?;
        let token = shutdown.token.clone();
        tokio::spawn(async move {
            for count in 0_u32.. {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                if count > 0 {
                    tracing::warn!(signal = name, "second signal: ending at once");
                    std::process::exit(130);
                }
                tracing::info!(signal = name, "shutting down");
                token.cancel();
            }
        });
        Ok(shutdown)
    }

    /// Begins the shutdown. Again is the same as once.
    pub fn begin(&self) {
        self.token.cancel();
    }

    /// Whether it began.
    pub fn begun(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits until it began.
    pub async fn wait(&self) {
        self.token.cancelled().await;
    }

    /// The token itself, for what takes one or for child tokens.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }
}

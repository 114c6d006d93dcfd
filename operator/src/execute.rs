//! Carrying actions out. Nothing is decided here.

use crate::clock::Clock;
use crate::lease::Leadership;
use crate::metrics::Metrics;
use crate::provider::ProviderClient;
use crate::sources::Observed;
use fairlead_decide::cluster::{Action, Event, WriteFailure, WriteFailureKind};
use kube::Client;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::AbortHandle;

/// Writes on their way at once: beyond this the API server only gets slower.
const WRITES_AT_ONCE: usize = 64;
/// Bound on one call to the API server.
const CALL_LIMIT: Duration = Duration::from_secs(15);

/// Carries actions out, each in a task of its own.
#[derive(Clone)]
pub struct Executor {
    pub(crate) client: Client,
    pub(crate) grantee: Arc<str>,
    providers: Arc<ProviderClient>,
    leadership: watch::Receiver<Leadership>,
    pub(crate) out: mpsc::UnboundedSender<Observed>,
    slots: Arc<Semaphore>,
    asking: Arc<Mutex<HashMap<String, AbortHandle>>>,
    clock: Arc<Clock>,
    metrics: Arc<Metrics>,
}

impl Executor {
    /// An executor that tells `out` what came of things.
    pub fn new(
        client: Client,
        grantee: String,
        leadership: watch::Receiver<Leadership>,
        out: mpsc::UnboundedSender<Observed>,
        clock: Arc<Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            client,
            grantee: grantee.into(),
            providers: Arc::new(ProviderClient::new()),
            leadership,
            out,
            slots: Arc::new(Semaphore::new(WRITES_AT_ONCE)),
            asking: Arc::default(),
            clock,
            metrics,
        }
    }

    /// Starts an action that was decided under `term`.
    pub fn start(&self, action: Action, term: i64) {
        match action {
            Action::Want { .. } => {}
            Action::StopAsking { run, .. } => self.stop_asking(&run),
            Action::Ask { .. } => self.ask(action, term),
            action => {
                let this = self.clone();
                tokio::spawn(async move { this.carry_out(action, term).await });
            }
        }
    }

    /// Gives up every model request: this process does not lead any more.
    pub fn stop_all(&self) {
        let asking = std::mem::take(&mut *self.asking.lock().unwrap_or_else(PoisonError::into_inner));
        for handle in asking.into_values() {
            handle.abort();
        }
    }

    /// Gives up the model request of a run, if one is in progress.
    pub fn stop_asking(&self, run: &str) {
        if let Some(handle) = self
            .asking
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(run)
        {
            handle.abort();
        }
    }

    fn ask(&self, action: Action, term: i64) {
        let Action::Ask {
            run,
            turn,
            namespace,
            provider,
            tries,
            request,
        } = action
        else {
            return;
        };
        let this = self.clone();
        let key = run.clone();
        // Held until the task is in the list, so that it cannot take itself off before.
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let task = tokio::spawn(async move {
            let sent_at = this.clock.now();
            let timer = tokio::time::Instant::now();
            let secret =
                crate::secrets::api_key(&this.client, &this.grantee, &namespace, &provider.spec).await;
            let result = match secret {
                Ok(secret) => {
                    this.providers
                        .call(&provider.spec, secret.as_ref(), &request, tries)
                        .await
                }
                Err(error) => Err(error),
            };
            this.metrics.asked(result.is_ok(), timer.elapsed());
            this.asking
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&run);
            let result = Box::new(result);
            let _ = this.out.send(Observed::Event(Event::Answered {
                run,
                turn,
                term,
                sent_at,
                result,
            }));
        });
        if let Some(old) = asking.insert(key, task.abort_handle()) {
            old.abort();
        }
    }

    async fn carry_out(&self, action: Action, term: i64) {
        let Ok(_slot) = self.slots.acquire().await else {
            return;
        };
        let timer = tokio::time::Instant::now();
        let name = action_name(&action);
        let result = if self.leadership.borrow().term() == Some(term) {
            tokio::time::timeout(CALL_LIMIT, self.write(&action))
                .await
                .unwrap_or_else(|_| {
                    Err(WriteFailure {
                        kind: WriteFailureKind::Transient,
                        message: format!("the API server did not answer within {CALL_LIMIT:?}"),
                    })
                })
        } else {
            Err(WriteFailure {
                kind: WriteFailureKind::Transient,
                message: "this replica does not lead any more".into(),
            })
        };
        self.metrics.wrote(name, result.is_ok(), timer.elapsed());
        if let Err(failure) = &result {
            tracing::info!(action = name, kind = ?failure.kind, error = failure.message, "write did not happen");
        }
        let _ = self.out.send(Observed::Event(Event::Ended {
            action: Box::new(action),
            result,
        }));
    }
}

/// Name of an action in metrics and logs.
fn action_name(action: &Action) -> &'static str {
    match action {
        Action::CreateTurn { .. } => "create_turn",
        Action::EndTurn { .. } => "end_turn",
        Action::Ask { .. } => "ask",
        Action::StopAsking { .. } => "stop_asking",
        Action::CreateExecution { .. } => "create_execution",
        Action::Bind { .. } => "bind",
        Action::Cancel { .. } => "cancel",
        Action::WriteExecution { .. } => "write_execution",
        Action::WriteRun { .. } => "write_run",
        Action::WriteTool { .. } => "write_tool",
        Action::CheckProvider { .. } => "check_provider",
        Action::WriteProvider { .. } => "write_provider",
        Action::Want { .. } => "want",
        Action::DeleteRun { .. } => "delete_run",
        Action::DeleteExecution { .. } => "delete_execution",
    }
}

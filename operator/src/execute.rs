//! Carrying actions out. Nothing is decided here.

use crate::clock::Clock;
use crate::lease::Leadership;
use crate::metrics::Metrics;
use crate::provider::ProviderClient;
use crate::sources::Observed;
use fairlead_crds::conditions::{self, kind};
use fairlead_decide::cluster::{Action, Event, WriteFailure, WriteFailureKind};
use kube::Client;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

/// Writes on their way at once: beyond this the API server only gets slower.
const WRITES_AT_ONCE: usize = 64;
/// Bound on one call to the API server.
const CALL_LIMIT: Duration = Duration::from_secs(15);

/// A model request in progress.
struct Asking {
    /// Tells it from an earlier one of the same run.
    serial: u64,
    task: AbortHandle,
}

/// Carries actions out, each in a task of its own.
#[derive(Clone)]
pub struct Executor {
    pub(crate) client: Client,
    pub(crate) grantee: Arc<str>,
    providers: Arc<ProviderClient>,
    leadership: watch::Receiver<Leadership>,
    pub(crate) out: mpsc::UnboundedSender<Observed>,
    slots: Arc<Semaphore>,
    /// The request in progress of each run. A turn has one request at a time, and a run one such turn.
    asking: Arc<Mutex<HashMap<String, Asking>>>,
    serials: Arc<AtomicU64>,
    writing: TaskTracker,
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
            serials: Arc::default(),
            writing: TaskTracker::new(),
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
                self.writing
                    .spawn(async move { this.carry_out(action, term).await });
            }
        }
    }

    /// Waits until the writes on their way have come to their ends, at most for `limit`.
    pub async fn settle(&self, limit: Duration) {
        self.writing.close();
        if tokio::time::timeout(limit, self.writing.wait()).await.is_err() {
            let count = self.writing.len();
            tracing::info!(
                count,
                "ending before all writes were answered; the next leader finds what came of them"
            );
        }
    }

    fn asking(&self) -> MutexGuard<'_, HashMap<String, Asking>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up every model request: this process does not lead any more.
    pub fn stop_all(&self) {
        let all = std::mem::take(&mut *self.asking());
        all.into_values().for_each(|asking| asking.task.abort());
    }

    /// Gives up the model request of a run, if one is in progress.
    pub fn stop_asking(&self, run: &str) {
        if let Some(asking) = self.asking().remove(run) {
            asking.task.abort();
        }
    }

    /// Takes a request that has ended off the list, unless another one stands there by now: an abort takes effect only
    /// where a task waits.
    fn asked(&self, run: &str, serial: u64) {
        let mut all = self.asking();
        if all.get(run).is_some_and(|asking| asking.serial == serial) {
            all.remove(run);
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
        let mut asking = self.asking();
        let serial = self.serials.fetch_add(1, Ordering::Relaxed);
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
            this.asked(&run, serial);
            let result = Box::new(result);
            let _ = this.out.send(Observed::Event(Event::Answered {
                run,
                turn,
                term,
                sent_at,
                result,
            }));
        });
        let task = task.abort_handle();
        if let Some(old) = asking.insert(key, Asking { serial, task }) {
            old.task.abort();
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
        if result.is_ok() {
            log_end(&action);
        }
        if let Err(failure) = &result {
            tracing::info!(action = name, kind = ?failure.kind, error = failure.message, "write was refused, or is not confirmed");
        }
        let _ = self.out.send(Observed::Event(Event::Ended {
            action: Box::new(action),
            result,
        }));
    }
}

/// A line for each run whose end was stored and confirmed: its object may be deleted before somebody asks.
fn log_end(action: &Action) {
    let Action::WriteRun { run, status } = action else {
        return;
    };
    let Some(phase) = status.phase.filter(|phase| phase.is_terminal()) else {
        return;
    };
    let why = conditions::find(&status.conditions, kind::SUCCEEDED);
    tracing::info!(
        namespace = run.metadata.namespace,
        run = run.metadata.name,
        uid = run.metadata.uid,
        phase = phase.as_str(),
        reason = why.map(|c| c.reason.as_str()),
        turns = status.turns,
        tool_calls = status.tool_calls,
        "run ended"
    );
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

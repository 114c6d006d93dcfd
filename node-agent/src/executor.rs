//! Carries out actions, and never decides. Each comes back as an event.

use crate::agent::{Existing, Input};
use crate::collect;
use crate::host::Host;
use crate::ids;
use crate::report;
use crate::sources;
use crate::start;
use fairlead_decide::node::{Action, AttemptKey, Event, Level, Moment, ProcessFact, Report, RunKey, Start};
use fairlead_supervisor::slot::Reported;
use fairlead_supervisor::sys;
use fairlead_supervisor::wire::Request;
use kube::Client;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc::UnboundedSender};
use tokio_util::task::TaskTracker;

/// Requests to the API server at once; beyond it only the wait of each grows.
const API_REQUESTS: usize = 32;

/// Carries out actions.
#[derive(Clone)]
pub(crate) struct Executor {
    host: Arc<Host>,
    client: Client,
    out: UnboundedSender<Input>,
    api: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl Executor {
    /// Results go to `out`.
    pub(crate) fn new(host: Arc<Host>, client: Client, out: UnboundedSender<Input>) -> Self {
        Self {
            host,
            client,
            out,
            api: Arc::new(Semaphore::new(API_REQUESTS)),
            tasks: TaskTracker::new(),
        }
    }

    /// Waits for everything under way, and takes nothing new.
    pub(crate) async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Begins an action. What is quick is done at once, the rest beside the loop.
    pub(crate) fn carry_out(&self, action: Action) {
        match action {
            Action::Start(start) => self.blocking(move |host| begin_start(host, &start)),
            Action::Signal { key, signal } => self.tell(key, |key| Request::Signal { key, signo: signal }),
            Action::Kill { key } => self.tell(key, |key| Request::Kill { key }),
            Action::Measure { key } => {
                let bytes = start::measure(&self.host, &key);
                self.send(Event::Measured {
                    key,
                    at: ids::now(),
                    bytes,
                });
            }
            Action::Collect {
                key,
                name,
                max_bytes,
                populated,
            } => self.blocking(move |host| {
                let collected = Box::new(collect::collect(host, &key, &name, max_bytes, populated));
                Event::CollectEnded {
                    key,
                    at: ids::now(),
                    collected,
                }
            }),
            Action::Report(report) => self.report(*report),
            Action::CleanUp { key, epoch } => self.blocking(move |host| {
                let result = collect::clean_up(host, &key, epoch);
                Event::CleanUpEnded {
                    at: warn("clean up", &key, &result),
                    key,
                    result,
                }
            }),
            Action::Discard { key, epoch } => self.blocking(move |host| {
                let result = collect::discard(host, &key, epoch);
                Event::DiscardEnded {
                    at: warn("discard", &key, &result),
                    key,
                    result,
                }
            }),
            Action::RemoveRun { run } => self.blocking(move |host| remove_run(host, run)),
            Action::Read { uid, object } => {
                let client = self.client.clone();
                self.request(async move {
                    let result = report::read(client, &uid, &object).await;
                    Event::ReadBack {
                        uid,
                        at: ids::now(),
                        result,
                    }
                });
            }
        }
    }

    /// Asks the API server which executions bound here exist.
    pub(crate) fn list_existing(&self, asked: BTreeSet<String>) {
        let (client, node, out) = (self.client.clone(), self.host.node.name.clone(), self.out.clone());
        self.tasks.spawn(async move {
            let listed = sources::existing(client, &node).await;
            if let Err(error) = &listed {
                tracing::warn!(error = format!("{error:#}"), "list what exists");
            }
            let existing = listed.ok().map(|found| Existing { asked, found });
            let _ = out.send(Input::Existing(existing));
        });
    }

    fn report(&self, report: Report) {
        let (client, host) = (self.client.clone(), Arc::clone(&self.host));
        self.request(async move {
            let result = report::write(client, &report).await;
            let Report { key, level, .. } = report;
            if result.is_ok() && matches!(level, Level::Final | Level::Minimal) {
                note_reported(&host, &key);
            }
            Event::ReportEnded {
                key,
                at: ids::now(),
                level,
                result,
            }
        });
    }

    /// The supervisor's answer is an event of its own; a request that cannot be sent is answered here.
    fn tell(&self, key: AttemptKey, request: impl FnOnce(fairlead_supervisor::wire::Key) -> Request) {
        let request = ids::to_wire(&key).map(request);
        let kill = matches!(request, Some(Request::Kill { .. }));
        let sent = request.map(|request| self.host.tell("a request", &request));
        match sent {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::error!(execution = %key, error, "tell the supervisor");
                if kill {
                    self.send(Event::KillUnsent { key, at: ids::now() });
                }
            }
            None => self.send(Event::Process {
                key,
                fact: ProcessFact::NoEntry(ids::now()),
            }),
        }
    }

    fn send(&self, event: Event) {
        // Without a receiver the agent is ending, and the next one reads everything anew.
        let _ = self.out.send(Input::Event(event));
    }

    fn blocking(&self, work: impl FnOnce(&Host) -> Event + Send + 'static) {
        let this = self.clone();
        self.tasks.spawn_blocking(move || this.send(work(&this.host)));
    }

    fn request(&self, work: impl Future<Output = Event> + Send + 'static) {
        let this = self.clone();
        self.tasks.spawn(async move {
            let _permit = this.api.acquire().await;
            this.send(work.await);
        });
    }
}

fn begin_start(host: &Host, start: &Start) -> Event {
    let result = start::start(host, start);
    if let Err(failure) = &result {
        let reason = failure.reason;
        tracing::warn!(execution = %start.key, reason, message = failure.message, "not started");
    }
    Event::StartEnded {
        key: start.key.clone(),
        at: ids::now(),
        result,
    }
}

fn warn(what: &str, key: &AttemptKey, result: &Result<(), String>) -> Moment {
    if let Err(error) = result {
        tracing::warn!(execution = %key, error, "{what}");
    }
    ids::now()
}

fn remove_run(host: &Host, run: RunKey) -> Event {
    let result = host
        .spool
        .remove_run(&run)
        .map_err(|error| format!("remove the directory of run {}: {error}", run.0));
    if let Err(error) = &result {
        tracing::warn!(error, "remove a run's directory");
    }
    Event::RunRemoved {
        run,
        at: ids::now(),
        result,
    }
}

/// A crash before this is no harm: the API says that the end is stored.
fn note_reported(host: &Host, key: &AttemptKey) {
    let noted = host.spool.slot(key).and_then(|slot| {
        slot.write_reported(&Reported {
            unix_ms: sys::realtime_ms(),
        })
    });
    // One that was refused before its start has no slot.
    if let Err(error) = noted
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(execution = %key, %error, "note that the end is stored");
    }
    if let Err(error) = collect::forget(host, key) {
        tracing::warn!(execution = %key, error, "forget");
    }
}

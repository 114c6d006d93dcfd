//! The loop: observe → absorb → decide → execute.

use crate::clock::Clock;
use crate::execute::Executor;
use crate::lease::Leadership;
use crate::metrics::Metrics;
use crate::sources::{Observed, SOURCES};
use fairlead_admin::ReadyToken;
use fairlead_crds::values::Time;
use fairlead_decide::cluster::{Action, Event, Key, World, decide, has_ended, key_of};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Longest wait at the end for the answers to writes; a leader that ends is to hand over within two seconds.
const SETTLE: Duration = Duration::from_secs(1);
/// Observations taken in before decisions are made, at most.
const BATCH: usize = 512;

/// Everything the loop holds.
pub struct Controller {
    /// What is known.
    pub world: World,
    /// Who carries actions out.
    pub executor: Executor,
    /// The time.
    pub clock: Arc<Clock>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Whether this process leads.
    pub leadership: watch::Receiver<Leadership>,
    /// What the watches say.
    pub watched: mpsc::Receiver<Observed>,
    /// What came of actions.
    pub results: mpsc::UnboundedReceiver<Observed>,
    /// Set once every watch has given its list.
    pub ready: ReadyToken,
}

/// What the loop keeps between two rounds.
#[derive(Default)]
struct Agenda {
    synced: BTreeSet<&'static str>,
    dirty: BTreeSet<Key>,
    wakes: BTreeSet<(Time, Key)>,
    wake_of: BTreeMap<Key, Time>,
}

impl Agenda {
    fn set_wake(&mut self, key: Key, at: Option<Time>) {
        if let Some(old) = self.wake_of.remove(&key) {
            self.wakes.remove(&(old, key.clone()));
        }
        if let Some(at) = at {
            self.wakes.insert((at, key.clone()));
            self.wake_of.insert(key, at);
        }
    }

    fn take_due(&mut self, now: Time) {
        while let Some((at, key)) = self.wakes.first().cloned().filter(|(at, _)| *at <= now) {
            self.wakes.remove(&(at, key.clone()));
            self.wake_of.remove(&key);
            self.dirty.insert(key);
        }
    }

    fn until_next(&self, now: Time) -> Duration {
        let next = self.wakes.first().map(|(at, _)| at.duration_since(now));
        next.and_then(|d| Duration::try_from(d).ok())
            .unwrap_or(Duration::from_secs(60))
            .max(Duration::from_millis(1))
    }
}

impl Controller {
    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut agenda = Agenda::default();
        loop {
            let pause = agenda.until_next(self.clock.now());
            tokio::select! {
                () = stop.cancelled() => break,
                changed = self.leadership.changed() => if changed.is_err() { break },
                Some(observed) = self.results.recv() => self.take(observed, &mut agenda),
                Some(observed) = self.watched.recv() => self.take(observed, &mut agenda),
                () = tokio::time::sleep(pause) => {}
            }
            self.take_what_is_there(&mut agenda);
            self.follow_leadership(&mut agenda);
            let now = self.clock.now();
            agenda.take_due(now);
            if self.world.term.is_some() {
                self.decide_all(&mut agenda);
            } else {
                // Whoever leads next decides about everything anyway.
                agenda.dirty.clear();
            }
            self.metrics.waiting(self.world.waiting.len());
        }
        self.executor.stop_all();
        self.executor.settle(SETTLE).await;
    }

    fn take_what_is_there(&mut self, agenda: &mut Agenda) {
        for _ in 0..BATCH {
            let next = self
                .results
                .try_recv()
                .ok()
                .or_else(|| self.watched.try_recv().ok());
            let Some(observed) = next else { return };
            self.take(observed, agenda);
        }
    }

    fn take(&mut self, observed: Observed, agenda: &mut Agenda) {
        match observed {
            Observed::Synced(source) => {
                agenda.synced.insert(source);
                if agenda.synced.len() == SOURCES.len() {
                    self.ready.set_ready();
                }
            }
            Observed::Event(event) => {
                self.count(&event);
                if let Event::RunGone { uid } = &event {
                    self.executor.stop_asking(uid);
                }
                agenda.dirty.extend(self.world.absorb(event, self.clock.now()));
            }
        }
    }

    fn count(&self, event: &Event) {
        match event {
            Event::Execution(execution) if has_ended(execution) => {
                let known = self.world.executions.get(&key_of(&execution.metadata));
                if known.is_some_and(|old| !has_ended(old)) {
                    let phase = execution.status.as_ref().and_then(|s| s.phase);
                    self.metrics
                        .execution_ended(phase.map_or("Unknown", |p| p.as_str()));
                }
            }
            Event::Ended {
                action,
                result: Ok(()),
            } => {
                if let Action::WriteRun { run, status } = &**action
                    && let Some(phase) = status.phase.filter(|p| p.is_terminal())
                    && run.status.as_ref().and_then(|s| s.phase) != Some(phase)
                {
                    self.metrics.run_ended(phase.as_str());
                }
            }
            _ => {}
        }
    }

    /// Takes leadership up once everything was listed, and gives it up the moment it does not hold.
    fn follow_leadership(&mut self, agenda: &mut Agenda) {
        let term = self.leadership.borrow().term();
        if term == self.world.term {
            return;
        }
        let now = self.clock.now();
        if self.world.term.is_some() {
            tracing::info!("does not lead any more");
            self.executor.stop_all();
            self.world.absorb(Event::Deposed, now);
            *agenda = Agenda {
                synced: std::mem::take(&mut agenda.synced),
                ..Agenda::default()
            };
        }
        if let Some(term) = term
            && agenda.synced.len() == SOURCES.len()
        {
            agenda.dirty.extend(self.world.absorb(Event::Led { term }, now));
        }
        self.metrics.leads(self.world.term.is_some());
    }

    fn decide_all(&mut self, agenda: &mut Agenda) {
        let Some(term) = self.world.term else { return };
        while let Some(key) = agenda.dirty.pop_first() {
            let now = self.clock.now();
            let decision = decide(&self.world, &key, now);
            self.metrics.decided();
            tracing::debug!(?key, actions = decision.actions.len(), because = ?decision.because, "decided");
            agenda.set_wake(key, decision.wake);
            for action in decision.actions {
                agenda
                    .dirty
                    .extend(self.world.absorb(Event::Started(Box::new(action.clone())), now));
                self.executor.start(action, term);
            }
        }
    }
}

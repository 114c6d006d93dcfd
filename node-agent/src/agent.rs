//! The loop: next event → absorb → decide → execute.

use crate::executor::Executor;
use crate::host::Host;
use crate::ids;
use crate::link::Said;
use crate::metrics::Metrics;
use crate::timers::Timers;
use anyhow::{Result, bail};
use fairlead_admin::{ReadyToken, Shutdown};
use fairlead_crds::ToolExecution;
use fairlead_decide::node::{
    Action, AttemptKey, Entry, Event, Held, Key, ObjectRef, ProcessFact, RunKey, Snapshot, World, decide,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

const HEARTBEAT: Duration = Duration::from_secs(1);
/// Pause between two looks at which executions exist: how long bytes stay after their object is gone.
const LOOK_AT_EXISTING: Duration = Duration::from_secs(10);
/// How long other work under way may take at the end.
const FINISH_BOUND: Duration = Duration::from_secs(1);
/// Kept of the time for draining to see killed groups empty and to report; at most half of it.
const REPORT_MS: u64 = 5_000;
/// Inputs taken before timers and heartbeat have their turn.
const TURN: usize = 256;
/// Most times one key is decided in a row; twice is normal: the second says when to look again.
const ROUNDS: u32 = 8;

/// What reaches the loop.
#[derive(Debug)]
pub(crate) enum Input {
    /// An event of the core.
    Event(Event),
    /// The supervisor said something; `None`: it is gone.
    Said(Option<Said>),
    /// The first complete list and the journal.
    Listed(Box<Listing>),
    /// Which executions exist; `None`: that could not be found out.
    Existing(Option<Existing>),
}

/// The answer of a consistent list.
#[derive(Debug)]
pub(crate) struct Existing {
    /// UIDs that were known before the list was asked for.
    pub(crate) asked: BTreeSet<String>,
    /// UIDs in the list.
    pub(crate) found: BTreeSet<String>,
}

/// The API's and the spool's part of the world at a start.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) live: Vec<Arc<ToolExecution>>,
    pub(crate) kept: BTreeMap<String, (ObjectRef, RunKey)>,
    pub(crate) held: Vec<Held>,
    pub(crate) runs: Vec<(RunKey, u32)>,
    /// UIDs of live executions whose objects cannot be read, or not their plans.
    pub(crate) unreadable: BTreeSet<String>,
    /// Those whose plans are too new to be read.
    pub(crate) too_new: Vec<Arc<ToolExecution>>,
}

/// The loop's state.
pub(crate) struct Agent {
    host: Arc<Host>,
    executor: Executor,
    metrics: Metrics,
    world: World,
    timers: Timers,
    /// What the supervisor said before the first list; `None` afterwards.
    early: Option<BTreeMap<AttemptKey, Vec<ProcessFact>>>,
    listing: bool,
    ready: ReadyToken,
    /// Told once the node's state is read.
    state_read: Arc<Notify>,
}

impl Agent {
    /// A loop that waits for the first list. `entries` is what the supervisor answered to Hello.
    pub(crate) fn new(
        host: Arc<Host>,
        executor: Executor,
        metrics: Metrics,
        entries: Vec<Entry>,
        ready: ReadyToken,
        state_read: Arc<Notify>,
    ) -> Self {
        let early = entries
            .into_iter()
            .map(|entry| (entry.key, entry.facts))
            .collect();
        let world = World::new(host.node.clone());
        let timers = Timers::default();
        Self {
            host,
            executor,
            metrics,
            world,
            timers,
            early: Some(early),
            listing: false,
            ready,
            state_read,
        }
    }

    /// Runs until the shutdown begins, and from then on until everything that ran is ended and reported, at most
    /// `drain`.
    ///
    /// # Errors
    /// When the supervisor is gone: without it there is nothing to be done.
    pub(crate) async fn run(
        mut self,
        mut inputs: UnboundedReceiver<Input>,
        shutdown: Shutdown,
        drain: Duration,
    ) -> Result<()> {
        let mut draining: Option<Instant> = None;
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut existing = interval(LOOK_AT_EXISTING);
        existing.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while draining.is_none_or(|until| self.world.unfinished() > 0 && Instant::now() < until) {
            let next = self
                .timers
                .next()
                .map(|at| Instant::now() + Duration::from_millis(at.saturating_sub(ids::now().boot_ms)));
            tokio::select! {
                biased;
                () = shutdown.wait(), if draining.is_none() => {
                    draining = Some(Instant::now() + drain);
                    self.drain(drain);
                }
                () = sleep_until(draining.unwrap_or_else(Instant::now)), if draining.is_some() => {}
                _ = heartbeat.tick() => {
                    self.host.link.heartbeat();
                    self.metrics.running(self.world.running());
                }
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => self.due(),
                _ = existing.tick() => self.look_at_existing(),
                input = inputs.recv() => {
                    let mut input = input;
                    for _ in 0..TURN {
                        let Some(taken) = input else { break };
                        self.take(taken)?;
                        input = inputs.try_recv().ok();
                    }
                    if let Some(taken) = input {
                        self.take(taken)?;
                    }
                }
            }
        }
        // Whatever is not done by then is found by the next agent.
        let _ = tokio::time::timeout(FINISH_BOUND, self.executor.finish()).await;
        Ok(())
    }

    fn drain(&mut self, bound: Duration) {
        let left = self.world.unfinished();
        tracing::info!(
            left,
            ?bound,
            "told to end: nothing new is started, and what runs is stopped"
        );
        let bound = u64::try_from(bound.as_millis()).unwrap_or(u64::MAX);
        let kill_at = ids::now().boot_ms + (bound - REPORT_MS.min(bound / 2));
        self.absorb(Event::Draining { kill_at });
    }

    fn take(&mut self, input: Input) -> Result<()> {
        match input {
            Input::Event(event) => self.absorb(event),
            Input::Said(Some(said)) => self.said(said),
            Input::Said(None) => bail!("the supervisor closed the connection"),
            Input::Listed(listing) => self.listed(*listing),
            Input::Existing(existing) => {
                self.listing = false;
                if let Some(existing) = existing {
                    self.exist(existing);
                }
            }
        }
        Ok(())
    }

    fn said(&mut self, said: Said) {
        if let Some(early) = &mut self.early {
            early.entry(said.key).or_default().extend(said.facts);
            return;
        }
        for fact in said.facts {
            self.absorb(Event::Process {
                key: said.key.clone(),
                fact,
            });
        }
    }

    fn listed(&mut self, listing: Listing) {
        let early = self.early.take().unwrap_or_default();
        let Listing {
            live,
            kept,
            held,
            runs,
            unreadable,
            too_new,
        } = listing;
        let entries: Vec<Entry> = early
            .into_iter()
            .map(|(key, facts)| Entry { key, facts })
            .collect();
        tracing::info!(
            live = live.len(),
            kept = kept.len(),
            slots = held.len(),
            entries = entries.len(),
            runs = runs.len(),
            "read the node's state"
        );
        let snapshot = Snapshot {
            at: ids::now(),
            live,
            kept,
            held,
            entries,
            runs,
        };
        self.absorb(Event::Unreadable(unreadable));
        self.absorb(Event::Resynced(Box::new(snapshot)));
        for object in too_new {
            self.absorb(Event::TooNew(object));
        }
        self.metrics.adopted(self.world.running());
        self.ready.set_ready();
        self.state_read.notify_one();
    }

    fn look_at_existing(&mut self) {
        if self.early.is_none() && !self.listing && self.world.remembers() {
            self.listing = true;
            let asked = self.world.attempts.keys().map(|key| key.uid.clone()).collect();
            self.executor.list_existing(asked);
        }
    }

    /// What was known before a consistent list and is not in it is gone, as if it had been read back one by one.
    fn exist(&mut self, existing: Existing) {
        let Existing { asked, found } = existing;
        for uid in asked {
            if !found.contains(&uid) {
                self.absorb(Event::ReadBack {
                    uid,
                    at: ids::now(),
                    result: Ok(None),
                });
            }
        }
        self.absorb(Event::Existing(found));
    }

    fn absorb(&mut self, event: Event) {
        self.metrics.observe(&event, ids::now().boot_ms);
        for key in self.world.absorb(event) {
            self.decide(key);
        }
    }

    fn due(&mut self) {
        let now = ids::now().boot_ms;
        while let Some(key) = self.timers.take_due(now) {
            self.decide(key);
        }
    }

    /// Decides a key until nothing is to be done for it now.
    fn decide(&mut self, key: Key) {
        let mut keys = BTreeSet::from([key]);
        let mut rounds = 0;
        while let Some(key) = keys.pop_first() {
            rounds += 1;
            let now = ids::now();
            let decision = decide(&self.world, &key, now);
            self.timers.set(key.clone(), decision.wake);
            tracing::debug!(?key, because = ?decision.because, actions = decision.actions.len(), "decided");
            if rounds > ROUNDS {
                tracing::error!(?key, ?decision, "decided over and over");
                return;
            }
            for action in decision.actions {
                self.count(&action, now.boot_ms);
                let begun = Event::Begun {
                    action: Box::new(action.clone()),
                    at: now,
                };
                keys.extend(self.world.absorb(begun));
                self.executor.carry_out(action);
            }
        }
    }

    fn count(&mut self, action: &Action, now_ms: u64) {
        match action {
            Action::Start(start) => self.metrics.taken_up(&start.key, now_ms),
            Action::Report(report) => self.metrics.reporting(report, now_ms),
            _ => {}
        }
    }
}

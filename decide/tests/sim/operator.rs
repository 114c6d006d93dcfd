//! A simulated operator process: watches, leader election, the loop, and the executor.

use super::api::{Kind, Object, name, time};
use super::core::Core;
use super::rng::Ms;
use super::{Ev, Sim, Watcher};
use fairlead_decide::cluster::{
    Action, Because, Decision, Event, Key, ObjectKey, Settings, Subject, WriteFailure, WriteFailureKind,
    bound_of_execution, bound_of_run,
};
use fairlead_decide::model::{ModelError, ModelResponse};
use std::collections::{BTreeMap, BTreeSet};

/// A leader that cannot renew for this long steps down.
const LEADS_MS: Ms = 10_000;
/// A Lease that was not renewed for this long may be taken.
const LEASE_MS: Ms = 15_000;
const CAMPAIGN_MS: Ms = 2_000;
/// Decisions of one process at one instant from which on it is a loop.
const LOOP: u32 = 3_000;

#[derive(Debug)]
pub struct Operator {
    pub up: bool,
    /// Counts the lives of the process.
    pub epoch: u32,
    pub core: Core,
    dirty: BTreeSet<Key>,
    wakes: BTreeMap<Key, Ms>,
    pub streams: BTreeMap<Kind, Watcher>,
    synced: BTreeSet<Kind>,
    leads: Option<(i64, Ms)>,
    pub paused_until: Ms,
    flying: BTreeSet<Subject>,
    instant: (Ms, u32),
    next_tick: Ms,
}

/// A model request in progress.
#[derive(Clone, Debug)]
pub struct Ask {
    pub operator: usize,
    pub epoch: u32,
    pub namespace: String,
    pub run: String,
    pub turn: String,
    pub term: i64,
    pub sent_at: Ms,
    pub result: Result<ModelResponse, ModelError>,
}

impl Operator {
    pub fn new(core: Core) -> Self {
        Self {
            up: false,
            epoch: 0,
            core,
            dirty: BTreeSet::new(),
            wakes: BTreeMap::new(),
            streams: BTreeMap::new(),
            synced: BTreeSet::new(),
            leads: None,
            paused_until: 0,
            flying: BTreeSet::new(),
            instant: (0, 0),
            next_tick: Ms::MAX,
        }
    }

    pub fn term(&self) -> Option<i64> {
        self.leads.map(|(term, _)| term)
    }
}

impl Sim {
    pub fn start_operator(&mut self, i: usize) {
        let settings = Settings {
            orphan_after_seconds: self.config.orphan_after_ms / 1000,
            ..Settings::default()
        };
        let core = Core::new(settings, self.config.cluster_fault);
        let epoch = self.operators[i].epoch + 1;
        self.operators[i] = Operator {
            up: true,
            epoch,
            ..Operator::new(core)
        };
        for kind in Kind::ALL {
            self.list_for_operator(i, kind);
        }
        let delay = self.rng_latency();
        self.later(delay, Ev::Campaign { operator: i, epoch });
    }

    pub fn crash_operator(&mut self, i: usize) {
        let operator = &mut self.operators[i];
        operator.up = false;
        operator.leads = None;
        self.asks.retain(|_, ask| ask.operator != i);
        self.note(|| format!("operator {i} is killed"));
        let pause = self.rng.range(10, 20_000);
        self.later(pause, Ev::StartOperator(i));
    }

    /// Takes a consistent list of a kind now; it arrives later, and the watch goes on from it.
    pub fn list_for_operator(&mut self, i: usize, kind: Kind) {
        let index = self.api.logs[kind as usize].len();
        let old = self.operators[i].streams.get(&kind).map_or(index, |s| s.position);
        let missing: Vec<_> = self.api.logs[kind as usize][old..index]
            .iter()
            .filter(|c| c.object.is_none())
            .cloned()
            .collect();
        let mut events: Vec<Event> = self.present(kind).into_iter().map(|o| self.event_of(o)).collect();
        events.extend(missing.iter().map(gone));
        let last = self.operators[i].streams.get(&kind).map_or(0, |s| s.last_at);
        let at = last.max(self.now + self.rng_latency());
        self.operators[i].streams.insert(
            kind,
            Watcher {
                position: index,
                last_at: at,
            },
        );
        let epoch = self.operators[i].epoch;
        self.at(
            at,
            Ev::Listed {
                operator: i,
                epoch,
                kind,
                events,
            },
        );
    }

    fn present(&self, kind: Kind) -> Vec<Object> {
        let api = &self.api;
        match kind {
            Kind::Run => api.runs.values().cloned().map(Object::Run).collect(),
            Kind::Turn => api.turns.values().cloned().map(Object::Turn).collect(),
            Kind::Execution => api.executions.values().cloned().map(Object::Execution).collect(),
            Kind::Tool => api.tools.values().cloned().map(Object::Tool).collect(),
            Kind::Provider => api.providers.values().cloned().map(Object::Provider).collect(),
            Kind::Node => api.nodes.values().cloned().map(Object::Node).collect(),
        }
    }

    fn event_of(&self, object: Object) -> Event {
        match object {
            Object::Run(o) => Event::Run(o),
            Object::Turn(o) => Event::Turn(o),
            Object::Execution(o) => Event::Execution(o),
            Object::Tool(o) => Event::Tool(o),
            Object::Provider(o) => Event::Provider(o),
            Object::Node(mut lease) => {
                let renewed: Ms = lease.renewed.parse().unwrap_or(0);
                lease.looks_recent = self.now - renewed < 20_000;
                Event::Node(lease)
            }
        }
    }

    pub fn operator_listed(&mut self, i: usize, epoch: u32, kind: Kind, events: Vec<Event>) {
        if !self.alive(i, epoch) {
            return;
        }
        if self.paused(
            i,
            |events| Ev::Listed {
                operator: i,
                epoch,
                kind,
                events,
            },
            &events,
        ) {
            return;
        }
        for event in events {
            self.absorb(i, event);
        }
        self.operators[i].synced.insert(kind);
        self.round(i);
    }

    pub fn deliver_to_operator(&mut self, i: usize, epoch: u32, kind: Kind, upto: usize) {
        if !self.alive(i, epoch) {
            return;
        }
        if self.operators[i].paused_until > self.now {
            return self.at(
                self.operators[i].paused_until,
                Ev::Deliver {
                    operator: i,
                    epoch,
                    kind,
                    upto,
                },
            );
        }
        let Some(stream) = self.operators[i].streams.get_mut(&kind) else {
            return;
        };
        let from = stream.position;
        if from >= upto {
            return;
        }
        stream.position = upto;
        let again = from.saturating_sub(usize::from(self.rng.chance(self.config.duplicates)));
        let changes: Vec<_> = self.api.logs[kind as usize][again..upto].to_vec();
        for change in changes {
            let event = match change.object.clone() {
                Some(object) => self.event_of(object),
                None => gone(&change),
            };
            self.absorb(i, event);
        }
        self.round(i);
    }

    pub fn operator_told(&mut self, i: usize, epoch: u32, events: Vec<Event>) {
        if !self.alive(i, epoch) {
            return;
        }
        if self.paused(
            i,
            |events| Ev::Told {
                operator: i,
                epoch,
                events,
            },
            &events,
        ) {
            return;
        }
        for event in events {
            if let Event::Ended { action, .. } = &event
                && let Some(subject) = Subject::of(action)
            {
                self.operators[i].flying.remove(&subject);
            }
            self.absorb(i, event);
        }
        self.round(i);
    }

    fn paused(&mut self, i: usize, again: impl FnOnce(Vec<Event>) -> Ev, events: &[Event]) -> bool {
        let until = self.operators[i].paused_until;
        if until > self.now {
            self.at(until, again(events.to_vec()));
        }
        until > self.now
    }

    pub fn pause_operator(&mut self, i: usize, millis: Ms) {
        self.note(|| format!("operator {i} is paused for {millis} ms"));
        let until = self.now + millis;
        self.operators[i].paused_until = self.operators[i].paused_until.max(until);
        let epoch = self.operators[i].epoch;
        self.later(millis, Ev::Tick { operator: i, epoch });
    }

    fn alive(&self, i: usize, epoch: u32) -> bool {
        self.operators[i].up && self.operators[i].epoch == epoch
    }

    fn absorb(&mut self, i: usize, event: Event) {
        if let Event::Execution(x) = &event {
            let line = format!(
                "operator {i} sees {} at {:?} {:?}",
                name(&x.metadata),
                x.metadata.resource_version,
                x.status.as_ref().and_then(|s| s.phase)
            );
            self.note(|| line);
        }
        if let Event::ExecutionGone(x) = &event {
            let line = format!("operator {i} sees {x} gone");
            self.note(|| line);
        }
        let now = time(self.now);
        let dirty = self.operators[i].core.absorb(event, now);
        self.operators[i].dirty.extend(dirty);
    }

    pub fn campaign(&mut self, i: usize, epoch: u32) {
        if !self.alive(i, epoch) {
            return;
        }
        let again = self.operators[i].paused_until.max(self.now + CAMPAIGN_MS);
        self.at(again, Ev::Campaign { operator: i, epoch });
        if self.operators[i].paused_until > self.now || self.rng.chance(self.config.transient) {
            return;
        }
        let lease = &mut self.api.leader;
        if self.operators[i].leads.is_some() {
            if lease.holder == Some((i, epoch)) && lease.transitions == self.operators[i].term().unwrap_or(-1)
            {
                lease.renewed = self.now;
                let until = self.now + LEADS_MS;
                self.operators[i].leads = self.operators[i].leads.map(|(term, _)| (term, until));
            }
            return;
        }
        let free = lease.holder.is_none() || self.now - lease.renewed > LEASE_MS;
        if free
            && self.operators[i].synced.len() == Kind::ALL.len()
            && self.operators[i].core.world.term.is_none()
        {
            lease.holder = Some((i, epoch));
            lease.transitions += 1;
            lease.renewed = self.now;
            let term = lease.transitions;
            self.operators[i].leads = Some((term, self.now + LEADS_MS));
            self.note(|| format!("operator {i} leads under term {term}"));
            self.absorb(i, Event::Led { term });
            self.round(i);
        }
    }

    pub fn tick(&mut self, i: usize, epoch: u32) {
        if self.alive(i, epoch) && self.operators[i].paused_until <= self.now {
            self.operators[i].next_tick = Ms::MAX;
            self.round(i);
        }
    }

    /// What the loop does after every observation.
    fn round(&mut self, i: usize) {
        let now = self.now;
        let operator = &mut self.operators[i];
        if operator.leads.is_some_and(|(_, until)| until <= now) {
            operator.leads = None;
            operator.dirty.clear();
            operator.wakes.clear();
            self.asks.retain(|_, ask| ask.operator != i);
            self.note(|| format!("operator {i} steps down"));
            self.absorb(i, Event::Deposed);
            self.operators[i].dirty.clear();
        }
        let operator = &mut self.operators[i];
        if operator.core.world.term.is_none() {
            operator.dirty.clear();
            return;
        }
        let due: Vec<Key> = operator
            .wakes
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(k, _)| k.clone())
            .collect();
        for key in due {
            operator.wakes.remove(&key);
            operator.dirty.insert(key);
        }
        let epoch = operator.epoch;
        while let Some(key) = self.operators[i].dirty.pop_first() {
            self.decide_key(i, key);
            if !self.alive(i, epoch) || !self.api.violations.is_empty() {
                return;
            }
        }
        let operator = &mut self.operators[i];
        if let Some(next) = operator.wakes.values().min().copied()
            && next < operator.next_tick
        {
            operator.next_tick = next;
            self.at(next, Ev::Tick { operator: i, epoch });
        }
    }

    fn decide_key(&mut self, i: usize, key: Key) {
        let now = time(self.now);
        let operator = &mut self.operators[i];
        operator.instant = if operator.instant.0 == self.now {
            (self.now, operator.instant.1 + 1)
        } else {
            (self.now, 1)
        };
        if operator.instant.1 > LOOP {
            return self.violation(format!(
                "operator {i} decides {key:?} again and again at one instant"
            ));
        }
        self.decisions += 1;
        let decision = operator.core.decide(&key, now);
        operator.wakes.remove(&key);
        if let Some(wake) = decision.wake {
            operator.wakes.insert(key.clone(), super::api::ms(wake));
        }
        let term = operator.core.world.term;
        if let Err(text) = check_decision(&operator.core.world, &key, &decision, now) {
            return self.violation(format!("operator {i}: {text}"));
        }
        self.note(|| {
            format!(
                "operator {i} {key:?}: {} {:?}",
                actions_of(&decision),
                decision.because
            )
        });
        let crash_at =
            (decision.actions.len() > 1 && self.may_fail() && self.rng.chance(self.config.crash_inside))
                .then(|| self.rng.range(0, 3));
        for (n, action) in decision.actions.into_iter().enumerate() {
            if crash_at == i64::try_from(n).ok() {
                return self.crash_operator(i);
            }
            self.absorb(i, Event::Started(Box::new(action.clone())));
            self.carry_out(i, action, term.unwrap_or(0));
        }
    }

    fn carry_out(&mut self, i: usize, action: Action, term: i64) {
        let epoch = self.operators[i].epoch;
        if let Some(subject) = Subject::of(&action)
            && !self.operators[i].flying.insert(subject.clone())
        {
            return self.violation(format!(
                "operator {i} has two writes about {subject:?} on their way"
            ));
        }
        match action {
            Action::Want { .. } => {}
            Action::StopAsking { run, .. } => self.asks.retain(|_, ask| ask.operator != i || ask.run != run),
            Action::Ask {
                run,
                turn,
                namespace,
                request,
                ..
            } => {
                self.check_ask(i, &namespace, &run, &turn, &request);
                let result = super::model::respond(&request, &self.config.mood, &mut self.rng);
                self.ask_ids += 1;
                let ask = Ask {
                    operator: i,
                    epoch,
                    namespace,
                    run,
                    turn,
                    term,
                    sent_at: self.now,
                    result,
                };
                self.asks.insert(self.ask_ids, ask);
                let slow = if self.config.mood.plain { 20 } else { 3_000 };
                let delay = if self.rng.chance(100) {
                    self.rng.range(1, slow)
                } else {
                    self.rng.range(1, 50)
                };
                self.later(delay, Ev::Answer(self.ask_ids));
            }
            action => {
                let delay = self.rng_latency();
                self.later(
                    delay,
                    Ev::Write {
                        operator: i,
                        epoch,
                        action: Box::new(action),
                    },
                );
            }
        }
    }

    pub fn write_arrives(&mut self, i: usize, epoch: u32, action: Box<Action>) {
        let alive = self.alive(i, epoch);
        // Paused between its last look at its leadership and the wire: it goes out when the process wakes up.
        if alive && self.operators[i].paused_until > self.now && self.rng.chance(500) {
            let until = self.operators[i].paused_until;
            return self.at(
                until,
                Ev::Write {
                    operator: i,
                    epoch,
                    action,
                },
            );
        }
        // What was on its way when the process died may arrive or not.
        if !alive && self.rng.chance(500) {
            return;
        }
        let transient = |message: &str| {
            Err(WriteFailure {
                kind: WriteFailureKind::Transient,
                message: message.to_owned(),
            })
        };
        let mut events = Vec::new();
        let result = if self.may_fail() && self.rng.chance(self.config.transient) {
            transient("unavailable")
        } else {
            let (told, result) = self.api.write(&action, self.now, &mut self.rng);
            if let Action::CreateTurn { run, name, .. } = &*action
                && result.is_ok()
            {
                let namespace = run.metadata.namespace.clone().unwrap_or_default();
                self.drivers
                    .insert(ObjectKey::new(namespace, name.clone()), (i, epoch));
            }
            self.note(|| {
                format!(
                    "api: {} of operator {i}: {result:?}",
                    actions_of(&Decision::act((*action).clone()))
                )
            });
            if self.may_fail() && self.rng.chance(self.config.lost) {
                transient("the answer is lost")
            } else {
                events = told;
                result
            }
        };
        if alive {
            events.push(Event::Ended { action, result });
            let delay = self.rng_latency();
            self.later(
                delay,
                Ev::Told {
                    operator: i,
                    epoch,
                    events,
                },
            );
        }
    }

    pub fn answer(&mut self, id: u64) {
        let Some(ask) = self.asks.remove(&id) else { return };
        let event = Event::Answered {
            run: ask.run,
            turn: ask.turn,
            term: ask.term,
            sent_at: time(ask.sent_at),
            result: Box::new(ask.result),
        };
        self.operator_told(ask.operator, ask.epoch, vec![event]);
    }
}

fn gone(change: &super::api::Change) -> Event {
    match change.kind {
        Kind::Run => Event::RunGone {
            uid: change.uid.clone(),
        },
        Kind::Turn => Event::TurnGone(change.key.clone()),
        Kind::Execution => Event::ExecutionGone(change.key.clone()),
        Kind::Tool => Event::ToolGone(change.key.clone()),
        Kind::Provider => Event::ProviderGone(change.key.clone()),
        Kind::Node => Event::NodeGone {
            name: change.key.name.clone(),
        },
    }
}

/// One word per action, for traces.
pub fn actions_of(decision: &Decision) -> String {
    let words: Vec<_> = decision
        .actions
        .iter()
        .map(|action| match action {
            Action::CreateTurn { name, .. } => format!("CreateTurn({name})"),
            Action::EndTurn { turn, status } => {
                format!("EndTurn({}, {:?})", name(&turn.metadata), status.phase)
            }
            Action::Ask { turn, .. } => format!("Ask({turn})"),
            Action::StopAsking { turn, .. } => format!("StopAsking({turn})"),
            Action::CreateExecution { name, spec, .. } => {
                format!(
                    "CreateExecution({name}, {:?})",
                    spec.binding.as_ref().map(|b| &b.node_name)
                )
            }
            Action::Bind { execution, binding } => {
                format!("Bind({}, {})", name(&execution.metadata), binding.node_name)
            }
            Action::Cancel { execution } => format!("Cancel({})", name(&execution.metadata)),
            Action::WriteExecution { execution, status } => {
                format!(
                    "WriteExecution({}, {:?}, {:?})",
                    name(&execution.metadata),
                    status.phase,
                    status.reason
                )
            }
            Action::WriteRun { run, status } => {
                format!("WriteRun({}, {:?})", name(&run.metadata), status.phase)
            }
            Action::WriteTool { tool, .. } => format!("WriteTool({})", name(&tool.metadata)),
            Action::CheckProvider { .. } => "CheckProvider".into(),
            Action::WriteProvider { .. } => "WriteProvider".into(),
            Action::Want { waiters } => format!("Want({})", waiters.len()),
            Action::DeleteRun { run } => format!("DeleteRun({})", name(&run.metadata)),
            Action::DeleteExecution { execution } => {
                format!("DeleteExecution({})", name(&execution.metadata))
            }
        })
        .collect();
    format!("[{}]", words.join(" "))
}

/// The laws that hold of every single decision: it moves on, it explains, it is safe.
pub fn check_decision(
    world: &fairlead_decide::cluster::World,
    key: &Key,
    decision: &Decision,
    now: fairlead_crds::values::Time,
) -> Result<(), String> {
    if decision.wake.is_some_and(|wake| wake <= now) {
        return Err(format!(
            "{key:?} wants to be woken at {:?}, which is not after {now}",
            decision.wake
        ));
    }
    explains(world, key, decision)?;
    is_bounded(world, key, decision, now)?;
    super::safe::check(world, decision)
}

/// No phase outlasts its bound unseen: the next look is not after it, or a write on its way brings one.
fn is_bounded(
    world: &fairlead_decide::cluster::World,
    key: &Key,
    decision: &Decision,
    now: fairlead_crds::values::Time,
) -> Result<(), String> {
    let bound = match key {
        Key::Run(uid) => world
            .run(uid)
            .and_then(|(_, run)| bound_of_run(&world.settings, run, now)),
        Key::Execution(key) => world
            .executions
            .get(key)
            .filter(|x| x.spec.run_ref.is_none())
            .and_then(|x| bound_of_execution(world, x)),
        Key::Tool(_) | Key::Provider(_) | Key::Node(_) | Key::Queue => None,
    };
    let by_event = |b: &Because| matches!(b, Because::Asking | Because::Deleting | Because::WriteInFlight);
    let looks = |at| decision.wake.is_some_and(|wake| wake <= at);
    match bound.filter(|at| *at > now) {
        Some(at) if !looks(at) && !decision.because.iter().any(by_event) => Err(format!(
            "{key:?} lasts until {at} at most and will not look again by then"
        )),
        _ => Ok(()),
    }
}

/// Wanted and not there, and nothing done: there is a reason, and something that will bring the key up again.
fn explains(world: &fairlead_decide::cluster::World, key: &Key, decision: &Decision) -> Result<(), String> {
    let unfinished = match key {
        Key::Run(uid) => world.run(uid).is_some_and(|(_, run)| !super::api::run_ended(run)),
        Key::Execution(key) => world
            .executions
            .get(key)
            .is_some_and(|x| x.spec.run_ref.is_none() && !fairlead_decide::cluster::has_ended(x)),
        Key::Queue => !world.waiting.is_empty(),
        Key::Tool(_) | Key::Provider(_) | Key::Node(_) => false,
    };
    if !unfinished || !decision.actions.is_empty() {
        return Ok(());
    }
    if decision.because.is_empty() {
        return Err(format!(
            "{key:?} is not finished, nothing is done, and no reason is given"
        ));
    }
    // A write on its way, a request in progress, a node that has it, the queue, and a deletion end by an event.
    let by_event = decision.because.iter().any(|b| {
        matches!(
            b,
            Because::WriteInFlight
                | Because::Asking
                | Because::OnNode { .. }
                | Because::Queued { .. }
                | Because::Deleting
                | Because::Stopping { .. }
        )
    });
    if decision.wake.is_none() && !by_event {
        return Err(format!(
            "{key:?} waits for {:?} and will not look again",
            decision.because
        ));
    }
    Ok(())
}

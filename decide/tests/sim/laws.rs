//! The laws as functions of a core that may be faulty: what the property tests and the deliberate faults share.

use super::api::{Api, Kind, Object, name, time};
use super::core::Core;
use super::faults::ClusterFault;
use super::operator::check_decision;
use super::rng::Rng;
use super::worlds::{Odd, keys};
use super::{Config, Sim, users};
use fairlead_crds::{
    AgentRun, Cleanup, ExecutionOutput, ExecutionPhase, Outcome, ToolExecution, ToolExecutionStatus,
    TurnUsage,
};
use fairlead_decide::cluster::{Action, Decision, Event, Key, NodeLease, Settings, has_ended, key_of};
use fairlead_decide::model::{ModelResponse, RawCall};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Verdict = Result<(), String>;

fn led(fault: Option<ClusterFault>, events: &[Event]) -> Core {
    let mut core = Core::new(Settings::default(), fault);
    for event in events {
        core.absorb(event.clone(), time(0));
    }
    core.absorb(Event::Led { term: 1 }, time(0));
    core
}

/// Observed in any order and asked again and again, a state gives one decision for each key.
pub fn deterministic(seed: u64, size: usize, fault: Option<ClusterFault>) -> Verdict {
    let mut odd = Odd::new(seed, false);
    let mut events: Vec<Event> = (0..size).map(|_| odd.event()).collect();
    // Each object in its last state and in an earlier one. What a Lease says is judged by when it was seen, so each is
    // seen once; and a look at a provider needs one.
    let mut nodes = BTreeSet::new();
    let mut seen = BTreeSet::new();
    events.retain(|e| match e {
        Event::Node(lease) => nodes.insert(lease.name.clone()),
        Event::ProviderChecked { .. } => false,
        Event::Run(o) => seen.insert(("run", key_of(&o.metadata))),
        Event::Turn(o) => seen.insert(("turn", key_of(&o.metadata))),
        Event::Execution(o) => seen.insert(("execution", key_of(&o.metadata))),
        Event::Tool(o) => seen.insert(("tool", key_of(&o.metadata))),
        Event::Provider(o) => seen.insert(("provider", key_of(&o.metadata))),
        _ => true,
    });
    // What a run that has ended needs no more is forgotten, and so are the versions of it.
    let over: BTreeSet<_> = events
        .iter()
        .filter_map(|e| match e {
            Event::Run(run) if super::api::run_ended(run) => run.metadata.uid.clone(),
            _ => None,
        })
        .collect();
    let needed = |e: &&Event| match e {
        Event::Turn(turn) => !over.contains(&turn.spec.run_ref.uid),
        Event::Execution(x) => x.spec.run_ref.as_ref().is_none_or(|r| !over.contains(&r.uid)),
        _ => true,
    };
    let earlier: Vec<Event> = events.iter().filter(needed).filter_map(before).collect();
    events.extend(earlier);
    let straight = led(fault, &events);
    let mut rng = Rng::new(seed ^ 1);
    for n in (1..events.len()).rev() {
        let other = usize::try_from(rng.range(0, i64::try_from(n + 1).unwrap())).unwrap();
        events.swap(n, other);
    }
    let shuffled = led(fault, &events);
    for key in keys(&straight.world) {
        let once = straight.decide(&key, time(1_000));
        // Often enough that two actions in a random order are not told alike each time.
        for _ in 0..16 {
            let again = straight.decide(&key, time(1_000));
            if again != once {
                return Err(format!("{key:?} asked again: {once:?}, then {again:?}"));
            }
        }
        let other = shuffled.decide(&key, time(1_000));
        if once != other {
            return Err(format!("{key:?} in another order: {once:?}, else {other:?}"));
        }
    }
    Ok(())
}

/// An object as it was before anything was said of it.
fn before(event: &Event) -> Option<Event> {
    let older = Some("0".to_owned());
    Some(match event {
        Event::Run(o) => {
            let mut o = AgentRun::clone(o);
            (o.status, o.metadata.resource_version) = (None, older);
            Event::Run(Arc::new(o))
        }
        Event::Turn(o) => {
            let mut o = fairlead_crds::AgentTurn::clone(o);
            (o.status, o.metadata.resource_version) = (None, older);
            Event::Turn(Arc::new(o))
        }
        Event::Execution(o) => {
            let mut o = ToolExecution::clone(o);
            (o.status, o.spec.binding, o.metadata.resource_version) = (None, None, older);
            Event::Execution(Arc::new(o))
        }
        _ => return None,
    })
}

/// Decides every key of an odd world at several times, its actions on their way.
pub fn single_decisions(seed: u64, size: usize, fault: Option<ClusterFault>) -> Verdict {
    let mut odd = Odd::new(seed, false);
    let mut core = led(fault, &[]);
    for _ in 0..size {
        let event = odd.event();
        core.absorb(event, time(0));
    }
    for at in [0, 1, 1_500, 40_000, 400_000, 10_000_000] {
        for key in keys(&core.world) {
            let decision = core.decide(&key, time(at));
            check_decision(&core.world, &key, &decision, time(at))?;
            for action in decision.actions {
                core.absorb(Event::Started(Box::new(action.clone())), time(at));
                if odd.rng.chance(300) {
                    core.absorb(
                        Event::Ended {
                            action: Box::new(action),
                            result: Ok(()),
                        },
                        time(at),
                    );
                }
            }
        }
    }
    Ok(())
}

/// No run touches an execution that is not its own, even under the name of one of its calls.
pub fn foreign(seed: u64, size: usize, fault: Option<ClusterFault>) -> Verdict {
    let mut odd = Odd::new(seed, false);
    let events: Vec<Event> = (0..size).map(|_| odd.event()).collect();
    let core = led(fault, &events);
    for key in keys(&core.world) {
        let Key::Run(uid) = &key else { continue };
        for action in core.decide(&key, time(2_000)).actions {
            let about = match &action {
                Action::Bind { execution, .. }
                | Action::Cancel { execution }
                | Action::WriteExecution { execution, .. }
                | Action::DeleteExecution { execution } => execution,
                _ => continue,
            };
            if about.spec.run_ref.as_ref().map(|r| &r.uid) != Some(uid) {
                return Err(format!("run {uid} does {action:?}"));
            }
        }
    }
    Ok(())
}

/// The state of a story's API server after `until` milliseconds, observed by a core that knows nothing else.
pub fn observed(api: &Api, now: i64, fault: Option<ClusterFault>) -> Core {
    let mut core = Core::new(Settings::default(), fault);
    for kind in Kind::ALL {
        for object in objects(api, kind) {
            core.absorb(object, time(now));
        }
    }
    core.absorb(
        Event::Led {
            term: api.leader.transitions,
        },
        time(now),
    );
    core
}

fn objects(api: &Api, kind: Kind) -> Vec<Event> {
    match kind {
        Kind::Run => api.runs.values().cloned().map(Event::Run).collect(),
        Kind::Turn => api.turns.values().cloned().map(Event::Turn).collect(),
        Kind::Execution => api.executions.values().cloned().map(Event::Execution).collect(),
        Kind::Tool => api.tools.values().cloned().map(Event::Tool).collect(),
        Kind::Provider => api.providers.values().cloned().map(Event::Provider).collect(),
        Kind::Node => api.nodes.values().cloned().map(Event::Node).collect(),
    }
}

/// A toy that carries everything out at once and perfectly, and the same way each time.
pub struct Perfect {
    pub api: Api,
    pub core: Core,
    pub now: i64,
    fault: Option<ClusterFault>,
    rng: Rng,
    dirty: BTreeSet<Key>,
    wakes: BTreeMap<Key, i64>,
    /// Actions carried out.
    pub done: usize,
    /// Whether models answer and nodes work.
    pub alive: bool,
    /// The last of them.
    last: String,
}

impl Perfect {
    pub fn new(api: Api, now: i64, fault: Option<ClusterFault>) -> Self {
        let core = observed(&api, now, fault);
        let dirty = keys(&core.world).into_iter().collect();
        Self {
            api,
            core,
            now,
            fault,
            rng: Rng::new(7),
            dirty,
            wakes: BTreeMap::new(),
            done: 0,
            alive: false,
            last: String::new(),
        }
    }

    fn absorb(&mut self, event: Event) {
        let dirty = self.core.absorb(event, time(self.now));
        self.dirty.extend(dirty);
    }

    /// The process dies, and another one takes over.
    pub fn forget(&mut self) {
        self.api.leader.transitions += 1;
        self.core = observed(&self.api, self.now, self.fault);
        self.dirty = keys(&self.core.world).into_iter().collect();
        self.wakes.clear();
    }

    /// Works until nothing is left to do at this instant, or until `limit` actions were carried out.
    pub fn work(&mut self, limit: usize) -> Verdict {
        let bound = self.done.saturating_add(2_000);
        while let Some(key) = self.dirty.pop_first() {
            let decision = self.core.decide(&key, time(self.now));
            check_decision(&self.core.world, &key, &decision, time(self.now))?;
            self.wakes.remove(&key);
            self.wakes
                .extend(decision.wake.map(|at| (key, super::api::ms(at))));
            for action in decision.actions {
                if self.done >= limit {
                    return Ok(());
                }
                if self.done >= bound {
                    return Err(format!("it never settles; the last it wants: {}", words(&action)));
                }
                self.done += 1;
                self.last = words(&action);
                self.absorb(Event::Started(Box::new(action.clone())));
                self.carry_out(action);
            }
            if let Some(violation) = self.api.violations.first() {
                return Err(violation.clone());
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, action: Action) {
        match &action {
            Action::Ask {
                run, turn, request, ..
            } if self.alive => {
                let answered = Event::Answered {
                    run: run.clone(),
                    turn: turn.clone(),
                    term: self.api.leader.transitions,
                    sent_at: time(self.now),
                    result: Box::new(Ok(script(request.turn))),
                };
                self.absorb(answered);
            }
            Action::Ask { .. } | Action::StopAsking { .. } | Action::Want { .. } => {}
            _ => {
                let (told, result) = self.api.write(&action, self.now, &mut self.rng);
                for event in told {
                    self.absorb(event);
                }
                self.absorb(Event::Ended {
                    action: Box::new(action),
                    result,
                });
                if self.alive {
                    self.nodes_work();
                }
            }
        }
    }

    fn nodes_work(&mut self) {
        let bound = self
            .api
            .executions
            .values()
            .filter(|x| x.spec.binding.is_some() && !has_ended(x));
        for execution in bound.cloned().collect::<Vec<_>>() {
            let node = execution
                .spec
                .binding
                .as_ref()
                .map(|b| b.node_name.clone())
                .unwrap_or_default();
            let uid = execution.metadata.uid.clone().unwrap_or_default();
            let key = key_of(&execution.metadata);
            self.api
                .node_write(&node, &key, &uid, &succeeded(&execution, self.now));
            if let Some(stored) = self.api.executions.get(&key).cloned() {
                self.absorb(Event::Execution(stored));
            }
        }
    }

    /// Goes on to the next time at which something is to be looked at.
    pub fn next(&mut self) -> bool {
        let Some(at) = self.wakes.values().copied().min() else {
            return false;
        };
        self.now = self.now.max(at);
        let due: Vec<_> = self
            .wakes
            .iter()
            .filter(|(_, at)| **at <= self.now)
            .map(|(k, _)| k.clone())
            .collect();
        for key in due {
            self.wakes.remove(&key);
            self.dirty.insert(key);
        }
        true
    }

    /// What the users see at the end.
    fn end(&self) -> Vec<String> {
        let runs = self.api.runs.values().map(|r| {
            let status = r.status.clone().unwrap_or_default();
            format!(
                "{} {:?} {:?} turns {}",
                name(&r.metadata),
                status.phase,
                status.answer.map(|a| a.text),
                status.turns
            )
        });
        let executions = self.api.executions.values().map(|x| {
            format!(
                "{} {:?}",
                name(&x.metadata),
                x.status.as_ref().and_then(|s| s.phase)
            )
        });
        runs.chain(executions).collect()
    }
}

fn words(action: &Action) -> String {
    super::operator::actions_of(&Decision {
        actions: vec![action.clone()],
        ..Decision::default()
    })
}

/// Three turns with calls of every kind, then an answer.
fn script(turn: i64) -> ModelResponse {
    let call = |n: i64, tool: &str, arguments: &str| RawCall {
        id: format!("c{turn}-{n}"),
        name: tool.to_owned(),
        arguments: arguments.to_owned(),
    };
    let good = "{\"ms\": 1}";
    let calls = match turn {
        1 => vec![
            call(0, "beside", good),
            call(1, "beside", good),
            call(2, "alone", good),
        ],
        2 => vec![
            call(0, "alone", good),
            call(1, "nothing", good),
            call(2, "beside", "{\"ms\": \"x\"}"),
        ],
        3 => vec![call(0, "beside", good)],
        _ => Vec::new(),
    };
    let text = calls.is_empty().then(|| "done".to_owned());
    ModelResponse {
        text,
        calls,
        usage: Some(TurnUsage::default()),
        ..ModelResponse::default()
    }
}

fn succeeded(execution: &ToolExecution, now: i64) -> ToolExecutionStatus {
    ToolExecutionStatus {
        fence: execution.spec.binding.as_ref().map(|b| b.fence.clone()),
        phase: Some(ExecutionPhase::Succeeded),
        outcome: Some(Outcome::Completed),
        start_time: Some(time(now)),
        completion_time: Some(time(now)),
        cleanup: Some(Cleanup::Confirmed),
        output: Some(ExecutionOutput {
            text: "ok".into(),
            truncated: false,
            total_bytes: 2,
            sha256: String::new(),
        }),
        ..ToolExecutionStatus::default()
    }
}

/// Takes a story's state, carries out perfectly all that is wanted, and asks again.
pub fn settles(seed: u64, until: i64, fault: Option<ClusterFault>) -> Verdict {
    let mut config = Config::of_seed(seed);
    config.node_fault = None;
    let mut sim = Sim::new(config);
    sim.run_until(until)?;
    let now = sim.now;
    let mut perfect = Perfect::new(sim.api, now, fault);
    perfect.api.calm = false;
    perfect.work(usize::MAX)?;
    // What one key did may be what another waited for; but it comes to an end.
    let mut wanted = String::new();
    for _ in 0..20 {
        let before = perfect.done;
        perfect.dirty = keys(&perfect.core.world).into_iter().collect();
        perfect.work(usize::MAX)?;
        if perfect.done == before {
            return Ok(());
        }
        wanted = perfect.last.clone();
    }
    Err(format!(
        "everything is carried out and asked again, and it always wants more: {wanted}"
    ))
}

/// The same story twice, once with a crash after some actions: the users see the same end.
pub fn crash_safe(seed: u64, crash_after: usize, fault: Option<ClusterFault>) -> Verdict {
    let straight = to_the_end(seed, None, fault)?;
    let crashed = to_the_end(seed, Some(crash_after), fault)?;
    if straight != crashed {
        return Err(format!(
            "with a crash after {crash_after} actions the end is {crashed:?}, else {straight:?}"
        ));
    }
    Ok(())
}

fn to_the_end(
    seed: u64,
    crash_after: Option<usize>,
    fault: Option<ClusterFault>,
) -> Result<Vec<String>, String> {
    let mut perfect = Perfect::new(beginning(seed), 1_000, fault);
    perfect.alive = true;
    if let Some(limit) = crash_after {
        for _ in 0..50 {
            perfect.work(limit)?;
            if perfect.done >= limit || !perfect.next() {
                break;
            }
        }
        perfect.forget();
        perfect.nodes_work();
    }
    for _ in 0..200 {
        perfect.work(usize::MAX)?;
        let over = |r: &AgentRun| super::api::run_ended(r);
        if perfect.api.runs.values().all(|r| over(r)) || !perfect.next() {
            break;
        }
    }
    Ok(perfect.end())
}

/// A few runs and executions, and all they need.
fn beginning(seed: u64) -> Api {
    let mut rng = Rng::new(seed);
    let mut api = Api::new(60_000, false);
    api.leader.transitions = 1;
    api.create_provider(users::provider("a"), 0);
    api.apply_tool(users::tool("a", "beside", true, 5), 0);
    api.apply_tool(users::tool("a", "alone", false, 5), 0);
    for n in 0..2 {
        let capacity = usize::try_from(rng.range(1, 4)).unwrap_or(1);
        let lease = NodeLease {
            name: format!("node-{n}"),
            incarnation: "i".into(),
            capacity,
            plan_version: 1,
            renewed: "0".into(),
            looks_recent: true,
        };
        api.renew_node(lease, 0);
    }
    for n in 0..rng.range(1, 4) {
        api.create_run(users::run("a", &format!("run-{n}"), json!({})), 0);
    }
    for n in 0..rng.range(0, 3) {
        api.create_own(users::own("a", &format!("own-{n}"), &json!({"ms": 1}), None), 0);
    }
    api
}

/// The kinds of object a story has.
pub type Seen = Object;

//! A simulated node: the agent process with the real core, a supervisor with processes, a journal, a clock of its own.

use super::api::{EPOCH_MS, NodeWrite};
use super::core::NodeCore;
use super::rng::Ms;
use super::{Ev, Sim, Watcher};
use fairlead_crds::{ErrorClass, ExecutionOutput, IsolationBackend, ToolExecution};
use fairlead_decide::cluster::{NodeLease, ObjectKey, has_ended, key_of};
use fairlead_decide::node::*;
use fairlead_decide::output::canonical;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub const LEASE_MS: Ms = 10_000;
const EXISTING_MS: Ms = 20_000;
/// The supervisor empties every group when no agent is there for this long.
const ADOPT_MS: u64 = 10_000;

#[derive(Debug)]
pub struct NodeProc {
    pub name: String,
    pub powered: bool,
    pub up: bool,
    /// Counts the lives of the agent.
    pub epoch: u32,
    pub core: NodeCore,
    incarnation: String,
    boots: u32,
    supervisor: u32,
    slots: BTreeMap<AttemptKey, Slot>,
    processes: BTreeMap<AttemptKey, Process>,
    runs: BTreeMap<RunKey, u32>,
    pub stream: Watcher,
    wakes: BTreeMap<Key, u64>,
    next_tick: Ms,
    pub partition_until: Ms,
    agent_lost_at: Option<u64>,
    skew: i64,
}

#[derive(Clone, Debug)]
struct Slot {
    user: u32,
    incarnation: String,
    supervisor: u32,
    accepted: u64,
    deadline_ms: u64,
    spawned: Option<u64>,
    refused: Option<Refused>,
    exited: Option<Exit>,
    reported: bool,
    group: bool,
}

#[derive(Clone, Debug)]
struct Process {
    spawned_at: u64,
    ends_at: u64,
    /// How long what it started lives on.
    leaves_ms: u64,
    exit: i32,
    deaf: bool,
    grace_ms: u64,
    deadline_ms: u64,
    deadline_hit: Option<u64>,
    killed: Option<(u64, Cause)>,
    termed: Option<u64>,
    exited: Option<Exit>,
    emptied: Option<u64>,
    refused: bool,
}

impl Process {
    fn lives(&self) -> bool {
        !self.refused && self.emptied.is_none()
    }
}

impl NodeProc {
    pub fn new(n: usize, skew: i64, fault: Option<super::faults::NodeFault>) -> Self {
        let name = format!("node-{n}");
        let incarnation = format!("boot-0/{name}");
        let core = NodeCore::new(node(&name, &incarnation, 1), fault);
        Self {
            name,
            powered: true,
            up: false,
            epoch: 0,
            core,
            incarnation,
            boots: 0,
            supervisor: 1,
            slots: BTreeMap::new(),
            processes: BTreeMap::new(),
            runs: BTreeMap::new(),
            stream: Watcher::default(),
            wakes: BTreeMap::new(),
            next_tick: Ms::MAX,
            partition_until: 0,
            agent_lost_at: None,
            skew,
        }
    }

    fn moment(&self, now: Ms) -> Moment {
        let boot_ms = now.unsigned_abs();
        Moment {
            boot_ms,
            unix_ms: EPOCH_MS + now + self.skew,
        }
    }

    fn at(&self, boot_ms: u64) -> Moment {
        self.moment(i64::try_from(boot_ms).unwrap_or(i64::MAX))
    }

    fn held(&self, key: &AttemptKey, slot: &Slot) -> Held {
        Held {
            key: key.clone(),
            user: Some(slot.user),
            incarnation: slot.incarnation.clone(),
            epoch: slot.supervisor,
            accepted: self.at(slot.accepted),
            deadline_ms: slot.deadline_ms,
            spawned: slot.spawned.map(|at| self.at(at)),
            refused: slot.refused.clone(),
            exited: slot.exited,
            reported: slot.reported,
            group: slot.group,
            group_unused: slot.group && slot.spawned.is_none(),
        }
    }

    fn entry(&self, key: &AttemptKey, process: &Process) -> Entry {
        let mut facts = Vec::new();
        if process.refused {
            facts.extend(
                self.slots
                    .get(key)
                    .and_then(|s| s.refused.clone())
                    .map(ProcessFact::Refused),
            );
        } else {
            facts.push(ProcessFact::Spawned(self.at(process.spawned_at)));
        }
        facts.extend(
            process
                .deadline_hit
                .map(|at| ProcessFact::DeadlineReached(self.at(at))),
        );
        facts.extend(process.exited.map(ProcessFact::Exited));
        if let Some(at) = process.emptied {
            facts.extend([ProcessFact::Emptied(self.at(at)), ProcessFact::Drained]);
        }
        Entry {
            key: key.clone(),
            facts,
        }
    }

    /// Lets the supervisor and the processes come up to the present; what is new of them.
    fn catch_up(&mut self, now: u64) -> Vec<(AttemptKey, ProcessFact)> {
        let lost = self.agent_lost_at.filter(|at| now >= at + ADOPT_MS).is_some();
        let skew = self.skew;
        let at = |boot_ms: u64| Moment {
            boot_ms,
            unix_ms: EPOCH_MS + i64::try_from(boot_ms).unwrap_or(0) + skew,
        };
        let mut news = Vec::new();
        for (key, process) in self.processes.iter_mut().filter(|(_, p)| p.lives()) {
            if lost {
                process.killed.get_or_insert((now, Cause::AgentLost));
            }
            let over = process.ends_at <= process.deadline_ms && now >= process.ends_at;
            if now >= process.deadline_ms && process.deadline_hit.is_none() && !over {
                process.deadline_hit = Some(process.deadline_ms);
                process.termed.get_or_insert(process.deadline_ms);
                news.push((key.clone(), ProcessFact::DeadlineReached(at(process.deadline_ms))));
            }
            if process
                .deadline_hit
                .is_some_and(|hit| now >= hit + process.grace_ms)
            {
                process.killed.get_or_insert((now, Cause::Deadline));
            }
            let ended = match (process.killed, process.termed) {
                (Some((when, cause)), _) => Some((when, Wait::Signal(9), cause)),
                (None, Some(when)) if !process.deaf => Some((when, Wait::Signal(15), Cause::None)),
                _ if now >= process.ends_at => Some((process.ends_at, Wait::Code(process.exit), Cause::None)),
                _ => None,
            };
            if let (Some((when, wait, cause)), None) = (ended, process.exited) {
                let exit = Exit {
                    wait,
                    cause,
                    at: at(when),
                };
                process.exited = Some(exit);
                if let Some(slot) = self.slots.get_mut(key) {
                    slot.exited = Some(exit);
                }
                news.push((key.clone(), ProcessFact::Exited(exit)));
            }
            let left = process
                .exited
                .is_some_and(|exit| now < exit.at.boot_ms + process.leaves_ms);
            let stopped = process.killed.is_some() || (process.termed.is_some() && !process.deaf);
            if process.exited.is_some() && (stopped || !left) {
                process.emptied = Some(now);
                news.extend(
                    [ProcessFact::Emptied(at(now)), ProcessFact::Drained].map(|fact| (key.clone(), fact)),
                );
            }
        }
        news
    }

    fn next_process_time(&self, now: u64) -> Option<u64> {
        let lost = self.agent_lost_at.map(|at| at + ADOPT_MS);
        let times = self.processes.values().filter(|p| p.lives()).flat_map(|p| {
            let empty = p.exited.map(|exit| exit.at.boot_ms + p.leaves_ms);
            [
                Some(p.ends_at),
                Some(p.deadline_ms),
                p.deadline_hit.map(|hit| hit + p.grace_ms),
                empty,
                lost,
            ]
        });
        times.flatten().filter(|at| *at > now).min()
    }
}

fn node(name: &str, incarnation: &str, epoch: u32) -> Node {
    Node {
        name: name.to_owned(),
        incarnation: incarnation.to_owned(),
        backend: IsolationBackend::CgroupV2,
        missing_controllers: Vec::new(),
        first_user: 1000,
        last_user: 1099,
        epoch,
    }
}

impl Sim {
    fn bound_here(&self, i: usize, execution: &ToolExecution) -> bool {
        execution
            .spec
            .binding
            .as_ref()
            .is_some_and(|b| b.node_name == self.nodes[i].name)
    }

    pub fn start_agent(&mut self, i: usize) {
        if !self.nodes[i].powered || self.nodes[i].up {
            return;
        }
        if self.nodes[i].partition_until > self.now {
            return self.at(self.nodes[i].partition_until, Ev::StartAgent(i));
        }
        self.nodes_catch_up(i);
        let index = self.api.logs[super::api::Kind::Execution as usize].len();
        let here: Vec<_> = self
            .api
            .executions
            .values()
            .filter(|x| self.bound_here(i, x))
            .cloned()
            .collect();
        let fault = self.config.node_fault;
        let node_proc = &mut self.nodes[i];
        node_proc.up = true;
        node_proc.epoch += 1;
        node_proc.agent_lost_at = None;
        node_proc.wakes.clear();
        node_proc.next_tick = Ms::MAX;
        node_proc.stream = Watcher {
            position: index,
            last_at: self.now,
        };
        node_proc.core = NodeCore::new(
            node(&node_proc.name, &node_proc.incarnation, node_proc.supervisor),
            fault,
        );
        let snapshot = Snapshot {
            at: node_proc.moment(self.now),
            live: here.iter().filter(|x| !has_ended(x)).cloned().collect(),
            kept: here
                .iter()
                .map(|x| {
                    let uid = x.metadata.uid.clone().unwrap_or_default();
                    let key = key_of(&x.metadata);
                    let run = x
                        .spec
                        .run_ref
                        .as_ref()
                        .map_or_else(|| uid.clone(), |r| r.uid.clone());
                    (
                        uid,
                        (
                            ObjectRef {
                                namespace: key.namespace,
                                name: key.name,
                            },
                            RunKey(run),
                        ),
                    )
                })
                .collect(),
            held: node_proc
                .slots
                .iter()
                .map(|(key, slot)| node_proc.held(key, slot))
                .collect(),
            entries: node_proc
                .processes
                .iter()
                .map(|(key, p)| node_proc.entry(key, p))
                .collect(),
            runs: node_proc
                .runs
                .iter()
                .map(|(run, user)| (run.clone(), *user))
                .collect(),
        };
        let epoch = node_proc.epoch;
        self.note(|| format!("agent {i} starts"));
        self.node_event(i, epoch, Event::Resynced(Box::new(snapshot)));
        self.renew(i, epoch);
        self.existing(i, epoch);
    }

    pub fn crash_agent(&mut self, i: usize) {
        if !self.nodes[i].up {
            return;
        }
        self.note(|| format!("agent {i} is killed"));
        self.nodes_catch_up(i);
        self.nodes[i].up = false;
        self.nodes[i].agent_lost_at = Some(self.now.unsigned_abs());
        let pause = self.rng.range(50, 15_000);
        self.later(pause, Ev::StartAgent(i));
        self.later(
            i64::try_from(ADOPT_MS).unwrap_or(0) + 1,
            Ev::NodeTick { node: i, epoch: 0 },
        );
    }

    /// The supervisor dies and takes its container along; the node's memory stays.
    pub fn crash_supervisor(&mut self, i: usize) {
        if !self.nodes[i].powered {
            return;
        }
        self.note(|| format!("supervisor {i} is killed"));
        self.nodes_catch_up(i);
        let node = &mut self.nodes[i];
        node.up = false;
        node.processes.clear();
        node.supervisor += 1;
        for slot in node.slots.values_mut() {
            slot.group = false;
        }
        let pause = self.rng.range(100, 5_000);
        self.later(pause, Ev::StartAgent(i));
    }

    /// The node loses its power: everything that ran is gone, and of its memory all or nothing.
    pub fn kill_node(&mut self, i: usize, forever: bool) {
        if !self.nodes[i].powered {
            return;
        }
        self.note(|| format!("node {i} loses its power"));
        self.nodes_catch_up(i);
        let wiped = self.rng.chance(500);
        let node = &mut self.nodes[i];
        node.powered = false;
        node.up = false;
        node.processes.clear();
        node.supervisor += 1;
        node.boots += 1;
        node.incarnation = format!("boot-{}/{}", node.boots, node.name);
        for slot in node.slots.values_mut() {
            slot.group = false;
        }
        if wiped {
            node.slots.clear();
            node.runs.clear();
        }
        if !forever {
            let pause = self.rng.range(2_000, 200_000);
            self.later(pause, Ev::Power(i));
        }
    }

    pub fn power_on(&mut self, i: usize) {
        self.nodes[i].powered = true;
        self.start_agent(i);
    }

    pub fn renew(&mut self, i: usize, epoch: u32) {
        if !self.agent_alive(i, epoch) {
            return;
        }
        self.later(LEASE_MS, Ev::Renew { node: i, epoch });
        if self.nodes[i].partition_until > self.now {
            return;
        }
        let lease = NodeLease {
            name: self.nodes[i].name.clone(),
            incarnation: self.nodes[i].incarnation.clone(),
            capacity: self.config.capacity,
            plan_version: fairlead_crds::PLAN_VERSION,
            renewed: self.now.to_string(),
            looks_recent: true,
        };
        self.api.renew_node(lease, self.now);
    }

    /// The periodic list of everything that is bound here.
    pub fn existing(&mut self, i: usize, epoch: u32) {
        if !self.agent_alive(i, epoch) {
            return;
        }
        self.later(EXISTING_MS, Ev::Existing { node: i, epoch });
        if self.nodes[i].partition_until <= self.now {
            let here = self.api.executions.values().filter(|x| self.bound_here(i, x));
            let uids: BTreeSet<_> = here.filter_map(|x| x.metadata.uid.clone()).collect();
            self.node_event(i, epoch, Event::Existing(uids));
        }
    }

    fn agent_alive(&self, i: usize, epoch: u32) -> bool {
        self.nodes[i].up && self.nodes[i].epoch == epoch
    }

    pub fn deliver_to_node(&mut self, i: usize, epoch: u32, upto: usize) {
        if !self.agent_alive(i, epoch) {
            return;
        }
        let until = self.nodes[i].partition_until;
        if until > self.now {
            return self.at(until, Ev::DeliverToNode { node: i, epoch, upto });
        }
        let from = self.nodes[i].stream.position;
        if from >= upto {
            return;
        }
        self.nodes[i].stream.position = upto;
        let again = from.saturating_sub(usize::from(self.rng.chance(self.config.duplicates)));
        let changes: Vec<_> = self.api.logs[super::api::Kind::Execution as usize][again..upto].to_vec();
        for change in changes {
            let event = match change.object {
                Some(super::api::Object::Execution(x)) if self.bound_here(i, &x) && !has_ended(&x) => {
                    Event::Seen(x)
                }
                Some(super::api::Object::Execution(x)) if !self.bound_here(i, &x) => continue,
                _ => Event::Left { uid: change.uid },
            };
            self.node_event(i, epoch, event);
        }
    }

    pub fn node_event(&mut self, i: usize, epoch: u32, event: Event) {
        if !self.agent_alive(i, epoch) {
            return;
        }
        let keys = self.nodes[i].core.absorb(event);
        for key in keys {
            self.node_decide(i, key);
            if !self.agent_alive(i, epoch) {
                return;
            }
        }
        self.node_schedule(i);
    }

    fn nodes_catch_up(&mut self, i: usize) {
        let now = self.now.unsigned_abs();
        let news = self.nodes[i].catch_up(now);
        let epoch = self.nodes[i].epoch;
        for (key, fact) in news {
            self.node_event(i, epoch, Event::Process { key, fact });
        }
    }

    pub fn node_tick(&mut self, i: usize, epoch: u32) {
        let now = self.now.unsigned_abs();
        if epoch == self.nodes[i].epoch {
            self.nodes[i].next_tick = Ms::MAX;
        }
        self.nodes_catch_up(i);
        if !self.agent_alive(i, epoch) {
            return self.node_schedule(i);
        }
        let due: Vec<_> = self.nodes[i]
            .wakes
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(k, _)| k.clone())
            .collect();
        for key in due {
            self.nodes[i].wakes.remove(&key);
            self.node_decide(i, key);
            if !self.agent_alive(i, epoch) {
                return;
            }
        }
        self.node_schedule(i);
    }

    fn node_schedule(&mut self, i: usize) {
        let now = self.now.unsigned_abs();
        let node = &mut self.nodes[i];
        let wakes = node.wakes.values().copied().filter(|_| node.up).min();
        let next = node.next_process_time(now).into_iter().chain(wakes).min();
        if let Some(next) = next.map(|at| i64::try_from(at).unwrap_or(Ms::MAX).max(self.now))
            && next < node.next_tick
        {
            node.next_tick = next;
            let epoch = node.epoch;
            self.at(next, Ev::NodeTick { node: i, epoch });
        }
    }

    fn node_decide(&mut self, i: usize, key: Key) {
        self.decisions += 1;
        let moment = self.nodes[i].moment(self.now);
        let decision = self.nodes[i].core.decide(&key, moment);
        self.nodes[i].wakes.remove(&key);
        if let Some(wake) = decision.wake {
            if wake <= moment.boot_ms {
                return self.violation(format!(
                    "node {i} {key:?} wants to be woken at {wake}, not after {moment:?}"
                ));
            }
            self.nodes[i].wakes.insert(key.clone(), wake);
        }
        let mut dirty = Vec::new();
        for action in decision.actions {
            if self.may_fail() && self.rng.chance(self.config.crash_inside / 2) {
                return self.crash_agent(i);
            }
            let begun = Event::Begun {
                action: Box::new(action.clone()),
                at: moment,
            };
            dirty.extend(self.nodes[i].core.absorb(begun));
            self.node_execute(i, action);
        }
        // What an action changed is decided again for its wake; it asks for nothing twice.
        for key in dirty {
            let again = self.nodes[i].core.decide(&key, moment);
            if let Some(wake) = again.wake {
                self.nodes[i].wakes.insert(key, wake);
            }
        }
    }

    fn tell_node(&mut self, i: usize, delay: Ms, event: Event) {
        let epoch = self.nodes[i].epoch;
        self.later(
            delay,
            Ev::Node {
                node: i,
                epoch,
                event: Box::new(event),
            },
        );
    }

    fn node_execute(&mut self, i: usize, action: Action) {
        let now = self.now.unsigned_abs();
        let moment = self.nodes[i].moment(self.now);
        match action {
            Action::Start(start) => self.node_start(i, *start),
            Action::Signal { key, .. } => {
                if let Some(process) = self.nodes[i].processes.get_mut(&key) {
                    process.termed.get_or_insert(now);
                }
                let epoch = self.nodes[i].epoch;
                self.later(1, Ev::NodeTick { node: i, epoch });
            }
            Action::Kill { key } => match self.nodes[i].processes.get_mut(&key) {
                Some(process) => {
                    process.killed.get_or_insert((now, Cause::Requested));
                    let epoch = self.nodes[i].epoch;
                    self.later(1, Ev::NodeTick { node: i, epoch });
                }
                None => self.tell_node(
                    i,
                    1,
                    Event::Process {
                        key,
                        fact: ProcessFact::NoEntry(moment),
                    },
                ),
            },
            Action::Measure { key } => self.tell_node(
                i,
                1,
                Event::Measured {
                    key,
                    at: moment,
                    bytes: 1,
                },
            ),
            Action::Collect {
                key, name, max_bytes, ..
            } => {
                let bytes = self.output_of(&key.uid);
                let total = bytes.len() as u64;
                let text = canonical(&bytes, &bytes, total, max_bytes, &name);
                let collected = Box::new(Collected {
                    output: ExecutionOutput {
                        text: text.text,
                        truncated: text.truncated,
                        total_bytes: i64::try_from(total).unwrap_or(0),
                        sha256: "0".repeat(64),
                    },
                    output_note: None,
                    cpu_millis: Some(1),
                    memory_peak_bytes: None,
                    pids_peak: None,
                    oom_kills: 0,
                    oom_at: None,
                    clean_up: self.remove_group(i, &key),
                });
                self.tell_node(
                    i,
                    1,
                    Event::CollectEnded {
                        key,
                        at: moment,
                        collected,
                    },
                );
            }
            Action::Report(report) => {
                let (delay, epoch) = (self.rng_latency(), self.nodes[i].epoch);
                self.later(
                    delay,
                    Ev::Report {
                        node: i,
                        epoch,
                        report,
                    },
                );
            }
            Action::CleanUp { key, .. } => {
                let result = self.remove_group(i, &key);
                self.tell_node(
                    i,
                    1,
                    Event::CleanUpEnded {
                        key,
                        at: moment,
                        result,
                    },
                );
            }
            Action::Read { uid, object } => {
                let key = ObjectKey::new(object.namespace, object.name);
                let found = self
                    .api
                    .executions
                    .get(&key)
                    .filter(|x| x.metadata.uid.as_ref() == Some(&uid))
                    .cloned();
                let result = if self.nodes[i].partition_until > self.now {
                    Err(())
                } else {
                    Ok(found)
                };
                let delay = self.rng_latency();
                self.tell_node(
                    i,
                    delay,
                    Event::ReadBack {
                        uid,
                        at: moment,
                        result,
                    },
                );
            }
            Action::Discard { key, .. } => {
                let result = self.remove_group(i, &key);
                if result.is_ok() {
                    self.nodes[i].slots.remove(&key);
                    self.nodes[i].processes.remove(&key);
                }
                self.tell_node(
                    i,
                    1,
                    Event::DiscardEnded {
                        key,
                        at: moment,
                        result,
                    },
                );
            }
            Action::RemoveRun { run } => {
                self.nodes[i].runs.remove(&run);
                self.tell_node(
                    i,
                    1,
                    Event::RunRemoved {
                        run,
                        at: moment,
                        result: Ok(()),
                    },
                );
            }
        }
    }

    fn node_start(&mut self, i: usize, start: Start) {
        let (key, now) = (start.key.clone(), self.now.unsigned_abs());
        let moment = self.nodes[i].moment(self.now);
        if self.rng.chance(self.config.start_failures) {
            let failure = StartFailure {
                reason: fairlead_crds::conditions::reason::SPOOL_FULL,
                message: "no room".into(),
                class: ErrorClass::Local,
                leaves: false,
            };
            return self.tell_node(
                i,
                1,
                Event::StartEnded {
                    key,
                    at: moment,
                    result: Err(failure),
                },
            );
        }
        let node = &mut self.nodes[i];
        node.runs.insert(start.run.clone(), start.user);
        let slot = Slot {
            user: start.user,
            incarnation: node.incarnation.clone(),
            supervisor: node.supervisor,
            accepted: now,
            deadline_ms: start.deadline_ms,
            spawned: None,
            refused: None,
            exited: None,
            reported: false,
            group: true,
        };
        node.slots.insert(key, slot);
        let epoch = node.epoch;
        // The supervisor takes no request of a dead agent.
        self.later(
            1,
            Ev::Spawn {
                node: i,
                epoch,
                start: Box::new(start),
            },
        );
    }

    pub fn spawn(&mut self, i: usize, epoch: u32, start: Start) {
        if !self.agent_alive(i, epoch) {
            return;
        }
        let (key, now) = (start.key.clone(), self.now.unsigned_abs());
        let moment = self.nodes[i].moment(self.now);
        let arguments = &start.object.spec.arguments;
        let number = |name: &str| {
            arguments
                .get(name)
                .and_then(serde_json::Value::as_i64)
                .unwrap_or(0)
        };
        let deaf = arguments
            .get("deaf")
            .and_then(serde_json::Value::as_bool)
            .unwrap_or(false);
        let refused = self.rng.chance(self.config.start_failures);
        let grace = start
            .object
            .spec
            .binding
            .as_ref()
            .map_or(0, |b| b.plan.timeouts.grace_seconds);
        let process = Process {
            spawned_at: now,
            ends_at: now + number("ms").unsigned_abs(),
            leaves_ms: number("leaves").unsigned_abs(),
            exit: i32::try_from(number("exit")).unwrap_or(1),
            deaf,
            grace_ms: grace.unsigned_abs() * 1000,
            deadline_ms: start.deadline_ms,
            deadline_hit: None,
            killed: None,
            termed: None,
            exited: None,
            emptied: None,
            refused,
        };
        if self.nodes[i].processes.insert(key.clone(), process).is_some() {
            return self.violation(format!("node {i} asks for {key} twice"));
        }
        self.tell_node(
            i,
            0,
            Event::StartEnded {
                key: key.clone(),
                at: moment,
                result: Ok(()),
            },
        );
        let fact = if refused {
            let refused = Refused {
                step: "Exec".into(),
                errno: 2,
            };
            if let Some(slot) = self.nodes[i].slots.get_mut(&key) {
                slot.refused = Some(refused.clone());
            }
            ProcessFact::Refused(refused)
        } else {
            if let Some(slot) = self.nodes[i].slots.get_mut(&key) {
                slot.spawned = Some(now);
            }
            self.effect(&key.uid);
            ProcessFact::Spawned(moment)
        };
        self.tell_node(i, 1, Event::Process { key, fact });
        self.node_schedule(i);
    }

    /// What a tool prints: other for each execution, and the same whenever it is asked.
    pub fn output_of(&self, uid: &str) -> Vec<u8> {
        let execution = self
            .api
            .executions
            .values()
            .find(|x| x.metadata.uid.as_deref() == Some(uid));
        let size = execution
            .and_then(|x| x.spec.arguments.get("size")?.as_u64())
            .unwrap_or(0);
        let size = usize::try_from(size).unwrap_or(0);
        let mut bytes = format!("result of {uid}\n").into_bytes();
        bytes.resize(bytes.len().max(size), b'.');
        bytes
    }

    fn remove_group(&mut self, i: usize, key: &AttemptKey) -> Result<(), String> {
        if self.nodes[i].processes.get(key).is_some_and(Process::lives) {
            return Err("a process is left".into());
        }
        if let Some(slot) = self.nodes[i].slots.get_mut(key) {
            slot.group = false;
        }
        Ok(())
    }

    pub fn report_arrives(&mut self, i: usize, epoch: u32, report: Report) {
        if !self.agent_alive(i, epoch) && self.rng.chance(500) {
            return;
        }
        let (key, level) = (report.key.clone(), report.level);
        let cut = self.nodes[i].partition_until > self.now;
        let result = if cut || (self.may_fail() && self.rng.chance(self.config.transient)) {
            Err(ReportFailure::Transient)
        } else {
            self.check_report(i, &report);
            let object = ObjectKey::new(report.object.namespace.clone(), report.object.name.clone());
            let name = self.nodes[i].name.clone();
            let stored = self.api.node_write(&name, &object, &key.uid, &report.status);
            self.note(|| {
                format!(
                    "api: node {i} reports {key} {level:?} {:?}: {stored:?}",
                    report.status.phase
                )
            });
            match stored {
                _ if self.may_fail() && self.rng.chance(self.config.lost) => Err(ReportFailure::Transient),
                NodeWrite::Stored => Ok(()),
                NodeWrite::Refused => Err(ReportFailure::Refused),
                NodeWrite::NotFound => Err(ReportFailure::NotFound),
            }
        };
        let ends = matches!(level, Level::Final | Level::Minimal);
        if result.is_ok() && ends && self.agent_alive(i, epoch) {
            if let Some(slot) = self.nodes[i].slots.get_mut(&key) {
                slot.reported = true;
            }
            if self.nodes[i].processes.get(&key).is_some_and(|p| !p.lives()) {
                self.nodes[i].processes.remove(&key);
            }
        }
        let moment = self.nodes[i].moment(self.now);
        let delay = self.rng_latency();
        self.later(
            delay,
            Ev::Node {
                node: i,
                epoch,
                event: Box::new(Event::ReportEnded {
                    key,
                    at: moment,
                    level,
                    result,
                }),
            },
        );
    }

    fn check_report(&mut self, i: usize, report: &Report) {
        let ended = report
            .status
            .phase
            .is_some_and(fairlead_crds::ExecutionPhase::is_terminal);
        let Some(process) = self.nodes[i].processes.get(&report.key).filter(|p| p.lives()) else {
            return;
        };
        // An end may be written over what cannot be killed, but only after a kill has had its time.
        let given_up = process
            .killed
            .is_some_and(|(at, _)| at + 30_000 <= self.now.unsigned_abs());
        if ended && !given_up {
            self.violation(format!(
                "node {i} writes the end of {} while processes are left",
                report.key
            ));
        }
    }

    pub fn agent_is_up(&self, i: usize) -> bool {
        self.nodes[i].up
    }
}

/// The object of an execution, for those that keep it.
pub type Kept = Arc<ToolExecution>;

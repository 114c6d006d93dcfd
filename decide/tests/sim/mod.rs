//! A seeded simulation of the whole: one or two operators and three node agents with their real cores, against a toy
//! API server, with delay, reordering across kinds, duplicates, lost answers, crashes, pauses and power loss.
//!
//! There is one clock and one generator; maps are ordered. The same seed tells the same story.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(
    clippy::too_many_lines,
    reason = "a toy executor is one match over all actions, and reads best as that"
)]

pub mod api;
pub mod config;
pub mod core;
pub mod fair;
pub mod faults;
pub mod laws;
pub mod model;
pub mod node;
pub mod operator;
pub mod oracle;
pub mod rng;
pub mod safe;
pub mod users;
pub mod worlds;

use api::{Api, KINDS, Kind};
pub use config::Config;
use fairlead_decide::cluster::{self, Action, ObjectKey};
use fairlead_decide::node as node_core;
use node::NodeProc;
use operator::{Ask, Operator};
use rng::{Ms, Rng};
use std::collections::BTreeMap;
use users::Deed;

/// Where a watch stands in a kind's log, and when it last delivered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watcher {
    pub position: usize,
    pub last_at: Ms,
}

/// Something that happens at a time.
#[derive(Debug)]
pub enum Ev {
    User(Deed),
    Collect {
        uid: String,
    },
    StartOperator(usize),
    CrashOperator(usize),
    PauseOperator(usize, Ms),
    Relist(usize, Kind),
    Campaign {
        operator: usize,
        epoch: u32,
    },
    Tick {
        operator: usize,
        epoch: u32,
    },
    Listed {
        operator: usize,
        epoch: u32,
        kind: Kind,
        events: Vec<cluster::Event>,
    },
    Deliver {
        operator: usize,
        epoch: u32,
        kind: Kind,
        upto: usize,
    },
    Told {
        operator: usize,
        epoch: u32,
        events: Vec<cluster::Event>,
    },
    Write {
        operator: usize,
        epoch: u32,
        action: Box<Action>,
    },
    Answer(u64),
    StartAgent(usize),
    CrashAgent(usize),
    CrashSupervisor(usize),
    KillNode(usize, bool),
    Partition(usize, Ms),
    Power(usize),
    Renew {
        node: usize,
        epoch: u32,
    },
    Existing {
        node: usize,
        epoch: u32,
    },
    DeliverToNode {
        node: usize,
        epoch: u32,
        upto: usize,
    },
    Node {
        node: usize,
        epoch: u32,
        event: Box<node_core::Event>,
    },
    NodeTick {
        node: usize,
        epoch: u32,
    },
    Spawn {
        node: usize,
        epoch: u32,
        start: Box<node_core::Start>,
    },
    Report {
        node: usize,
        epoch: u32,
        report: Box<node_core::Report>,
    },
}

pub struct Sim {
    pub config: Config,
    pub now: Ms,
    order: u64,
    queue: BTreeMap<(Ms, u64), Ev>,
    pub rng: Rng,
    pub api: Api,
    pub operators: Vec<Operator>,
    pub nodes: Vec<NodeProc>,
    pub asks: BTreeMap<u64, Ask>,
    ask_ids: u64,
    /// Which process created a turn.
    pub drivers: BTreeMap<ObjectKey, (usize, u32)>,
    /// Processes that really ran, by execution.
    pub effects: BTreeMap<String, u32>,
    seen_logs: [usize; KINDS],
    pub decisions: u64,
    pub users_left: usize,
    /// Lines of the story, when it is told.
    pub story: Option<Vec<String>>,
    pub last_write: Ms,
    last_writes: u64,
}

impl Sim {
    pub fn new(config: Config) -> Self {
        let mut rng = Rng::new(config.seed);
        let operators = (0..config.operators)
            .map(|_| {
                Operator::new(core::Core::new(
                    cluster::Settings::default(),
                    config.cluster_fault,
                ))
            })
            .collect();
        let nodes = (0..config.nodes)
            .map(|n| {
                NodeProc::new(
                    n,
                    if config.calm { 0 } else { rng.range(-40, 40) },
                    config.node_fault,
                )
            })
            .collect();
        let mut api = Api::new(config.orphan_after_ms, config.calm);
        api.behind_ms = if config.operator_pauses > 0 {
            45_000
        } else {
            12_000
        };
        let mut sim = Self {
            api,
            now: 1_000,
            order: 0,
            queue: BTreeMap::new(),
            rng,
            operators,
            nodes,
            asks: BTreeMap::new(),
            ask_ids: 0,
            drivers: BTreeMap::new(),
            effects: BTreeMap::new(),
            seen_logs: [0; KINDS],
            decisions: 0,
            users_left: 0,
            story: std::env::var_os("SIM_STORY").map(|_| Vec::new()),
            last_write: 0,
            last_writes: 0,
            config,
        };
        for i in 0..sim.config.nodes {
            let delay = sim.rng.range(0, 500);
            sim.later(delay, Ev::StartAgent(i));
        }
        for i in 0..sim.config.operators {
            let delay = sim.rng.range(0, 500);
            sim.later(delay, Ev::StartOperator(i));
        }
        sim.plan_users();
        sim.plan_faults();
        sim
    }

    pub fn at(&mut self, at: Ms, event: Ev) {
        self.order += 1;
        self.queue.insert((at.max(self.now), self.order), event);
    }

    pub fn later(&mut self, delay: Ms, event: Ev) {
        self.at(self.now + delay.max(0), event);
    }

    pub fn rng_latency(&mut self) -> Ms {
        if self.may_fail() && self.rng.chance(30) {
            return self.rng.range(0, self.config.slow_ms);
        }
        self.rng.range(1, self.config.latency_ms)
    }

    /// Whether faults are made at this time.
    pub fn may_fail(&self) -> bool {
        !self.config.calm && self.now < self.config.faults_until
    }

    pub fn violation(&mut self, text: String) {
        self.api.violations.push(text);
    }

    pub fn effect(&mut self, uid: &str) {
        *self.effects.entry(uid.to_owned()).or_default() += 1;
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(format!("{:>8} {}", self.now, line()));
        }
    }

    /// Runs the story to its end. An error names what was broken.
    pub fn run(&mut self) -> Result<(), String> {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            self.now = at;
            self.handle(event);
            self.flush_watches();
            self.note_writes();
            for uid in std::mem::take(&mut self.api.ownerless) {
                let delay = self.rng.range(100, 2_000);
                self.later(delay, Ev::Collect { uid });
            }
            if let Some(violation) = self.api.violations.first() {
                return Err(format!("at {} ms: {violation}", self.now));
            }
            if self.now > self.config.limit_ms {
                return Err(format!(
                    "at {} ms it has not come to its end: {}",
                    self.now,
                    self.unfinished()
                ));
            }
            if self.is_over() {
                break;
            }
        }
        self.judge()
    }

    /// Runs the story up to a time.
    pub fn run_until(&mut self, until: Ms) -> Result<(), String> {
        while self
            .queue
            .first_key_value()
            .is_some_and(|((at, _), _)| *at <= until)
        {
            let Some(((at, _), event)) = self.queue.pop_first() else {
                break;
            };
            self.now = at;
            self.handle(event);
            self.flush_watches();
        }
        self.api
            .violations
            .first()
            .map_or(Ok(()), |violation| Err(violation.clone()))
    }

    fn note_writes(&mut self) {
        let writes = self.api.writes.values().sum();
        if writes != self.last_writes {
            self.last_writes = writes;
            self.last_write = self.now;
        }
    }

    fn handle(&mut self, event: Ev) {
        match event {
            Ev::User(deed) => self.do_deed(deed),
            Ev::Collect { uid } => self.api.delete_children(&uid),
            Ev::StartOperator(i) => {
                if !self.operators[i].up {
                    self.start_operator(i);
                }
            }
            Ev::CrashOperator(i) => {
                if self.operators[i].up {
                    self.crash_operator(i);
                }
            }
            Ev::PauseOperator(i, millis) => self.pause_operator(i, millis),
            Ev::Relist(i, kind) => {
                if self.operators[i].up {
                    self.list_for_operator(i, kind);
                }
            }
            Ev::Campaign { operator, epoch } => self.campaign(operator, epoch),
            Ev::Tick { operator, epoch } => self.tick(operator, epoch),
            Ev::Listed {
                operator,
                epoch,
                kind,
                events,
            } => self.operator_listed(operator, epoch, kind, events),
            Ev::Deliver {
                operator,
                epoch,
                kind,
                upto,
            } => self.deliver_to_operator(operator, epoch, kind, upto),
            Ev::Told {
                operator,
                epoch,
                events,
            } => self.operator_told(operator, epoch, events),
            Ev::Write {
                operator,
                epoch,
                action,
            } => self.write_arrives(operator, epoch, action),
            Ev::Answer(id) => self.answer(id),
            Ev::StartAgent(i) => self.start_agent(i),
            Ev::CrashAgent(i) => self.crash_agent(i),
            Ev::CrashSupervisor(i) => self.crash_supervisor(i),
            Ev::KillNode(i, forever) => self.kill_node(i, forever),
            Ev::Partition(i, millis) => self.nodes[i].partition_until = self.now + millis,
            Ev::Power(i) => self.power_on(i),
            Ev::Renew { node, epoch } => self.renew(node, epoch),
            Ev::Existing { node, epoch } => self.existing(node, epoch),
            Ev::DeliverToNode { node, epoch, upto } => self.deliver_to_node(node, epoch, upto),
            Ev::Node { node, epoch, event } => self.node_event(node, epoch, *event),
            Ev::NodeTick { node, epoch } => self.node_tick(node, epoch),
            Ev::Spawn { node, epoch, start } => self.spawn(node, epoch, *start),
            Ev::Report { node, epoch, report } => self.report_arrives(node, epoch, *report),
        }
    }

    /// Sends what was stored on its way to everybody who watches.
    fn flush_watches(&mut self) {
        for kind in Kind::ALL {
            let upto = self.api.logs[kind as usize].len();
            if self.seen_logs[kind as usize] == upto {
                continue;
            }
            self.seen_logs[kind as usize] = upto;
            for operator in 0..self.operators.len() {
                let delay = self.rng_latency();
                let (now, process) = (self.now, &mut self.operators[operator]);
                let epoch = process.epoch;
                if let Some(stream) = process.streams.get_mut(&kind).filter(|_| process.up) {
                    stream.last_at = stream.last_at.max(now + delay);
                    let at = stream.last_at;
                    self.at(
                        at,
                        Ev::Deliver {
                            operator,
                            epoch,
                            kind,
                            upto,
                        },
                    );
                }
            }
            if kind == Kind::Execution {
                self.flush_to_nodes(upto);
            }
        }
    }

    fn flush_to_nodes(&mut self, upto: usize) {
        for node in 0..self.nodes.len() {
            let delay = self.rng_latency();
            let now = self.now;
            let process = &mut self.nodes[node];
            if process.up {
                process.stream.last_at = process.stream.last_at.max(now + delay);
                let (at, epoch) = (process.stream.last_at, process.epoch);
                self.at(at, Ev::DeliverToNode { node, epoch, upto });
            }
        }
    }
}

/// Runs one configuration; an error carries the seed and, when `SIM_STORY` is set, the story.
pub fn run(config: Config) -> Result<Sim, String> {
    let seed = config.seed;
    let mut sim = Sim::new(config);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sim.run()));
    let error = match result {
        Ok(Ok(())) => return Ok(sim),
        Ok(Err(text)) => text,
        Err(cause) => {
            let text = cause.downcast_ref::<String>().cloned();
            format!(
                "panic: {}",
                text.or_else(|| cause.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                    .unwrap_or_default()
            )
        }
    };
    if let Some(story) = &sim.story {
        eprintln!("{}", story.join("\n"));
    }
    Err(format!("seed {seed}: {error}"))
}

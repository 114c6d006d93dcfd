//! What a story is made of, drawn from its seed.

use super::api::Kind;
use super::faults::{ClusterFault, NodeFault};
use super::model::Mood;
use super::rng::{Ms, Rng};
use super::{Ev, Sim};

#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    pub operators: usize,
    pub nodes: usize,
    pub capacity: usize,
    pub runs: i64,
    pub own: i64,
    pub mood: Mood,
    /// Nothing goes wrong.
    pub calm: bool,
    /// Users only create: no cancels, edits, deletions, late objects.
    pub patient: bool,
    /// Longest usual delay of anything on the wire.
    pub latency_ms: Ms,
    /// Longest rare delay.
    pub slow_ms: Ms,
    /// Chances in thousandths.
    pub lost: u32,
    pub transient: u32,
    pub duplicates: u32,
    pub crash_inside: u32,
    pub start_failures: u32,
    /// How many times each thing happens.
    pub operator_crashes: i64,
    pub operator_pauses: i64,
    pub agent_crashes: i64,
    pub supervisor_crashes: i64,
    pub power_losses: i64,
    pub partitions: i64,
    pub relists: i64,
    pub faults_until: Ms,
    pub limit_ms: Ms,
    pub orphan_after_ms: Ms,
    pub cluster_fault: Option<ClusterFault>,
    pub node_fault: Option<NodeFault>,
}

impl Config {
    /// One undisturbed operator, patient users.
    pub fn calm(seed: u64) -> Self {
        Self {
            seed,
            operators: 1,
            nodes: 3,
            capacity: 8,
            runs: 3,
            own: 1,
            mood: Mood {
                turns: 4,
                errors: 0,
                plain: false,
            },
            calm: true,
            patient: true,
            latency_ms: 8,
            slow_ms: 8,
            lost: 0,
            transient: 0,
            duplicates: 0,
            crash_inside: 0,
            start_failures: 0,
            operator_crashes: 0,
            operator_pauses: 0,
            agent_crashes: 0,
            supervisor_crashes: 0,
            power_losses: 0,
            partitions: 0,
            relists: 0,
            faults_until: 120_000,
            limit_ms: 1_800_000,
            orphan_after_ms: 60_000,
            cluster_fault: None,
            node_fault: None,
        }
    }

    /// A story of every kind: one in eight is calm.
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0xc0ff_ee00);
        let mut config = Self::calm(seed);
        config.capacity = usize::try_from(rng.range(1, 6)).unwrap_or(1);
        config.runs = rng.range(1, 5);
        config.own = rng.range(0, 4);
        config.patient = rng.chance(300);
        config.mood.errors = if rng.chance(500) { 100 } else { 0 };
        if seed.is_multiple_of(8) {
            return config;
        }
        config.calm = false;
        config.operators = if rng.chance(400) { 2 } else { 1 };
        config.latency_ms = *rng.pick(&[5, 20, 120]).unwrap_or(&5);
        config.slow_ms = *rng.pick(&[50, 1_500, 5_000]).unwrap_or(&50);
        let mut some = |chances: &[u32]| *rng.pick(chances).unwrap_or(&0);
        config.lost = some(&[0, 0, 20, 100]);
        config.transient = some(&[0, 0, 20, 100]);
        config.duplicates = some(&[0, 50, 200]);
        config.crash_inside = some(&[0, 0, 10, 60]);
        config.start_failures = some(&[0, 0, 20]);
        let mut often = |most: i64| {
            if rng.chance(500) {
                rng.range(0, most + 1)
            } else {
                0
            }
        };
        config.operator_crashes = often(4);
        config.operator_pauses = often(3);
        config.agent_crashes = often(4);
        config.supervisor_crashes = often(2);
        config.power_losses = often(2);
        config.partitions = often(3);
        config.relists = often(6);
        config
    }
}

impl Sim {
    pub fn plan_faults(&mut self) {
        let config = self.config.clone();
        let nodes = i64::try_from(config.nodes).unwrap_or(1);
        let operators = i64::try_from(config.operators).unwrap_or(1);
        let index = |n: i64| usize::try_from(n).unwrap_or(0);
        let until = config.faults_until;
        for _ in 0..config.operator_crashes {
            let at = self.rng.range(0, until);
            let who = index(self.rng.range(0, operators));
            self.at(at, Ev::CrashOperator(who));
        }
        for _ in 0..config.operator_pauses {
            let at = self.rng.range(0, until);
            let who = index(self.rng.range(0, operators));
            let millis = self.rng.range(100, 40_000);
            self.at(at, Ev::PauseOperator(who, millis));
        }
        for _ in 0..config.relists {
            let at = self.rng.range(0, until);
            let who = index(self.rng.range(0, operators));
            let kind = Kind::ALL[index(self.rng.range(0, 6))];
            self.at(at, Ev::Relist(who, kind));
        }
        for _ in 0..config.agent_crashes {
            let (at, who) = (self.rng.range(0, until), index(self.rng.range(0, nodes)));
            self.at(at, Ev::CrashAgent(who));
        }
        for _ in 0..config.supervisor_crashes {
            let (at, who) = (self.rng.range(0, until), index(self.rng.range(0, nodes)));
            self.at(at, Ev::CrashSupervisor(who));
        }
        for n in 0..config.power_losses {
            let (at, who) = (self.rng.range(0, until), index(self.rng.range(0, nodes)));
            // One node may stay away for good; the others come back.
            let forever = n == 0 && who == 0 && self.rng.chance(500);
            self.at(at, Ev::KillNode(who, forever));
        }
        for _ in 0..config.partitions {
            let (at, who) = (self.rng.range(0, until), index(self.rng.range(0, nodes)));
            let millis = self.rng.range(500, 120_000);
            self.at(at, Ev::Partition(who, millis));
        }
    }
}

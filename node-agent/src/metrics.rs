//! What a node agent counts.

use fairlead_decide::node::{AttemptKey, Event, Level, ProcessFact, Report, ReportFailure};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;

const SPAWN_SECONDS: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0];
const EXECUTION_SECONDS: [f64; 12] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 3_600.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    phase: &'static str,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LevelLabel {
    level: &'static str,
}

/// The agent's metrics; there are no globals.
#[derive(Debug)]
pub(crate) struct Metrics {
    running: Gauge,
    started: Counter,
    ended: Family<EndLabels, Counter>,
    spawn_seconds: Histogram,
    execution_seconds: Histogram,
    adopted: Counter,
    clean_up_failures: Counter,
    refused: Family<LevelLabel, Counter>,
    /// When each attempt was taken up, and the end that is being written for it.
    open: BTreeMap<AttemptKey, Open>,
}

#[derive(Debug)]
struct Open {
    since_ms: u64,
    end: Option<EndLabels>,
}

impl Metrics {
    /// Registers all of them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let this = Self {
            running: Gauge::default(),
            started: Counter::default(),
            ended: Family::default(),
            spawn_seconds: Histogram::new(SPAWN_SECONDS),
            execution_seconds: Histogram::new(EXECUTION_SECONDS),
            adopted: Counter::default(),
            clean_up_failures: Counter::default(),
            refused: Family::default(),
            open: BTreeMap::new(),
        };
        this.register(registry);
        this
    }

    fn register(&self, registry: &mut Registry) {
        let prefixed = registry.sub_registry_with_prefix("fairlead_node");
        prefixed.register(
            "executions",
            "Executions whose processes may be there",
            self.running.clone(),
        );
        prefixed.register(
            "executions_started",
            "Executions whose program was started",
            self.started.clone(),
        );
        prefixed.register("executions_ended", "Ends that were stored", self.ended.clone());
        prefixed.register(
            "spawn_seconds",
            "From taking an execution up to its running program",
            self.spawn_seconds.clone(),
        );
        prefixed.register(
            "execution_seconds",
            "From taking an execution up to its stored end",
            self.execution_seconds.clone(),
        );
        prefixed.register(
            "executions_adopted",
            "Executions found running at a start",
            self.adopted.clone(),
        );
        prefixed.register(
            "cleanup_failures",
            "Tries to empty or remove a group that failed",
            self.clean_up_failures.clone(),
        );
        prefixed.register(
            "reports_refused",
            "Status writes the API server refused for good",
            self.refused.clone(),
        );
    }

    /// Executions that were running when this agent started.
    pub(crate) fn adopted(&self, count: usize) {
        self.adopted.inc_by(count as u64);
    }

    /// Executions whose processes may be there.
    pub(crate) fn running(&self, count: usize) {
        self.running.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// An attempt was taken up.
    pub(crate) fn taken_up(&mut self, key: &AttemptKey, now_ms: u64) {
        self.open.entry(key.clone()).or_insert(Open {
            since_ms: now_ms,
            end: None,
        });
    }

    /// An end is being written.
    pub(crate) fn reporting(&mut self, report: &Report, now_ms: u64) {
        if let Some(phase) = report.status.phase.filter(|phase| phase.is_terminal()) {
            let reason = report.status.reason.clone().unwrap_or_default();
            let end = Some(EndLabels {
                phase: phase.as_str(),
                reason,
            });
            self.open
                .entry(report.key.clone())
                .or_insert(Open {
                    since_ms: now_ms,
                    end: None,
                })
                .end = end;
        }
    }

    /// What an event means for the counts.
    pub(crate) fn observe(&mut self, event: &Event, now_ms: u64) {
        match event {
            Event::Process {
                key,
                fact: ProcessFact::Spawned(at),
            } => {
                self.started.inc();
                if let Some(open) = self.open.get(key) {
                    self.spawn_seconds.observe(seconds(open.since_ms, at.boot_ms));
                }
            }
            Event::CollectEnded { collected, .. } if collected.clean_up.is_err() => {
                self.clean_up_failures.inc();
            }
            Event::CleanUpEnded { result: Err(_), .. } | Event::DiscardEnded { result: Err(_), .. } => {
                self.clean_up_failures.inc();
            }
            Event::DiscardEnded { key, .. } => {
                self.open.remove(key);
            }
            Event::ReportEnded {
                level,
                result: Err(ReportFailure::Refused),
                ..
            } => {
                self.refused
                    .get_or_create(&LevelLabel { level: name(*level) })
                    .inc();
            }
            Event::ReportEnded {
                key,
                level: Level::Final | Level::Minimal,
                result: Ok(()),
                ..
            } => {
                if let Some(open) = self.open.remove(key) {
                    self.execution_seconds.observe(seconds(open.since_ms, now_ms));
                    if let Some(end) = open.end {
                        self.ended.get_or_create(&end).inc();
                    }
                }
            }
            _ => {}
        }
    }
}

fn seconds(from_ms: u64, to_ms: u64) -> f64 {
    std::time::Duration::from_millis(to_ms.saturating_sub(from_ms)).as_secs_f64()
}

fn name(level: Level) -> &'static str {
    match level {
        Level::Running => "Running",
        Level::Final => "Final",
        Level::Minimal => "Minimal",
        Level::Condition => "Condition",
        Level::CleanedUp => "CleanedUp",
    }
}

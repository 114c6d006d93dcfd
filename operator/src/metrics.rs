//! What the operator counts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

const SECONDS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    action: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

/// The operator's metrics, handed to what measures; there are no globals.
#[derive(Debug)]
pub struct Metrics {
    writes: Family<ActionLabels, Histogram, fn() -> Histogram>,
    requests: Family<ResultLabel, Histogram, fn() -> Histogram>,
    runs_ended: Family<PhaseLabel, Counter>,
    executions_ended: Family<PhaseLabel, Counter>,
    leader: Gauge,
    waiting: Gauge,
    decisions: Counter,
}

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

fn result(ok: bool) -> &'static str {
    if ok { "success" } else { "failure" }
}

impl Metrics {
    /// Registers all of them.
    pub fn new(registry: &mut Registry) -> Self {
        let this = Self {
            writes: Family::new_with_constructor(histogram as fn() -> Histogram),
            requests: Family::new_with_constructor(histogram as fn() -> Histogram),
            runs_ended: Family::default(),
            executions_ended: Family::default(),
            leader: Gauge::default(),
            waiting: Gauge::default(),
            decisions: Counter::default(),
        };
        let operator = registry.sub_registry_with_prefix("fairlead_operator");
        operator.register(
            "write_seconds",
            "API writes by action and result",
            this.writes.clone(),
        );
        operator.register(
            "model_request_seconds",
            "Model requests by result, one try each",
            this.requests.clone(),
        );
        operator.register(
            "runs_ended",
            "Runs seen to end, by phase",
            this.runs_ended.clone(),
        );
        operator.register(
            "executions_ended",
            "Executions seen to end, by phase",
            this.executions_ended.clone(),
        );
        operator.register("leader", "1 while this replica leads", this.leader.clone());
        operator.register(
            "waiting_calls",
            "Tool calls that wait for a slot",
            this.waiting.clone(),
        );
        operator.register("decisions", "Decisions made", this.decisions.clone());
        this
    }

    /// A write came to its end.
    pub fn wrote(&self, action: &'static str, ok: bool, took: Duration) {
        self.writes
            .get_or_create(&ActionLabels {
                action,
                result: result(ok),
            })
            .observe(took.as_secs_f64());
    }

    /// A model request came to its end.
    pub fn asked(&self, ok: bool, took: Duration) {
        self.requests
            .get_or_create(&ResultLabel { result: result(ok) })
            .observe(took.as_secs_f64());
    }

    /// A run was seen to end.
    pub fn run_ended(&self, phase: &'static str) {
        self.runs_ended.get_or_create(&PhaseLabel { phase }).inc();
    }

    /// An execution was seen to end.
    pub fn execution_ended(&self, phase: &'static str) {
        self.executions_ended.get_or_create(&PhaseLabel { phase }).inc();
    }

    /// Whether this replica leads.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// How many calls wait.
    pub fn waiting(&self, calls: usize) {
        self.waiting.set(i64::try_from(calls).unwrap_or(i64::MAX));
    }

    /// A decision was made.
    pub fn decided(&self) {
        self.decisions.inc();
    }
}

//! The table of runs, from the objects to lines.

use crate::models::Models;
use crate::text::{self, Cell, Columns, Paint, Tone};
use fairlead_crds::conditions::{find, kind};
use fairlead_crds::values::Time;
use fairlead_crds::{AgentRun, RunPhase};
use kube::core::DynamicObject;

/// What the table looks like.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// More columns.
    pub wide: bool,
    /// A column with the namespace.
    pub namespaces: bool,
    /// Colours.
    pub paint: Paint,
}

/// The table as lines, the newest run first.
pub fn lines(runs: &[DynamicObject], look: Look, models: &Models, now: Time) -> Vec<String> {
    text::table(&heads(look), &rows(runs, look, models, now), look.paint)
}

/// Columns for rows that come one by one, wide enough for most of them.
pub fn columns(look: Look) -> Columns {
    let mut columns = Columns::new(&heads(look));
    columns.at_least("NAME", 16);
    for phase in RunPhase::ALL {
        columns.at_least("PHASE", phase.as_str().len());
    }
    columns.at_least("REASON", "DeadlineExceeded".len());
    columns
}

fn heads(look: Look) -> Vec<&'static str> {
    let mut heads = vec!["NAME", "PHASE", "REASON", "TURNS", "TOOLS", "AGE"];
    if look.namespaces {
        heads.insert(0, "NAMESPACE");
    }
    if look.wide {
        heads.extend(["TOKENS", "MODEL", "PROVIDER", "TOOK", "LAST-MOVE"]);
    }
    heads
}

/// A row for each run, the newest first. A run that this version cannot read gets a row that says so.
pub fn rows(runs: &[DynamicObject], look: Look, models: &Models, now: Time) -> Vec<Vec<Cell>> {
    let mut sorted: Vec<&DynamicObject> = runs.iter().collect();
    sorted.sort_by_key(|run| {
        (
            std::cmp::Reverse(created(run)),
            run.metadata.namespace.clone(),
            run.metadata.name.clone(),
        )
    });
    sorted
        .into_iter()
        .map(|run| row(run, look, models, now))
        .collect()
}

fn created(run: &DynamicObject) -> Option<Time> {
    run.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

fn row(object: &DynamicObject, look: Look, models: &Models, now: Time) -> Vec<Cell> {
    let plain = |text: String| (text, None);
    let name = object.metadata.name.clone().unwrap_or_default();
    let age = created(object).map_or_else(|| "-".to_owned(), |at| text::age(seconds(at, now)));
    let mut cells = Vec::new();
    if look.namespaces {
        cells.push(plain(object.metadata.namespace.clone().unwrap_or_default()));
    }
    cells.push(plain(name));
    match object.clone().try_parse::<AgentRun>() {
        Ok(run) => {
            let status = run.status.clone().unwrap_or_default();
            let phase = status.phase.unwrap_or(RunPhase::Pending);
            cells.push((phase.to_string(), tone(phase)));
            let reason = find(&status.conditions, kind::SUCCEEDED).map(|condition| condition.reason.clone());
            cells.push(plain(reason.unwrap_or_else(|| "-".to_owned())));
            cells.push(plain(status.turns.to_string()));
            cells.push(plain(status.tool_calls.to_string()));
            cells.push(plain(age));
            if look.wide {
                cells.extend(wide(&run, models, now).map(plain));
            }
        }
        Err(error) => cells.push((format!("unreadable: {error}"), Some(Tone::Bad))),
    }
    cells
}

fn wide(run: &AgentRun, models: &Models, now: Time) -> [String; 5] {
    let status = run.status.clone().unwrap_or_default();
    let none = || "-".to_owned();
    let created = run.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let took = match (created, status.completion_time) {
        (Some(start), Some(end)) => text::millis((end.as_millisecond() - start.as_millisecond()).max(0)),
        _ => none(),
    };
    [
        status
            .usage
            .map_or_else(none, |usage| text::grouped(usage.total_tokens)),
        models.of(run).unwrap_or_else(none),
        run.spec.model.provider_ref.name.clone(),
        took,
        status
            .last_activity_time
            .map_or_else(none, |at| text::age(seconds(at, now))),
    ]
}

fn seconds(since: Time, now: Time) -> i64 {
    now.as_second() - since.as_second()
}

/// The colour of a phase.
pub fn tone(phase: RunPhase) -> Option<Tone> {
    match phase {
        RunPhase::Succeeded => Some(Tone::Good),
        RunPhase::Failed => Some(Tone::Bad),
        RunPhase::Cancelled | RunPhase::Finishing => Some(Tone::Warning),
        RunPhase::Running | RunPhase::WaitingForTools => Some(Tone::Active),
        RunPhase::Pending | RunPhase::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(name: &str, created: &str, status: serde_json::Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "AgentRun",
            "metadata": {"name": name, "namespace": "team-a", "creationTimestamp": created},
            "spec": {"input": "go", "model": {"providerRef": {"name": "main"}}},
            "status": status,
        }))
        .unwrap()
    }

    fn now() -> Time {
        "2026-01-01T00:10:00Z".parse().unwrap()
    }

    const LOOK: Look = Look {
        wide: false,
        namespaces: false,
        paint: Paint::OFF,
    };

    #[test]
    fn the_newest_run_comes_first() {
        let done = json!({"phase": "Succeeded", "turns": 3, "toolCalls": 5, "conditions": [{"type": "Succeeded",
            "status": "True", "reason": "Answered", "message": "", "lastTransitionTime": "2026-01-01T00:00:09Z"}]});
        let runs = [
            run("old", "2026-01-01T00:00:00Z", done),
            run("new", "2026-01-01T00:09:30Z", json!({})),
        ];
        assert_eq!(
            lines(&runs, LOOK, &Models::default(), now()),
            [
                "NAME   PHASE       REASON     TURNS   TOOLS   AGE",
                "new    Pending     -          0       0       30s",
                "old    Succeeded   Answered   3       5       10m",
            ]
        );
    }

    #[test]
    fn the_wide_table_has_tokens_model_and_times() {
        let status = json!({"phase": "Running", "startTime": "2026-01-01T00:09:30.250Z",
            "lastActivityTime": "2026-01-01T00:09:59Z", "usage": {"totalTokens": 12345}, "currentTurn": "r-t2"});
        let runs = [run("r", "2026-01-01T00:09:30Z", status)];
        let models = Models::with("team-a", "r-t2", "m-large");
        let look = Look {
            wide: true,
            namespaces: true,
            ..LOOK
        };
        assert_eq!(
            lines(&runs, look, &models, now()),
            [
                "NAMESPACE   NAME   PHASE     REASON   TURNS   TOOLS   AGE   TOKENS   MODEL     PROVIDER   TOOK   LAST-MOVE",
                "team-a      r      Running   -        0       0       30s   12,345   m-large   main       -      1s",
            ]
        );
    }

    #[test]
    fn a_run_that_cannot_be_read_does_not_hide_the_others() {
        let runs = [
            run("bad", "2026-01-01T00:09:59Z", json!({"turns": "many"})),
            run("good", "2026-01-01T00:00:00Z", json!({})),
        ];
        let lines = lines(&runs, LOOK, &Models::default(), now());
        assert!(lines[1].starts_with("bad    unreadable: "), "{lines:?}");
        assert!(lines[2].starts_with("good   Pending"), "{lines:?}");
    }
}

//! `runs`: the runs of a namespace, now or as they change.

use crate::args::{ObjectForm, Runs, TableForm};
use crate::connect::{Target, readable, unless_passing};
use crate::exit::Exit;
use crate::models::Models;
use crate::runs_table::{self, Look};
use crate::text::{self, Cell, Columns, Paint};
use anyhow::{Context, Result};
use fairlead_crds::AgentRun;
use fairlead_crds::reading::Readable;
use fairlead_crds::values::Time;
use futures::{StreamExt, TryStreamExt};
use kube::Api;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, ObjectList};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// How often the ages on a terminal move, at least.
const TICK: Duration = Duration::from_secs(1);

/// Shows the runs until Ctrl-C, or once.
pub async fn run(target: &Target, options: &Runs) -> Result<Exit> {
    let api = api(target, options);
    let form = match options.output {
        Some(TableForm::Json) => Some(ObjectForm::Json),
        Some(TableForm::Yaml) => Some(ObjectForm::Yaml),
        _ => None,
    };
    let look = Look {
        wide: options.output == Some(TableForm::Wide),
        namespaces: options.all_namespaces,
        paint: Paint::for_stream(&std::io::stdout()),
    };
    match form {
        Some(form) => print(&text::object(&list(&api, options).await?, form)?)?,
        None if options.once => {
            let runs = list(&api, options).await?.items;
            if runs.is_empty() {
                eprintln!("no runs in {}", place(target, options));
            } else {
                let mut models = Models::default();
                if look.wide {
                    models.learn(target, &runs).await;
                }
                print(&joined(&runs_table::lines(&runs, look, &models, Time::now())))?;
            }
        }
        None if std::io::stdout().is_terminal() => follow_on_terminal(target, &api, options, look).await?,
        None => follow_as_lines(target, &api, options, look).await?,
    }
    Ok(Exit::Success)
}

fn api(target: &Target, options: &Runs) -> Api<Readable<DynamicObject>> {
    let kind = ApiResource::erase::<AgentRun>(&());
    if options.all_namespaces {
        Api::all_with(target.client.clone(), &kind)
    } else {
        Api::namespaced_with(target.client.clone(), &target.namespace, &kind)
    }
}

fn place(target: &Target, options: &Runs) -> String {
    if options.all_namespaces {
        "any namespace".to_owned()
    } else {
        format!("namespace {}", target.namespace)
    }
}

async fn list(api: &Api<Readable<DynamicObject>>, options: &Runs) -> Result<ObjectList<DynamicObject>> {
    let params = ListParams {
        label_selector: options.selector.clone(),
        ..ListParams::default()
    };
    let ObjectList {
        types,
        metadata,
        items,
    } = api.list(&params).await.context("list agentruns")?;
    let mut items: Vec<_> = items.into_iter().filter_map(readable).collect();
    for run in &mut items {
        run.types = Some(kube::core::TypeMeta::resource::<AgentRun>());
    }
    Ok(ObjectList {
        types,
        metadata,
        items,
    })
}

/// A table of what is there, then one line for each change, as `kubectl get --watch` does.
async fn follow_as_lines(
    target: &Target,
    api: &Api<Readable<DynamicObject>>,
    options: &Runs,
    look: Look,
) -> Result<()> {
    let mut events = std::pin::pin!(events(api, options));
    let mut lines = Lines::new(look);
    let mut models = Models::default();
    while let Some(event) = events.try_next().await? {
        let Some(news) = lines.absorb(event) else {
            continue;
        };
        if look.wide {
            models.learn(target, &news).await;
        }
        print(&lines.text(&runs_table::rows(&news, look, &models, Time::now())))?;
    }
    Ok(())
}

/// A table that grows by lines.
struct Lines {
    look: Look,
    columns: Columns,
    headed: bool,
    /// Of the list that is being read.
    listed: Vec<DynamicObject>,
    /// UID and version of what was shown: a list that is read again, after a lost connection, shows what is new in it.
    shown: BTreeMap<String, Option<String>>,
}

impl Lines {
    fn new(look: Look) -> Self {
        Self {
            look,
            columns: runs_table::columns(look),
            headed: false,
            listed: Vec::new(),
            shown: BTreeMap::new(),
        }
    }

    /// What is to be shown now: a whole list, or what changed.
    fn absorb(&mut self, event: Event<DynamicObject>) -> Option<Vec<DynamicObject>> {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(run) if self.is_new(&run) => self.listed.push(run),
            Event::InitDone => return Some(std::mem::take(&mut self.listed)),
            Event::Apply(run) if self.is_new(&run) => return Some(vec![run]),
            _ => {}
        }
        None
    }

    fn is_new(&mut self, run: &DynamicObject) -> bool {
        let uid = run.metadata.uid.clone().unwrap_or_default();
        let version = run.metadata.resource_version.clone();
        self.shown.insert(uid, version.clone()) != Some(version)
    }

    fn text(&mut self, rows: &[Vec<Cell>]) -> String {
        self.columns.fit(rows);
        let head = (!std::mem::replace(&mut self.headed, true)).then(|| self.columns.head());
        let rows = rows.iter().map(|row| self.columns.line(row, self.look.paint));
        joined(&head.into_iter().chain(rows).collect::<Vec<_>>())
    }
}

/// The whole table, drawn again at each change.
async fn follow_on_terminal(
    target: &Target,
    api: &Api<Readable<DynamicObject>>,
    options: &Runs,
    look: Look,
) -> Result<()> {
    let place = place(target, options);
    let mut events = std::pin::pin!(events(api, options));
    let mut runs = BTreeMap::new();
    let mut models = Models::default();
    let mut tick = tokio::time::interval(TICK);
    let mut complete = false;
    loop {
        tokio::select! {
            event = events.try_next() => match event? {
                Some(event) => complete |= absorb(&mut runs, event),
                None => return Ok(()),
            },
            _ = tick.tick() => if complete {
                let all: Vec<DynamicObject> = runs.values().cloned().collect();
                if look.wide {
                    models.learn(target, &all).await;
                }
                let lines = runs_table::lines(&all, look, &models, Time::now());
                print(&screen(lines, height(), &place))?;
            },
        }
    }
}

fn events(
    api: &Api<Readable<DynamicObject>>,
    options: &Runs,
) -> impl futures::Stream<Item = Result<Event<DynamicObject>>> {
    let config = watcher::Config {
        label_selector: options.selector.clone(),
        ..watcher::Config::default()
    };
    watch(api.clone(), config)
        .default_backoff()
        .filter_map(async |event| unless_passing(event, "agentruns"))
}

/// Keeps the table's objects; true once a list is complete.
fn absorb(runs: &mut BTreeMap<String, DynamicObject>, event: Event<DynamicObject>) -> bool {
    let key = |run: &DynamicObject| run.metadata.uid.clone().unwrap_or_default();
    match event {
        Event::Apply(run) | Event::InitApply(run) => {
            runs.insert(key(&run), run);
        }
        Event::Delete(run) => {
            runs.remove(&key(&run));
        }
        Event::Init => runs.clear(),
        Event::InitDone => return true,
    }
    false
}

fn height() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout())
        .map_or(24, |size| usize::from(size.ws_row))
        .max(4)
}

/// A screen with as much of the table as there is room for.
fn screen(mut lines: Vec<String>, height: usize, place: &str) -> String {
    let hidden = lines.len().saturating_sub(height - 1);
    if hidden > 0 {
        lines.truncate(height - 2);
        lines.push(format!(
            "… and {} more, older",
            text::count(hidden as i64 + 1, "run")
        ));
    } else if lines.len() == 1 {
        lines = vec![format!("no runs in {place}")];
    }
    // Home, then the lines, each cleared to its end, then the rest of the screen: no flicker of an empty screen.
    let body: String = lines.iter().map(|line| format!("{line}\u{1b}[K\n")).collect();
    format!("\u{1b}[H{body}\u{1b}[J")
}

fn joined(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("write to standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, version: &str, phase: &str) -> DynamicObject {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "AgentRun",
            "metadata": {"name": name, "uid": name, "resourceVersion": version},
            "spec": {"input": "go", "model": {"providerRef": {"name": "main"}}},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn lines_have_one_head_and_columns_and_show_each_version_once() {
        let look = Look {
            wide: false,
            namespaces: false,
            paint: Paint::OFF,
        };
        let mut lines = Lines::new(look);
        let mut said = String::new();
        for event in [
            Event::Init,
            Event::InitApply(run("a", "1", "Running")),
            Event::InitDone,
            Event::Apply(run("a", "2", "WaitingForTools")),
            Event::Init,
            Event::InitApply(run("a", "2", "WaitingForTools")),
            Event::InitDone,
        ] {
            if let Some(news) = lines.absorb(event) {
                let rows = runs_table::rows(&news, look, &Models::default(), Time::now());
                said.push_str(&lines.text(&rows));
            }
        }
        let said: Vec<&str> = said.lines().collect();
        assert_eq!(
            said,
            [
                "NAME               PHASE             REASON             TURNS   TOOLS   AGE",
                "a                  Running           -                  0       0       -",
                "a                  WaitingForTools   -                  0       0       -",
            ]
        );
    }

    #[test]
    fn a_screen_holds_no_more_lines_than_the_terminal() {
        let lines: Vec<String> = (0..30).map(|n| format!("line {n}")).collect();
        let text = screen(lines, 10, "namespace x");
        assert_eq!(text.lines().count(), 10, "{text:?}");
        assert!(text.contains("… and 22 runs more, older"), "{text:?}");
        assert!(screen(vec!["NAME".into()], 10, "namespace x").contains("no runs in namespace x"));
    }
}

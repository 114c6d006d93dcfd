//! `watch`: one run, as it goes.

use crate::args::Watch;
use crate::connect::{Target, readable, unless_passing};
use crate::exit::Exit;
use crate::story::Story;
use crate::story_facts::{self, Fact};
use crate::text::{self, Paint};
use anyhow::{Context, Result};
use fairlead_crds::names::LABEL_RUN_UID;
use fairlead_crds::reading::Readable;
use fairlead_crds::values::Time;
use fairlead_crds::{AgentRun, AgentTurn, RunPhase, ToolExecution};
use futures::stream::{BoxStream, StreamExt, TryStreamExt, select_all};
use kube::Api;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Between two looks at what is in progress: on a terminal, and as lines.
const TICK_TERMINAL: Duration = Duration::from_secs(1);
const TICK_LINES: Duration = Duration::from_secs(10);
/// Characters of the column with the time: enough for `86400.00 s`, a day.
const WIDTH: usize = 10;

/// A snapshot, or its end.
enum Seen {
    Run(Box<AgentRun>),
    RunGone,
    Turn(Box<AgentTurn>),
    Execution(Box<ToolExecution>),
    /// One of the first lists is complete.
    Listed,
}

/// Follows a run to its end and prints its answer.
pub async fn run(target: &Target, options: &Watch) -> Result<Exit> {
    let Some(run) = wait_for(target, &options.run, Duration::from_secs(options.timeout)).await? else {
        eprintln!(
            "error: there is no agentrun {}/{} after {} s; see: kubectl get agentruns --namespace {0}",
            target.namespace, options.run, options.timeout
        );
        return Ok(Exit::NotFound);
    };
    let mut story = Story::new(run);
    let mut teller = Teller::new();
    if !follow(target, &mut story, &mut teller).await? {
        teller.clear();
        eprintln!("error: agentrun {}/{} was deleted", target.namespace, options.run);
        return Ok(Exit::NotFound);
    }
    catch_up(target, &mut story).await?;
    teller.tell(&mut story);
    teller.end(&mut story);
    answer(&story, options)?;
    Ok(match story.phase() {
        RunPhase::Succeeded => Exit::Success,
        RunPhase::Cancelled => Exit::Cancelled,
        _ => Exit::Failure,
    })
}

/// The run, as soon as it is there; `None` if it is not within `limit`.
async fn wait_for(target: &Target, name: &str, limit: Duration) -> Result<Option<AgentRun>> {
    let api: Api<Readable<AgentRun>> = Api::namespaced(target.client.clone(), &target.namespace);
    if let Some(run) = api
        .get_opt(name)
        .await
        .with_context(|| format!("get agentrun {}/{name}", target.namespace))?
    {
        return Ok(Some(run.0.context("read the agentrun")?));
    }
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let runs = watch(api, config)
        .default_backoff()
        .filter_map(async |event| unless_passing(event, "agentruns"));
    let mut runs = std::pin::pin!(runs);
    let first = async {
        while let Some(event) = runs.try_next().await? {
            if let Event::Apply(run) | Event::InitApply(run) = event {
                return Ok(Some(run));
            }
        }
        Ok(None)
    };
    tokio::time::timeout(limit, first).await.unwrap_or(Ok(None))
}

/// Tells what happens until the run has ended; false if it was deleted.
async fn follow(target: &Target, story: &mut Story, teller: &mut Teller) -> Result<bool> {
    let uid = story.run().metadata.uid.clone().unwrap_or_default();
    let mut seen = everything(target, story.run(), &uid);
    let mut tick = tokio::time::interval(teller.tick());
    let mut listed = 0;
    while !story.phase().is_terminal() {
        tokio::select! {
            next = seen.try_next() => match next? {
                Some(Seen::Run(run)) if run.metadata.uid.as_deref() == Some(&uid) => story.see_run(*run),
                Some(Seen::Run(_) | Seen::RunGone) | None => return Ok(false),
                Some(Seen::Turn(turn)) => story.see_turn(*turn),
                Some(Seen::Execution(execution)) => story.see_execution(*execution),
                Some(Seen::Listed) => listed += 1,
            },
            _ = tick.tick() => teller.progress(story),
        }
        // Before the three first lists are complete the order of what happened is not known.
        if listed >= 3 {
            teller.tell(story);
        }
    }
    Ok(true)
}

/// Watches of the run, its turns and its executions, as one stream.
fn everything(target: &Target, run: &AgentRun, uid: &str) -> BoxStream<'static, Result<Seen>> {
    let name = run.metadata.name.clone().unwrap_or_default();
    let by_name = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let of_run = watcher::Config::default().labels(&format!("{LABEL_RUN_UID}={uid}"));
    let runs = watched::<AgentRun>(
        target,
        by_name,
        "agentruns",
        |run| Seen::Run(Box::new(run)),
        || Some(Seen::RunGone),
    );
    let turns = watched::<AgentTurn>(
        target,
        of_run.clone(),
        "agentturns",
        |turn| Seen::Turn(Box::new(turn)),
        || None,
    );
    let executions = watched::<ToolExecution>(
        target,
        of_run,
        "toolexecutions",
        |tx| Seen::Execution(Box::new(tx)),
        || None,
    );
    select_all([runs, turns, executions]).boxed()
}

fn watched<K>(
    target: &Target,
    config: watcher::Config,
    what: &'static str,
    seen: impl Fn(K) -> Seen + Send + 'static,
    gone: impl Fn() -> Option<Seen> + Send + 'static,
) -> BoxStream<'static, Result<Seen>>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let api: Api<Readable<K>> = Api::namespaced(target.client.clone(), &target.namespace);
    watch(api, config)
        .default_backoff()
        .filter_map(move |event| std::future::ready(unless_passing(event, what)))
        .try_filter_map(move |event| {
            std::future::ready(Ok(match event {
                Event::Apply(object) | Event::InitApply(object) => Some(seen(object)),
                Event::Delete(_) => gone(),
                Event::Init => None,
                Event::InitDone => Some(Seen::Listed),
            }))
        })
        .boxed()
}

/// Reads turns and executions once more: the three watches do not keep pace, and the run's end may be seen first.
async fn catch_up(target: &Target, story: &mut Story) -> Result<()> {
    let uid = story.run().metadata.uid.clone().unwrap_or_default();
    let params = ListParams::default().labels(&format!("{LABEL_RUN_UID}={uid}"));
    let turns: Api<Readable<AgentTurn>> = Api::namespaced(target.client.clone(), &target.namespace);
    let executions: Api<Readable<ToolExecution>> = Api::namespaced(target.client.clone(), &target.namespace);
    let (turns, executions) = tokio::join!(turns.list(&params), executions.list(&params));
    turns
        .context("list agentturns of the run")?
        .into_iter()
        .filter_map(readable)
        .for_each(|turn| story.see_turn(turn));
    executions
        .context("list toolexecutions of the run")?
        .into_iter()
        .filter_map(readable)
        .for_each(|tx| story.see_execution(tx));
    Ok(())
}

/// Prints the answer, or the run in the form asked for.
fn answer(story: &Story, options: &Watch) -> Result<()> {
    let text = match options.output {
        Some(form) => {
            let mut run = story.run().clone();
            run.metadata.managed_fields = None;
            text::object(&run, form)?
        }
        None => match story
            .run()
            .status
            .as_ref()
            .and_then(|status| status.answer.as_ref())
        {
            Some(answer) => {
                if answer.truncated {
                    eprintln!(
                        "the answer was cut; the whole stands in agentturn {}",
                        answer.turn_ref
                    );
                }
                format!("{}\n", answer.text.trim_end_matches('\n'))
            }
            None => return Ok(()),
        },
    };
    let mut stdout = std::io::stdout().lock();
    let text = if stdout.is_terminal() {
        text::visible(&text)
    } else {
        text
    };
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .context("write the answer to standard output")
}

/// Says the story on standard error; on a terminal with a last line on what is in progress.
struct Teller {
    paint: Paint,
    terminal: bool,
    /// Whether the last line is one of progress, to be written over.
    transient: bool,
    /// Whether the line of the heads was said, which only stands in what is not a terminal.
    headed: bool,
}

impl Teller {
    fn new() -> Self {
        let stderr = std::io::stderr();
        Self {
            paint: Paint::for_stream(&stderr),
            terminal: stderr.is_terminal(),
            transient: false,
            headed: false,
        }
    }

    fn tick(&self) -> Duration {
        if self.terminal { TICK_TERMINAL } else { TICK_LINES }
    }

    fn tell(&mut self, story: &mut Story) {
        for Fact { at, tone, line, .. } in story.news() {
            let clock = story.clock(at);
            self.say(&clock, tone, &line);
        }
    }

    fn progress(&mut self, story: &Story) {
        let now = Time::now();
        let Some(text) = story.in_progress(now) else {
            return;
        };
        let text = format!("… {text}");
        if self.terminal {
            let line = format!("{:>WIDTH$}  {text}", story.clock_at(now));
            self.clear();
            say(&self.paint.tone(text::Tone::Faint, &line));
            self.transient = true;
        } else {
            // By our clock, which is not that of the lines around it; the text says since when.
            self.say("", Some(text::Tone::Faint), &text);
        }
    }

    fn end(&mut self, story: &mut Story) {
        let (line, tone) = story_facts::end_of_run(story.run());
        let at = story
            .run()
            .status
            .as_ref()
            .and_then(|status| status.completion_time);
        let clock = story.clock(at);
        self.say(&clock, tone, &line);
    }

    fn say(&mut self, clock: &str, tone: Option<text::Tone>, line: &str) {
        self.clear();
        if !self.terminal && !std::mem::replace(&mut self.headed, true) {
            say(&format!("{:>WIDTH$}  WHAT\n", "TIME"));
        }
        let line = line.replace('\n', &format!("\n{:WIDTH$}  ", ""));
        let line = tone.map_or_else(|| line.clone(), |tone| self.paint.tone(tone, &line));
        say(&format!("{clock:>WIDTH$}  {line}\n"));
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.transient) {
            say("\r\u{1b}[K");
        }
    }
}

/// Says something on standard error. Whoever closed it, such as `head`, has seen enough; the answer is still wanted.
fn say(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

//! The connection to the supervisor.

use crate::ids;
use anyhow::{Context, Result, bail};
use fairlead_decide::node::{AttemptKey, Entry, Moment, ProcessFact, Refused};
use fairlead_supervisor::client::{Client, SpawnFds};
use fairlead_supervisor::step::Step;
use fairlead_supervisor::wire::{
    Backend, ENV_EPOCH, ENV_PAYLOAD_GROUP, EntryPhase, EntryState, Event, Request, Spawn,
};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the supervisor may take to answer the first message.
const HELLO_BOUND: Duration = Duration::from_secs(10);
/// How often and how long a message waits for room in the supervisor's queue: a second in all.
const SEND_TRIES: u32 = 1_000;
const SEND_PAUSE: Duration = Duration::from_millis(1);
/// How long the reading thread waits at most before it asks again.
const READ_BOUND: Duration = Duration::from_secs(60);
/// Longest silence of a supervisor that is well; ten of its heartbeats.
const SILENCE_BOUND: Duration = Duration::from_secs(10);

/// A connection on which Hello was answered.
#[derive(Debug)]
pub(crate) struct Link {
    client: Client,
    /// Number of the supervisor's start.
    pub(crate) epoch: u32,
    /// How processes are kept together.
    pub(crate) backend: Backend,
    /// Group below which each attempt has its own; `None` with process groups.
    pub(crate) payload: Option<PathBuf>,
    /// When it was last heard.
    heard: Mutex<Instant>,
}

/// What the supervisor said about one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) key: AttemptKey,
    pub(crate) facts: Vec<ProcessFact>,
}

impl Link {
    /// Takes over the inherited socket, says Hello and hears of every entry. Waits at most 10 s.
    pub(crate) fn open() -> Result<(Self, Vec<Entry>)> {
        let client = Client::from_env().context("connect to the supervisor")?;
        client
            .send(&Request::Hello {
                agent_pid: std::process::id(),
            })
            .context("say Hello to the supervisor")?;
        let (epoch, count, backend) = loop {
            match receive(&client)? {
                Event::HelloAck {
                    epoch,
                    count,
                    backend,
                } => break (epoch, count, backend),
                other => tracing::debug!(?other, "before the answer to Hello"),
            }
        };
        let entries = hear_entries(&client, count)?;
        let named = std::env::var(ENV_EPOCH).unwrap_or_default();
        if named.parse() != Ok(epoch) {
            bail!("the supervisor says epoch {epoch}, but {ENV_EPOCH} is {named:?}");
        }
        let payload = std::env::var_os(ENV_PAYLOAD_GROUP).map(PathBuf::from);
        if payload.is_none() && backend == Backend::CgroupV2 {
            bail!("the supervisor uses cgroup v2, but {ENV_PAYLOAD_GROUP} is not set");
        }
        Ok((
            Self {
                client,
                epoch,
                backend,
                payload,
                heard: Mutex::new(Instant::now()),
            },
            entries,
        ))
    }

    /// Reads what the supervisor says and hands it to `take`, until one of them is gone. Blocks: for a thread of its
    /// own.
    pub(crate) fn read_all(&self, take: impl Fn(Option<Said>) -> bool) {
        loop {
            let said = match self.client.recv_timeout(READ_BOUND) {
                Ok(Some(event)) => {
                    *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                    translate(&event)
                }
                Ok(None) => {
                    take(None);
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => continue,
                Err(error) => {
                    tracing::error!(%error, "read from the supervisor");
                    take(None);
                    return;
                }
            };
            if let Some(said) = said
                && !take(Some(said))
            {
                return;
            }
        }
    }

    /// How long the supervisor has said nothing, where that is longer than it may be: it says something every second.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        Some(heard.elapsed()).filter(|silence| *silence > SILENCE_BOUND)
    }

    /// Sends a request. Waits up to a second for room in the supervisor's queue.
    pub(crate) fn send(&self, request: &Request) -> io::Result<()> {
        retry(|| self.client.send(request))
    }

    /// Asks for a process. Waits as [`Link::send`].
    pub(crate) fn spawn(&self, spawn: &Spawn, fds: &SpawnFds<'_>) -> io::Result<()> {
        retry(|| self.client.spawn(spawn, fds))
    }

    /// Tells the supervisor that the agent lives. Never waits: a full queue says so as well.
    pub(crate) fn heartbeat(&self) {
        if let Err(error) = self.client.send(&Request::Heartbeat)
            && error.kind() != io::ErrorKind::WouldBlock
        {
            tracing::warn!(%error, "send a heartbeat to the supervisor");
        }
    }
}

fn retry(send: impl Fn() -> io::Result<()>) -> io::Result<()> {
    for _ in 1..SEND_TRIES {
        match send() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(SEND_PAUSE),
            other => return other,
        }
    }
    send()
}

fn receive(client: &Client) -> Result<Event> {
    let event = client
        .recv_timeout(HELLO_BOUND)
        .context("hear the supervisor's answer to Hello")?;
    event.context("the supervisor closed the connection before it answered Hello")
}

/// The state of `count` entries, and what becomes known of them meanwhile.
///
/// A start that the supervisor refused because the agent that asked was dead ran nothing, so it is as if it had never
/// been asked for: the entry is forgotten, and the start may be made anew.
fn hear_entries(client: &Client, count: u32) -> Result<Vec<Entry>> {
    let mut entries: BTreeMap<AttemptKey, Vec<ProcessFact>> = BTreeMap::new();
    let mut states = 0;
    while states < count {
        let event = receive(client)?;
        if let Event::State(state) = &event {
            states += 1;
            if state.phase == EntryPhase::Refused && state.step == Some(Step::Sender) {
                let forget = Request::Forget { key: state.key };
                retry(|| client.send(&forget)).context("let the supervisor forget a refused start")?;
                continue;
            }
        }
        if let Some(said) = translate(&event) {
            entries.entry(said.key).or_default().extend(said.facts);
        }
    }
    Ok(entries
        .into_iter()
        .map(|(key, facts)| Entry { key, facts })
        .collect())
}

/// What an entry's state says, in the order in which it happened.
fn facts(state: &EntryState) -> Vec<ProcessFact> {
    let at = |boot_ms: u64| {
        if boot_ms == 0 {
            ids::now()
        } else {
            ids::moment(boot_ms)
        }
    };
    let mut facts = Vec::new();
    if state.phase == EntryPhase::Refused {
        let step = state.step.map_or("unknown", |step| step.name()).to_owned();
        facts.push(ProcessFact::Refused(Refused {
            step,
            errno: state.errno,
        }));
    }
    if state.spawned_ms != 0 {
        facts.push(ProcessFact::Spawned(at(state.spawned_ms)));
    }
    if state.phase == EntryPhase::Exited {
        facts.push(ProcessFact::Exited(ids::exit(
            state.wait_status,
            state.cause,
            at(state.exited_ms),
        )));
    }
    if state.deadline_reached {
        // Where it came before the leader's end, that end has it as its cause.
        facts.push(ProcessFact::DeadlineReached(ids::now()));
    }
    if state.emptied {
        facts.push(ProcessFact::Emptied(at(state.emptied_ms)));
    }
    if state.drained {
        facts.push(ProcessFact::Drained);
    }
    facts
}

fn translate(event: &Event) -> Option<Said> {
    let (key, fact) = match event {
        Event::State(state) => {
            return Some(Said {
                key: ids::from_wire(&state.key),
                facts: facts(state),
            });
        }
        Event::HelloAck { .. } | Event::Heartbeat { .. } => return None,
        Event::Spawned { key, boottime_ms, .. } => (key, ProcessFact::Spawned(ids::moment(*boottime_ms))),
        Event::Refused { key, step, errno } => (
            key,
            ProcessFact::Refused(Refused {
                step: step.name().to_owned(),
                errno: *errno,
            }),
        ),
        Event::DeadlineReached { key, boottime_ms } => {
            (key, ProcessFact::DeadlineReached(ids::moment(*boottime_ms)))
        }
        Event::Exited { key, exit } => {
            let at: Moment = ids::moment(exit.boottime_ms);
            (
                key,
                ProcessFact::Exited(ids::exit(exit.wait_status, exit.cause, at)),
            )
        }
        Event::Emptied { key, boottime_ms } => (key, ProcessFact::Emptied(ids::moment(*boottime_ms))),
        Event::Drained { key, .. } => (key, ProcessFact::Drained),
        Event::Unknown { key } => (key, ProcessFact::NoEntry(ids::now())),
    };
    Some(Said {
        key: ids::from_wire(key),
        facts: vec![fact],
    })
}

//! Deliberate faults of the cores, made from outside: what a core with that mistake in it would be told or would say.

use fairlead_crds::TurnPhase;
use fairlead_crds::values::Time;
use fairlead_decide::cluster::{
    self, Action, Decision, Event, Key, Load, Request, RequestState, World, Writes, has_ended, key_of,
};
use fairlead_decide::model::Message;
use fairlead_decide::node;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Mistakes of the operator's core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterFault {
    /// Does not count the writes that are on their way.
    IgnoresWritesInFlight,
    /// Takes a turn for completed when the write is sent, not when it is accepted.
    DispatchesBeforeCompletion,
    /// Counts only what it has seen bound, not what it has sent.
    ForgetsLoadSent,
    /// Wants to be woken now.
    WakesInThePast,
    /// Gives no reason for doing nothing.
    GivesNoReason,
    /// Acts in the order of a hash map.
    ActsInHashOrder,
    /// Binds what is bound.
    BindsAgain,
    /// Goes on with a request that another process sent.
    DrivesForeignTurns,
    /// Gives a node up as soon as it wants something of it.
    OrphansAtOnce,
    /// Writes to what has ended.
    WritesToTheEnded,
    /// Does not see that a run is to be cancelled.
    IgnoresCancel,
    /// Believes whatever arrives last.
    BelievesStaleWatches,
    /// Makes all calls of a turn at once.
    SkipsTheBarrier,
    /// Does not keep what the model was told.
    ForgetsObservations,
    /// Makes a lost call again under another name.
    RenamesRetries,
    /// Fails on a name it has not seen.
    AssumesTheLeaseIsThere,
    /// Serves the run with the lowest UID first.
    ServesTheFirstOnly,
    /// Forgets to look again.
    ForgetsToWake,
    /// Writes what is stored already.
    WritesAgainAndAgain,
    /// Waits for the answer to a request of a process that is gone.
    LeavesForeignTurns,
}

impl ClusterFault {
    pub fn absorb(self, world: &mut World, event: Event, now: Time) -> BTreeSet<Key> {
        match (self, event) {
            (Self::DispatchesBeforeCompletion, Event::Started(action)) => {
                let early = match &*action {
                    Action::EndTurn { turn, status } if status.phase == Some(TurnPhase::Completed) => {
                        let mut turn = fairlead_crds::AgentTurn::clone(turn);
                        turn.status = Some(fairlead_crds::AgentTurnStatus::clone(status));
                        let version = turn
                            .metadata
                            .resource_version
                            .as_deref()
                            .and_then(|v| v.parse::<u64>().ok());
                        turn.metadata.resource_version = version.map(|v| (v + 1).to_string());
                        Some(Arc::new(turn))
                    }
                    _ => None,
                };
                let mut dirty = world.absorb(Event::Started(action), now);
                dirty.extend(
                    early
                        .map(|turn| world.absorb(Event::Turn(turn), now))
                        .unwrap_or_default(),
                );
                dirty
            }
            (Self::ForgetsLoadSent, Event::Started(action)) => {
                let dirty = world.absorb(Event::Started(action), now);
                world.load = Load::default();
                for (key, execution) in &world.executions {
                    if let Some(binding) = execution.spec.binding.as_ref().filter(|_| !has_ended(execution)) {
                        let run = execution.spec.run_ref.as_ref().map(|r| r.uid.as_str());
                        world.load.put(key, &binding.node_name, run);
                    }
                }
                dirty
            }
            (Self::IgnoresCancel, Event::Run(run)) => {
                let mut run = fairlead_crds::AgentRun::clone(&run);
                run.spec.desired_state = None;
                world.absorb(Event::Run(Arc::new(run)), now)
            }
            (Self::BelievesStaleWatches, Event::Turn(turn)) => {
                let mut turn = fairlead_crds::AgentTurn::clone(&turn);
                turn.metadata.resource_version = turn.metadata.resource_version.map(|v| format!("v{v}"));
                world.absorb(Event::Turn(Arc::new(turn)), now)
            }
            (Self::SkipsTheBarrier, Event::Turn(turn)) => {
                let mut turn = fairlead_crds::AgentTurn::clone(&turn);
                for call in turn.status.iter_mut().flat_map(|s| &mut s.tool_calls) {
                    call.stage = 1;
                }
                world.absorb(Event::Turn(Arc::new(turn)), now)
            }
            (_, event) => world.absorb(event, now),
        }
    }

    pub fn decide(self, world: &World, key: &Key, now: Time) -> Decision {
        match self {
            Self::IgnoresWritesInFlight => {
                let mut world = world.clone();
                world.writes = Writes::default();
                return cluster::decide(&world, key, now);
            }
            Self::OrphansAtOnce if matches!(key, Key::Node(_)) => {
                let mut world = world.clone();
                for node in world.nodes.values_mut() {
                    node.moved_at = Time::UNIX_EPOCH;
                }
                return cluster::decide(&world, key, now);
            }
            Self::DrivesForeignTurns => {
                let mut world = world.clone();
                for state in world.runs.values_mut().filter(|s| s.request.is_none()) {
                    let turn = state
                        .turns
                        .values()
                        .next_back()
                        .and_then(|t| t.metadata.name.clone());
                    state.request = turn.map(|turn| Request {
                        turn,
                        since: now,
                        state: RequestState::Idle { not_before: None },
                        tries: 0,
                        failed: None,
                    });
                }
                return cluster::decide(&world, key, now);
            }
            Self::LeavesForeignTurns => {
                if let Key::Run(uid) = key
                    && let Some(state) = world.runs.get(uid).filter(|s| s.request.is_none())
                    && let Some(turn) = state.turns.values().next_back()
                    && turn.status.as_ref().and_then(|s| s.phase).is_none()
                {
                    return Decision::because(cluster::Because::Asking);
                }
            }
            Self::ServesTheFirstOnly if *key == Key::Queue => {
                let mut world = world.clone();
                // What a run has in flight does not count.
                let nodes: Vec<String> = world.nodes.keys().cloned().collect();
                for node in nodes {
                    let placed: Vec<_> = world.load.executions_on(&node).cloned().collect();
                    for key in placed {
                        world.load.take(&key);
                        world.load.put(&key, &node, None);
                    }
                }
                let waiting: Vec<_> = world
                    .waiting
                    .iter()
                    .map(|(key, waiter)| (key.clone(), waiter.clone()))
                    .collect();
                for (key, mut waiter) in waiting {
                    let place = waiter
                        .run
                        .as_deref()
                        .and_then(|r| r.rsplit('-').next()?.parse::<i64>().ok());
                    waiter.since = Time::from_second(place.unwrap_or(0)).unwrap_or(now);
                    world.waiting.insert(key, waiter);
                }
                return cluster::decide(&world, key, now);
            }
            Self::AssumesTheLeaseIsThere => {
                let named = world.executions.values().filter_map(|x| x.spec.binding.as_ref());
                for binding in named {
                    let node = world.nodes.get(&binding.node_name);
                    assert!(
                        node.is_none_or(|n| n.lease.is_some()),
                        "no Lease of {}",
                        binding.node_name
                    );
                }
            }
            _ => {}
        }
        let decision = cluster::decide(world, key, now);
        self.changed(world, key, now, decision)
    }

    fn changed(self, world: &World, key: &Key, now: Time, mut decision: Decision) -> Decision {
        match self {
            Self::WakesInThePast => decision.wake = decision.wake.map(|_| now),
            Self::ForgetsToWake => decision.wake = None,
            Self::GivesNoReason => decision.because.clear(),
            Self::ActsInHashOrder => {
                let by_hash: HashMap<usize, Action> = decision.actions.into_iter().enumerate().collect();
                decision.actions = by_hash.into_values().collect();
            }
            Self::BindsAgain => {
                if let Key::Execution(key) = key
                    && let Some(execution) = world.executions.get(key)
                    && let Some(binding) = &execution.spec.binding
                    && !has_ended(execution)
                    && decision.actions.is_empty()
                {
                    let (execution, binding) = (Arc::clone(execution), Box::new(binding.clone()));
                    decision.actions.push(Action::Bind { execution, binding });
                }
            }
            Self::WritesToTheEnded => {
                if let Key::Execution(key) = key
                    && let Some(execution) = world.executions.get(key).filter(|x| has_ended(x))
                    && decision.actions.is_empty()
                    && world
                        .writes
                        .blocked(&cluster::Subject::Execution(key.clone()), now)
                        .is_none()
                {
                    let status = Box::new(execution.status.clone().unwrap_or_default());
                    decision.actions.push(Action::WriteExecution {
                        execution: Arc::clone(execution),
                        status,
                    });
                }
            }
            Self::WritesAgainAndAgain => {
                if let Key::Tool(key) = key
                    && let Some(state) = world.tools.get(key)
                    && world
                        .writes
                        .blocked(&cluster::Subject::Tool(key.clone()), now)
                        .is_none()
                {
                    let status = Box::new(state.object.status.clone().unwrap_or_default());
                    decision.actions = vec![Action::WriteTool {
                        tool: Arc::clone(&state.object),
                        status,
                    }];
                }
            }
            Self::ForgetsObservations => {
                for action in &mut decision.actions {
                    if let Action::Ask { run, request, .. } = action {
                        forget_observed(world, run, &mut request.messages);
                    }
                }
            }
            Self::RenamesRetries => {
                for action in &mut decision.actions {
                    if let Action::CreateExecution { run, name, .. } = action {
                        let key = cluster::ObjectKey::new(key_of(&run.metadata).namespace, name.clone());
                        if world
                            .writes
                            .last_failure(&cluster::Subject::Execution(key))
                            .is_some()
                        {
                            name.push_str("-again");
                        }
                    }
                }
            }
            _ => {}
        }
        decision
    }
}

fn forget_observed(world: &World, run: &str, messages: &mut [Message]) {
    let turns = world.runs.get(run).into_iter().flat_map(|s| s.turns.values());
    let told: BTreeSet<_> = turns
        .flat_map(|t| &t.spec.observations)
        .map(|o| &o.call_id)
        .collect();
    for message in messages {
        if let Message::Tool { call_id, text, .. } = message
            && told.contains(call_id)
        {
            text.clear();
        }
    }
}

/// Mistakes of a node agent's core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFault {
    /// Does not read its journal after a restart.
    ForgetsTheJournal,
    /// Starts what was bound to another life of the node's memory.
    IgnoresTheIncarnation,
    /// Writes an end while processes are left.
    ReportsBeforeEmpty,
}

impl NodeFault {
    pub fn absorb(self, world: &mut node::World, event: node::Event) -> Vec<node::Key> {
        match (self, event) {
            (Self::ForgetsTheJournal, node::Event::Resynced(mut snapshot)) => {
                snapshot.held.clear();
                snapshot.entries.clear();
                world.absorb(node::Event::Resynced(snapshot))
            }
            (
                Self::ReportsBeforeEmpty,
                node::Event::Process {
                    key,
                    fact: node::ProcessFact::Exited(exit),
                },
            ) => {
                let mut keys = Vec::new();
                for fact in [
                    node::ProcessFact::Exited(exit),
                    node::ProcessFact::Emptied(exit.at),
                    node::ProcessFact::Drained,
                ] {
                    keys = world.absorb(node::Event::Process {
                        key: key.clone(),
                        fact,
                    });
                }
                keys
            }
            (_, event) => world.absorb(event),
        }
    }

    pub fn decide(self, world: &node::World, key: &node::Key, now: node::Moment) -> node::Decision {
        if self == Self::IgnoresTheIncarnation
            && let node::Key::Attempt(attempt) = key
            && let Some(node::Presence::Live(object)) = world.attempts.get(attempt).map(|a| &a.presence)
            && let Some(binding) = &object.spec.binding
        {
            let mut world = world.clone();
            world.node.incarnation.clone_from(&binding.incarnation);
            return node::decide(&world, key, now);
        }
        node::decide(world, key, now)
    }
}

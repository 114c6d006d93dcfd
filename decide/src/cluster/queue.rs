//! Which waiting calls get a slot: fair by namespace, then by run, then by age; on the node with the least in flight.

use super::execution::{call as own_call, denied, queued};
use super::guard::{Authorized, Refusal, authorize};
use super::request::tools_of;
use super::run::makes_no_calls;
use super::stage::View;
use super::types::{Action, Because, Decision, NodeLease, ObjectKey};
use super::world::{NodeState, Waiter, World, turn_at};
use super::writes::Subject;
use crate::time::{plus_millis, plus_seconds};
use fairlead_crds::conditions::reason;
use fairlead_crds::values::{LocalRef, OwnedRef, Time};
use fairlead_crds::{PLAN_VERSION, ToolCall, ToolExecutionSpec, ToolTarget};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How soon a call is looked at again whose verdict waits for something not seen yet, in milliseconds.
const LOOK_AGAIN_MILLIS: i64 = 200;

/// Decides about all calls that wait.
pub fn decide(world: &World, now: Time) -> Decision {
    let Some(term) = world.term else {
        return Decision::because(Because::NotLeading);
    };
    let mut slots = Slots::of(world, now);
    let mut line = Line::of(world, now);
    let mut decision = Decision::default();
    while slots.any_free() {
        let Some(key) = line.next() else { break };
        match place(world, &key, &mut slots, term, now) {
            Some(action) => decision.actions.push(action),
            // What its verdict waits for is seen soon.
            None => {
                decision.because.push(Because::Queued {
                    count: 1,
                    reason: reason::TOOL_NOT_FOUND,
                });
                decision.wake_by(plus_millis(now, LOOK_AGAIN_MILLIS));
            }
        }
    }
    let why = if slots.none_ready() {
        reason::NO_READY_NODE
    } else {
        reason::CONCURRENCY_LIMIT
    };
    let left: Vec<_> = line.rest().collect();
    for key in &left {
        show(world, key, why, now, &mut decision);
    }
    if !left.is_empty() {
        decision.because.push(Because::Queued {
            count: left.len(),
            reason: why,
        });
        decision.wake_by(plus_millis(now, world.settings.visible_after_millis));
    }
    decision
        .because
        .extend(line.held.iter().map(|(because, _)| because.clone()));
    line.held
        .iter()
        .filter_map(|(_, at)| *at)
        .for_each(|at| decision.wake_by(at));
    decision
}

/// Free places per node, as they are used up within one decision.
struct Slots<'a> {
    ready: Vec<(&'a NodeLease, usize)>,
}

impl<'a> Slots<'a> {
    fn of(world: &'a World, now: Time) -> Self {
        let ready = world
            .nodes
            .iter()
            .filter(|(_, node)| is_fresh(world, node, now))
            .filter_map(|(name, node)| node.lease.as_ref().map(|lease| (lease, world.load.on_node(name))))
            .filter(|(lease, _)| lease.plan_version >= PLAN_VERSION)
            .collect();
        Self { ready }
    }

    fn none_ready(&self) -> bool {
        self.ready.is_empty()
    }

    fn any_free(&self) -> bool {
        self.ready.iter().any(|(lease, used)| *used < lease.capacity)
    }

    fn take(&mut self) -> Option<&'a NodeLease> {
        let free = self
            .ready
            .iter_mut()
            .filter(|(lease, used)| *used < lease.capacity);
        let (lease, used) = free.min_by_key(|(lease, used)| (*used, lease.name.as_str()))?;
        *used += 1;
        Some(lease)
    }
}

/// Whether a node may get work at `now`.
pub fn is_fresh(world: &World, node: &NodeState, now: Time) -> bool {
    node.trusted
        && node.lease.is_some()
        && plus_seconds(node.moved_at, world.settings.node_fresh_seconds) > now
}

/// The waiting calls, in the order in which they get slots.
struct Line {
    by_namespace: BTreeMap<String, (usize, Groups)>,
    /// Why others may not go now, and when to look again.
    held: BTreeSet<(Because, Option<Time>)>,
}

type Groups = BTreeMap<String, (usize, Vec<(Time, ObjectKey)>)>;

impl Line {
    fn of(world: &World, now: Time) -> Self {
        let mut by_namespace: BTreeMap<String, (usize, Groups)> = BTreeMap::new();
        let mut held = BTreeSet::new();
        let mut over: BTreeMap<&str, bool> = BTreeMap::new();
        for (key, waiter) in &world.waiting {
            let hold = world.writes.blocked(&Subject::Execution(key.clone()), now);
            let ends = waiter
                .run
                .as_deref()
                .is_some_and(|uid| *over.entry(uid).or_insert_with(|| makes_no_calls(world, uid, now)));
            if let Some(hold) = hold.or_else(|| stopping(world, key, ends)) {
                held.insert(hold);
                continue;
            }
            let (_, groups) = by_namespace
                .entry(key.namespace.clone())
                .or_insert_with(|| (world.load.of_namespace(&key.namespace), Groups::new()));
            let group = waiter.run.clone().unwrap_or_else(|| format!("own/{}", key.name));
            let (_, calls) = groups.entry(group).or_insert_with(|| {
                (
                    waiter.run.as_deref().map_or(0, |run| world.load.of_run(run)),
                    Vec::new(),
                )
            });
            calls.push((waiter.since, key.clone()));
        }
        // The next call of a group is taken from the end.
        for (_, groups) in by_namespace.values_mut() {
            for (_, calls) in groups.values_mut() {
                calls.sort_by(|a, b| b.cmp(a));
            }
        }
        Self { by_namespace, held }
    }

    /// The oldest call of the run with the least in flight, in the namespace with the least in flight.
    fn next(&mut self) -> Option<ObjectKey> {
        let oldest = |groups: &Groups| {
            groups
                .values()
                .filter_map(|(_, c)| c.last().map(|(t, _)| *t))
                .min()
        };
        let (namespace, (used, groups)) = self
            .by_namespace
            .iter_mut()
            .min_by_key(|(_, (used, groups))| (*used, oldest(groups)))?;
        let namespace = namespace.clone();
        let group = groups
            .iter()
            .min_by_key(|(_, (used, c))| (*used, c.last().map(|(t, _)| *t)))?
            .0
            .clone();
        let (run_used, calls) = groups.get_mut(&group)?;
        let (_, key) = calls.pop()?;
        *used += 1;
        *run_used += 1;
        if calls.is_empty() {
            groups.remove(&group);
        }
        if groups.is_empty() {
            self.by_namespace.remove(&namespace);
        }
        Some(key)
    }

    fn rest(&self) -> impl Iterator<Item = ObjectKey> + '_ {
        self.by_namespace
            .values()
            .flat_map(|(_, groups)| groups.values())
            .flat_map(|(_, c)| c.iter().map(|(_, k)| k.clone()))
    }
}

/// What is to be stopped does not get a slot any more; it leaves the queue when it or its run has ended.
fn stopping(world: &World, key: &ObjectKey, run_ends: bool) -> Option<(Because, Option<Time>)> {
    let asked = world
        .executions
        .get(key)
        .is_some_and(|x| x.spec.desired_state.is_some());
    (run_ends || asked).then_some((Because::Stopping { count: 1 }, None))
}

/// The write that puts a call on a node, or that says why it may not go.
fn place(world: &World, key: &ObjectKey, slots: &mut Slots<'_>, term: i64, now: Time) -> Option<Action> {
    let waiter = world.waiting.get(key)?;
    let existing = world.executions.get(key);
    let verdict = match &waiter.call {
        None => existing.map(|x| authorize(world, own_call(x)))?,
        Some(_) => of_run(world, waiter)
            .map(|(view, call)| view.guard(call, view.tools.iter().find(|t| t.name == call.tool)))?,
    };
    match (verdict, existing) {
        (Err(refusal), _) if refusal.is_premature() => None,
        (Err(refusal), Some(execution)) => Some(refuse(execution, &refusal, now)),
        // A refusal stands on an object, so that no other write can make the call after all.
        (Err(_), None) => {
            let (view, call) = of_run(world, waiter)?;
            create(world, waiter, key, spec_of(&view, call))
        }
        (Ok(authorized), Some(execution)) => {
            let binding = bind(authorized, slots, term, waiter.since, now)?;
            Some(Action::Bind {
                execution: Arc::clone(execution),
                binding: Box::new(binding),
            })
        }
        (Ok(authorized), None) => {
            let (view, call) = of_run(world, waiter)?;
            let mut spec = spec_of(&view, call);
            spec.binding = Some(bind(authorized, slots, term, waiter.since, now)?);
            create(world, waiter, key, spec)
        }
    }
}

fn refuse(execution: &Arc<fairlead_crds::ToolExecution>, refusal: &Refusal, now: Time) -> Action {
    denied(execution, refusal, now)
}

fn bind(
    authorized: Authorized,
    slots: &mut Slots<'_>,
    term: i64,
    since: Time,
    now: Time,
) -> Option<fairlead_crds::Binding> {
    let lease = slots.take()?;
    Some(authorized.bind(lease, 1, term, since, now))
}

/// A call that has waited long enough is created unbound, so that it can be seen, and says why it waits.
fn show(world: &World, key: &ObjectKey, why: &'static str, now: Time, decision: &mut Decision) {
    let Some(waiter) = world.waiting.get(key) else {
        return;
    };
    if plus_millis(waiter.since, world.settings.visible_after_millis) > now {
        return;
    }
    let message = match why {
        reason::NO_READY_NODE => "No node agent is ready; `kubectl fairlead check` says more.",
        _ => "Every node is at its capacity; it starts when a slot is free.",
    };
    match world.executions.get(key) {
        Some(execution) => {
            let status = execution.status.as_ref();
            let told = status.and_then(|s| s.reason.as_deref()) == Some(why);
            if !told {
                decision.actions.push(queued(execution, why, message));
            }
        }
        None => {
            if let Some((view, call)) = of_run(world, waiter) {
                decision
                    .actions
                    .extend(create(world, waiter, key, spec_of(&view, call)));
            }
        }
    }
}

fn create(world: &World, waiter: &Waiter, key: &ObjectKey, spec: ToolExecutionSpec) -> Option<Action> {
    let (_, run) = world.run(waiter.run.as_deref()?)?;
    Some(Action::CreateExecution {
        run: Arc::clone(run),
        name: key.name.clone(),
        spec: Box::new(spec),
    })
}

/// The turn and the call a waiter stands for.
fn of_run<'a>(world: &'a World, waiter: &Waiter) -> Option<(View<'a>, &'a ToolCall)> {
    let (state, run) = world.run(waiter.run.as_deref()?)?;
    let (index, call_id) = waiter.call.as_ref()?;
    let turn = turn_at(state, *index)?;
    let call = turn
        .status
        .as_ref()?
        .tool_calls
        .iter()
        .find(|c| c.call_id == *call_id)?;
    Some((
        View {
            world,
            state,
            run,
            turn,
            tools: tools_of(state, turn),
        },
        call,
    ))
}

/// The spec of a run's call, without a binding.
fn spec_of(view: &View<'_>, call: &ToolCall) -> ToolExecutionSpec {
    let frozen = view.tools.iter().find(|t| t.name == call.tool);
    let object = frozen
        .and_then(|t| t.object.clone())
        .unwrap_or_else(|| call.tool.clone());
    ToolExecutionSpec {
        tool: ToolTarget {
            tool_ref: LocalRef::new(object),
        },
        arguments: call.arguments.clone(),
        service_account_name: view.run.spec.service_account_name.clone(),
        run_ref: Some(OwnedRef {
            name: view.run.metadata.name.clone().unwrap_or_default(),
            uid: view.run.metadata.uid.clone().unwrap_or_default(),
        }),
        turn: Some(view.turn.spec.index),
        call_id: Some(call.call_id.clone()),
        timeout_seconds: None,
        desired_state: None,
        binding: None,
        ttl_seconds_after_finished: None,
    }
}

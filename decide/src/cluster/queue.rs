//! Which waiting calls get a slot: fair by namespace, then by run, then by age; on the node with the least in flight.

use super::execution::{call as own_call, denied, queued};
use super::guard::{Authorized, Refusal, authorize};
use super::request::tools_of;
use super::run::makes_no_calls;
use super::stage::View;
use super::types::{Action, Because, Decision, NodeLease, ObjectKey};
use super::waiting::{Calls, Group, Told};
use super::world::{NodeState, Waiter, World, turn_at};
use super::writes::Subject;
use crate::time::{plus_millis, plus_seconds};
use fairlead_crds::conditions::reason;
use fairlead_crds::values::{LocalRef, OwnedRef, Time};
use fairlead_crds::{PLAN_VERSION, ToolCall, ToolExecutionSpec, ToolTarget};
use std::collections::{BTreeMap, BTreeSet, btree_set};
use std::sync::Arc;

/// Decides about all calls that wait.
///
/// While no place is free, only those calls are looked at whose objects do not say yet why they wait.
pub fn decide(world: &World, now: Time) -> Decision {
    let Some(term) = world.term else {
        return Decision::because(Because::NotLeading);
    };
    let mut decision = Decision::default();
    if world.waiting.is_empty() {
        return decision;
    }
    let mut slots = Slots::of(world, now);
    let mut taken = BTreeSet::new();
    let mut stops = Stops::new(world, now);
    if slots.any_free() {
        let mut line = Line::of(world);
        while slots.any_free() {
            let Some(key) = line.next(&mut stops) else { break };
            match place(world, &key, &mut slots, term, now) {
                Ok(action) => decision.actions.push(action),
                Err(because) => {
                    decision.because.push(because);
                    decision.wake_by(plus_seconds(now, world.settings.dependency_grace_seconds));
                }
            }
            taken.insert(key);
        }
        line.held.into_iter().for_each(|(because, at)| {
            decision.because.push(because);
            at.into_iter().for_each(|at| decision.wake_by(at));
        });
    }
    if !slots.any_free() {
        still_waiting(world, &slots, &taken, &mut stops, &mut decision);
    }
    decision
}

/// What is said about those that get no place now.
fn still_waiting(
    world: &World,
    slots: &Slots<'_>,
    taken: &BTreeSet<ObjectKey>,
    stops: &mut Stops<'_>,
    decision: &mut Decision,
) {
    let why = match slots.ready_until {
        None => reason::NO_READY_NODE,
        Some(_) => reason::CONCURRENCY_LIMIT,
    };
    let count = world.waiting.len().saturating_sub(taken.len());
    if count == 0 {
        return;
    }
    decision.because.push(Because::Queued { count, reason: why });
    // A node that falls silent sends no event.
    slots.ready_until.into_iter().for_each(|at| decision.wake_by(at));
    for calls in world.waiting.told_otherwise(Told::by(why)) {
        for (since, key) in calls {
            let visible_at = plus_millis(*since, world.settings.visible_after_millis);
            if visible_at > stops.now {
                decision.wake_by(visible_at);
                break;
            }
            if taken.contains(key) {
                continue;
            }
            match stops.hold(key) {
                Some((_, at)) => at.into_iter().for_each(|at| decision.wake_by(at)),
                None => decision.actions.extend(show(world, key, why)),
            }
        }
    }
}

/// Free places per node, as they are used up within one decision.
struct Slots<'a> {
    ready: Vec<(&'a NodeLease, usize)>,
    /// Until when at least one of them is ready, if no Lease moves.
    ready_until: Option<Time>,
}

impl<'a> Slots<'a> {
    fn of(world: &'a World, now: Time) -> Self {
        let mut slots = Self {
            ready: Vec::new(),
            ready_until: None,
        };
        for (name, node) in world.nodes.iter().filter(|(_, node)| is_fresh(world, node, now)) {
            let understands = |lease: &&NodeLease| lease.plan_version >= PLAN_VERSION;
            if let Some(lease) = node.lease.as_ref().filter(understands) {
                slots.ready.push((lease, world.load.on_node(name)));
                slots.ready_until = slots.ready_until.max(Some(fresh_until(world, node)));
            }
        }
        slots
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
    node.trusted && node.lease.is_some() && fresh_until(world, node) > now
}

fn fresh_until(world: &World, node: &NodeState) -> Time {
    plus_seconds(node.moved_at, world.settings.node_fresh_seconds)
}

/// Which calls may not go now, and what was found out about their runs within one decision.
struct Stops<'a> {
    world: &'a World,
    now: Time,
    over: BTreeMap<&'a str, bool>,
}

/// Why a call may not go now, and when to look again.
type Hold = (Because, Option<Time>);

impl<'a> Stops<'a> {
    fn new(world: &'a World, now: Time) -> Self {
        Self {
            world,
            now,
            over: BTreeMap::new(),
        }
    }

    /// What is to be stopped gets no slot any more; it leaves the queue when it or its run has ended.
    fn hold(&mut self, key: &ObjectKey) -> Option<Hold> {
        let Self { world, now, .. } = *self;
        let hold = world.writes.blocked(&Subject::Execution(key.clone()), now);
        let run = world.waiting.get(key).and_then(|w| w.run.as_deref());
        let over = run.is_some_and(|uid| {
            *self
                .over
                .entry(uid)
                .or_insert_with(|| makes_no_calls(world, uid, now))
        });
        let asked = world
            .executions
            .get(key)
            .is_some_and(|x| x.spec.desired_state.is_some());
        hold.or_else(|| (over || asked).then_some((Because::Stopping { count: 1 }, None)))
    }
}

/// The waiting calls, in the order in which they get slots. It borrows: most of them are never looked at.
struct Line<'a> {
    namespaces: Vec<Namespace<'a>>,
    held: BTreeSet<Hold>,
}

struct Namespace<'a> {
    name: &'a str,
    used: usize,
    groups: Vec<Share<'a>>,
}

/// The calls of one group that are left.
struct Share<'a> {
    used: usize,
    oldest: &'a (Time, String),
    younger: btree_set::Iter<'a, (Time, String)>,
}

impl<'a> Share<'a> {
    fn of(world: &World, group: &Group, calls: &'a Calls) -> Option<Self> {
        let used = match group {
            Group::Run(uid) => world.load.of_run(uid),
            Group::Own(_) => 0,
        };
        let mut younger = calls.iter();
        let oldest = younger.next()?;
        Some(Self {
            used,
            oldest,
            younger,
        })
    }
}

impl<'a> Line<'a> {
    fn of(world: &'a World) -> Self {
        let namespaces = world.waiting.namespaces().map(|(name, groups)| Namespace {
            name,
            used: world.load.of_namespace(name),
            groups: groups
                .iter()
                .filter_map(|(group, calls)| Share::of(world, group, calls))
                .collect(),
        });
        Self {
            namespaces: namespaces.collect(),
            held: BTreeSet::new(),
        }
    }

    /// The oldest call of the run with the least in flight, in the namespace with the least in flight.
    fn next(&mut self, stops: &mut Stops<'_>) -> Option<ObjectKey> {
        loop {
            let oldest = |n: &Namespace<'_>| n.groups.iter().map(|g| g.oldest.0).min();
            let fairest = self.namespaces.iter_mut().filter(|n| !n.groups.is_empty());
            let namespace = fairest.min_by_key(|n| (n.used, oldest(n)))?;
            let groups = namespace.groups.iter().enumerate();
            let (at, _) = groups.min_by_key(|(_, g)| (g.used, g.oldest.0))?;
            let group = namespace.groups.get_mut(at)?;
            let key = ObjectKey::new(namespace.name, group.oldest.1.clone());
            let hold = stops.hold(&key);
            if hold.is_none() {
                namespace.used += 1;
                group.used += 1;
            }
            match group.younger.next() {
                Some(next) => group.oldest = next,
                None => drop(namespace.groups.remove(at)),
            }
            match hold {
                Some(hold) => self.held.insert(hold),
                None => return Some(key),
            };
        }
    }
}

/// The write that puts a call on a node, or that says why it may not go; or else what it waits for.
fn place(
    world: &World,
    key: &ObjectKey,
    slots: &mut Slots<'_>,
    term: i64,
    now: Time,
) -> Result<Action, Because> {
    match verdict_on(world, key) {
        // The tool is known in an earlier state than it was offered in; the present one is on its way.
        Some(Err(refusal)) if refusal.is_premature() => Err(Because::Missing {
            reason: refusal.reason.to_owned(),
            message: refusal.message,
        }),
        Some(verdict) => write_of(world, key, verdict, slots, term, now).ok_or_else(|| unknown(key)),
        None => Err(unknown(key)),
    }
}

/// A call whose run, turn or object is not known: the news of it, or of its end, are on their way.
fn unknown(key: &ObjectKey) -> Because {
    Because::Missing {
        reason: reason::TURN_DELETED.to_owned(),
        message: format!("What made the call {:?} is not known.", key.name),
    }
}

fn verdict_on(world: &World, key: &ObjectKey) -> Option<Result<Authorized, Refusal>> {
    let waiter = world.waiting.get(key)?;
    if waiter.call.is_none() {
        return Some(authorize(world, own_call(world.executions.get(key)?)));
    }
    let (view, call) = of_run(world, waiter)?;
    Some(view.guard(call, view.tools.iter().find(|t| t.name == call.tool)))
}

fn write_of(
    world: &World,
    key: &ObjectKey,
    verdict: Result<Authorized, Refusal>,
    slots: &mut Slots<'_>,
    term: i64,
    now: Time,
) -> Option<Action> {
    let waiter = world.waiting.get(key)?;
    match (verdict, world.executions.get(key)) {
        (Err(refusal), Some(execution)) => Some(denied(execution, &refusal, now)),
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
fn show(world: &World, key: &ObjectKey, why: &'static str) -> Option<Action> {
    let waiter = world.waiting.get(key)?;
    let message = match why {
        reason::NO_READY_NODE => "No node agent is ready; `kubectl fairlead check` says more.",
        _ => "Every node is at its capacity; it starts when a slot is free.",
    };
    match world.executions.get(key) {
        Some(execution) => Some(queued(execution, why, message)),
        None => {
            let (view, call) = of_run(world, waiter)?;
            create(world, waiter, key, spec_of(&view, call))
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

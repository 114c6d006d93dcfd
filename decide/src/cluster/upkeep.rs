//! Tools, providers and nodes.

use super::execution::orphaned;
use super::types::{Action, Because, Decision, ObjectKey};
use super::world::{ProviderCheck, World, has_ended};
use super::writes::Subject;
use crate::time::plus_seconds;
use fairlead_crds::conditions::{self, kind, reason};
use fairlead_crds::values::Time;
use fairlead_crds::{ModelProviderStatus, ToolStatus};
use std::sync::Arc;

/// Seconds after which a provider that cannot be called is looked at again.
const LOOK_AGAIN_SECONDS: i64 = 15;
/// Nodes from which on a common silence is taken for our own fault first.
const MANY_NODES: usize = 3;

/// Decides about a tool: whether its condition says what is known.
pub fn tool(world: &World, key: &ObjectKey, now: Time) -> Decision {
    let Some(state) = world.tools.get(key) else {
        return Decision::default();
    };
    if let Some((because, at)) = world.writes.blocked(&Subject::Tool(key.clone()), now) {
        return Decision {
            because: vec![because],
            wake: at,
            actions: Vec::new(),
        };
    }
    let generation = state.object.metadata.generation;
    let (accepted, reason, message) = match &state.accepted {
        Ok(_) => (
            true,
            reason::VALID,
            "Its schema and templates are valid.".to_owned(),
        ),
        Err(faults) => {
            let texts: Vec<_> = faults.iter().map(|f| f.message.as_str()).collect();
            (
                false,
                faults
                    .first()
                    .map_or(reason::INVALID_SCHEMA, |f| f.reason.as_str()),
                texts.join("; also: "),
            )
        }
    };
    let stored = state.object.status.clone().unwrap_or_default();
    let mut status = ToolStatus {
        observed_generation: generation,
        conditions: stored.conditions.clone(),
    };
    conditions::set(
        &mut status.conditions,
        kind::ACCEPTED,
        accepted,
        reason,
        &message,
        generation,
        now,
    );
    if status == stored {
        return Decision::because(Because::Settled);
    }
    Decision::act(Action::WriteTool {
        tool: Arc::clone(&state.object),
        status: Box::new(status),
    })
}

/// Decides about a provider: to look at it, and whether its condition says what was found.
pub fn provider(world: &World, key: &ObjectKey, now: Time) -> Decision {
    let Some(state) = world.providers.get(key) else {
        return Decision::default();
    };
    if let Some((because, at)) = world.writes.blocked(&Subject::Provider(key.clone()), now) {
        return Decision {
            because: vec![because],
            wake: at,
            actions: Vec::new(),
        };
    }
    let generation = state.object.metadata.generation.unwrap_or(0);
    let look = || {
        Decision::act(Action::CheckProvider {
            provider: Arc::clone(&state.object),
        })
    };
    let Some(ProviderCheck {
        generation: looked_at,
        at,
        fault,
    }) = &state.checked
    else {
        return look();
    };
    let again = plus_seconds(*at, LOOK_AGAIN_SECONDS);
    if *looked_at != generation || (fault.is_some() && again <= now) {
        return look();
    }
    let (reason, message) = match fault {
        None => (reason::READY.to_owned(), "It can be called.".to_owned()),
        Some((reason, message)) => (reason.clone(), message.clone()),
    };
    let stored = state.object.status.clone().unwrap_or_default();
    let mut status = ModelProviderStatus {
        observed_generation: Some(generation),
        conditions: stored.conditions.clone(),
    };
    conditions::set(
        &mut status.conditions,
        kind::READY,
        fault.is_none(),
        &reason,
        &message,
        Some(generation),
        now,
    );
    let mut decision = if status == stored {
        Decision::because(Because::Settled)
    } else {
        Decision::act(Action::WriteProvider {
            provider: Arc::clone(&state.object),
            status: Box::new(status),
        })
    };
    if fault.is_some() {
        decision.wake_by(again);
    }
    decision
}

/// Decides about a node: whether what it had is orphaned.
///
/// When most of at least three nodes are silent at once the silence is more likely ours, so their executions get the
/// bound once more before they are given up.
pub fn node(world: &World, name: &str, now: Time) -> Decision {
    let Some(node) = world.nodes.get(name) else {
        return Decision::default();
    };
    if world.load.on_node(name) == 0 {
        return Decision::because(Because::Settled);
    }
    let bound = world.settings.orphan_after_seconds;
    let silent = world
        .nodes
        .values()
        .filter(|n| plus_seconds(n.moved_at, bound) <= now)
        .count();
    let common = world.nodes.len() >= MANY_NODES && silent * 2 > world.nodes.len();
    let gives_up = plus_seconds(
        node.moved_at,
        if common { bound.saturating_mul(2) } else { bound },
    );
    if gives_up > now {
        return Decision::wait(
            Because::OnNode {
                node: name.to_owned(),
            },
            gives_up,
        );
    }
    let free = |key: &&ObjectKey| {
        world
            .writes
            .blocked(&Subject::Execution((*key).clone()), now)
            .is_none()
    };
    let actions = world
        .load
        .executions_on(name)
        .filter(free)
        .filter_map(|key| world.executions.get(key))
        .filter(|x| !has_ended(x) && x.spec.binding.is_some())
        .map(|x| orphaned(x, now))
        .collect();
    Decision {
        actions,
        wake: Some(plus_seconds(now, 1)),
        because: vec![Because::OnNode {
            node: name.to_owned(),
        }],
    }
}

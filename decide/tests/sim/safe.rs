//! The law "safe", of one decision: never over a node's capacity, never what has ended or is bound already, never
//! what is not ours, never two requests for one turn.

use super::api::{name, run_ended, turn_phase};
use fairlead_crds::TurnPhase;
use fairlead_decide::cluster::{
    Action, Decision, ObjectKey, RequestState, Subject, World, has_ended, key_of,
};
use std::collections::{BTreeMap, BTreeSet};

pub fn check(world: &World, decision: &Decision) -> Result<(), String> {
    let mut placed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut subjects = BTreeSet::new();
    let mut asked = BTreeSet::new();
    for action in &decision.actions {
        if let Some(subject) = Subject::of(action)
            && !subjects.insert(subject.clone())
        {
            return Err(format!("one decision writes twice about {subject:?}"));
        }
        if let Action::CreateExecution { spec, .. } = action
            && let Some(binding) = &spec.binding
        {
            *placed.entry(&binding.node_name).or_default() += 1;
        }
        if let Action::Bind { binding, .. } = action {
            *placed.entry(&binding.node_name).or_default() += 1;
        }
        if let Action::Ask { turn, .. } = action
            && !asked.insert(turn)
        {
            return Err(format!("turn {turn} is asked twice at once"));
        }
        one(world, action)?;
    }
    for (node, count) in placed {
        let lease = world.nodes.get(node).and_then(|n| n.lease.as_ref());
        let capacity = lease.map_or(0, |l| l.capacity);
        let bound = world
            .executions
            .values()
            .filter(|x| !has_ended(x) && x.spec.binding.as_ref().is_some_and(|b| b.node_name == node));
        let load = bound.count().max(world.load.on_node(node));
        if load + count > capacity {
            return Err(format!(
                "{count} more on node {node}, which has {load} of {capacity}"
            ));
        }
    }
    Ok(())
}

fn one(world: &World, action: &Action) -> Result<(), String> {
    match action {
        Action::Bind { execution, .. } => {
            let what = key_of(&execution.metadata);
            if execution.spec.binding.is_some() {
                return Err(format!("{what} is bound and would be bound again"));
            }
            if has_ended(execution) || execution.spec.desired_state.is_some() {
                return Err(format!("{what} has ended or is to stop, and would be bound"));
            }
            Ok(())
        }
        Action::Cancel { execution } | Action::WriteExecution { execution, .. } if has_ended(execution) => {
            Err(format!(
                "{} has ended and would be written",
                key_of(&execution.metadata)
            ))
        }
        Action::WriteRun { run, status } if run_ended(run) => {
            let same = run.status.as_ref().and_then(|s| s.phase) == status.phase;
            if same {
                Ok(())
            } else {
                Err(format!("run {} has ended and would change", name(&run.metadata)))
            }
        }
        Action::EndTurn { turn, .. } if turn_phase(turn).is_terminal() => Err(format!(
            "turn {} has ended and would be ended again",
            name(&turn.metadata)
        )),
        Action::CreateExecution { run, name, spec } => create(world, run, name, spec),
        Action::Ask { run, turn, .. } => {
            let request = world.runs.get(run).and_then(|s| s.request.as_ref());
            match request {
                Some(request)
                    if request.turn == *turn && matches!(request.state, RequestState::Idle { .. }) =>
                {
                    Ok(())
                }
                Some(_) => Err(format!("turn {turn} is asked twice at once, or beside another")),
                None => Err(format!(
                    "turn {turn} was not made by this process and would be asked"
                )),
            }
        }
        _ => Ok(()),
    }
}

fn create(
    world: &World,
    run: &fairlead_crds::AgentRun,
    name: &str,
    spec: &fairlead_crds::ToolExecutionSpec,
) -> Result<(), String> {
    let uid = run.metadata.uid.clone().unwrap_or_default();
    let key = ObjectKey::new(run.metadata.namespace.clone().unwrap_or_default(), name);
    if world.executions.contains_key(&key) {
        return Err(format!("{key} is there and would be created"));
    }
    if spec.run_ref.as_ref().is_none_or(|r| r.uid != uid) {
        return Err(format!("{key} would be created for another run"));
    }
    let Some((state, stored)) = world.run(&uid) else {
        return Err(format!("{key} would be created for no run"));
    };
    if run_ended(stored)
        || stored.spec.desired_state.is_some()
        || stored.metadata.deletion_timestamp.is_some()
    {
        return Err(format!("{key} would be created although its run ends"));
    }
    let call = state
        .turns
        .values()
        .filter(|t| turn_phase(t) == TurnPhase::Completed && Some(t.spec.index) == spec.turn)
        .filter_map(|t| t.status.as_ref())
        .flat_map(|s| &s.tool_calls)
        .find(|c| Some(&c.call_id) == spec.call_id.as_ref());
    match call {
        Some(call) if call.execution_name.as_deref() == Some(name) => Ok(()),
        _ => Err(format!(
            "{key} would be created, but no completed turn has that call"
        )),
    }
}

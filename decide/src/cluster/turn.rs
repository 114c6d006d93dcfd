//! The model request of a run: making a turn, sending, closing.

use super::answer::{abandoned, completed, failed};
use super::builtin;
use super::failure::failure;
use super::request::{digest_of, messages, observe, of_turn, request_digest, tools_of};
use super::stage::View;
use super::types::{Action, Because, Decision, ObjectKey};
use super::world::{RequestState, RunState, World, phase_of, turn_at};
use super::writes::Subject;
use crate::time::plus_seconds;
use fairlead_crds::conditions::reason;
use fairlead_crds::names::turn_name;
use fairlead_crds::values::{OwnedRef, Time};
use fairlead_crds::{
    AgentRun, AgentTurn, AgentTurnSpec, AgentTurnStatus, Builtin, Failure, FailureClass, FrozenTool,
    FrozenToolKind, TurnPhase,
};
use std::sync::Arc;

/// Attempts at a turn after which it is not begun anew because its request changed.
const ATTEMPTS_MAX: i64 = 8;

/// Something that a run names and that is not there or not usable.
#[derive(Debug)]
pub struct Missing {
    /// One word for machines.
    pub reason: &'static str,
    /// One sentence, with the fix.
    pub message: String,
}

/// The decision about something missing: to wait for it, until `at`. When it comes, whoever names it is looked at.
pub fn wait_for(missing: Missing, at: Time) -> Decision {
    let because = Because::Missing {
        reason: missing.reason.to_owned(),
        message: missing.message,
    };
    Decision::wait(because, at)
}

/// When a run gives up waiting for what it names.
pub fn grace_ends(world: &World, run: &AgentRun, since: Time) -> Time {
    let created = run.metadata.creation_timestamp.as_ref().map_or(since, |t| t.0);
    plus_seconds(created.max(since), world.settings.dependency_grace_seconds)
}

/// Makes turn `index`, its attempt one above the last.
pub fn make(
    world: &World,
    state: &RunState,
    run: &Arc<AgentRun>,
    index: i64,
    now: Time,
) -> Result<Action, Missing> {
    let namespace = run.metadata.namespace.clone().unwrap_or_default();
    let model = model_of(world, run, &namespace)?;
    let tools = freeze(world, run, &namespace)?;
    let observations = index
        .checked_sub(1)
        .and_then(|past| turn_at(state, past))
        .map(|turn| {
            observe(
                &View {
                    world,
                    state,
                    run,
                    turn,
                    tools: tools_of(state, turn),
                },
                now,
            )
        })
        .unwrap_or_default();
    let told = messages(world, state, run, index, &observations);
    let attempt = turn_at(state, index).map_or(1, |t| t.spec.attempt.saturating_add(1));
    let same_tools = state.turns.values().rev().find(|t| t.spec.tools_from.is_none());
    let tools_from = same_tools
        .filter(|t| t.spec.tools == tools && !tools.is_empty())
        .and_then(|t| t.metadata.name.clone());
    let uid = run.metadata.uid.clone().unwrap_or_default();
    let run_name = run.metadata.name.clone().unwrap_or_default();
    let spec = AgentTurnSpec {
        request_digest: request_digest(&told, &tools),
        index,
        attempt,
        provider_ref: run.spec.model.provider_ref.clone(),
        model,
        parameters: run.spec.model.parameters.clone(),
        max_output_tokens: run.spec.model.max_output_tokens,
        tools: if tools_from.is_some() { Vec::new() } else { tools },
        tools_from,
        input: (index == 1).then(|| run.spec.input.clone()),
        system_prompt: run.spec.system_prompt.clone().filter(|_| index == 1),
        observations,
        run_ref: OwnedRef {
            name: run_name.clone(),
            uid: uid.clone(),
        },
    };
    Ok(Action::CreateTurn {
        run: Arc::clone(run),
        name: turn_name(&run_name, &uid, index, attempt),
        spec: Box::new(spec),
    })
}

/// Name of the model that is asked, once its provider can be.
fn model_of(world: &World, run: &AgentRun, namespace: &str) -> Result<String, Missing> {
    let provider_name = &run.spec.model.provider_ref.name;
    let provider = world
        .providers
        .get(&ObjectKey::new(namespace, provider_name.clone()));
    let provider = provider.ok_or_else(|| Missing {
        reason: reason::PROVIDER_NOT_FOUND,
        message: format!("spec.model.providerRef: there is no ModelProvider {provider_name:?} in namespace {namespace:?}; create it."),
    })?;
    usable(provider, provider_name)?;
    let model = run
        .spec
        .model
        .name
        .clone()
        .or_else(|| provider.object.spec.default_model.clone());
    let scripted = provider.object.spec.wire_api == fairlead_crds::WireApi::Scripted;
    model.or_else(|| scripted.then(|| "scripted".to_owned())).ok_or_else(|| Missing {
        reason: reason::PROVIDER_NOT_READY,
        message: format!("spec.model.name: not given, and ModelProvider {provider_name:?} has no defaultModel; set one of them."),
    })
}

fn usable(provider: &super::world::ProviderState, name: &str) -> Result<(), Missing> {
    let generation = provider.object.metadata.generation.unwrap_or(0);
    match provider
        .checked
        .as_ref()
        .filter(|c| c.generation == generation)
        .map(|c| &c.fault)
    {
        Some(None) => Ok(()),
        Some(Some((why, message))) => Err(Missing {
            reason: match why.as_str() {
                reason::SECRET_NOT_READABLE => reason::SECRET_NOT_READABLE,
                _ => reason::PROVIDER_NOT_READY,
            },
            message: format!("ModelProvider {name:?} cannot be called: {message}"),
        }),
        None => Err(Missing {
            reason: reason::PROVIDER_NOT_READY,
            message: format!("ModelProvider {name:?} has not been looked at yet."),
        }),
    }
}

/// The tools a run offers, as they are now.
fn freeze(world: &World, run: &AgentRun, namespace: &str) -> Result<Vec<FrozenTool>, Missing> {
    let mut frozen: Vec<FrozenTool> = Vec::new();
    for name in run
        .spec
        .tools
        .iter()
        .filter_map(|t| t.tool_ref.as_ref())
        .map(|r| &r.name)
    {
        if frozen.iter().any(|t| t.name == *name) {
            continue;
        }
        let state = world.tools.get(&ObjectKey::new(namespace, name.clone())).ok_or_else(|| Missing {
            reason: reason::TOOL_NOT_FOUND,
            message: format!("spec.tools: there is no Tool {name:?} in namespace {namespace:?}; create it or remove it from the list."),
        })?;
        if let Err(faults) = &state.accepted {
            let why = faults.first().map(|f| f.message.clone()).unwrap_or_default();
            let message = format!("spec.tools: Tool {name:?} is not accepted: {why}");
            return Err(Missing {
                reason: reason::TOOL_NOT_ACCEPTED,
                message,
            });
        }
        frozen.push(FrozenTool {
            name: name.clone(),
            kind: FrozenToolKind::Tool,
            object: Some(name.clone()),
            uid: state.object.metadata.uid.clone(),
            generation: state.object.metadata.generation,
            description: state.object.spec.description.clone(),
            schema: state.object.spec.input_schema.clone(),
            side_effect: state.object.spec.side_effect,
            parallel_safe: state.object.spec.parallel_safe,
        });
    }
    // A handle is of no use without the means to come back to it.
    if !frozen.is_empty()
        || run
            .spec
            .tools
            .iter()
            .any(|t| t.builtin == Some(Builtin::Executions))
    {
        frozen.extend(builtin::frozen());
    }
    Ok(frozen)
}

/// What to do about a turn that has no end yet; an error while the provider it names is missing, and may come again.
pub fn drive(
    world: &World,
    state: &RunState,
    run: &Arc<AgentRun>,
    turn: &Arc<AgentTurn>,
    now: Time,
) -> Result<Decision, Missing> {
    let name = turn.metadata.name.clone().unwrap_or_default();
    let Some(request) = state.request.as_ref().filter(|r| r.turn == name) else {
        let message = "No request of this operator belongs to the turn: another one led before, or the answer to the turn's \
                       creation was lost. The next attempt asks again.";
        return Ok(close(turn, abandoned(reason::REQUEST_LOST, message, now)));
    };
    Ok(match &request.state {
        RequestState::Sent => Decision::because(Because::Asking),
        RequestState::Idle {
            not_before: Some(at), ..
        } if *at > now => {
            let message = request.failed.as_ref().map(|f| f.message.clone());
            Decision::wait(
                Because::ProviderBackOff {
                    message: message.unwrap_or_default(),
                },
                *at,
            )
        }
        RequestState::Idle { .. } => return ask(world, state, run, turn, request.tries, now),
        RequestState::Answered { sent_at, result } => close(
            turn,
            match &**result {
                Ok(response) => completed(world, state, run, turn, response, *sent_at, now),
                Err(error) => {
                    let begun = turn
                        .metadata
                        .creation_timestamp
                        .as_ref()
                        .map_or(*sent_at, |t| t.0);
                    failed(error, request.tries.saturating_add(1), begun, *sent_at, now)
                }
            },
        ),
    })
}

fn ask(
    world: &World,
    state: &RunState,
    run: &Arc<AgentRun>,
    turn: &Arc<AgentTurn>,
    tries: u32,
    now: Time,
) -> Result<Decision, Missing> {
    let namespace = run.metadata.namespace.clone().unwrap_or_default();
    let key = ObjectKey::new(namespace.clone(), turn.spec.provider_ref.name.clone());
    let Some(provider) = world.providers.get(&key) else {
        let message = format!("ModelProvider {:?} is gone; create it again.", key.name);
        let since = turn.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
        let grace_ends = grace_ends(world, run, since);
        if grace_ends <= now {
            let failure = failure(FailureClass::Manual, reason::PROVIDER_NOT_FOUND, &message);
            return Ok(close(turn, without_answer(failure, now)));
        }
        return Err(Missing {
            reason: reason::PROVIDER_NOT_FOUND,
            message,
        });
    };
    let asked = of_turn(world, state, run, turn);
    if digest_of(&asked) != turn.spec.request_digest {
        // What it was derived from has changed: another attempt records what is asked now.
        return Ok(close(turn, not_the_recorded(turn, now)));
    }
    Ok(Decision::act(Action::Ask {
        run: run.metadata.uid.clone().unwrap_or_default(),
        turn: turn.metadata.name.clone().unwrap_or_default(),
        namespace,
        provider: Arc::clone(&provider.object),
        tries,
        request: Box::new(asked),
    }))
}

/// How a turn ends whose request is not the one it recorded. What changes again and again is no basis for another one.
fn not_the_recorded(turn: &AgentTurn, now: Time) -> AgentTurnStatus {
    if turn.spec.attempt < ATTEMPTS_MAX {
        let message =
            "The request could not be derived again as it was recorded; the next attempt records it anew.";
        return abandoned(reason::REQUEST_CHANGED, message, now);
    }
    let message = format!(
        "The request of turn {} could not be derived again as it was recorded, in {} attempts: executions or turns of \
         the run are being changed or deleted. Leave them alone, and create the run again.",
        turn.spec.index, turn.spec.attempt
    );
    without_answer(
        failure(FailureClass::Terminal, reason::REQUEST_CHANGED, &message),
        now,
    )
}

/// Gives an unfinished turn up because its run ends.
pub fn give_up(world: &World, state: &RunState, run: &AgentRun, now: Time) -> Option<Decision> {
    let turn = state
        .turns
        .values()
        .rfind(|t| phase_of(t) == TurnPhase::Requesting)?;
    let uid = run.metadata.uid.clone().unwrap_or_default();
    if let Some((because, at)) = world.writes.blocked(&Subject::Turn(uid.clone()), now) {
        return Some(Decision {
            because: vec![because],
            wake: at,
            actions: Vec::new(),
        });
    }
    let provider = &turn.spec.provider_ref.name;
    let last = state.request.as_ref().and_then(|r| r.failed.as_ref());
    let message = match last {
        None => format!("The answer of ModelProvider {provider:?} was awaited."),
        Some(last) => {
            format!(
                "ModelProvider {provider:?} was waited for, which had said to the last try: {}",
                last.message
            )
        }
    };
    let mut decision = close(turn, abandoned(reason::RUN_ENDED, &message, now));
    if state.request.is_some() {
        let name = turn.metadata.name.clone().unwrap_or_default();
        decision
            .actions
            .insert(0, Action::StopAsking { run: uid, turn: name });
    }
    Some(decision)
}

/// How a turn ends whose request could not be sent.
fn without_answer(failure: Failure, now: Time) -> AgentTurnStatus {
    AgentTurnStatus {
        phase: Some(TurnPhase::Failed),
        completion_time: Some(now),
        failure: Some(failure),
        ..AgentTurnStatus::default()
    }
}

fn close(turn: &Arc<AgentTurn>, status: AgentTurnStatus) -> Decision {
    Decision::act(Action::EndTurn {
        turn: Arc::clone(turn),
        status: Box::new(status),
    })
}

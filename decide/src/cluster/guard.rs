//! The guard: the one way from a model's or user's wish to a binding.
//!
//! [`Authorized`] can be made by [`authorize`] alone, and a binding can be made from nothing else.

use super::types::{NodeLease, ObjectKey};
use super::world::{ToolState, World};
use crate::template::render;
use crate::tool_check::resolve_plan;
use fairlead_crds::canonical::digest;
use fairlead_crds::conditions::refusal;
use fairlead_crds::values::{OpenObject, Time, too_nested};
use fairlead_crds::{Binding, ExecutionPlan, FrozenTool, GuardCheck, GuardDecision, PLAN_VERSION};
use serde_json::json;

/// A call that passed every check, with the plan of what it runs.
#[derive(Clone, Debug)]
pub struct Authorized {
    decisions: Vec<GuardDecision>,
    call_digest: String,
    plan: ExecutionPlan,
}

/// A call that a check refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which check.
    pub check: GuardCheck,
    /// One word for machines.
    pub reason: &'static str,
    /// What the caller is told: the fault, and what may be done instead.
    pub message: String,
    /// Whether the object that is missing may still appear.
    pub may_pass: bool,
}

/// A call, as it asks to be let through.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Namespace of the caller and of the tool.
    pub namespace: &'a str,
    /// Name of the Tool.
    pub tool: &'a str,
    /// The tool as it was when the model was asked, for a run's call.
    pub frozen: Option<&'a FrozenTool>,
    /// The arguments.
    pub arguments: &'a OpenObject,
    /// The caller's own shortening of the hard timeout.
    pub timeout_seconds: Option<i64>,
}

fn absent(call: &Call<'_>) -> String {
    let (tool, namespace) = (call.tool, call.namespace);
    match call.frozen {
        Some(_) => {
            format!("There is no Tool {tool:?} in namespace {namespace:?} any more. Use one that is offered.")
        }
        None => format!(
            "spec.tool.toolRef.name: there is no Tool {tool:?} in namespace {namespace:?}; create it, or correct the name."
        ),
    }
}

/// Lets a call through, or says which check refuses it.
pub fn authorize(world: &World, call: Call<'_>) -> Result<Authorized, Refusal> {
    shallow_enough(&call)?;
    let (state, generation) = offered(world, &call)?;
    let accepted = state.accepted.as_ref().map_err(|faults| {
        let why = faults.first().map(|f| f.message.clone()).unwrap_or_default();
        let message = format!(
            "Tool {:?} cannot be used until its author mends it: {why}",
            call.tool
        );
        refuse(GuardCheck::Resolve, refusal::TOOL_NOT_ACCEPTED, message, true)
    })?;
    let invalid = |message: String| refuse(GuardCheck::Schema, refusal::INVALID_ARGUMENT, message, false);
    accepted
        .validate(call.arguments)
        .map_err(|fault| invalid(fault.message))?;
    let plan = resolve_plan(&state.object.spec, generation, call.timeout_seconds);
    // The node renders again with the same function; what it would refuse is refused here, where the caller learns it.
    render(&plan.command, call.arguments).map_err(|fault| invalid(fault.to_string()))?;
    let allowed = |check| GuardDecision {
        check,
        allowed: true,
        reason: None,
    };
    Ok(Authorized {
        decisions: vec![allowed(GuardCheck::Resolve), allowed(GuardCheck::Schema)],
        call_digest: digest(
            &json!({"tool": call.tool, "generation": generation, "arguments": call.arguments}),
        ),
        plan,
    })
}

fn refuse(check: GuardCheck, reason: &'static str, message: String, may_pass: bool) -> Refusal {
    Refusal {
        check,
        reason,
        message,
        may_pass,
    }
}

/// Before anything looks into the arguments.
fn shallow_enough(call: &Call<'_>) -> Result<(), Refusal> {
    if !too_nested(call.arguments) {
        return Ok(());
    }
    let place = match call.frozen {
        Some(_) => "the arguments",
        None => "spec.arguments",
    };
    let fix = "send less structure, or pass the inner part as text";
    let message = crate::tool_check::too_deep(place, fix);
    Err(refuse(
        GuardCheck::Schema,
        refusal::INVALID_ARGUMENT,
        message,
        false,
    ))
}

/// The tool as it was offered, with its generation.
fn offered<'a>(world: &'a World, call: &Call<'_>) -> Result<(&'a ToolState, i64), Refusal> {
    let key = ObjectKey::new(call.namespace, call.tool);
    let state = world.tools.get(&key).ok_or_else(|| {
        let message = absent(call);
        refuse(GuardCheck::Resolve, refusal::TOOL_NOT_FOUND, message, true)
    })?;
    let generation = state.object.metadata.generation.unwrap_or(0);
    if let Some(frozen) = call.frozen
        && (frozen.uid != state.object.metadata.uid || frozen.generation != Some(generation))
    {
        let message = format!(
            "Tool {:?} was changed after it was offered, so this call was not made. Its present form is offered now; \
             call it again if it still fits.",
            call.tool
        );
        // A frozen generation above ours says that our watch is behind: the verdict waits for it.
        let behind = frozen.uid == state.object.metadata.uid && frozen.generation > Some(generation);
        return Err(refuse(
            GuardCheck::Resolve,
            refusal::TOOL_CHANGED,
            message,
            behind,
        ));
    }
    Ok((state, generation))
}

impl Refusal {
    /// Whether the tool is only not seen yet as it was offered; nothing is decided until it is.
    pub fn is_premature(&self) -> bool {
        self.may_pass && self.reason == refusal::TOOL_CHANGED
    }
}

impl Authorized {
    /// The binding of this call, which waited since `queued_at`, to a node. Its fence is empty: the executor draws it.
    pub fn bind(self, node: &NodeLease, attempt: i64, term: i64, queued_at: Time, now: Time) -> Binding {
        Binding {
            node_name: node.name.clone(),
            incarnation: node.incarnation.clone(),
            attempt,
            fence: String::new(),
            term,
            plan_version: PLAN_VERSION,
            queued_at: Some(queued_at.min(now)),
            admitted_at: now,
            call_digest: self.call_digest,
            decisions: self.decisions,
            plan: self.plan,
        }
    }
}

//! The operator's half: runs, turns, executions, the queue, and the objects they name.
//!
//! Flow: an [`Event`] is absorbed into the [`World`] and names the [`Key`]s that are to be decided; [`decide`] gives a
//! [`Decision`] for one key; the executor absorbs [`Event::Started`] for each of its actions before it carries it out,
//! and [`Event::Ended`] after. So the world always counts what is on its way.

mod absorb;
mod answer;
mod asking;
mod batch;
mod bounds;
mod builtin;
mod dependents;
mod execution;
mod failure;
mod finish;
mod guard;
mod load;
mod memory;
mod outcome;
mod queue;
mod request;
mod run;
mod stage;
mod status;
mod turn;
mod types;
mod upkeep;
mod waiting;
mod world;
mod writes;

pub use answer::{CALLS_MAX, TURN_MAX_BYTES};
pub use bounds::{of_execution as bound_of_execution, of_run as bound_of_run};
pub use builtin::{CANCEL, GET, WAIT, WAIT_MAX_SECONDS, result_text};
pub use failure::MODEL_ERRORS;
pub use guard::{Authorized, Call, Refusal, authorize};
pub use load::Load;
pub use types::{
    Action, Because, Decision, Event, Key, NodeLease, ObjectKey, WriteFailure, WriteFailureKind,
};
pub use waiting::Waiting;
pub use world::{
    FailedTry, NodeState, ProviderCheck, ProviderState, Request, RequestState, RunState, Settings, ToolState,
    Waiter, World, has_ended, key_of,
};
pub use writes::{Subject, Writes};

use fairlead_crds::values::Time;

/// What to do about one key at `now`.
///
/// Total and deterministic: the same world, key and time give the same decision, and no input makes it fail.
pub fn decide(world: &World, key: &Key, now: Time) -> Decision {
    if world.term.is_none() {
        return Decision::because(Because::NotLeading);
    }
    match key {
        Key::Run(uid) => run::decide(world, uid, now),
        Key::Execution(key) => execution::decide(world, key, now),
        Key::Tool(key) => upkeep::tool(world, key, now),
        Key::Provider(key) => upkeep::provider(world, key, now),
        Key::Node(name) => upkeep::node(world, name, now),
        Key::Queue => queue::decide(world, now),
    }
}

//! The node half: what a node agent does next with the executions bound to its node.
//!
//! The same shape as the cluster half. [`World::absorb`] corrects a snapshot by one [`Event`] and names the [`Key`]s it
//! made dirty; [`decide`] says for one key which [`Action`]s to take, when to look again, and why nothing is done where
//! something is still wanted. Before an action is carried out its [`Event::Begun`] is absorbed, so that deciding again
//! does not ask for it twice; its result comes back as an event. Nothing here does IO or reads a clock.
//!
//! Life of an attempt: admitted → start asked for → running → (end seen) descendants drained with grace → killed →
//! seen empty → collected → reported → kept until its object is gone → discarded. Every step follows from recorded
//! facts, so that an agent that was killed anywhere goes on from [`Event::Resynced`].
//!
//! Two rules stand above all: an attempt is started at most once, and its end is reported at most once. An attempt is
//! started only while nothing of it was ever recorded, or when the record proves that nothing ran; a reported attempt
//! is never live again, whatever a late event says.

mod absorb;
mod attempt;
mod facts;
mod resync;
mod status;
mod types;
mod verdict;
mod world;

pub use attempt::decide;
pub use types::*;
pub use world::{Attempt, Doing, Presence, Process, Run, World};

//! The node agent: a thin machine around `fairlead_decide::node`.
//!
//! Sources (the watch of executions bound here, the supervisor's events, timers) become events; the core decides; the
//! executor carries out. The agent holds nothing that cannot be read back from the API, the spool and the supervisor,
//! so it may be killed at any instruction.

mod agent;
mod args;
mod collect;
mod executor;
mod guard;
mod host;
mod identity_probe;
mod ids;
mod lease;
mod link;
mod metrics;
mod remove;
mod report;
mod run;
mod sources;
mod spool;
mod start;
mod timers;

pub use args::{Args, Isolation, UidRange};
pub use run::{check_isolation, run};

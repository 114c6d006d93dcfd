//! The pure core of Fairlead: given what was observed and the time, what to do next.
//!
//! Nothing here does IO, reads a clock, an environment variable or randomness; the manifest proves it, since no
//! client and no runtime is among the dependencies. The two halves, [`cluster`] for the operator and [`node`] for a
//! node agent, have the same shape: an event corrects a world, a decision is made per key, and the executor carries
//! it out and never decides.

pub mod cluster;
pub mod model;
pub mod node;
pub mod output;
pub mod template;
pub mod time;
pub mod tool_check;

//! What the whole-system tests share: one real control plane per test program with the chart installed, clients that
//! speak as somebody, and waiting with a deadline. A namespace per test keeps the tests apart.

// The whole crate is tests; a failed helper is a failed test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod bad_manifests;
pub mod fleet;
pub mod model;
pub mod model_servers;
mod objects;
mod plane;

pub use objects::*;
pub use plane::*;

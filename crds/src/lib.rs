//! The vocabulary of Fairlead: its Kubernetes kinds, the phases and conditions they go through, and the names
//! and labels its parts agree on.
//!
//! This crate has no behaviour beyond pure helpers on the types, and links no client: the decision core depends
//! on it and must stay free of IO.

// A column's attributes may have the same values as those of another column.
#![allow(clippy::duplicated_attributes)]

// The derive of kube writes paths of its facade into the code it makes. This crate builds on kube-core alone, so it
// answers to the facade's name itself.
extern crate self as kube;
#[doc(hidden)]
pub use kube_core as core;
#[doc(hidden)]
pub use kube_derive::KubeSchema;

mod agent_run;
mod agent_turn;
mod binding;
pub mod canonical;
pub mod conditions;
mod crd;
mod model_provider;
pub mod names;
pub mod phase;
pub mod reading;
mod tool;
mod tool_execution;
pub mod values;

pub use agent_run::*;
pub use agent_turn::*;
pub use binding::*;
pub use crd::{CRD_REVISION, CRD_REVISION_ANNOTATION, all_crds};
pub use model_provider::*;
pub use phase::{Bound, ExecutionPhase, Outcome, RunPhase, TurnPhase};
pub use tool::*;
pub use tool_execution::*;

/// API group of every kind.
pub const GROUP: &str = "fairlead.dev";
/// The one served and stored version.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of every kind, as written in manifests and owner references.
pub const API_VERSION: &str = "fairlead.dev/v1alpha1";

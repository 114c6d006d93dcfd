//! What the supervisor and the node agent share: the records between them ([`wire`], [`client`],
//! [`command`]), the slot file that outlives both ([`slot`]) and cgroup v2 ([`cgroup`], [`probe`]).
//!
//! The supervisor is the parent of the agent and of every tool. It spawns on request, records exits, and
//! kills when told or when a deadline passes; it knows no policy and no Kubernetes.

pub mod cgroup;
mod cgroup_find;
pub mod channel;
pub mod client;
pub mod command;
pub mod probe;
pub mod slot;
mod slot_blocks;
mod slot_codec;
pub mod step;
pub mod sys;
pub mod wire;
mod wire_codec;

//! Repository tools, as a library so that whole-system tests start the same control plane and the
//! same processes as `cargo xtask up` does. Blocking, and nothing here ships.

pub mod bench;
pub mod cgroup;
pub mod ci;
pub mod cluster;
pub mod control_plane;
pub mod demo;
pub mod generate;
pub mod guest;
pub mod install;
pub mod kinds_page;
pub mod ledger;
pub mod ports;
pub mod process;
pub mod programs;
pub mod repo;
pub mod stack;
pub mod tidy;
pub mod tools;
pub mod up;
pub mod wait;
pub mod watchdog;

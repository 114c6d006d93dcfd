//! What every binary has beside its work: probes, the metrics endpoint, logs and shutdown.
//!
//! The probes follow the Kubernetes convention: `/livez` (and its older name `/healthz`) says that the process
//! answers, `/readyz` that each named condition of [`Readiness`] holds. `/metrics` is the Prometheus text format,
//! version 0.0.4.

mod readiness;
mod server;
mod shutdown;
mod telemetry;

pub use readiness::{Readiness, ReadyToken};
pub use server::{Server, bind, serve};
pub use shutdown::Shutdown;
pub use telemetry::init_telemetry;

//! The listener of probes and metrics.

use crate::{Readiness, Shutdown};
use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::ListenerExt;
use prometheus_client::registry::Registry;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Content type of the Prometheus text format.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A bound listener that does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

struct Shared {
    registry: Registry,
    readiness: Readiness,
}

/// Binds `addr`; port 0 lets the kernel choose, see [`Server::address`].
///
/// # Errors
/// When the address cannot be bound, naming it.
pub async fn bind(addr: SocketAddr) -> Result<Server> {
    let listener = TcpListener::bind(addr)
        .await
        .with_context(|| format!("bind the metrics address {addr}"))?;
    let address = listener
        .local_addr()
        .with_context(|| format!("read the address bound for {addr}"))?;
    Ok(Server { listener, address })
}

/// Binds `addr` and serves `/livez`, `/healthz`, `/readyz` and `/metrics` until the shutdown begins.
///
/// # Errors
/// As [`bind`] and [`Server::run`].
pub async fn serve(
    addr: SocketAddr,
    registry: Registry,
    readiness: Readiness,
    shutdown: Shutdown,
) -> Result<()> {
    bind(addr).await?.run(registry, readiness, shutdown).await
}

impl Server {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the shutdown begins and open answers are sent.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn run(self, registry: Registry, readiness: Readiness, shutdown: Shutdown) -> Result<()> {
        let app = router(Arc::new(Shared { registry, readiness }));
        // Without it a small answer waits for the peer's delayed acknowledgement.
        let listener = self.listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "set TCP_NODELAY");
            }
        });
        axum::serve(listener, app)
            .with_graceful_shutdown(async move { shutdown.wait().await })
            .await
            .with_context(|| format!("serve metrics on {}", self.address))
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(shared)
}

async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let status = if shared.readiness.is_ready() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, shared.readiness.report()).into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::prometheus_text::encode(&mut text, &shared.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("encode the metrics: {error}\n"),
        )
            .into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn probes_and_metrics_answer_and_shutdown_ends_the_server() {
        let mut registry = Registry::default();
        let counter = Counter::<u64>::default();
        registry.register("things", "Things counted", counter.clone());
        counter.inc();
        let (readiness, shutdown) = (Readiness::new(), Shutdown::new());
        let token = readiness.token("lease");
        let server = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = server.address();
        let running = tokio::spawn(server.run(registry, readiness, shutdown.clone()));
        assert!(ask(address, "/livez").await.starts_with("HTTP/1.1 200"));
        let not_ready = ask(address, "/readyz").await;
        assert!(
            not_ready.starts_with("HTTP/1.1 503") && not_ready.contains("[-]lease not yet"),
            "{not_ready}"
        );
        token.set_ready();
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        let metrics = ask(address, "/metrics").await;
        assert!(
            metrics.contains("text/plain; version=0.0.4") && metrics.contains("things_total 1"),
            "{metrics}"
        );
        shutdown.begin();
        running.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn an_address_in_use_is_named_in_the_error() {
        let first = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let error = bind(first.address()).await.unwrap_err();
        assert!(
            error.to_string().contains(&first.address().to_string()),
            "{error}"
        );
    }
}

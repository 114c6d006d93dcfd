//! The listener of probes and metrics.

use crate::{Readiness, Shutdown};
use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::registry::Registry;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

/// Content type of the Prometheus text format.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Longest wait for the head of a request.
const HEAD_BOUND: Duration = Duration::from_secs(5);
/// Longest life of a connection, which carries one request.
const LIFE_BOUND: Duration = Duration::from_secs(10);
/// Longest wait for open answers once the shutdown has begun.
const END_BOUND: Duration = Duration::from_secs(2);
/// Most connections at once. Another one takes the place of the oldest, so that whoever holds all of them open keeps
/// no probe out.
const CONNECTIONS_MAX: usize = 64;
/// Most bytes of a request head, and of an answer that is not sent yet.
const BUFFER_MAX: usize = 16 * 1024;
/// Pause after a connection could not be taken, as without a free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
/// As [`bind`].
pub async fn serve(
    addr: SocketAddr,
    registry: Registry,
    readiness: Readiness,
    shutdown: Shutdown,
) -> Result<()> {
    bind(addr).await?.run(registry, readiness, shutdown).await;
    Ok(())
}

impl Server {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the shutdown begins and open answers are sent, which has 2 s.
    ///
    /// A connection carries one request and ends after 10 s, or after 5 s without the request's head.
    pub async fn run(self, registry: Registry, readiness: Readiness, shutdown: Shutdown) {
        let service = TowerToHyperService::new(router(Arc::new(Shared { registry, readiness })));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(HEAD_BOUND)
            .max_buf_size(BUFFER_MAX)
            .keep_alive(false);
        let open = TaskTracker::new();
        let mut oldest_first: VecDeque<AbortHandle> = VecDeque::with_capacity(CONNECTIONS_MAX);
        loop {
            let accepted = tokio::select! {
                () = shutdown.wait() => break,
                accepted = self.listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, address = %self.address, "accept a connection for probes or metrics");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            oldest_first.retain(|connection| !connection.is_finished());
            if oldest_first.len() >= CONNECTIONS_MAX
                && let Some(oldest) = oldest_first.pop_front()
            {
                oldest.abort();
            }
            let connection = open.spawn(answer(http.clone(), stream, service.clone()));
            oldest_first.push_back(connection.abort_handle());
        }
        open.close();
        if tokio::time::timeout(END_BOUND, open.wait()).await.is_err() {
            oldest_first.iter().for_each(AbortHandle::abort);
        }
    }
}

async fn answer(http: http1::Builder, stream: TcpStream, service: TowerToHyperService<Router>) {
    // Without it a small answer waits for the peer's delayed acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "set TCP_NODELAY");
    }
    let connection = http.serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(LIFE_BOUND, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "answer a probe or scrape"),
        Err(_) => tracing::debug!("a connection for probes and metrics was open for too long"),
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
        running.await.unwrap();
    }

    /// Descriptors of this process that are sockets.
    fn sockets() -> usize {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap();
        let links = fds.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
        links
            .filter(|link| link.to_string_lossy().starts_with("socket:"))
            .count()
    }

    #[tokio::test]
    async fn five_hundred_half_requests_keep_no_probe_out_and_hold_few_descriptors() {
        let shutdown = Shutdown::new();
        let server = bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = server.address();
        let running = tokio::spawn(server.run(Registry::default(), Readiness::new(), shutdown.clone()));
        let before = sockets();
        let mut held = Vec::new();
        for _ in 0..500 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nX: ").await.unwrap();
            held.push(stream);
        }
        let probe = tokio::time::timeout(Duration::from_secs(1), ask(address, "/livez")).await;
        assert!(probe.unwrap().starts_with("HTTP/1.1 200"));
        let ours = sockets() - before - held.len();
        assert!(ours <= CONNECTIONS_MAX + 8, "{ours} descriptors");
        // The last one was not pushed out: it ends by its own bound.
        let mut last = held.pop().unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(2 * LIFE_BOUND, last.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "a half request is not held for ever");
        shutdown.begin();
        running.await.unwrap();
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

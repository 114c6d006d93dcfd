//! Leader election against a Lease that can be slow or away, on a paused clock.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_operator::lease::{Election, LEASE_DURATION, Leadership, RENEW_DEADLINE};
use http::{Method, Request, Response, StatusCode};
use k8s_openapi::api::coordination::v1::Lease;
use kube::client::Body;
use kube::{Api, Client};
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// A server that holds one Lease and refuses writes over another version than the stored one.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    lease: Option<Lease>,
    version: u64,
    away: bool,
    slow: Option<Duration>,
}

impl Server {
    /// A client through which the server can be taken away or slowed without others noticing.
    fn client(&self) -> (Client, Self) {
        let line = Self::default();
        let (server, own) = (self.clone(), line.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, own) = (server.clone(), own.clone());
            async move {
                let (away, slow) = {
                    let state = own.0.lock().unwrap();
                    (state.away, state.slow)
                };
                if let Some(pause) = slow {
                    sleep(pause).await;
                }
                if away {
                    return Err(tower::BoxError::from("the server cannot be reached"));
                }
                Ok(server.answer(request).await)
            }
        });
        (Client::new(service, "default"), line)
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let method = request.method().clone();
        let sent = request.into_body().collect_bytes().await.unwrap();
        let mut state = self.0.lock().unwrap();
        let version = |lease: &Lease| lease.metadata.resource_version.clone().unwrap_or_default();
        let status = |code: StatusCode, reason: &str| {
            let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
                "reason": reason, "message": reason});
            Response::builder()
                .status(code)
                .body(Body::from(body.to_string().into_bytes()))
                .unwrap()
        };
        let stored = state.lease.clone();
        match (method, stored) {
            (Method::GET, None) => status(StatusCode::NOT_FOUND, "NotFound"),
            (Method::GET, Some(lease)) => Response::new(Body::from(serde_json::to_vec(&lease).unwrap())),
            (Method::POST, Some(_)) => status(StatusCode::CONFLICT, "AlreadyExists"),
            (_, stored) => {
                let mut lease: Lease = serde_json::from_slice(&sent).unwrap();
                if stored.is_some_and(|old| version(&old) != version(&lease)) {
                    return status(StatusCode::CONFLICT, "Conflict");
                }
                state.version += 1;
                lease.metadata.resource_version = Some(state.version.to_string());
                state.lease = Some(lease.clone());
                Response::new(Body::from(serde_json::to_vec(&lease).unwrap()))
            }
        }
    }

    fn set(&self, away: bool, slow: Option<Duration>) {
        let mut state = self.0.lock().unwrap();
        (state.away, state.slow) = (away, slow);
    }

    fn holder(&self) -> String {
        let state = self.0.lock().unwrap();
        state
            .lease
            .as_ref()
            .and_then(|l| l.spec.as_ref()?.holder_identity.clone())
            .unwrap_or_default()
    }
}

struct Candidate {
    leadership: watch::Receiver<Leadership>,
    line: Server,
    stop: CancellationToken,
}

impl Candidate {
    fn stand(server: &Server, name: &str) -> Self {
        let (client, line) = server.client();
        let (tell, leadership) = watch::channel(Leadership::Follower);
        let stop = CancellationToken::new();
        let election = Election::new(Api::namespaced(client, "ns"), "lease", name.to_owned());
        tokio::spawn(election.run(tell, stop.clone()));
        Self {
            leadership,
            line,
            stop,
        }
    }

    fn term(&self) -> Option<i64> {
        self.leadership.borrow().term()
    }

    async fn leads(&mut self, limit: Duration) -> i64 {
        let term = timeout(limit, self.leadership.wait_for(|l| l.term().is_some())).await;
        term.expect("leads in time").unwrap().term().unwrap()
    }

    async fn follows(&mut self, limit: Duration) {
        let told = timeout(limit, self.leadership.wait_for(|l| *l == Leadership::Follower)).await;
        told.expect("follows in time").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_candidates_one_leads() {
    let server = Server::default();
    let mut first = Candidate::stand(&server, "first");
    let term = first.leads(Duration::from_secs(1)).await;
    let second = Candidate::stand(&server, "second");
    for _ in 0..120 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!((first.term(), second.term()), (Some(term), None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_hands_over_at_once() {
    let server = Server::default();
    let mut first = Candidate::stand(&server, "first");
    let term = first.leads(Duration::from_secs(1)).await;
    let mut second = Candidate::stand(&server, "second");
    sleep(Duration::from_secs(5)).await;
    first.stop.cancel();
    assert!(second.leads(Duration::from_secs(2)).await > term);
    assert_eq!(first.term(), None);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_follows_before_another_leads() {
    let server = Server::default();
    let mut first = Candidate::stand(&server, "first");
    let held = first.leads(Duration::from_secs(1)).await;
    let mut second = Candidate::stand(&server, "second");
    sleep(Duration::from_secs(5)).await;
    first.line.set(true, None);
    let cut_off = Instant::now();
    first.follows(RENEW_DEADLINE + Duration::from_secs(3)).await;
    let followed_after = cut_off.elapsed();
    assert_eq!(second.term(), None, "nobody leads yet");
    let term = second.leads(LEASE_DURATION).await;
    assert!(term > held, "a leader that comes back passes no fence");
    assert!(followed_after < cut_off.elapsed());
    first.line.set(false, None);
    sleep(Duration::from_secs(30)).await;
    assert_eq!((first.term(), second.term()), (None, Some(term)));
    assert_eq!(server.holder(), "second");
}

#[tokio::test(start_paused = true)]
async fn leadership_ends_by_itself_even_if_nobody_can_say_so() {
    let server = Server::default();
    let mut first = Candidate::stand(&server, "first");
    first.leads(Duration::from_secs(1)).await;
    // As after a pause of the whole process: no timer of the election has run, only time has passed.
    let held = *first.leadership.borrow();
    tokio::time::advance(RENEW_DEADLINE).await;
    assert_eq!(held.term(), None);
}

#[tokio::test(start_paused = true)]
async fn slow_answers_do_not_cost_the_lead_but_late_ones_do() {
    let server = Server::default();
    let mut first = Candidate::stand(&server, "first");
    let term = first.leads(Duration::from_secs(1)).await;
    first.line.set(false, Some(Duration::from_secs(2)));
    for _ in 0..60 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(first.term(), Some(term), "an answer after 2 s is in time");
    }
    first.line.set(false, Some(Duration::from_secs(4)));
    first.follows(RENEW_DEADLINE + Duration::from_secs(5)).await;
}

#[tokio::test(start_paused = true)]
async fn the_term_rises_at_every_acquisition_also_by_the_same_holder() {
    let server = Server::default();
    let mut last = 0;
    for _ in 0..3 {
        let mut candidate = Candidate::stand(&server, "same");
        let term = candidate.leads(Duration::from_secs(1)).await;
        assert!(term > last, "{term} after {last}");
        last = term;
        candidate.stop.cancel();
        candidate.follows(Duration::from_secs(1)).await;
        sleep(Duration::from_secs(2)).await;
    }
}

//! What a client of its own sees of executions, and when.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use fairlead_crds::{ExecutionPhase, ToolExecution};
use futures::StreamExt;
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use tokio::sync::Notify;

use crate::LIMIT;

/// When things were first seen of one execution.
#[derive(Clone, Debug)]
pub struct Times {
    pub uid: String,
    pub added: Instant,
    pub bound: Option<Instant>,
    pub running: Option<Instant>,
    pub ended: Option<(Instant, ExecutionPhase, String)>,
}

/// What is new of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    Added,
    Bound,
}

/// A watch on the executions of a namespace, from the moment it is made.
#[derive(Clone)]
pub struct Seen {
    times: Arc<Mutex<HashMap<String, Times>>>,
    waiters: Arc<Mutex<HashMap<String, Arc<Notify>>>>,
}

impl Seen {
    pub async fn start(api: Api<ToolExecution>) -> Self {
        Self::start_with(api, |_, _| {}).await
    }

    /// As [`Seen::start`], with `told` called for each execution as it first appears, and as it is bound.
    pub async fn start_with(api: Api<ToolExecution>, told: impl Fn(&str, News) + Send + 'static) -> Self {
        let seen = Self {
            times: Arc::default(),
            waiters: Arc::default(),
        };
        let list = api
            .list(&ListParams::default().limit(1))
            .await
            .expect("list executions");
        let version = list.metadata.resource_version.expect("a version");
        let inner = seen.clone();
        tokio::spawn(async move { inner.follow(api, version, told).await });
        seen
    }

    async fn follow(&self, api: Api<ToolExecution>, mut version: String, told: impl Fn(&str, News)) {
        // The server ends a watch after the time it was asked for; what follows is asked for then.
        loop {
            let parameters = WatchParams::default().timeout(290);
            let mut events = api
                .watch(&parameters, &version)
                .await
                .expect("watch executions")
                .boxed();
            while let Some(event) = events.next().await {
                match event.expect("an event") {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                        version = object.metadata.resource_version.clone().expect("a version");
                        self.note(&object, &told);
                    }
                    WatchEvent::Deleted(object) => {
                        version = object.metadata.resource_version.clone().expect("a version");
                    }
                    WatchEvent::Bookmark(mark) => version = mark.metadata.resource_version,
                    WatchEvent::Error(error) => panic!("watch executions: {error:?}"),
                }
            }
        }
    }

    fn note(&self, object: &ToolExecution, told: impl Fn(&str, News)) {
        let now = Instant::now();
        let name = object.metadata.name.clone().expect("a name");
        let mut all = self.times.lock().unwrap();
        let times = all.entry(name.clone()).or_insert_with(|| {
            told(&name, News::Added);
            Times {
                uid: object.metadata.uid.clone().expect("a UID"),
                added: now,
                bound: None,
                running: None,
                ended: None,
            }
        });
        if object.spec.binding.is_some() && times.bound.is_none() {
            times.bound = Some(now);
            told(&name, News::Bound);
            self.waiter(&name).notify_one();
        }
        let status = object.status.clone().unwrap_or_default();
        let Some(phase) = status.phase else { return };
        if phase == ExecutionPhase::Running {
            times.running.get_or_insert(now);
        } else if phase.is_terminal() {
            let why = format!("{:?} {:?}", status.reason, status.message);
            times.ended.get_or_insert((now, phase, why));
        } else {
            return;
        }
        drop(all);
        self.waiter(&name).notify_one();
    }

    fn waiter(&self, name: &str) -> Arc<Notify> {
        self.waiters
            .lock()
            .unwrap()
            .entry(name.to_owned())
            .or_default()
            .clone()
    }

    /// What was seen of execution `name`, once `fits` says so.
    pub async fn wait(&self, name: &str, fits: impl Fn(&Times) -> bool) -> Times {
        let waiter = self.waiter(name);
        let seen = async {
            loop {
                let times = self.times.lock().unwrap().get(name).cloned();
                if let Some(times) = times.filter(&fits) {
                    return times;
                }
                waiter.notified().await;
            }
        };
        match tokio::time::timeout(LIMIT, seen).await {
            Ok(times) => times,
            Err(_) => panic!(
                "{name}: not seen within {LIMIT:?}; last {:?}",
                self.times.lock().unwrap().get(name)
            ),
        }
    }

    /// When the end of execution `name` was seen, which must be a success.
    pub async fn success(&self, name: &str) -> Instant {
        let times = self.wait(name, |times| times.ended.is_some()).await;
        let (at, phase, why) = times.ended.expect("ended");
        assert_eq!(phase, ExecutionPhase::Succeeded, "{name}: {why}");
        at
    }

    /// All that was seen.
    pub fn all(&self) -> Vec<Times> {
        self.times.lock().unwrap().values().cloned().collect()
    }
}

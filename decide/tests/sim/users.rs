//! What the users of a story do.

use super::api::run_ended;
use super::rng::Ms;
use super::{Ev, Sim};
use fairlead_crds::{AgentRun, ModelProvider, Tool, ToolExecution};
use fairlead_decide::cluster::{NodeLease, ObjectKey, has_ended, key_of};
use serde_json::json;

#[derive(Debug)]
pub enum Deed {
    CreateRun(Box<AgentRun>),
    CreateOwn(Box<ToolExecution>),
    CreateProvider(Box<ModelProvider>),
    ApplyTool(Box<Tool>),
    CancelRun(ObjectKey),
    DeleteRun(ObjectKey),
    CancelSomeExecution,
    DeleteSomeOwn,
}

/// The Lease of `node-0`, renewed at `renewed`.
pub fn lease(capacity: usize, renewed: i64) -> NodeLease {
    NodeLease {
        name: "node-0".into(),
        incarnation: "i".into(),
        capacity,
        plan_version: 1,
        renewed: renewed.to_string(),
        looks_recent: true,
    }
}

pub fn tool(namespace: &str, name: &str, parallel: bool, hard_seconds: i64) -> Tool {
    let value = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Tool",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "description": "Works for a while.", "parallelSafe": parallel,
            "inputSchema": {"type": "object", "required": ["ms"], "additionalProperties": false, "properties": {
                "ms": {"type": "integer"}, "exit": {"type": "integer"}, "size": {"type": "integer"},
                "leaves": {"type": "integer"},
                "deaf": {"type": "boolean"}}},
            "runner": {"command": {"argv": ["work", "{{ms}}"]}},
            "timeouts": {"hardSeconds": hard_seconds, "graceSeconds": 2}}
    });
    serde_json::from_value(value).unwrap()
}

pub fn provider(namespace: &str) -> ModelProvider {
    let value = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ModelProvider",
        "metadata": {"name": "model", "namespace": namespace},
        "spec": {"wireApi": "ChatCompletions", "baseUrl": "http://model", "defaultModel": "m", "retry": {"transient": 2}}
    });
    serde_json::from_value(value).unwrap()
}

pub fn run(namespace: &str, name: &str, spec: serde_json::Value) -> AgentRun {
    let mut value = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "AgentRun",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"input": format!("do {name}"), "model": {"providerRef": {"name": "model"}},
                 "tools": [{"toolRef": {"name": "beside"}}, {"toolRef": {"name": "alone"}}, {"builtin": "Executions"}]}
    });
    if let (Some(into), Some(from)) = (value["spec"].as_object_mut(), spec.as_object()) {
        into.extend(from.clone());
    }
    serde_json::from_value(value).unwrap()
}

pub fn own(namespace: &str, name: &str, arguments: &serde_json::Value, ttl: Option<i64>) -> ToolExecution {
    let value = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ToolExecution",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"tool": {"toolRef": {"name": "beside"}}, "arguments": arguments, "ttlSecondsAfterFinished": ttl}
    });
    serde_json::from_value(value).unwrap()
}

const NAMESPACES: [&str; 2] = ["a", "b"];

impl Sim {
    fn plan(&mut self, at: Ms, deed: Deed) {
        self.users_left += 1;
        self.at(at, Ev::User(deed));
    }

    pub fn plan_users(&mut self) {
        let patient = self.config.patient;
        for namespace in NAMESPACES {
            let late = |sim: &mut Self| {
                if !patient && sim.rng.chance(150) {
                    sim.rng.range(0, 40_000)
                } else {
                    0
                }
            };
            let at = late(self);
            self.plan(at, Deed::CreateProvider(Box::new(provider(namespace))));
            for (name, parallel, hard) in [("beside", true, 20), ("alone", false, 40)] {
                let at = late(self);
                self.plan(
                    at,
                    Deed::ApplyTool(Box::new(tool(namespace, name, parallel, hard))),
                );
                if !patient && self.rng.chance(200) {
                    let at = self.rng.range(1_000, 60_000);
                    self.plan(
                        at,
                        Deed::ApplyTool(Box::new(tool(namespace, name, parallel, hard + 1))),
                    );
                }
            }
        }
        for n in 0..self.config.runs {
            self.plan_run(n);
        }
        for n in 0..self.config.own {
            let namespace = *self.rng.pick(&NAMESPACES).unwrap_or(&"a");
            let mut arguments = super::model::arguments(&mut self.rng);
            if self.rng.chance(100) {
                arguments = json!({"ms": "long"});
            }
            let ttl = self.rng.chance(300).then(|| self.rng.range(0, 10));
            let at = self.rng.range(0, 40_000);
            self.plan(
                at,
                Deed::CreateOwn(Box::new(own(namespace, &format!("own-{n}"), &arguments, ttl))),
            );
        }
        if !patient {
            self.plan_meddling();
        }
    }

    fn plan_run(&mut self, n: i64) {
        let namespace = *self.rng.pick(&NAMESPACES).unwrap_or(&"a");
        let name = format!("run-{n}");
        let patient = self.config.patient;
        let deadline = if patient { 900 } else { self.rng.range(20, 300) };
        let mut spec = json!({
            "toolWaitSeconds": self.rng.range(0, 20),
            "limits": {"deadlineSeconds": deadline, "maxTurns": 30},
        });
        if self.rng.chance(200) {
            spec["ttlSecondsAfterFinished"] = self.rng.range(0, 10).into();
        }
        let at = self.rng.range(0, 30_000);
        self.plan(at, Deed::CreateRun(Box::new(run(namespace, &name, spec))));
        let key = ObjectKey::new(namespace, name);
        if !patient && self.rng.chance(250) {
            let at = at + self.rng.range(0, 30_000);
            self.plan(at, Deed::CancelRun(key.clone()));
        }
        if !patient && self.rng.chance(60) {
            let at = at + self.rng.range(0, 60_000);
            self.plan(at, Deed::DeleteRun(key));
        }
    }

    fn plan_meddling(&mut self) {
        for _ in 0..self.rng.range(0, 4) {
            let at = self.rng.range(1_000, 60_000);
            self.plan(at, Deed::CancelSomeExecution);
        }
        if self.rng.chance(200) {
            let at = self.rng.range(1_000, 60_000);
            self.plan(at, Deed::DeleteSomeOwn);
        }
    }

    pub fn do_deed(&mut self, deed: Deed) {
        self.users_left -= 1;
        self.last_write = self.now;
        self.note(|| match &deed {
            Deed::CreateRun(run) => format!("user creates run {}", key_of(&run.metadata)),
            other => format!("user: {other:?}").chars().take(90).collect(),
        });
        let now = self.now;
        match deed {
            Deed::CreateRun(run) => self.api.create_run(*run, now),
            Deed::CreateOwn(execution) => self.api.create_own(*execution, now),
            Deed::CreateProvider(provider) => self.api.create_provider(*provider, now),
            Deed::ApplyTool(tool) => self.api.apply_tool(*tool, now),
            Deed::CancelRun(key) => self.api.cancel_run(&key, now),
            Deed::DeleteRun(key) => {
                if let Some(uid) = self.api.delete_run(&key) {
                    let delay = self.rng.range(1, 500);
                    self.later(delay, Ev::Collect { uid });
                }
            }
            Deed::CancelSomeExecution => {
                let live: Vec<_> = self
                    .api
                    .executions
                    .iter()
                    .filter(|(_, x)| !has_ended(x))
                    .map(|(k, _)| k.clone())
                    .collect();
                if let Some(key) = self.rng.pick(&live) {
                    self.api.cancel_execution(key);
                }
            }
            Deed::DeleteSomeOwn => {
                let own: Vec<_> = self
                    .api
                    .executions
                    .iter()
                    .filter(|(_, x)| x.spec.run_ref.is_none())
                    .map(|(k, _)| k.clone())
                    .collect();
                if let Some(key) = self.rng.pick(&own) {
                    self.api.delete_execution(key);
                }
            }
        }
    }

    pub fn all_have_ended(&self) -> bool {
        self.users_left == 0
            && self.api.runs.values().all(|r| run_ended(r))
            && self.api.executions.values().all(|x| has_ended(x))
    }
}

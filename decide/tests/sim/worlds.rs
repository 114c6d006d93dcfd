//! Worlds that no story would lead to: unknown phases, missing metadata, odd times, names that belong to others.

use super::api::time;
use super::rng::Rng;
use super::users;
use fairlead_crds::names::{execution_name, turn_name};
use fairlead_crds::values::{LocalRef, OpenObject, OwnedRef, Time};
use fairlead_crds::*;
use fairlead_decide::cluster::{Event, Key, NodeLease, ObjectKey, key_of};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time as MetaTime};
use serde_json::json;
use std::sync::Arc;

pub struct Odd {
    pub rng: Rng,
    version: u64,
    /// Whether things may be what no API server would store.
    pub hostile: bool,
}

const RUNS: i64 = 3;

impl Odd {
    pub fn new(seed: u64, hostile: bool) -> Self {
        Self {
            rng: Rng::new(seed),
            version: 0,
            hostile,
        }
    }

    fn some<T>(&mut self, thousandths: u32, value: T) -> Option<T> {
        self.rng.chance(thousandths).then_some(value)
    }

    fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        self.rng.pick(list).cloned().unwrap()
    }

    fn moment(&mut self) -> Time {
        if self.hostile && self.rng.chance(100) {
            return self.pick(&[Time::MIN, Time::MAX, Time::UNIX_EPOCH]);
        }
        let at = self.rng.range(-50_000, 50_000);
        time(at)
    }

    fn number(&mut self, to: i64) -> i64 {
        if self.hostile && self.rng.chance(60) {
            return self.pick(&[i64::MIN, -1, 0, 1001, i64::MAX]);
        }
        self.rng.range(1, to + 1)
    }

    fn metadata(&mut self, name: String, uid: String) -> ObjectMeta {
        self.version += 1;
        let holes = if self.hostile { 40 } else { 0 };
        let created = self.moment();
        ObjectMeta {
            name: self.some(1000 - holes, name),
            namespace: self.some(1000 - holes, "a".to_owned()),
            uid: self.some(1000 - holes, uid),
            resource_version: self.some(1000 - holes, self.version.to_string()),
            generation: self.some(1000 - holes, 1),
            creation_timestamp: self.some(1000 - holes, MetaTime(created)),
            deletion_timestamp: self.some(holes, MetaTime(created)),
            ..ObjectMeta::default()
        }
    }

    fn run_name(&mut self) -> (String, String) {
        let n = self.rng.range(0, RUNS);
        (format!("run-{n}"), format!("uid-{n}"))
    }

    /// One object as it is seen.
    pub fn event(&mut self) -> Event {
        match self.rng.range(0, 12) {
            0..=2 => Event::Run(Arc::new(self.run())),
            3..=5 => Event::Turn(Arc::new(self.turn())),
            6..=8 => Event::Execution(Arc::new(self.execution())),
            9 => Event::Tool(Arc::new(self.tool())),
            10 => self.provider(),
            _ => Event::Node(self.lease()),
        }
    }

    fn run(&mut self) -> AgentRun {
        let (name, uid) = self.run_name();
        let spec = json!({
            "toolWaitSeconds": self.number(600), "ttlSecondsAfterFinished": self.number(1000),
            "limits": {"deadlineSeconds": self.number(604_800), "maxTurns": self.number(1000), "maxToolCalls": self.number(100),
                       "maxTurnOutputBytes": self.number(1_000_000)}});
        let mut run = users::run("a", &name, spec);
        run.metadata = self.metadata(name, uid);
        run.spec.desired_state = self.some(150, DesiredState::Cancelled);
        if self.rng.chance(600) {
            let phases: Vec<_> = RunPhase::ALL.iter().copied().chain([RunPhase::Unknown]).collect();
            let phase = self.pick(&phases);
            let ended = self.moment();
            run.status = Some(AgentRunStatus {
                phase: Some(phase),
                turns: self.number(1000),
                completion_time: phase.is_terminal().then_some(ended),
                transitions: vec![Transition {
                    n: self.number(20),
                    phase,
                    reason: "X".into(),
                    at: ended,
                }],
                ..AgentRunStatus::default()
            });
        }
        run
    }

    fn turn(&mut self) -> AgentTurn {
        let (run, uid) = self.run_name();
        let (index, attempt) = (self.number(3), self.number(2));
        let name = turn_name(&run, &uid, index, attempt);
        let spec = AgentTurnSpec {
            run_ref: OwnedRef {
                name: run.clone(),
                uid: uid.clone(),
            },
            index,
            attempt,
            provider_ref: LocalRef::new("model"),
            model: "m".into(),
            parameters: OpenObject::new(),
            max_output_tokens: 1,
            tools: vec![self.frozen("beside"), self.frozen("alone")],
            tools_from: self.some(100, "nowhere".to_owned()),
            input: None,
            system_prompt: None,
            observations: Vec::new(),
            request_digest: String::new(),
        };
        let mut turn = AgentTurn::new(&name, spec);
        turn.metadata = self.metadata(name.clone(), name);
        if self.rng.chance(700) {
            let phases: Vec<_> = TurnPhase::ALL
                .iter()
                .copied()
                .chain([TurnPhase::Unknown])
                .collect();
            let phase = if self.rng.chance(600) {
                TurnPhase::Completed
            } else {
                self.pick(&phases)
            };
            let ended = self.moment();
            let calls = self.rng.range(0, 4);
            turn.status = Some(AgentTurnStatus {
                phase: Some(phase),
                completion_time: self.some(950, ended),
                tool_calls: (0..calls).map(|n| self.call(&run, &uid, index, n)).collect(),
                usage: Some(TurnUsage {
                    input_tokens: self.number(9),
                    output_tokens: self.number(9),
                    cached_tokens: 0,
                }),
                ..AgentTurnStatus::default()
            });
        }
        turn
    }

    fn frozen(&mut self, name: &str) -> FrozenTool {
        FrozenTool {
            name: name.into(),
            kind: FrozenToolKind::Tool,
            object: self.some(950, name.to_owned()),
            uid: Some(format!("uid-{name}")),
            generation: Some(1),
            description: String::new(),
            schema: OpenObject::new(),
            side_effect: SideEffect::Read,
            parallel_safe: name == "beside",
        }
    }

    fn call(&mut self, run: &str, uid: &str, index: i64, n: i64) -> ToolCall {
        let call_id = format!("c{n}");
        let name = execution_name(run, uid, index, &call_id);
        let built_in = self.rng.chance(150);
        let tool = if built_in {
            "cancel_tool_execution"
        } else {
            self.pick(&["beside", "alone", "nothing"])
        };
        ToolCall {
            original_call_id: None,
            tool: tool.into(),
            arguments: if built_in {
                object(json!({"execution_id": name}))
            } else {
                object(json!({"ms": 1}))
            },
            execution_name: self.some(if self.hostile { 900 } else { 1000 }, name),
            stage: self.number(3).clamp(0, 3),
            error: self.some(
                100,
                CallError {
                    reason: "X".into(),
                    text: "no".into(),
                },
            ),
            call_id,
        }
    }

    /// A run's execution, or a user's own, whose name may be that of a run's.
    fn execution(&mut self) -> ToolExecution {
        let (run, uid) = self.run_name();
        let (index, call_id) = (self.rng.range(1, 4), format!("c{}", self.rng.range(0, 4)));
        let of_run = self.rng.chance(700);
        let name = if of_run || self.rng.chance(300) {
            execution_name(&run, &uid, index, &call_id)
        } else {
            format!("own-{}", self.rng.range(0, 3))
        };
        let mut execution = users::own("a", &name, &json!({"ms": 1}), None);
        execution.metadata = self.metadata(name.clone(), format!("{name}/{of_run}"));
        if of_run {
            execution.spec.run_ref = Some(OwnedRef { name: run, uid });
            execution.spec.turn = Some(index);
            execution.spec.call_id = Some(call_id);
        } else {
            execution.spec.ttl_seconds_after_finished = self.some(500, 5);
        }
        execution.spec.desired_state = self.some(150, DesiredState::Cancelled);
        if self.rng.chance(500) {
            execution.spec.binding = Some(self.binding());
        }
        if self.rng.chance(600) {
            let phases: Vec<_> = ExecutionPhase::ALL
                .iter()
                .copied()
                .chain([ExecutionPhase::Unknown])
                .collect();
            let phase = self.pick(&phases);
            let ended = self.moment();
            let odd = self.hostile && self.rng.chance(100);
            execution.status = Some(ToolExecutionStatus {
                phase: Some(phase),
                completion_time: (phase.is_terminal() != odd).then_some(ended),
                cleanup: self.some(300, Cleanup::Unknown),
                ..ToolExecutionStatus::default()
            });
        }
        execution
    }

    fn binding(&mut self) -> Binding {
        let value = json!({
            "nodeName": format!("node-{}", self.rng.range(0, 5)), "incarnation": "i", "attempt": 1,
            "fence": "0".repeat(32), "term": 1, "planVersion": 1, "admittedAt": "2027-01-15T00:00:00Z",
            "callDigest": "0".repeat(64), "decisions": [],
            "plan": {"toolGeneration": 1, "command": {"argv": ["x"]}, "timeouts": {}, "network": "None", "outputMaxBytes": 1024,
                     "resources": {"memoryMaxBytes": 1, "cpuMillicores": 1, "maxProcesses": 1, "oomGroup": true}}});
        serde_json::from_value(value).unwrap()
    }

    fn tool(&mut self) -> Tool {
        let name = self.pick(&["beside", "alone"]);
        let mut tool = users::tool("a", name, name == "beside", 5);
        tool.metadata = self.metadata(name.into(), format!("uid-{name}"));
        if self.rng.chance(100) {
            tool.spec.runner.command.argv = vec!["{{no-such}}".into()];
            tool.metadata.generation = Some(2);
        }
        tool
    }

    fn provider(&mut self) -> Event {
        if self.rng.chance(500) {
            let fault = self.some(200, ("SecretNotReadable".to_owned(), "no".to_owned()));
            return Event::ProviderChecked {
                key: ObjectKey::new("a", "model"),
                generation: 1,
                fault,
            };
        }
        let mut provider = users::provider("a");
        provider.metadata = self.metadata("model".into(), "uid-model".into());
        Event::Provider(Arc::new(provider))
    }

    fn lease(&mut self) -> NodeLease {
        NodeLease {
            name: format!("node-{}", self.rng.range(0, 3)),
            incarnation: "i".into(),
            capacity: usize::try_from(self.rng.range(0, 4)).unwrap_or(0),
            plan_version: self.rng.range(0, 3),
            renewed: self.rng.range(0, 3).to_string(),
            looks_recent: self.rng.chance(700),
        }
    }
}

fn object(value: serde_json::Value) -> OpenObject {
    value.as_object().cloned().unwrap_or_default()
}

/// All keys that may be decided in a world.
pub fn keys(world: &fairlead_decide::cluster::World) -> Vec<Key> {
    let mut keys = vec![Key::Queue];
    keys.extend(world.runs.keys().cloned().map(Key::Run));
    keys.extend(
        world
            .executions
            .values()
            .map(|x| Key::Execution(key_of(&x.metadata))),
    );
    keys.extend(world.tools.keys().cloned().map(Key::Tool));
    keys.extend(world.providers.keys().cloned().map(Key::Provider));
    keys.extend(world.nodes.keys().cloned().map(Key::Node));
    keys
}

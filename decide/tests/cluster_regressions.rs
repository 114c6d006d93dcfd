//! What the simulation and the laws once broke, each as the shortest story that shows it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod sim;

use fairlead_crds::names::execution_name;
use fairlead_crds::{
    AgentTurn, AgentTurnStatus, ExecutionPhase, RunPhase, ToolExecution, ToolExecutionStatus, TurnPhase,
};
use fairlead_decide::cluster::{Action, Decision, Event, Key, ObjectKey, WriteFailure, WriteFailureKind};
use fairlead_decide::model::{ModelResponse, RawCall};
use serde_json::json;
use sim::api::{Api, time};
use sim::core::Core;
use sim::rng::Rng;
use sim::{laws, users};
use std::sync::Arc;

/// An operator, an API server and one node with one place; a model that is answered by hand.
struct Stage {
    api: Api,
    core: Core,
    now: i64,
    rng: Rng,
}

const RUN: &str = "run-0";

impl Stage {
    fn new() -> Self {
        let mut api = Api::new(60_000, false);
        api.leader.transitions = 1;
        api.create_provider(users::provider("a"), 0);
        api.apply_tool(users::tool("a", "beside", true, 5), 0);
        api.apply_tool(users::tool("a", "alone", false, 5), 0);
        api.renew_node(users::lease(1, 0), 0);
        api.create_run(users::run("a", RUN, json!({})), 0);
        let core = laws::observed(&api, 1_000, None);
        Self {
            api,
            core,
            now: 1_000,
            rng: Rng::new(1),
        }
    }

    fn uid(&self) -> String {
        self.api
            .runs
            .values()
            .next()
            .unwrap()
            .metadata
            .uid
            .clone()
            .unwrap()
    }

    fn run_key(&self) -> Key {
        Key::Run(self.uid())
    }

    fn absorb(&mut self, event: Event) {
        self.core.absorb(event, time(self.now));
    }

    fn decide(&self, key: &Key) -> Decision {
        self.core.decide(key, time(self.now))
    }

    fn start(&mut self, action: &Action) {
        self.absorb(Event::Started(Box::new(action.clone())));
    }

    fn carry_out(&mut self, action: &Action) {
        self.start(action);
        let (told, result) = self.api.write(action, self.now, &mut self.rng);
        told.into_iter().for_each(|event| self.absorb(event));
        self.absorb(Event::Ended {
            action: Box::new(action.clone()),
            result,
        });
    }

    fn fail(&mut self, action: &Action, kind: WriteFailureKind) {
        self.start(action);
        let result = Err(WriteFailure {
            kind,
            message: "no".into(),
        });
        self.absorb(Event::Ended {
            action: Box::new(action.clone()),
            result,
        });
    }

    /// Carries out all that is decided about a key.
    fn act(&mut self, key: &Key) -> Vec<Action> {
        let actions = self.decide(key).actions;
        actions.iter().for_each(|action| self.carry_out(action));
        actions
    }

    /// The first turn is made and answered with one call of each tool that is named.
    fn answered(mut self, tools: &[&str]) -> Self {
        self.act(&Key::Provider(ObjectKey::new("a", "model")));
        self.act(&Key::Provider(ObjectKey::new("a", "model")));
        self.act(&self.run_key());
        let asked = self.act(&self.run_key());
        let Some(Action::Ask { run, turn, .. }) = asked.first() else {
            panic!("{asked:?}")
        };
        let (run, turn) = (run.clone(), turn.clone());
        let calls = tools.iter().enumerate();
        let calls = calls.map(|(n, tool)| RawCall {
            id: format!("c{n}"),
            name: (*tool).to_owned(),
            arguments: "{\"ms\": 1}".into(),
        });
        let response = ModelResponse {
            calls: calls.collect(),
            ..ModelResponse::default()
        };
        self.absorb(Event::Answered {
            run,
            turn,
            term: 1,
            sent_at: time(self.now),
            result: Box::new(Ok(response)),
        });
        self.act(&self.run_key());
        self
    }

    fn name_of(&self, call: &str) -> String {
        execution_name(RUN, &self.uid(), 1, call)
    }

    fn execution(&self, call: &str) -> ToolExecution {
        ToolExecution::clone(&self.api.executions[&ObjectKey::new("a", self.name_of(call))])
    }

    /// Name of the execution that waits for a place.
    fn waiting(&self) -> String {
        let mut unbound = self.api.executions.values().filter(|x| x.spec.binding.is_none());
        unbound.next().unwrap().metadata.name.clone().unwrap()
    }

    fn cancel(&mut self) {
        self.api.cancel_run(&ObjectKey::new("a", RUN), self.now);
        self.see_run();
    }

    fn see_run(&mut self) {
        let run = self.api.runs.values().next().cloned().unwrap();
        self.absorb(Event::Run(run));
    }
}

fn creates(actions: &[Action]) -> usize {
    actions
        .iter()
        .filter(|a| matches!(a, Action::CreateExecution { .. }))
        .count()
}

/// The garbage collector may take a call's record before the news of the run's deletion arrive.
#[test]
fn a_call_whose_record_was_deleted_is_not_made_again() {
    let mut stage = Stage::new().answered(&["beside"]);
    stage.act(&stage.run_key());
    assert_eq!(creates(&stage.act(&Key::Queue)), 1);
    let key = ObjectKey::new("a", stage.name_of("c0"));
    stage.api.delete_execution(&key);
    stage.absorb(Event::ExecutionGone(key));
    for _ in 0..3 {
        let run = stage.act(&stage.run_key());
        let queue = stage.act(&Key::Queue);
        assert_eq!(creates(&run) + creates(&queue), 0, "{run:?} {queue:?}");
    }
}

/// A turn that is gone most often means a run that is gone.
#[test]
fn a_run_without_its_turn_asks_nothing_and_ends() {
    let mut stage = Stage::new().answered(&["beside"]);
    let turn = stage.api.turns.keys().next().cloned().unwrap();
    stage.absorb(Event::TurnGone(turn));
    let decision = stage.decide(&stage.run_key());
    assert!(
        decision.actions.is_empty() && decision.wake.is_some(),
        "{decision:?}"
    );
    stage.now += 60_000;
    let actions = stage.act(&stage.run_key());
    assert!(
        matches!(&actions[..], [Action::WriteRun { status, .. }] if status.phase == Some(RunPhase::Failed)),
        "{actions:?}"
    );
}

/// A call that waits for a place does not get one any more when its run is to end.
#[test]
fn a_run_that_is_cancelled_starts_nothing() {
    let mut stage = Stage::new().answered(&["beside"]);
    let wants = stage.decide(&stage.run_key()).actions;
    wants
        .iter()
        .filter(|a| matches!(a, Action::Want { .. }))
        .for_each(|a| stage.start(a));
    stage.cancel();
    let decision = stage.decide(&Key::Queue);
    assert!(
        decision.actions.is_empty() && !decision.because.is_empty(),
        "{decision:?}"
    );
}

/// Its end is not written before what is on its way has arrived.
#[test]
fn a_run_does_not_end_beside_a_create_that_is_on_its_way() {
    let mut stage = Stage::new().answered(&["beside"]);
    stage.act(&stage.run_key());
    let create = stage.decide(&Key::Queue).actions.remove(0);
    stage.start(&create);
    stage.cancel();
    let decision = stage.decide(&stage.run_key());
    assert!(decision.actions.is_empty(), "{decision:?}");
}

/// An execution or a turn that a deposed leader created late is closed, though its run has ended.
#[test]
fn what_comes_after_the_end_of_a_run_is_closed() {
    let mut stage = Stage::new().answered(&["beside"]);
    stage.act(&stage.run_key());
    let create = stage.decide(&Key::Queue).actions.remove(0);
    let mut late = AgentTurn::clone(stage.api.turns.values().next().unwrap());
    stage.cancel();
    stage.act(&stage.run_key());
    let over = stage.api.runs.values().next().cloned().unwrap();
    assert_eq!(over.status.as_ref().unwrap().phase, Some(RunPhase::Cancelled));
    let (told, _) = stage.api.write(&create, stage.now, &mut stage.rng);
    told.into_iter().for_each(|event| stage.absorb(event));
    let actions = stage.decide(&stage.run_key()).actions;
    assert!(matches!(&actions[..], [Action::Cancel { .. }]), "{actions:?}");
    late.status = None;
    late.spec.index = 2;
    late.metadata.name = Some("late".into());
    late.metadata.resource_version = Some("999".into());
    stage.absorb(Event::Turn(Arc::new(late)));
    let actions = stage.decide(&stage.run_key()).actions;
    let abandons = |s: &AgentTurnStatus| s.phase == Some(TurnPhase::Abandoned);
    assert!(
        matches!(&actions[..], [Action::EndTurn { status, .. }] if abandons(status)),
        "{actions:?}"
    );
}

/// Somebody else's execution under the name of a call is not its result.
#[test]
fn an_execution_of_somebody_else_is_not_adopted() {
    let mut stage = Stage::new().answered(&["beside"]);
    let name = stage.name_of("c0");
    stage
        .api
        .create_own(users::own("a", &name, &json!({"ms": 1}), None), 0);
    let foreign = stage.api.executions.values().next().cloned().unwrap();
    stage.absorb(Event::Execution(foreign));
    let actions = stage.act(&stage.run_key());
    let told = actions.iter().find_map(|a| match a {
        Action::CreateTurn { spec, .. } => spec.observations.first().map(|o| o.text.clone()),
        _ => None,
    });
    assert!(
        told.as_deref().is_some_and(|t| t.contains("is taken")),
        "{actions:?}"
    );
}

/// A tool that is changed while a call is on its way: the call may be made, so nobody says that it was not.
#[test]
fn a_late_refusal_stands_on_an_object() {
    let mut stage = Stage::new().answered(&["beside"]);
    stage.act(&stage.run_key());
    let create = stage.decide(&Key::Queue).actions.remove(0);
    stage.start(&create);
    stage
        .api
        .apply_tool(users::tool("a", "beside", true, 9), stage.now);
    let tool = stage.api.tools[&ObjectKey::new("a", "beside")].clone();
    stage.absorb(Event::Tool(tool));
    let actions = stage.decide(&stage.run_key()).actions;
    assert!(
        !actions.iter().any(|a| matches!(a, Action::CreateTurn { .. })),
        "{actions:?}"
    );
    stage.fail(&create, WriteFailureKind::Transient);
    stage.now += 5_000;
    stage.act(&stage.run_key());
    assert_eq!(creates(&stage.act(&Key::Queue)), 1);
    assert!(stage.execution("c0").spec.binding.is_none());
    stage.act(&stage.run_key());
    stage.act(&Key::Queue);
    assert_eq!(
        stage.execution("c0").status.unwrap().phase,
        Some(ExecutionPhase::Denied)
    );
}

/// A write that failed is tried again when its pause is over, not when the stage's wait is.
#[test]
fn a_call_that_could_not_be_recorded_is_tried_again_soon() {
    let mut stage = Stage::new().answered(&["beside"]);
    stage.act(&stage.run_key());
    let create = stage.decide(&Key::Queue).actions.remove(0);
    stage.fail(&create, WriteFailureKind::Transient);
    let wake = stage.decide(&stage.run_key()).wake.unwrap();
    assert!(sim::api::ms(wake) <= stage.now + 1_000, "{wake}");
}

/// A call of an earlier turn that still waits for a place goes on waiting under the next leader.
#[test]
fn a_waiting_call_outlives_its_operator() {
    let mut stage = Stage::new().answered(&["beside", "beside"]);
    stage.act(&stage.run_key());
    stage.act(&Key::Queue);
    stage.now += 2_000;
    stage.act(&Key::Queue);
    let waiting = stage.waiting();
    stage.now += 40_000;
    let wants_next = stage.act(&stage.run_key());
    assert!(
        wants_next.iter().any(|a| matches!(a, Action::CreateTurn { .. })),
        "{wants_next:?}"
    );
    stage.core = laws::observed(&stage.api, stage.now, None);
    let actions = stage.act(&stage.run_key());
    let wanted = actions
        .iter()
        .any(|a| matches!(a, Action::Want { waiters } if waiters[0].0.name == waiting));
    assert!(wanted, "{actions:?}");
}

/// A waiting call of a run that its user cancels ends, although it has no node to end it.
#[test]
fn a_waiting_call_can_be_cancelled() {
    let mut stage = Stage::new().answered(&["beside", "beside"]);
    stage.act(&stage.run_key());
    stage.act(&Key::Queue);
    stage.now += 2_000;
    stage.act(&Key::Queue);
    let key = ObjectKey::new("a", stage.waiting());
    let cancelled = stage.api.cancel_execution(&key).unwrap();
    stage.absorb(Event::Execution(cancelled));
    stage.act(&stage.run_key());
    let phase = stage.api.executions[&key].status.as_ref().and_then(|s| s.phase);
    assert_eq!(phase, Some(ExecutionPhase::Cancelled));
}

/// What was deleted is not deleted again while the watch is on its way.
#[test]
fn a_run_is_deleted_once() {
    let mut stage = Stage::new();
    stage.cancel();
    stage.act(&stage.run_key());
    let mut run = fairlead_crds::AgentRun::clone(stage.api.runs.values().next().unwrap());
    run.spec.ttl_seconds_after_finished = Some(0);
    run.metadata.resource_version = Some("999".into());
    let key = stage.run_key();
    let run = Arc::new(run);
    stage.api.runs.insert(ObjectKey::new("a", RUN), Arc::clone(&run));
    stage.absorb(Event::Run(run));
    stage.now += 1;
    assert!(matches!(&stage.act(&key)[..], [Action::DeleteRun { .. }]));
    assert!(stage.decide(&key).actions.is_empty());
}

/// A failure of a write under an old term does not open the way for a second one beside the one on its way.
#[test]
fn writes_on_their_way_outlast_a_change_of_term() {
    let mut stage = Stage::new().answered(&["beside"]);
    stage.act(&stage.run_key());
    let create = stage.decide(&Key::Queue).actions.remove(0);
    stage.start(&create);
    stage.absorb(Event::Deposed);
    stage.absorb(Event::Led { term: 2 });
    stage.act(&stage.run_key());
    let decision = stage.decide(&Key::Queue);
    assert_eq!(creates(&decision.actions), 0, "{decision:?}");
}

/// A provider may report any number of tokens.
#[test]
fn counts_of_tokens_do_not_overflow() {
    let mut stage = Stage::new().answered(&["beside"]);
    let mut turn = AgentTurn::clone(stage.api.turns.values().next().unwrap());
    let usage = fairlead_crds::TurnUsage {
        input_tokens: i64::MAX,
        output_tokens: i64::MAX,
        cached_tokens: 1,
    };
    turn.status.as_mut().unwrap().usage = Some(usage);
    turn.metadata.resource_version = Some("999".into());
    stage.absorb(Event::Turn(Arc::new(turn)));
    assert!(!stage.decide(&stage.run_key()).actions.is_empty());
}

/// The answer to a write may be slower than the watch: what was seen to end, or to be gone, does not come back by it.
#[test]
fn a_late_answer_brings_nothing_back() {
    for gone in [false, true] {
        let mut stage = Stage::new().answered(&["beside"]);
        stage.act(&stage.run_key());
        let create = stage.decide(&Key::Queue).actions.remove(0);
        stage.start(&create);
        let (told, result) = stage.api.write(&create, stage.now, &mut stage.rng);
        let bound = stage.execution("c0");
        stage.absorb(Event::Execution(Arc::new(bound.clone())));
        if gone {
            let key = ObjectKey::new("a", stage.name_of("c0"));
            stage.absorb(Event::ExecutionGone(key));
        } else {
            let mut ended = bound;
            ended.metadata.resource_version = Some("998".into());
            let phase = Some(ExecutionPhase::Succeeded);
            ended.status = Some(ToolExecutionStatus {
                phase,
                ..ToolExecutionStatus::default()
            });
            stage.absorb(Event::Execution(Arc::new(ended)));
            let mut run = fairlead_crds::AgentRun::clone(stage.api.runs.values().next().unwrap());
            run.metadata.resource_version = Some("999".into());
            run.status.get_or_insert_default().phase = Some(RunPhase::Failed);
            stage.absorb(Event::Run(Arc::new(run)));
        }
        told.into_iter().for_each(|event| stage.absorb(event));
        stage.absorb(Event::Ended {
            action: Box::new(create),
            result,
        });
        assert_eq!(stage.core.world.load.on_node("node-0"), 0);
        assert!(stage.core.world.executions.is_empty());
    }
}

/// The answer to a write of ours may come after the news that the object is gone, and the watch never says that again.
#[test]
fn a_tool_that_is_gone_does_not_come_back_with_the_answer_to_a_write() {
    let mut stage = Stage::new();
    let name = ObjectKey::new("a", "beside");
    let tool = stage.core.world.tools[&name].object.clone();
    let write = Action::WriteTool {
        tool: tool.clone(),
        status: Box::default(),
    };
    stage
        .core
        .absorb(Event::Started(Box::new(write.clone())), time(1_000));
    stage.core.absorb(Event::ToolGone(name.clone()), time(1_001));
    let mut written = fairlead_crds::Tool::clone(&tool);
    written.metadata.resource_version = Some("1000000".into());
    stage
        .core
        .absorb(Event::Tool(Arc::new(written.clone())), time(1_002));
    assert!(
        !stage.core.world.tools.contains_key(&name),
        "it stands in the world again"
    );
    // Another one of its name is another one.
    written.metadata.uid = Some("another".into());
    stage.core.absorb(Event::Tool(Arc::new(written)), time(1_003));
    assert!(stage.core.world.tools.contains_key(&name));
    stage.core.absorb(
        Event::Ended {
            action: Box::new(write),
            result: Err(WriteFailure {
                kind: WriteFailureKind::Gone,
                message: "not found".into(),
            }),
        },
        time(1_004),
    );
    assert!(stage.core.world.tools.contains_key(&name), "that one is not gone");
}

#[test]
fn a_provider_that_a_write_finds_gone_is_gone() {
    let mut stage = Stage::new();
    let name = ObjectKey::new("a", "model");
    let provider = stage.core.world.providers[&name].object.clone();
    let action = Box::new(Action::WriteProvider {
        provider,
        status: Box::default(),
    });
    stage.core.absorb(Event::Started(action.clone()), time(1_000));
    let result = Err(WriteFailure {
        kind: WriteFailureKind::Gone,
        message: "not found".into(),
    });
    stage.core.absorb(Event::Ended { action, result }, time(1_001));
    assert!(!stage.core.world.providers.contains_key(&name));
}

/// One that is mended after it could not be read counts again, also while a write about it is on its way.
#[test]
fn a_tool_that_could_not_be_read_counts_again_when_it_is_mended() {
    let mut stage = Stage::new();
    let name = ObjectKey::new("a", "beside");
    let tool = stage.core.world.tools[&name].object.clone();
    let write = Action::WriteTool {
        tool: tool.clone(),
        status: Box::default(),
    };
    stage.core.absorb(Event::Started(Box::new(write)), time(1_000));
    let unreadable = Event::ToolUnreadable {
        key: name.clone(),
        version: 2_000,
    };
    stage.core.absorb(unreadable, time(1_001));
    let at_version = |version: &str| {
        let mut tool = fairlead_crds::Tool::clone(&tool);
        tool.metadata.resource_version = Some(version.into());
        Event::Tool(Arc::new(tool))
    };
    stage.core.absorb(at_version("1999"), time(1_002));
    assert!(
        !stage.core.world.tools.contains_key(&name),
        "the state before does not stand"
    );
    stage.core.absorb(at_version("2001"), time(1_003));
    assert!(stage.core.world.tools.contains_key(&name));
}

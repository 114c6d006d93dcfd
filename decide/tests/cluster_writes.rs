//! What a write is guarded by, and what is told of what went wrong.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod sim;

use fairlead_crds::values::OwnedRef;
use fairlead_crds::{
    AgentRun, ExecutionPhase, Outcome, RunPhase, ToolExecution, ToolExecutionStatus, TurnPhase,
};
use fairlead_decide::cluster::{Action, Because, Event, Key, ObjectKey, WriteFailure, WriteFailureKind};
use fairlead_decide::model::{ModelError, ModelErrorKind};
use serde_json::json;
use sim::api::{Api, time};
use sim::core::Core;
use sim::rng::Rng;
use sim::{laws, users};
use std::sync::Arc;

struct Stage {
    api: Api,
    core: Core,
    now: i64,
}

impl Stage {
    fn of(api: Api) -> Self {
        let core = laws::observed(&api, 1_000, None);
        Self {
            api,
            core,
            now: 1_000,
        }
    }

    fn with_run(spec: serde_json::Value) -> (Self, Key) {
        let mut api = Api::new(60_000, false);
        api.leader.transitions = 1;
        api.create_provider(users::provider("a"), 0);
        api.create_run(users::run("a", "run", spec), 0);
        let key = Key::Run(api.runs.values().next().unwrap().metadata.uid.clone().unwrap());
        let mut stage = Self::of(api);
        stage.act(&Key::Provider(ObjectKey::new("a", "model")));
        (stage, key)
    }

    fn absorb(&mut self, event: Event) {
        self.core.absorb(event, time(self.now));
    }

    fn carry_out(&mut self, action: &Action) {
        self.absorb(Event::Started(Box::new(action.clone())));
        let (told, result) = self.api.write(action, self.now, &mut Rng::new(1));
        told.into_iter().for_each(|event| self.absorb(event));
        self.absorb(Event::Ended {
            action: Box::new(action.clone()),
            result,
        });
    }

    /// Carries out all that is decided about a key.
    fn act(&mut self, key: &Key) -> Vec<Action> {
        let actions = self.core.decide(key, time(self.now)).actions;
        actions.iter().for_each(|action| self.carry_out(action));
        actions
    }

    /// The provider's answer to a request: a failure.
    fn fails(&mut self, ask: &Action, kind: ModelErrorKind, retry_after_seconds: Option<i64>, message: &str) {
        let Action::Ask { run, turn, .. } = ask else {
            panic!("{ask:?}")
        };
        self.absorb(Event::Answered {
            run: run.clone(),
            turn: turn.clone(),
            term: 1,
            sent_at: time(self.now),
            result: Box::new(Err(ModelError {
                kind,
                status: None,
                retry_after_seconds,
                answer_begun: false,
                message: message.into(),
            })),
        });
    }

    fn run(&self) -> AgentRun {
        AgentRun::clone(self.api.runs.values().next().unwrap())
    }

    fn store_run(&mut self, mut run: AgentRun) {
        let version = run.metadata.resource_version.take().unwrap();
        run.metadata.resource_version = Some((version.parse::<u64>().unwrap() + 1_000).to_string());
        self.api.runs.insert(ObjectKey::new("a", "run"), Arc::new(run));
    }
}

/// A time to live that was raised after the deletion was decided is honoured.
#[test]
fn nothing_is_deleted_that_was_to_be_kept_longer() {
    let mut api = Api::new(60_000, false);
    api.leader.transitions = 1;
    let mut own = users::own("a", "own", &json!({"ms": 1}), Some(0));
    own.status = Some(ToolExecutionStatus {
        phase: Some(ExecutionPhase::Cancelled),
        outcome: Some(Outcome::NotStarted),
        completion_time: Some(time(0)),
        ..ToolExecutionStatus::default()
    });
    api.create_own(own, 0);
    let mut stage = Stage::of(api);
    let name = ObjectKey::new("a", "own");
    let key = Key::Execution(name.clone());
    let decided = stage.core.decide(&key, time(stage.now)).actions;
    assert!(
        matches!(decided[..], [Action::DeleteExecution { .. }]),
        "{decided:?}"
    );

    let mut raised = ToolExecution::clone(&stage.api.executions[&name]);
    raised.spec.ttl_seconds_after_finished = Some(3_600);
    raised.metadata.resource_version = Some("1000".into());
    stage.api.executions.insert(name.clone(), Arc::new(raised));
    stage.carry_out(&decided[0]);
    assert!(stage.api.executions.contains_key(&name));
    let then = stage.core.decide(&key, time(stage.now));
    assert_eq!(then.because, [Because::Retained]);
    assert_eq!(then.wake, Some(time(3_600_000)));
}

#[test]
fn a_run_is_deleted_only_as_it_was_decided_on() {
    let (mut stage, key) =
        Stage::with_run(json!({"ttlSecondsAfterFinished": 0, "tools": [], "desiredState": "Cancelled"}));
    stage.act(&key);
    stage.now = 2_000;
    let decided = stage.core.decide(&key, time(stage.now)).actions;
    assert!(matches!(decided[..], [Action::DeleteRun { .. }]), "{decided:?}");
    let mut raised = stage.run();
    raised.spec.ttl_seconds_after_finished = Some(3_600);
    stage.store_run(raised);
    stage.carry_out(&decided[0]);
    assert_eq!(stage.api.runs.len(), 1);
    assert!(stage.core.decide(&key, time(stage.now)).actions.is_empty());
}

/// What is sent is what the turn recorded; where it cannot be derived any more, another attempt records what can.
#[test]
fn a_request_that_is_not_the_recorded_one_is_not_sent() {
    let (mut stage, key) = Stage::with_run(json!({"tools": []}));
    let made = stage.act(&key);
    assert!(matches!(made[..], [Action::CreateTurn { .. }, ..]), "{made:?}");
    let mut other = stage.run();
    other.spec.input = "something else".into();
    stage.store_run(other);
    stage.absorb(Event::Run(stage.api.runs.values().next().cloned().unwrap()));
    let closed = stage.act(&key);
    let [Action::EndTurn { status, .. }, ..] = &closed[..] else {
        panic!("{closed:?}")
    };
    assert_eq!(status.phase, Some(TurnPhase::Abandoned));
    let made = stage.act(&key);
    assert!(matches!(made[..], [Action::CreateTurn { .. }, ..]), "{made:?}");
    let asked = stage.act(&key);
    assert!(matches!(asked[..], [Action::Ask { .. }, ..]), "{asked:?}");
}

/// What changes before every try is given up, and not begun anew for ever.
#[test]
fn a_request_that_always_changes_ends_its_run() {
    let (mut stage, key) = Stage::with_run(json!({"tools": []}));
    for n in 0.. {
        let made = stage.act(&key);
        if !matches!(made[..], [Action::CreateTurn { .. }, ..]) {
            break;
        }
        assert!(n < 20, "it never ends");
        let mut other = stage.run();
        other.spec.input = format!("something else {n}");
        stage.store_run(other);
        stage.absorb(Event::Run(stage.api.runs.values().next().cloned().unwrap()));
        stage.act(&key);
    }
    let failure = stage.run().status.unwrap().failure.unwrap();
    assert_eq!(failure.reason, "RequestChanged");
}

#[test]
fn a_failure_says_how_often_it_was_tried() {
    let (mut stage, key) = Stage::with_run(json!({"tools": []}));
    stage.act(&key);
    for _ in 0..3 {
        stage.now += 3_000;
        let asked = stage.act(&key);
        stage.fails(
            &asked[0],
            ModelErrorKind::Connect,
            None,
            "spec.baseUrl http://model/: refused",
        );
    }
    let closed = stage.act(&key);
    let Some(Action::EndTurn { status, .. }) = closed.first() else {
        panic!("{closed:?}")
    };
    let failure = status.failure.clone().unwrap();
    assert_eq!(failure.reason, "ProviderUnreachable");
    assert_eq!(
        failure.message,
        "spec.baseUrl http://model/: refused (3 tries in 9 s)"
    );
}

/// Whoever tells a refusal puts its reason before its message: it must not stand there already.
#[test]
fn a_refusal_names_its_reason_once() {
    let mut api = Api::new(60_000, false);
    api.leader.transitions = 1;
    api.apply_tool(users::tool("a", "beside", true, 5), 0);
    api.create_own(users::own("a", "own", &json!({"ms": "long"}), None), 0);
    let mut stage = Stage::of(api);
    stage.act(&Key::Execution(ObjectKey::new("a", "own")));
    let denied = &stage.api.executions[&ObjectKey::new("a", "own")];
    let text = fairlead_decide::cluster::result_text(denied);
    assert!(text.starts_with("[Denied: INVALID_ARGUMENT] "), "{text}");
    assert_eq!(text.matches("INVALID_ARGUMENT").count(), 1, "{text}");
}

/// An agent that lives and tells nothing of a call is asked to stop it, and only then is the call given up.
#[test]
fn a_call_that_nobody_picks_up_comes_to_an_end() {
    let mut api = Api::new(60_000, false);
    api.leader.transitions = 1;
    api.apply_tool(users::tool("a", "beside", true, 5), 0);
    api.create_own(users::own("a", "own", &json!({"ms": 1}), None), 0);
    api.renew_node(users::lease(1, 0), 0);
    let mut stage = Stage::of(api);
    let name = ObjectKey::new("a", "own");
    let key = Key::Execution(name.clone());
    stage.act(&key);
    let bound = stage.act(&Key::Queue);
    assert!(matches!(bound[..], [Action::Bind { .. }]), "{bound:?}");
    let settings = stage.core.world.settings.clone();
    // The tool's hard timeout and grace.
    let first = stage.now + (5 + 2 + settings.orphan_after_seconds) * 1_000;
    let waits = stage.core.decide(&key, time(stage.now));
    assert_eq!((waits.actions.len(), waits.wake), (0, Some(time(first))));

    stage.now = first;
    let asked = stage.act(&key);
    assert!(matches!(asked[..], [Action::Cancel { .. }]), "{asked:?}");
    let last = first + settings.clean_up_seconds * 1_000;
    let waits = stage.core.decide(&key, time(stage.now));
    assert_eq!((waits.actions.len(), waits.wake), (0, Some(time(last))));

    stage.now = last;
    stage.act(&key);
    let status = stage.api.executions[&name].status.clone().unwrap();
    assert_eq!(status.phase, Some(ExecutionPhase::Orphaned));
    assert_eq!(status.reason.as_deref(), Some("NotReported"));
    // It may have run: nothing may make it again.
    assert_eq!(status.outcome, Some(Outcome::Unknown));
    assert!(stage.core.decide(&key, time(stage.now)).actions.is_empty());
}

/// A run whose provider keeps it waiting says so: after a second, and once for each try that fails.
#[test]
fn a_run_that_waits_for_its_provider_says_so() {
    let (mut stage, key) = Stage::with_run(json!({"tools": []}));
    stage.act(&key);
    let asked = stage.act(&key);
    let [ask] = &asked[..] else { panic!("{asked:?}") };
    let visible = stage.core.decide(&key, time(stage.now)).wake.unwrap();
    assert_eq!(visible, time(2_000), "a second after the turn was begun");

    stage.now = 2_000;
    assert!(matches!(stage.act(&key)[..], [Action::WriteRun { .. }]));
    let status = stage.run().status.unwrap();
    let told = status.conditions.iter().find(|c| c.type_ == "Succeeded").unwrap();
    assert_eq!(status.phase, Some(RunPhase::Running));
    assert_eq!(
        (told.status.as_str(), told.reason.as_str()),
        ("Unknown", "ModelAsked")
    );
    assert_eq!(
        told.message,
        "Turn 1 waits for the answer of ModelProvider \"model\"."
    );
    assert!(stage.act(&key).is_empty(), "told once");

    stage.fails(ask, ModelErrorKind::RateLimited, Some(600), "HTTP 429: slow down");
    assert!(matches!(stage.act(&key)[..], [Action::WriteRun { .. }]));
    let told = stage.run().status.unwrap().conditions.remove(0);
    assert_eq!(told.reason, "ProviderRateLimited");
    assert_eq!(
        told.message,
        "Turn 1 waits for ModelProvider \"model\": try 1 failed, the next is at 2027-01-15T08:10:02Z: HTTP 429: slow down"
    );
    assert!(stage.act(&key).is_empty(), "told once");
    stage.now = 602_000;
    assert!(
        matches!(stage.act(&key)[..], [Action::Ask { .. }]),
        "and nothing more is said by asking again"
    );
}

/// A run that is stopping its executions says why it ends, not that it waits for them as before.
#[test]
fn a_run_that_stops_its_executions_says_why_it_ends() {
    let (mut stage, key) = Stage::with_run(json!({"desiredState": "Cancelled"}));
    let uid = stage.run().metadata.uid.unwrap();
    let mut call = ToolExecution::clone(&users::own("a", "call", &json!({"ms": 60_000}), None));
    call.metadata.uid = Some("call-uid".into());
    call.metadata.resource_version = Some("77".into());
    call.metadata.creation_timestamp = None;
    call.spec.run_ref = Some(OwnedRef {
        name: "run".into(),
        uid,
    });
    stage.absorb(Event::Execution(Arc::new(call)));
    let actions = stage.core.decide(&key, time(stage.now)).actions;
    let told = actions.iter().find_map(|action| match action {
        Action::WriteRun { status, .. } => Some((status.phase, status.conditions[0].clone())),
        _ => None,
    });
    let (phase, told) = told.unwrap();
    assert_eq!(phase, Some(RunPhase::Finishing));
    assert_eq!(
        (told.status.as_str(), told.reason.as_str()),
        ("Unknown", "Cancelled")
    );
    assert_eq!(
        told.message,
        "It ends when its executions have: spec.desiredState asked for it."
    );
}

/// A user's own execution does not wait for ever for a node that never comes.
#[test]
fn an_own_execution_that_gets_no_place_comes_to_an_end() {
    let mut api = Api::new(60_000, false);
    api.leader.transitions = 1;
    api.apply_tool(users::tool("a", "beside", true, 5), 0);
    let mut own = users::own("a", "own", &json!({"ms": 1}), None);
    own.spec.tool.tool_ref.name = "beside".into();
    api.create_own(own, 0);
    let mut stage = Stage::of(api);
    let key = Key::Execution(ObjectKey::new("a", "own"));
    stage.act(&key);
    // The leader leads since 1 s, and tried nothing before.
    let bound = time(3_601_000);
    let waits = stage.core.decide(&key, time(stage.now));
    assert!(waits.actions.is_empty() && waits.wake == Some(bound), "{waits:?}");
    stage.now = 3_601_000;
    stage.act(&key);
    let ended = &stage.api.executions[&ObjectKey::new("a", "own")];
    let status = ended.status.clone().unwrap();
    assert_eq!(status.phase, Some(ExecutionPhase::TimedOut));
    assert_eq!(status.outcome, Some(Outcome::NotStarted));
    assert_eq!(status.reason.as_deref(), Some("QueueTimeout"));
    assert!(stage.core.world.waiting.is_empty(), "it is in line no more");
}

/// While the answer of a turn is being written, nobody waits for the provider any more.
#[test]
fn a_run_whose_answer_is_being_written_does_not_say_that_it_waits() {
    let (mut stage, key) = Stage::with_run(json!({"tools": []}));
    stage.act(&key);
    let asked = stage.act(&key);
    stage.now = 1_900;
    stage.fails(
        &asked[0],
        ModelErrorKind::Refused,
        None,
        "HTTP 404: no such model",
    );
    let ends = stage.core.decide(&key, time(stage.now)).actions;
    let [end @ Action::EndTurn { .. }] = &ends[..] else {
        panic!("{ends:?}")
    };
    stage.absorb(Event::Started(Box::new(end.clone())));
    stage.now = 5_000;
    let waits = stage.core.decide(&key, time(stage.now));
    assert!(waits.actions.is_empty(), "{waits:?}");
    // It goes on failing: then that is what the run says.
    let refused = WriteFailure {
        kind: WriteFailureKind::Transient,
        message: "forbidden: exceeded quota".into(),
    };
    stage.absorb(Event::Ended {
        action: Box::new(end.clone()),
        result: Err(refused.clone()),
    });
    stage.absorb(Event::Started(Box::new(end.clone())));
    stage.now = 7_000;
    stage.absorb(Event::Ended {
        action: Box::new(end.clone()),
        result: Err(refused),
    });
    stage.act(&key);
    let told = stage.run().status.unwrap().conditions.remove(0);
    assert_eq!(told.reason, "WriteRefused");
    assert_eq!(told.message, "forbidden: exceeded quota");
}

/// What the provider had said is not lost with the run that waited for it.
#[test]
fn a_deadline_says_what_it_cut_off() {
    let (mut stage, key) = Stage::with_run(json!({"tools": [], "limits": {"deadlineSeconds": 60}}));
    stage.act(&key);
    let asked = stage.act(&key);
    stage.fails(
        &asked[0],
        ModelErrorKind::RateLimited,
        Some(600),
        "HTTP 429: slow down",
    );
    stage.act(&key);
    stage.now = 60_000;
    for _ in 0..3 {
        stage.act(&key);
    }
    let failure = stage.run().status.unwrap().failure.unwrap();
    assert_eq!(failure.reason, "DeadlineExceeded");
    assert_eq!(
        failure.message,
        "spec.limits.deadlineSeconds (60) passed. Raise it, and create the run again. ModelProvider \"model\" was waited \
         for, which had said to the last try: HTTP 429: slow down"
    );
}

/// A leader that comes late tries first, and only then says that there was no place.
#[test]
fn what_nobody_tried_to_place_has_not_waited_too_long() {
    let mut api = Api::new(60_000, false);
    api.leader.transitions = 1;
    api.apply_tool(users::tool("a", "beside", true, 5), 0);
    let mut own = users::own("a", "own", &json!({"ms": 1}), None);
    own.spec.tool.tool_ref.name = "beside".into();
    api.create_own(own, 0);
    let now = 10_000_000;
    let mut stage = Stage {
        core: laws::observed(&api, now, None),
        api,
        now,
    };
    let tried = stage.act(&Key::Execution(ObjectKey::new("a", "own")));
    assert!(matches!(tried[..], [Action::Want { .. }]), "{tried:?}");
}

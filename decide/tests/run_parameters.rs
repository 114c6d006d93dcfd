//! A run whose parameters are larger than they may be ends before any turn holds them.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use fairlead_crds::conditions::reason;
use fairlead_crds::values::Time;
use fairlead_crds::{AgentRun, Failure, ModelProvider};
use fairlead_decide::cluster::{Action, Event, Key, ObjectKey, Settings, World, decide};
use serde_json::{Value, json};
use std::sync::Arc;

fn now() -> Time {
    Time::from_second(1_800_000_010).unwrap()
}

/// What is done about a new run with these parameters, once its provider was looked at.
fn actions(parameters: Value) -> Vec<Action> {
    let mut world = World::new(Settings::default());
    let metadata = |name: &str| {
        json!({"name": name, "namespace": "a", "uid": name, "resourceVersion": "1", "generation": 1,
               "creationTimestamp": "2027-01-15T08:00:00Z"})
    };
    let provider: ModelProvider = serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ModelProvider", "metadata": metadata("p"),
        "spec": {"wireApi": "Scripted", "script": [{"respond": {"text": "x"}}]},
    }))
    .unwrap();
    let run: AgentRun = serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "AgentRun", "metadata": metadata("run"),
        "spec": {"input": "x", "model": {"providerRef": {"name": "p"}, "parameters": parameters}},
    }))
    .unwrap();
    world.absorb(Event::Led { term: 1 }, now());
    world.absorb(Event::Provider(Arc::new(provider)), now());
    let looked_at = Event::ProviderChecked {
        key: ObjectKey::new("a", "p"),
        generation: 1,
        fault: None,
    };
    world.absorb(looked_at, now());
    world.absorb(Event::Run(Arc::new(run)), now());
    decide(&world, &Key::Run("run".to_owned()), now()).actions
}

fn failure(actions: &[Action]) -> Option<Failure> {
    actions.iter().find_map(|action| match action {
        Action::WriteRun { status, .. } => status.failure.clone(),
        _ => None,
    })
}

#[test]
fn parameters_are_bounded_before_the_first_turn() {
    let of_size = |bytes: usize| json!({"a": "x".repeat(bytes - r#"{"a":""}"#.len())});
    let begun = |actions: &[Action]| actions.iter().any(|a| matches!(a, Action::CreateTurn { .. }));

    let fits = actions(of_size(16_384));
    assert!(begun(&fits) && failure(&fits).is_none(), "{fits:?}");

    let refused = actions(of_size(16_385));
    let told = failure(&refused).unwrap();
    assert_eq!(told.reason, reason::INVALID_PARAMETERS);
    for part in [
        "spec.model.parameters: 16385 bytes as JSON",
        "at most 16384",
        "create the run again",
    ] {
        assert!(told.message.contains(part), "{told:?}");
    }
    assert!(!begun(&refused), "{refused:?}");
}

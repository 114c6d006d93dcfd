//! What an event wakes: whoever waits for it, at once, and nobody else.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod sim;

use fairlead_crds::ModelProvider;
use fairlead_decide::cluster::{Action, Event, Key, ObjectKey, Settings};
use serde_json::json;
use sim::api::{Api, time};
use sim::core::Core;
use sim::users;
use std::collections::BTreeSet;
use std::sync::Arc;

const NOW: i64 = 1_000;

/// A leader that has seen nothing yet, and objects to show it.
struct Scene {
    api: Api,
    core: Core,
}

impl Scene {
    fn new() -> Self {
        let mut api = Api::new(60_000, false);
        api.create_provider(users::provider("a"), 0);
        api.apply_tool(users::tool("a", "beside", true, 5), 0);
        api.apply_tool(users::tool("a", "alone", false, 5), 0);
        let first = json!({"tools": [{"toolRef": {"name": "beside"}}]});
        let second =
            json!({"tools": [{"toolRef": {"name": "alone"}}], "model": {"providerRef": {"name": "other"}}});
        api.create_run(users::run("a", "first", first), 0);
        api.create_run(users::run("a", "second", second), 0);
        api.create_own(users::own("a", "own", &json!({"ms": 1}), None), 0);
        let mut core = Core::new(Settings::default(), None);
        core.absorb(Event::Led { term: 1 }, time(NOW));
        Self { api, core }
    }

    fn tell(&mut self, event: Event) -> BTreeSet<Key> {
        self.core.absorb(event, time(NOW))
    }

    fn with_users(mut self) -> Self {
        for run in self.api.runs.values().cloned().collect::<Vec<_>>() {
            self.tell(Event::Run(run));
        }
        for own in self.api.executions.values().cloned().collect::<Vec<_>>() {
            self.tell(Event::Execution(own));
        }
        self
    }

    fn run(&self, name: &str) -> Key {
        Key::Run(
            self.api.runs[&ObjectKey::new("a", name)]
                .metadata
                .uid
                .clone()
                .unwrap(),
        )
    }

    fn tool(&mut self, name: &str) -> BTreeSet<Key> {
        let tool = self.api.tools[&ObjectKey::new("a", name)].clone();
        self.tell(Event::Tool(tool))
    }

    fn provider(&mut self) -> BTreeSet<Key> {
        let provider = self.api.providers[&model()].clone();
        self.tell(Event::Provider(provider))
    }

    fn checked(&mut self, fault: Option<&str>) -> BTreeSet<Key> {
        let generation = self.core.world.providers[&model()].object.metadata.generation;
        self.tell(Event::ProviderChecked {
            key: model(),
            generation: generation.unwrap_or(0),
            fault: fault.map(|text| ("SecretNotReadable".to_owned(), text.to_owned())),
        })
    }
}

fn model() -> ObjectKey {
    ObjectKey::new("a", "model")
}

#[test]
fn a_tool_wakes_those_that_name_it() {
    let mut scene = Scene::new().with_users();
    let own = Key::Execution(ObjectKey::new("a", "own"));
    let told = scene.tool("beside");
    let expected = [
        Key::Tool(ObjectKey::new("a", "beside")),
        scene.run("first"),
        own.clone(),
    ];
    assert_eq!(told, expected.into());
    let decision = scene.core.decide(&own, time(NOW));
    assert!(
        matches!(decision.actions[..], [Action::Want { .. }]),
        "{decision:?}"
    );
}

/// The status that is written about a tool changes nothing for those that wait for it.
#[test]
fn a_status_of_a_tool_wakes_nobody() {
    let mut scene = Scene::new().with_users();
    scene.tool("beside");
    let mut tool = fairlead_crds::Tool::clone(&scene.api.tools[&ObjectKey::new("a", "beside")]);
    tool.metadata.resource_version = Some("999".into());
    let told = scene.tell(Event::Tool(Arc::new(tool)));
    assert_eq!(told, [Key::Tool(ObjectKey::new("a", "beside"))].into());
}

#[test]
fn a_provider_that_can_be_called_wakes_the_runs_that_name_it() {
    let mut scene = Scene::new().with_users();
    scene.tool("beside");
    scene.provider();
    let run = scene.run("first");
    let waits = scene.core.decide(&run, time(NOW - 1));
    assert!(waits.actions.is_empty(), "{waits:?}");
    assert_eq!(scene.checked(None), [Key::Provider(model()), run.clone()].into());
    let decision = scene.core.decide(&run, time(NOW));
    assert!(
        matches!(decision.actions[..], [Action::CreateTurn { .. }, ..]),
        "{decision:?}"
    );
    // The same found once more is no news.
    assert_eq!(scene.checked(None), [Key::Provider(model())].into());
}

/// Nothing is looked for again and again: the next look is the moment at which something is to be said or given up.
#[test]
fn what_is_missing_is_not_polled() {
    let scene = Scene::new().with_users();
    let settings = scene.core.world.settings.clone();
    let run = scene.run("first");
    for key in [run, Key::Execution(ObjectKey::new("a", "own"))] {
        let first = scene.core.decide(&key, time(NOW - 1)).wake.unwrap();
        assert_eq!(first, time(settings.visible_after_millis), "{key:?}");
        let then = scene.core.decide(&key, first).wake.unwrap();
        assert_eq!(then, time(settings.dependency_grace_seconds * 1000), "{key:?}");
    }
}

/// A provider whose Secret was missing is looked at again when somebody touches it, not only after a while.
#[test]
fn a_touched_provider_is_looked_at_at_once() {
    let mut scene = Scene::new();
    scene.provider();
    scene.checked(Some("the Secret is not there"));
    let look = |scene: &Scene| {
        let decision = scene.core.decide(&Key::Provider(model()), time(NOW));
        decision
            .actions
            .iter()
            .any(|a| matches!(a, Action::CheckProvider { .. }))
    };
    assert!(!look(&scene), "it was looked at just now");
    let mut touched = ModelProvider::clone(&scene.api.providers[&model()]);
    touched.metadata.resource_version = Some("999".into());
    let annotations = touched.metadata.annotations.get_or_insert_default();
    annotations.insert("note".into(), "the Secret is there now".into());
    assert_eq!(
        scene.tell(Event::Provider(Arc::new(touched))),
        [Key::Provider(model())].into()
    );
    assert!(look(&scene));
}

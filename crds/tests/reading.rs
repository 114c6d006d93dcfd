//! Objects are read whatever their neighbours hold.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_crds::reading::{READ_LEVELS, Readable, levels, shallow, told};
use fairlead_crds::values::{MAX_NESTING, too_nested};
use fairlead_crds::{Tool, ToolExecution};
use kube_core::{Resource, WatchEvent, object::ObjectList};
use serde_json::{Value, json};

const DEPTHS: [usize; 4] = [10, 100, 200, 5_000];

fn nested(levels: usize) -> String {
    "{\"a\":".repeat(levels - 1) + "{}" + &"}".repeat(levels - 1)
}

fn fields(levels: usize) -> String {
    "{\"f:a\":".repeat(levels) + "{}" + &"}".repeat(levels)
}

/// An execution as the server answers, with the arguments as deep and their writers deeper.
fn execution(name: &str, levels: usize) -> String {
    format!(
        r#"{{"apiVersion":"fairlead.dev/v1alpha1","kind":"ToolExecution","metadata":{{"name":"{name}","namespace":"ns",
        "uid":"u-{name}","resourceVersion":"7","generation":3,"labels":{{"managedFields":"is \"kept\" }}"}},
        "managedFields": [{{"manager":"m","fieldsV1":{{"f:spec":{{"f:arguments":{}}}}}}}]}},
        "spec":{{"tool":{{"toolRef":{{"name":"t"}}}},"arguments":{}}}}}"#,
        fields(levels),
        nested(levels)
    )
}

fn assert_read(object: Readable<ToolExecution>, name: &str, levels: usize) {
    let object = object.0.unwrap();
    assert_eq!(object.metadata.name.as_deref(), Some(name));
    assert_eq!(object.metadata.managed_fields, None);
    assert_eq!(object.metadata.labels.unwrap()["managedFields"], "is \"kept\" }");
    assert_eq!(
        too_nested(&object.spec.arguments),
        levels > MAX_NESTING,
        "{levels}"
    );
}

#[test]
fn an_answer_is_read_at_any_depth() {
    for depth in DEPTHS {
        let object = serde_json::from_str(&execution("deep", depth)).unwrap();
        assert_read(object, "deep", depth);
    }
}

#[test]
fn a_list_is_read_whatever_one_of_its_objects_holds() {
    for depth in DEPTHS {
        let text = format!(
            r#"{{"kind":"ToolExecutionList","apiVersion":"fairlead.dev/v1alpha1","metadata":{{"resourceVersion":"9"}},
            "items":[{},{}]}}"#,
            execution("deep", depth),
            execution("flat", 1)
        );
        let list: ObjectList<Readable<ToolExecution>> = serde_json::from_str(&text).unwrap();
        let [deep, flat]: [_; 2] = list.items.try_into().unwrap();
        assert_read(deep, "deep", depth);
        assert_read(flat, "flat", 1);
    }
}

#[test]
fn a_watch_event_is_read_at_any_depth() {
    for depth in DEPTHS {
        let text = format!(r#"{{"type":"MODIFIED","object":{}}}"#, execution("deep", depth));
        let Ok(WatchEvent::Modified(object)) = serde_json::from_str(&text) else {
            panic!("{depth}");
        };
        assert_read(object, "deep", depth);
    }
    let bookmark = r#"{"type":"BOOKMARK","object":{"kind":"ToolExecution","apiVersion":"v","metadata":{"resourceVersion":"1"}}}"#;
    let bookmark: WatchEvent<Readable<ToolExecution>> = serde_json::from_str(bookmark).unwrap();
    assert!(matches!(bookmark, WatchEvent::Bookmark(_)));
}

#[test]
fn what_does_not_fit_its_type_is_known_by_its_metadata_and_told_without_its_values() {
    let text = execution("odd", 3).replace("{\"name\":\"t\"}", "\"the \\\"secret\\\" of a user\"");
    let mut object: Readable<ToolExecution> = serde_json::from_str(&text).unwrap();
    assert_eq!(object.meta().uid.as_deref(), Some("u-odd"));
    assert_eq!(object.meta_mut().resource_version.as_deref(), Some("7"));
    assert_eq!(object.meta().generation, Some(3));
    let error = object.0.unwrap_err().to_string();
    assert!(
        error.starts_with("ns/odd (uid u-odd) cannot be read: invalid type"),
        "{error}"
    );
    assert!(!error.contains("secret") && error.len() < 400, "{error}");
    let long = serde_json::from_str::<Tool>(&format!("{{\"metadata\":\"{}\"}}", "ä".repeat(2000)));
    assert!(told(&long.unwrap_err()).len() <= 256);
}

#[test]
fn only_what_is_too_deep_is_left_out() {
    let kept = json!({"metadata": {"name": "n", "annotations": {"a": "{[\"\\"}}, "managedFields": [1], "x": [[], {}, "]"]});
    let text = kept.to_string();
    assert_eq!(shallow(&text), text);
    for depth in [READ_LEVELS - 1, READ_LEVELS, READ_LEVELS + 1, READ_LEVELS + 2] {
        let text = "[1,".repeat(depth - 1) + "[\"]\"]" + &",2]".repeat(depth - 1);
        let read = shallow(&text);
        assert_eq!(levels(&read), depth.min(READ_LEVELS));
        assert_eq!(read == text, depth <= READ_LEVELS);
        serde_json::from_str::<Value>(&read).unwrap();
    }
    assert_eq!(levels("{\"a\": \"[[[\", \"b\": [1]} ]]["), 2);
}

#[test]
fn levels_count_the_object_itself() {
    for (depth, beyond) in [(MAX_NESTING, false), (MAX_NESTING + 1, true)] {
        assert_eq!(levels(&nested(depth)), depth);
        let object = serde_json::from_str(&nested(depth)).unwrap();
        assert_eq!(too_nested(&object), beyond, "{depth}");
    }
}

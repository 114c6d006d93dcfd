//! An execution as the API server gives it, also where this version does not understand all of it.

use fairlead_crds::reading::{Unreadable, metadata, shallow, told};
use fairlead_crds::{PLAN_VERSION, ToolExecution};
use kube::Resource;
use kube::core::ObjectMeta;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;

/// One execution of a list, a watch or a get. One that cannot be read does not make the others unreadable.
#[derive(Clone, Debug)]
pub(crate) enum Guarded {
    /// All of it was understood.
    Whole(Box<ToolExecution>),
    /// Its plan has a version after [`PLAN_VERSION`] and a form that is not known. Everything else was understood; in
    /// the place of the plan stands one that runs nothing.
    TooNew(Box<ToolExecution>),
    /// It cannot be read, for whatever reason.
    Unreadable(Unreadable),
}

impl<'de> Deserialize<'de> for Guarded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let text = shallow(raw.get());
        let error = match serde_json::from_str(&text) {
            Ok(object) => return Ok(Self::Whole(Box::new(object))),
            Err(error) => error,
        };
        if let Ok(mut value) = serde_json::from_str(&text)
            && without_plan(&mut value)
            && let Ok(object) = serde_json::from_value(value)
        {
            return Ok(Self::TooNew(Box::new(object)));
        }
        Ok(Self::Unreadable(Unreadable {
            metadata: Box::new(metadata(&text)),
            error: told(&error),
        }))
    }
}

/// Puts an empty plan in the place of one whose version is not known. False: it is known, or there is none.
fn without_plan(value: &mut Value) -> bool {
    let Some(binding) = value.pointer_mut("/spec/binding") else {
        return false;
    };
    let version = binding.get("planVersion").and_then(Value::as_i64);
    if version.is_none_or(|version| version <= PLAN_VERSION) {
        return false;
    }
    if let Some(plan) = binding.get_mut("plan") {
        *plan = json!({
            "toolGeneration": 0,
            "command": {"argv": []},
            "timeouts": {"hardSeconds": 1, "graceSeconds": 0},
            "resources": {"memoryMaxBytes": 0, "cpuMillicores": 0, "maxProcesses": 0, "oomGroup": true},
            "network": "None",
            "outputMaxBytes": 0,
        });
    }
    true
}

impl Resource for Guarded {
    type DynamicType = ();
    type Scope = <ToolExecution as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        ToolExecution::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        ToolExecution::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        ToolExecution::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        ToolExecution::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Whole(object) | Self::TooNew(object) => &object.metadata,
            Self::Unreadable(unread) => &unread.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Whole(object) | Self::TooNew(object) => &mut object.metadata,
            Self::Unreadable(unread) => &mut unread.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execution(version: i64, plan: &Value) -> Value {
        json!({
            "apiVersion": "fairlead.dev/v1alpha1",
            "kind": "ToolExecution",
            "metadata": {"name": "tx", "uid": "u1", "managedFields": [{"manager": "m"}]},
            "spec": {
                "tool": {"toolRef": {"name": "t"}},
                "binding": {
                    "nodeName": "n", "incarnation": "i", "attempt": 1, "fence": "f", "term": 1, "planVersion": version,
                    "admittedAt": "2026-01-01T00:00:00Z", "callDigest": "d", "decisions": [], "plan": plan,
                },
            },
        })
    }

    fn read(value: Value) -> Guarded {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_plan_that_is_too_new_to_be_read_leaves_the_rest_readable() {
        let newer = PLAN_VERSION + 1;
        let Guarded::TooNew(object) = read(execution(newer, &json!({"module": "wasm"}))) else {
            panic!("it is known to be too new");
        };
        let binding = object.spec.binding.unwrap();
        assert_eq!((binding.plan_version, binding.attempt), (newer, 1));
        assert!(
            binding.plan.command.argv.is_empty(),
            "what stands there runs nothing"
        );
    }

    #[test]
    fn arguments_of_any_depth_leave_the_rest_readable() {
        for levels in [10, 200, 5_000] {
            let arguments = "{\"a\":".repeat(levels) + "1" + &"}".repeat(levels);
            let text = format!(
                r#"{{"metadata":{{"uid":"u1"}},"spec":{{"tool":{{"toolRef":{{"name":"t"}}}},"arguments":{arguments}}}}}"#
            );
            let Guarded::Whole(object) = serde_json::from_str(&text).unwrap() else {
                panic!("it is readable with {levels} levels");
            };
            assert!(!object.spec.arguments.is_empty());
        }
    }

    #[test]
    fn only_the_version_says_that_a_plan_is_too_new() {
        let known = read(execution(PLAN_VERSION, &json!({"module": "wasm"})));
        let Guarded::Unreadable(Unreadable { metadata, error }) = known else {
            panic!("this version knows the form of that plan");
        };
        assert_eq!(metadata.uid.as_deref(), Some("u1"));
        assert!(error.contains("missing field"), "{error}");
    }

    #[test]
    fn what_is_understood_is_whole_whatever_its_version_and_without_its_writers() {
        let plan = json!({
            "toolGeneration": 1, "command": {"argv": ["true"]},
            "timeouts": {"hardSeconds": 9, "graceSeconds": 3},
            "resources": {"memoryMaxBytes": 1, "cpuMillicores": 1, "maxProcesses": 1, "oomGroup": true},
            "network": "None", "outputMaxBytes": 9, "later": {},
        });
        for version in [PLAN_VERSION, PLAN_VERSION + 1] {
            let Guarded::Whole(object) = read(execution(version, &plan)) else {
                panic!("all that is asked for is there");
            };
            assert_eq!(object.metadata.managed_fields, None);
        }
    }
}

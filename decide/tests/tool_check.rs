//! Which tools are accepted, which arguments fit, and what plan comes of them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::too_many_lines,
    reason = "a test ends at the first surprise, and a table of cases is one list"
)]

use fairlead_crds::values::OpenObject;
use fairlead_crds::{Controller, ToolSpec};
use fairlead_decide::tool_check::{AcceptedTool, MAX_JSON_BYTES, ToolFaultReason, accept, resolve_plan};
use serde_json::{Value, json};

fn tool(schema: Value) -> ToolSpec {
    serde_json::from_value(json!({
        "description": "d", "inputSchema": schema, "runner": {"command": {"argv": ["echo", "--", "x"]}},
    }))
    .unwrap()
}

fn accepted(schema: Value) -> AcceptedTool {
    accept(&tool(schema)).unwrap()
}

fn schema_fault(schema: Value) -> String {
    let faults = accept(&tool(schema.clone())).expect_err(&format!("{schema} is refused"));
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert_eq!(faults[0].reason, ToolFaultReason::InvalidSchema);
    assert!(faults[0].message.starts_with("spec.inputSchema"), "{}", faults[0]);
    faults[0].message.clone()
}

fn fault(tool: &AcceptedTool, arguments: Value) -> String {
    tool.validate(arguments.as_object().unwrap())
        .expect_err("fits")
        .message
}

#[test]
fn a_tool_without_parameters_takes_an_empty_object() {
    let spec: ToolSpec =
        serde_json::from_value(json!({"description": "d", "runner": {"command": {"argv": ["true"]}}}))
            .unwrap();
    let accepted = accept(&spec).unwrap();
    assert_eq!(accepted.clone().validate(&OpenObject::new()), Ok(()));
    assert!(format!("{accepted:?}").contains("AcceptedTool"));
}

#[test]
fn bad_schemas_are_refused_with_field_rule_and_fix() {
    let object = |more: Value| {
        let mut schema = json!({"type": "object"});
        schema
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        schema
    };
    let cases = [
        (json!({}), "write type: object"),
        (
            object(json!({"properties": {"false": {}}, "required": [false]})),
            "write them in quotes",
        ),
        (json!({"type": "array"}), "write type: object"),
        (json!({"type": ["object"]}), "write type: object"),
        (
            object(json!({"$schema": "http://json-schema.org/draft-07/schema#"})),
            "only JSON Schema 2020-12",
        ),
        (
            object(json!({"$ref": "https://example.com/s.json"})),
            "nothing outside the schema is fetched",
        ),
        (
            object(json!({"properties": {"a": {"$ref": "file:///etc/passwd"}}})),
            "nothing outside the schema is fetched",
        ),
        (
            object(json!({"properties": {"a": {"$ref": "other.json#/x"}}})),
            "nothing outside the schema is fetched",
        ),
        (
            object(json!({"properties": {"a": {"$ref": "#/$defs/none"}}})),
            "which is not there",
        ),
        (
            object(json!({"properties": {"a": {"$ref": 3}}})),
            "is not a string",
        ),
        (
            object(json!({"properties": {"a": {"$ref": "#"}}})),
            "may not be recursive",
        ),
        (
            object(json!({"$defs": {"n": {"items": {"$ref": "#/$defs/n"}}}})),
            "may not be recursive",
        ),
        (
            object(
                json!({"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"items": {"$ref": "#/$defs/a"}}}}),
            ),
            "may not be recursive",
        ),
        (
            object(json!({"properties": {"a": {"items": {"$ref": "#/properties/a"}}}})),
            "may not be recursive",
        ),
        (object(json!({"$dynamicAnchor": "x"})), "$dynamicAnchor"),
        (
            object(json!({"properties": {"a": {"$id": "https://example.com/"}}})),
            "$id",
        ),
        (
            object(json!({"properties": {"a": {"type": "strin"}}})),
            "/properties/a/type",
        ),
        (
            object(json!({"properties": {"a": {"maxLength": -1}}})),
            "/properties/a/maxLength",
        ),
        (object(json!({"properties": {"a": {"pattern": "("}}})), "pattern"),
        (
            object(json!({"properties": {"a": {"pattern": "^(?=a)"}}})),
            "without look-around",
        ),
        (
            object(json!({"properties": {"a": {"pattern": "(a)\\1"}}})),
            "without look-around",
        ),
        (
            object(json!({"properties": {"a": {"pattern": "^((\\p{L}{90}x){90}|y)$"}}})),
            "spec.inputSchema",
        ),
        (object(json!({"required": "a"})), "/required"),
        (
            object(json!({"description": "x".repeat(MAX_JSON_BYTES)})),
            "at most 65536",
        ),
    ];
    for (schema, part) in cases {
        let shown: String = schema.to_string().chars().take(120).collect();
        let message = schema_fault(schema);
        assert!(message.contains(part), "{shown}: {message}");
        assert!(message.len() <= 1024, "{}", message.len());
    }
}

#[test]
fn a_schema_that_doubles_itself_is_refused() {
    let mut defs = json!({"d0": {"type": "string"}});
    for n in 1..40 {
        let below = json!({"$ref": format!("#/$defs/d{}", n - 1)});
        defs[format!("d{n}")] = json!({"allOf": [below, below]});
    }
    let message = schema_fault(json!({"type": "object", "$defs": defs}));
    assert!(
        message.contains("more than 4096 schemas") || message.contains("inside one another"),
        "{message}"
    );

    let many: Vec<Value> = (0..65).map(|n| json!({"pattern": format!("^{n}$")})).collect();
    assert!(schema_fault(json!({"type": "object", "anyOf": many})).contains("64 regular expressions"));

    let deep = (0..80).fold(json!({}), |inner, _| json!({"not": inner}));
    assert!(schema_fault(json!({"type": "object", "not": deep})).contains("flatten"));
}

#[test]
fn names_and_data_that_look_like_keywords_are_left_alone() {
    let tool = accepted(json!({
        "type": "object",
        "properties": {
            "$ref": {"type": "string"}, "pattern": {"type": "integer"}, "$id": {"const": {"$ref": "https://x"}},
            "shared": {"$ref": "#/$defs/word"}, "again": {"$ref": "#/$defs/word"},
        },
        "$defs": {"word": {"type": "string", "pattern": "^[a-z]+$"}},
    }));
    let good = json!({"$ref": "x", "pattern": 1, "$id": {"$ref": "https://x"}, "shared": "a", "again": "b"});
    assert_eq!(tool.validate(good.as_object().unwrap()), Ok(()));
    assert!(fault(&tool, json!({"again": "B"})).starts_with("/again: "));
}

#[test]
fn both_faults_of_a_tool_are_told() {
    let mut bad = tool(json!({"type": "string"}));
    bad.runner.command.argv.push("{{nope}}".to_owned());
    let faults = accept(&bad).unwrap_err();
    let reasons: Vec<_> = faults.iter().map(|f| f.reason.as_str()).collect();
    assert_eq!(reasons, ["InvalidSchema", "InvalidTemplate"]);
    assert!(
        faults[1]
            .message
            .starts_with("spec.runner.command.argv[3]: {{nope}}"),
        "{}",
        faults[1]
    );
}

#[test]
fn arguments_are_refused_with_place_rule_and_hint() {
    let tool = accepted(json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5}, "n": {"type": "integer", "minimum": 1},
            "kind": {"enum": ["a", "b"]}, "list": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name"], "additionalProperties": false,
    }));
    let cases = [
        (
            json!({}),
            "the arguments: ",
            "\"name\" is a required property",
            "add \"name\"",
        ),
        (
            json!({"name": 1}),
            "/name: ",
            "not of type \"string\"",
            "without quotes",
        ),
        (
            json!({"name": "toolong"}),
            "/name: ",
            "/properties/name/maxLength",
            "so that the rule holds",
        ),
        (
            json!({"name": "a", "n": 0}),
            "/n: ",
            "minimum",
            "so that the rule holds",
        ),
        (
            json!({"name": "a", "n": "1"}),
            "/n: ",
            "integer",
            "without quotes",
        ),
        (
            json!({"name": "a", "kind": "c"}),
            "/kind: ",
            "enum",
            "one of the values allowed",
        ),
        (
            json!({"name": "a", "list": ["x", 2]}),
            "/list/1: ",
            "string",
            "without quotes",
        ),
        (
            json!({"name": "a", "nmae": 1}),
            "the arguments: ",
            "nmae",
            "the parameters are ",
        ),
        (
            json!({"name": "a", "n": 9_007_199_254_740_993_u64}),
            "/n: ",
            "2^53",
            "as a string",
        ),
    ];
    for (arguments, place, rule, hint) in cases {
        let message = fault(&tool, arguments.clone());
        assert!(message.starts_with(place), "{arguments}: {message}");
        assert!(message.contains(rule), "{arguments}: {message}");
        assert!(message.contains(hint), "{arguments}: {message}");
    }
    assert_eq!(
        tool.validate(json!({"name": "a", "n": 1.0}).as_object().unwrap()),
        Ok(())
    );
}

#[test]
fn too_large_arguments_are_refused_and_messages_stay_short() {
    let tool = accepted(json!({"type": "object", "additionalProperties": {"type": "integer"}}));
    assert!(fault(&tool, json!({"a": "x".repeat(MAX_JSON_BYTES)})).contains("at most 65536"));
    let many: OpenObject = (0..50)
        .map(|n| (format!("k{n}"), json!("y".repeat(1000))))
        .collect();
    let message = tool.validate(&many).unwrap_err().message;
    assert!(
        message.contains("there are more") || message.len() == 2048,
        "{message}"
    );
    assert!(message.len() <= 2048, "{}", message.len());
}

#[test]
fn arguments_that_fit_the_schema_but_not_the_command_are_refused() {
    let mut spec = tool(json!({"type": "object", "properties": {"p": {"type": "string"}}}));
    spec.runner.command.argv = vec!["grep".to_owned(), "{{p}}".to_owned()];
    let message = fault(&accept(&spec).unwrap(), json!({"p": "-rf"}));
    assert!(message.contains("read as an option"), "{message}");
}

#[test]
fn patterns_run_in_linear_time() {
    let tool =
        accepted(json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}));
    assert!(fault(&tool, json!({"a": format!("{}!", "a".repeat(50_000))})).starts_with("/a: "));
}

fn of_a(schema: Value) -> Value {
    json!({"type": "object", "properties": {"a": schema}})
}

#[test]
fn patterns_that_are_large_when_compiled_are_refused_or_match_short_texts_only() {
    let pattern = |repeats: usize| json!({"pattern": format!("^[ab]*a[ab]{{{repeats}}}\\W")});
    let message = schema_fault(of_a(pattern(1000)));
    assert!(
        message.contains("#/properties/a/pattern is larger than 65536 bytes"),
        "{message}"
    );
    let many: Vec<Value> = (0..9).map(|n| pattern(400 + n)).collect();
    let message = schema_fault(of_a(json!({"anyOf": many})));
    assert!(message.contains("larger than 262144 bytes"), "{message}");

    let tool = accepted(of_a(pattern(200)));
    assert!(fault(&tool, json!({"a": "ab".repeat(100)})).starts_with("/a: "));
    let message = fault(&tool, json!({"a": "ab".repeat(10_000)}));
    assert!(
        message.contains("more than 250000 steps") && message.contains("shorter texts"),
        "{message}"
    );
    // What ordinary tools have is matched in long texts.
    let tool = accepted(of_a(json!({"type": "string", "pattern": "\\S"})));
    let text = json!({"a": "x".repeat(30_000)});
    assert_eq!(tool.validate(text.as_object().unwrap()), Ok(()));
}

#[test]
fn branches_for_each_element_are_bounded() {
    let branches = |count: usize| -> Value {
        (0..count)
            .map(|n| json!({"type": "string", "minLength": n}))
            .collect()
    };
    for keyword in ["items", "additionalProperties", "contains", "propertyNames"] {
        let mut schema = of_a(json!({}));
        schema["properties"]["a"][keyword] = json!({"anyOf": branches(1000)});
        let message = schema_fault(schema);
        assert!(
            message.contains(&format!("at #/properties/a/{keyword}")),
            "{message}"
        );
        assert!(
            message.contains("1001 schemas") && message.contains("at most 512"),
            "{message}"
        );
    }
    let message = schema_fault(json!({
        "type": "object", "properties": {"a": {"items": {"$ref": "#/$defs/any"}}},
        "$defs": {"any": {"oneOf": branches(600)}},
    }));
    assert!(message.contains("at most 512"), "{message}");

    let tool = accepted(of_a(json!({"items": {"anyOf": branches(400)}})));
    let message = fault(&tool, json!({"a": vec![1; 2000]}));
    assert!(message.contains("more than 250000 steps"), "{message}");
    // Judged, and not told in detail: every branch of every item would have a fault.
    let message = fault(&tool, json!({"a": vec![1; 50]}));
    assert!(
        message.contains("too much in them to say where") && message.contains("Hint: send fewer items"),
        "{message}"
    );
    let message = fault(&tool, json!({"a": [1]}));
    assert!(message.starts_with("/a/0: "), "{message}");
    let many = json!({"a": vec!["x".repeat(20); 50]});
    assert_eq!(tool.validate(many.as_object().unwrap()), Ok(()));
}

#[test]
fn a_fault_among_many_values_is_told_without_collecting_all() {
    let tool = accepted(of_a(
        json!({"items": {"type": "integer", "minimum": 0, "maximum": 9}}),
    ));
    let mut items = vec![json!(1); 5000];
    assert_eq!(tool.validate(json!({"a": items}).as_object().unwrap()), Ok(()));
    items[4000] = json!("x");
    let message = fault(&tool, json!({"a": items}));
    assert!(message.starts_with("/a/4000: \"x\" is not of type"), "{message}");
    assert!(message.ends_with("; there may be more"), "{message}");
}

#[test]
fn schemas_that_judge_a_value_again_and_again_are_counted_so() {
    // Each asks anew what those inside it have looked at, so each doubles the work.
    let names: Vec<String> = (0..200).map(|n| format!("n{n}")).collect();
    let nested = |depth: usize| {
        (0..depth).fold(
            json!({"anyOf": [{"required": names}]}),
            |inner, _| json!({"anyOf": [inner], "unevaluatedProperties": false}),
        )
    };
    let tool = accepted(of_a(nested(3)));
    assert!(fault(&tool, json!({"a": {"y": 1}})).starts_with("/a: "));
    let tool = accepted(of_a(nested(12)));
    assert!(fault(&tool, json!({"a": {"y": 1}})).contains("more than 250000 steps"));
}

#[test]
fn a_chain_of_references_is_as_deep_as_schemas_inside_one_another() {
    let chain = |length: usize| {
        let mut defs = json!({"d0000": {"type": "string"}});
        for n in 1..length {
            defs[format!("d{n:04}")] = json!({"not": {"$ref": format!("#/$defs/d{:04}", n - 1)}});
        }
        let last = format!("#/$defs/d{:04}", length - 1);
        json!({"type": "object", "properties": {"a": {"$ref": last}}, "$defs": defs})
    };
    accepted(chain(20));
    assert!(schema_fault(chain(500)).contains("inside one another"));
}

#[test]
fn a_plan_fills_defaults_and_requires_what_was_written() {
    let mut spec = tool(json!({"type": "object"}));
    let plan = resolve_plan(&spec, 7, None);
    assert_eq!(plan.tool_generation, 7);
    assert_eq!(plan.command, spec.runner.command);
    assert_eq!(
        (plan.timeouts.hard_seconds, plan.timeouts.grace_seconds),
        (3600, 3)
    );
    assert_eq!(
        (plan.resources.memory_max_bytes, plan.resources.cpu_millicores),
        (2_147_483_648, 2000)
    );
    assert_eq!(
        (plan.resources.max_processes, plan.resources.oom_group),
        (256, true)
    );
    assert!(plan.resources.required.is_empty());
    assert_eq!(plan.output_max_bytes, 50_000);

    spec.resources.memory_max_bytes = Some(1 << 24);
    spec.resources.max_processes = Some(9);
    spec.resources.oom_group = false;
    spec.timeouts.hard_seconds = 100;
    spec.timeouts.grace_seconds = 0;
    spec.output.max_bytes = 2048;
    let plan = resolve_plan(&spec, 8, Some(50));
    assert_eq!(plan.resources.required, [Controller::Memory, Controller::Pids]);
    assert_eq!(
        (plan.resources.memory_max_bytes, plan.resources.max_processes),
        (1 << 24, 9)
    );
    assert_eq!((plan.timeouts.hard_seconds, plan.timeouts.grace_seconds), (50, 0));
    assert_eq!((plan.resources.oom_group, plan.output_max_bytes), (false, 2048));
    spec.resources.cpu_millicores = Some(10);
    assert_eq!(resolve_plan(&spec, 8, Some(101)).timeouts.hard_seconds, 100);
    assert_eq!(resolve_plan(&spec, 8, None).resources.required, Controller::ALL);
}

//! Templates: what a value may become, and what it may never touch.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::too_many_lines,
    reason = "a test ends at the first surprise, and a table of cases is one list"
)]

use fairlead_crds::values::OpenObject;
use fairlead_crds::{CommandRunner, EnvVar};
use fairlead_decide::template::{MAX_RENDERED_BYTES, check, render};
use proptest::prelude::*;
use serde_json::{Value, json};

fn command(argv: &[&str]) -> CommandRunner {
    CommandRunner {
        argv: argv.iter().map(|s| (*s).to_owned()).collect(),
        env: Vec::new(),
        stdin: None,
    }
}

fn object(value: Value) -> OpenObject {
    value.as_object().cloned().unwrap()
}

fn argv(elements: &[&str], arguments: Value) -> Vec<String> {
    render(&command(elements), &object(arguments)).unwrap().argv
}

fn refusal(elements: &[&str], arguments: Value) -> String {
    render(&command(elements), &object(arguments))
        .unwrap_err()
        .to_string()
}

#[test]
fn values_have_one_form() {
    let elements = ["p", "{{a}}", "x{{b}}y", "{{c}}", "{{d}}", "{{e}}"];
    let arguments =
        json!({"a": 1.0, "b": true, "c": {"z": 1e2, "a": [1, "q"]}, "d": "two words; $(x) `y`", "e": ""});
    let expected = [
        "p",
        "1",
        "xtruey",
        r#"{"a":[1,"q"],"z":100}"#,
        "two words; $(x) `y`",
        "",
    ];
    assert_eq!(argv(&elements, arguments), expected);
    assert_eq!(
        argv(&["p", "{{a}}"], json!({"a": 1})),
        argv(&["p", "{{a}}"], json!({"a": 1.0}))
    );
}

#[test]
fn an_absent_parameter_drops_its_element_only() {
    assert_eq!(
        argv(&["p", "{{a}}", "{{b}}", "--c={{c}}", "end"], json!({"b": "B"})),
        ["p", "B", "end"]
    );
    assert_eq!(argv(&["p", "{{a}}", "end"], json!({"a": null})), ["p", "end"]);
    let message = refusal(&["p", "{{a}}:{{b}}"], json!({"a": "A"}));
    assert!(
        message.starts_with("spec.runner.command.argv[1]: the parameter b stands beside another"),
        "{message}"
    );
}

#[test]
fn a_list_spreads_into_elements_of_its_own() {
    let elements = ["ls", "--", "{{files...}}", "last"];
    assert_eq!(
        argv(&elements, json!({"files": ["a b", "-c", 3, {"k": 1}]})),
        ["ls", "--", "a b", "-c", "3", r#"{"k":1}"#, "last"]
    );
    assert_eq!(argv(&elements, json!({"files": []})), ["ls", "--", "last"]);
    assert_eq!(argv(&elements, json!({})), ["ls", "--", "last"]);
    assert!(refusal(&elements, json!({"files": "a"})).contains("give a list"));
    assert!(refusal(&elements, json!({"files": [null]})).contains("holds a null"));
    assert!(refusal(&["ls", "{{files...}}"], json!({"files": ["ok", "-rf"]})).contains("read as an option"));
}

#[test]
fn a_leading_dash_needs_text_before_it_or_two_dashes() {
    assert!(refusal(&["grep", "{{p}}"], json!({"p": "-f"})).contains("read as an option"));
    assert!(refusal(&["head", "{{n}}"], json!({"n": -5})).contains("read as an option"));
    assert!(refusal(&["p", "{{a}}{{b}}"], json!({"a": "", "b": "-x"})).contains("read as an option"));
    assert!(refusal(&["p", "{{a}}-x"], json!({"a": ""})).contains("read as an option"));
    assert!(refusal(&["grep", "--", "{{p}}", "{{f}}"], json!({"p": "-a", "f": "-b"})).contains("argv[3]"));
    assert_eq!(
        argv(&["grep", "-e{{p}}", "--", "{{f}}"], json!({"p": "-f", "f": "-g"})),
        ["grep", "-e-f", "--", "-g"]
    );
    assert_eq!(
        argv(&["p", "--n={{n}}", "-v"], json!({"n": -5})),
        ["p", "--n=-5", "-v"]
    );
}

#[test]
fn nul_bytes_and_too_much_are_refused() {
    assert!(refusal(&["p", "{{a}}"], json!({"a": "x\u{0}y"})).contains("NUL byte"));
    let long = "x".repeat(65_000);
    let many = "{{a}}".repeat(800);
    let message = refusal(&["p", &many], json!({"a": long}));
    assert!(message.contains("larger than 131072 bytes"), "{message}");
    assert!(
        refusal(&["p", "{{a}}", "{{a}}", "{{a}}"], json!({"a": long}))
            .starts_with("spec.runner.command.argv[3]")
    );
    assert!(
        refusal(
            &["p", "--", "{{l...}}"],
            json!({"l": vec![""; MAX_RENDERED_BYTES]})
        )
        .contains("larger than")
    );
    let mut with_stdin = command(&["p"]);
    with_stdin.stdin = Some("{{a}}{{a}}{{a}}".to_owned());
    let error = render(&with_stdin, &object(json!({"a": long}))).unwrap_err();
    assert_eq!(error.field, "spec.runner.command.stdin");
}

#[test]
fn the_program_is_never_absent_or_empty() {
    assert!(refusal(&["{{a}}", "b"], json!({})).contains("may not be absent"));
    assert!(refusal(&["{{a}}", "b"], json!({"a": ""})).contains("program is empty"));
    assert!(refusal(&["{{a...}}", "b"], json!({"a": ["", "x"]})).contains("program is empty"));
    assert!(refusal(&["{{a}}"], json!({"a": "-x"})).contains("option"));
}

#[test]
fn standard_input_is_one_element_that_may_begin_with_a_dash() {
    let mut with_stdin = command(&["cat"]);
    with_stdin.stdin = Some("{{a}}".to_owned());
    let stdin = |arguments| render(&with_stdin, &object(arguments)).unwrap().stdin;
    assert_eq!(stdin(json!({"a": "-x\n"})), Some("-x\n".to_owned()));
    assert_eq!(stdin(json!({"a": [1.0]})), Some("[1]".to_owned()));
    assert_eq!(stdin(json!({})), None);
    assert_eq!(
        render(&command(&["cat"]), &OpenObject::new()).unwrap().stdin,
        None
    );
}

#[test]
fn braces_can_be_written() {
    assert_eq!(
        argv(&["p", "{{{{a}}", "{{{a}}}", "{{{{{{a}}"], json!({"a": "A"})),
        ["p", "{{a}}", "{A}", "{{A"]
    );
}

fn schema() -> OpenObject {
    object(json!({
        "type": "object",
        "properties": {
            "path": {"type": "string"}, "opt": {"type": "string"}, "files": {"type": "array"},
            "maybe": {"type": ["array", "null"]}, "either": {"type": ["array", "string"]}, "untyped": {},
        },
        "required": ["path"],
    }))
}

#[test]
fn good_templates_are_accepted() {
    let mut good = command(&[
        "{{path}}",
        "-x",
        "{{opt}}",
        "--o={{opt}}",
        "--",
        "{{files...}}",
        "{{maybe...}}",
        "{{path}}/{{path}}",
        "{{{{",
    ]);
    good.stdin = Some("{{files}}".to_owned());
    good.env = vec![EnvVar {
        name: "A".to_owned(),
        value: "{{not a template}}".to_owned(),
    }];
    assert_eq!(check(&good, &schema()), Ok(()));
}

#[test]
fn bad_templates_are_refused_with_field_rule_and_fix() {
    let cases: &[(&[&str], &str, &str)] = &[
        (&["p", "{{path"], "argv[1]", "without its }}"),
        (&["p", "{{}}"], "argv[1]", "names no parameter"),
        (&["p", "{{ path }}"], "argv[1]", "without spaces"),
        (
            &["p", "a", "{{nope}}"],
            "argv[2]",
            "{{nope}} is no parameter of spec.inputSchema.properties (it has ",
        ),
        (&["p", "{{path...}}"], "argv[1]", "write \"type: array\" there"),
        (&["p", "{{either...}}"], "argv[1]", "write \"type: array\" there"),
        (&["p", "{{untyped...}}"], "argv[1]", "write \"type: array\" there"),
        (&["p", "x{{files...}}"], "argv[1]", "an element of its own"),
        (
            &["p", "{{files...}}{{files...}}"],
            "argv[1]",
            "optional and stands beside another",
        ),
        (
            &["{{files...}}"],
            "argv[0]",
            "the program cannot be a spread list",
        ),
        (&["{{opt}}"], "argv[0]", "list opt in spec.inputSchema.required"),
        (
            &["p", "{{path}}:{{opt}}"],
            "argv[1]",
            "list opt in spec.inputSchema.required",
        ),
        (&[""], "argv[0]", "the program is empty"),
        (&["p", "a\u{0}b"], "argv[1]", "NUL byte"),
        (&[], "argv", "names no program"),
    ];
    for (elements, field, part) in cases {
        let error = check(&command(elements), &schema()).expect_err(&format!("{elements:?}"));
        assert!(error.field.ends_with(field), "{elements:?}: {error}");
        assert!(error.message.contains(part), "{elements:?}: {error}");
    }
    let mut bad = command(&["p"]);
    bad.stdin = Some("{{files...}}".to_owned());
    assert!(
        check(&bad, &schema())
            .unwrap_err()
            .message
            .contains("standard input is one text")
    );
    bad.stdin = None;
    bad.env = vec![EnvVar {
        name: "A".to_owned(),
        value: "\u{0}".to_owned(),
    }];
    assert_eq!(
        check(&bad, &schema()).unwrap_err().field,
        "spec.runner.command.env[0].value"
    );
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        (-9_007_199_254_740_992_i64..9_007_199_254_740_992).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,24}".prop_map(Value::from),
        "[-{}a. \"'$`|;&\n]{0,12}".prop_map(Value::from),
        Just(Value::Null),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-z]{1,3}", inner, 0..4).prop_map(Value::from_iter),
        ]
    })
}

proptest! {
    /// One element in, at most one out, and no value changes another element.
    #[test]
    fn a_value_touches_only_its_own_element(a in any_value(), b in any_value()) {
        let elements = ["prog", "one", "pre:{{a}}:post", "two", "pre:{{b}}", "--", "{{a}}", "three"];
        let arguments = object(json!({"a": a, "b": b}));
        match render(&command(&elements), &arguments) {
            Ok(out) => {
                let mut expected: Vec<Option<&str>> = vec![Some("prog"), Some("one")];
                if !a.is_null() { expected.push(None); }
                expected.push(Some("two"));
                if !b.is_null() { expected.push(None); }
                expected.push(Some("--"));
                if !a.is_null() { expected.push(None); }
                expected.push(Some("three"));
                prop_assert_eq!(out.argv.len(), expected.len());
                for (got, want) in out.argv.iter().zip(&expected) {
                    if let Some(want) = want { prop_assert_eq!(got, want); }
                    prop_assert!(!got.contains('\0'), "a NUL");
                }
                if let Value::String(text) = &a {
                    prop_assert_eq!(&out.argv[2], &format!("pre:{text}:post"));
                    prop_assert_eq!(&out.argv[out.argv.len() - 2], text);
                }
            }
            Err(error) => prop_assert!(error.message.contains("NUL"), "{}", error),
        }
    }

    /// No value becomes an option where the template does not allow it, whatever the pieces of the element are.
    #[test]
    fn no_value_becomes_an_option(a in any_value(), b in "[-a]{0,2}") {
        let arguments = object(json!({"a": a, "b": b}));
        if let Ok(out) = render(&command(&["prog", "{{b}}{{b}}", "{{a}}"]), &arguments) {
            let options = out.argv.iter().filter(|element| element.starts_with('-')).count();
            prop_assert_eq!(options, 0);
        }
    }

    /// A spread gives exactly one element per item, in order.
    #[test]
    fn a_spread_gives_one_element_per_item(items in proptest::collection::vec("[^\0]{0,8}", 0..8)) {
        let out = render(&command(&["prog", "--", "{{l...}}", "end"]), &object(json!({"l": items}))).unwrap();
        let mut expected = vec!["prog".to_owned(), "--".to_owned()];
        expected.extend(items);
        expected.push("end".to_owned());
        prop_assert_eq!(out.argv, expected);
    }

    /// Whatever the author writes, parsing ends with a verdict, and what `check` accepts renders for fitting values.
    #[test]
    fn what_is_accepted_renders(element in "[{}a.b-]{0,12}") {
        let schema = object(json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}));
        let made = command(&["prog", "--", &element]);
        if check(&made, &schema).is_ok() {
            let rendered = render(&made, &object(json!({"a": "x"})));
            prop_assert!(rendered.is_ok(), "{:?}", rendered);
        }
    }
}

//! What `kubectl explain` says of every field.

use fairlead_e2e::cluster;
use serde_json::{Map, Value};

/// A number as the descriptions write it: 7,200.
fn written(number: &Value) -> String {
    let text = format!("{:.0}", number.as_f64().unwrap());
    let (sign, digits) = text
        .strip_prefix('-')
        .map_or(("", text.as_str()), |digits| ("-", digits));
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    format!("{sign}{out}")
}

/// What only the operator writes needs no default and no bounds in words.
const OPERATORS: [&str; 4] = ["spec.binding", "spec.runRef", "spec.turn", "spec.callId"];

/// Complains about every field below `schema` whose description does not say what `kubectl explain` should.
fn explain(path: &str, schema: &Map<String, Value>, complaints: &mut Vec<String>) {
    if let Some(Value::Object(item)) = schema.get("items") {
        explain(path, item, complaints);
    }
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, field) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let (path, field) = (format!("{path}.{name}"), field.as_object().unwrap());
        explain(&path, field, complaints);
        let text = field
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .replace('\n', " ");
        if !text.ends_with('.') {
            complaints.push(format!("{path}: no sentence: {text:?}"));
        }
        if OPERATORS.iter().any(|prefix| path.contains(prefix)) || path.contains("agentturns") {
            continue;
        }
        let mut numbers: Vec<&Value> = ["minimum", "maximum", "maxLength", "maxItems"]
            .iter()
            .filter_map(|key| field.get(*key))
            .collect();
        let default = field.get("default");
        numbers.extend(default.filter(|value| value.is_number()));
        for number in numbers {
            if !text.contains(&written(number)) {
                complaints.push(format!("{path}: does not name {}: {text:?}", written(number)));
            }
        }
        let number = matches!(
            field.get("type").and_then(Value::as_str),
            Some("integer" | "number")
        );
        let says = ["by default", "equired", "without it", "Without it"]
            .iter()
            .any(|part| text.contains(part));
        if number && !says && !required.contains(&name.as_str()) {
            complaints.push(format!("{path}: names no default: {text:?}"));
        }
        if let Some(format) = field.get("format").and_then(Value::as_str)
            && !["int32", "int64", "date-time"].contains(&format)
        {
            complaints.push(format!("{path}: the server does not know format {format}"));
        }
    }
}

#[test]
fn every_field_of_every_spec_is_explained_with_its_bounds_and_default() {
    let mut complaints = Vec::new();
    for crd in fairlead_crds::all_crds() {
        let name = crd.spec.names.plural.clone();
        let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
        let spec = schema["openAPIV3Schema"]["properties"]["spec"]
            .as_object()
            .unwrap();
        explain(&format!("{name}.spec"), spec, &mut complaints);
    }
    assert!(
        complaints.is_empty(),
        "{} complaints:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}

#[test]
fn kubectl_explain_prints_the_sentences() {
    let said = cluster()
        .cluster()
        .kubectl(&["explain", "agentrun.spec"])
        .unwrap();
    println!("{said}");
    let words: Vec<&str> = said.split_whitespace().collect();
    let said = words.join(" ");
    for part in [
        "toolWaitSeconds <integer>",
        "0 to 600; 30 by default.",
        "input <string> -required-",
    ] {
        assert!(said.contains(part), "{part:?} in {said}");
    }
}

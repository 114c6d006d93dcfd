//! How long the dearest checks of arguments take that are let through, and how long a hostile schema takes to be
//! judged: the operator decides on one thread. `cargo bench -p fairlead-decide --bench checks` prints the table.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "a bench")]

use fairlead_crds::ToolSpec;
use fairlead_decide::tool_check::accept;
use serde_json::{Value, json};
use std::time::Instant;

/// Two letters in an order without a pattern, so that no automaton finds the end early.
fn letters(count: usize) -> String {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if state & 0x1_0000 == 0 { 'a' } else { 'b' }
    };
    (0..count).map(|_| next()).collect()
}

fn of(schema: Value) -> Value {
    json!({"type": "object", "properties": {"a": schema}})
}

fn nested(depth: usize, count: usize) -> Value {
    let inner: Vec<Value> = (0..count).map(|n| json!({"minimum": n + 2})).collect();
    let mut schema = json!({"anyOf": inner});
    for _ in 0..depth {
        schema = json!({"anyOf": [schema], "unevaluatedProperties": false});
    }
    schema
}

fn cases() -> Vec<(String, Value, Value)> {
    let mut cases = Vec::new();
    for repeat in [10, 50, 200, 400, 1000] {
        for length in [500, 1_000, 2_000, 4_000, 8_000, 16_000, 60_000] {
            let pattern = format!("^[ab]*a[ab]{{{repeat}}}\\W");
            let name = format!("pattern of {repeat} repeats, {length} bytes");
            cases.push((
                name,
                of(json!({"type": "string", "pattern": pattern})),
                json!(letters(length)),
            ));
        }
    }
    for count in [4, 16] {
        let patterns: Vec<Value> = (0..count)
            .map(|n| json!({"pattern": format!("^[ab]*a[ab]{{{}}}\\W", 100 + n)}))
            .collect();
        cases.push((
            format!("{count} patterns"),
            of(json!({"anyOf": patterns})),
            json!(letters(2_000)),
        ));
    }
    for (branches, items) in [(1000, 2000), (400, 2000), (400, 100), (100, 1000), (50, 1500)] {
        let any: Vec<Value> = (0..branches)
            .map(|n| json!({"type": "string", "minLength": n}))
            .collect();
        let ones = vec![json!(1); items];
        cases.push((
            format!("{branches} branches, {items} items"),
            of(json!({"items": {"anyOf": any}})),
            json!(ones),
        ));
    }
    for items in [10_000, 30_000] {
        let schema = of(json!({"type": "array", "items": {"type": "integer", "minimum": 0}}));
        cases.push((format!("{items} integers"), schema, json!(vec![1; items])));
        let schema = of(json!({"type": "array", "uniqueItems": true}));
        let distinct: Vec<usize> = (0..items / 3).collect();
        cases.push((
            format!("{} distinct integers", items / 3),
            schema,
            json!(distinct),
        ));
    }
    let names: Vec<String> = (0..300).map(|n| format!("name{n}")).collect();
    cases.push((
        "300 names, 800 texts".to_owned(),
        of(json!({"items": {"enum": names}})),
        json!(vec!["name300"; 800]),
    ));
    for depth in [3, 10, 14] {
        cases.push((
            format!("{depth} unevaluated inside one another"),
            of(nested(depth, 5)),
            json!({"x": 1}),
        ));
    }
    cases
}

fn main() {
    println!(
        "{:<48} {:>11} {:>11} {:>11}  verdict",
        "case", "accept ms", "first ms", "again ms"
    );
    for (name, schema, value) in cases() {
        let spec = json!({"description": "d", "inputSchema": schema, "runner": {"command": {"argv": ["x"]}}});
        let spec: ToolSpec = serde_json::from_value(spec).unwrap();
        let begun = Instant::now();
        let tool = accept(&spec);
        let accepting = begun.elapsed().as_secs_f64() * 1e3;
        let arguments = json!({"a": value});
        let check = || {
            let begun = Instant::now();
            let verdict = match &tool {
                Ok(tool) => tool
                    .validate(arguments.as_object().unwrap())
                    .err()
                    .map_or("fits".to_owned(), |fault| fault.message),
                Err(faults) => faults[0].message.clone(),
            };
            (begun.elapsed().as_secs_f64() * 1e3, verdict)
        };
        let (first, verdict) = check();
        let (again, _) = check();
        let shown: String = verdict.chars().take(70).collect();
        println!("{name:<48} {accepting:>11.2} {first:>11.3} {again:>11.3}  {shown}");
    }
}

//! Open objects have a bound of their own, well below the reader's.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_crds::ToolSpec;
use fairlead_crds::values::MAX_NESTING;
use fairlead_decide::tool_check::{ToolFaultReason, accept};
use serde_json::{Value, json};

/// A tool whose schema has that many levels, in an annotation that means nothing.
fn tool(levels: usize) -> ToolSpec {
    let inner = (2..levels).fold(json!({}), |inner, _| json!({"x": inner}));
    let schema: Value = json!({"type": "object", "x-note": inner});
    serde_json::from_value(json!({
        "description": "d", "inputSchema": schema,
        "runner": {"command": {"argv": ["/bin/true"]}},
        "timeouts": {"hardSeconds": 9, "graceSeconds": 1},
    }))
    .unwrap()
}

#[test]
fn a_schema_is_accepted_up_to_the_bound() {
    accept(&tool(MAX_NESTING)).unwrap();
    let faults = accept(&tool(MAX_NESTING + 1)).unwrap_err();
    assert_eq!(faults[0].reason, ToolFaultReason::InvalidSchema);
    let message = &faults[0].message;
    assert!(
        message.starts_with("spec.inputSchema: more than 32 "),
        "{message}"
    );
}

//! The request of the chat completions protocol.

use super::error::failure;
use fairlead_crds::canonical;
use fairlead_decide::model::{
    Message, MessageCall, ModelError, ModelErrorKind, ModelRequest, ToolDefinition,
};
use serde_json::{Map, Value, json};

/// Members of the request that Fairlead writes itself, and which field of the run stands for each.
const OWN_MEMBERS: [(&str, &str); 10] = [
    ("model", "use spec.model.name"),
    ("messages", "they are derived from the run"),
    ("tools", "use spec.tools"),
    ("functions", "use spec.tools"),
    ("function_call", "use tool_choice"),
    ("stream", "use spec.stream of the ModelProvider"),
    ("stream_options", "use spec.stream of the ModelProvider"),
    ("max_tokens", "use spec.model.maxOutputTokens"),
    ("n", "a turn has one answer"),
    ("store", "conversations are kept in the cluster only"),
];

/// Renders `request`.
///
/// The bound on the answer is sent as `max_tokens`. Models that want `max_completion_tokens` instead get it by naming
/// it in the parameters: the smaller of the two bounds is then sent under that name, and `max_tokens` is left out.
///
/// # Errors
///
/// `Refused`, when a parameter would replace a member that Fairlead writes itself.
pub(super) fn render(request: &ModelRequest, stream: bool) -> Result<Value, ModelError> {
    for (member, instead) in OWN_MEMBERS {
        if request.parameters.contains_key(member) {
            return Err(failure(
                ModelErrorKind::Refused,
                format!(
                    "spec.model.parameters.{member}: not allowed, since Fairlead writes it; remove it ({instead})"
                ),
            ));
        }
    }
    let mut body: Map<String, Value> = request.parameters.clone();
    body.insert("model".to_owned(), request.model.clone().into());
    body.insert(
        "messages".to_owned(),
        request.messages.iter().map(message).collect(),
    );
    if !request.tools.is_empty() {
        body.insert("tools".to_owned(), request.tools.iter().map(tool).collect());
    }
    let bound = match body.get("max_completion_tokens") {
        None => ("max_tokens", request.max_output_tokens),
        Some(asked) => {
            let asked = asked.as_i64().filter(|n| *n > 0).ok_or_else(|| {
                failure(
                    ModelErrorKind::Refused,
                    "spec.model.parameters.max_completion_tokens: must be a positive integer; correct or remove it",
                )
            })?;
            ("max_completion_tokens", asked.min(request.max_output_tokens))
        }
    };
    body.insert(bound.0.to_owned(), bound.1.into());
    body.insert("stream".to_owned(), stream.into());
    if stream {
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    Ok(Value::Object(body))
}

fn message(message: &Message) -> Value {
    match message {
        Message::System { text } => json!({"role": "system", "content": text}),
        Message::User { text } => json!({"role": "user", "content": text}),
        Message::Tool { call_id, text, .. } => {
            json!({"role": "tool", "tool_call_id": call_id, "content": text})
        }
        Message::Assistant { text, calls } if calls.is_empty() => {
            // Servers refuse a null here unless there are calls.
            json!({"role": "assistant", "content": text.as_deref().unwrap_or("")})
        }
        Message::Assistant { text, calls } => {
            json!({"role": "assistant", "content": text, "tool_calls": calls.iter().map(call).collect::<Value>()})
        }
    }
}

fn call(call: &MessageCall) -> Value {
    // As a string, in canonical form: the same conversation is the same bytes, which providers' caches rely on.
    let arguments = canonical::to_string(&Value::Object(call.arguments.clone()));
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
}

fn tool(tool: &ToolDefinition) -> Value {
    json!({
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> ModelRequest {
        serde_json::from_value(json!({
            "turn": 2, "model": "m", "max_output_tokens": 100, "parameters": {"temperature": 0},
            "messages": [
                {"role": "system", "text": "s"}, {"role": "user", "text": "u"},
                {"role": "assistant", "text": null, "calls": [{"id": "c1", "name": "t", "arguments": {"b": 1.0, "a": "\n"}}]},
                {"role": "tool", "call_id": "c1", "name": "t", "text": "out"},
                {"role": "assistant", "text": null, "calls": []},
            ],
            "tools": [{"name": "t", "description": "d", "schema": {"type": "object"}}],
        }))
        .unwrap()
    }

    #[test]
    fn a_request_has_the_form_of_the_protocol() {
        let expected = json!({
            "model": "m", "max_tokens": 100, "temperature": 0, "stream": true, "stream_options": {"include_usage": true},
            "messages": [
                {"role": "system", "content": "s"}, {"role": "user", "content": "u"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{\"a\":\"\\n\",\"b\":1}"}},
                ]},
                {"role": "tool", "tool_call_id": "c1", "content": "out"},
                {"role": "assistant", "content": ""},
            ],
            "tools": [{"type": "function", "function": {"name": "t", "description": "d", "parameters": {"type": "object"}}}],
        });
        assert_eq!(render(&request(), true).unwrap(), expected);
    }

    #[test]
    fn without_a_stream_and_tools_their_members_are_left_out() {
        let mut plain = request();
        plain.tools.clear();
        let body = render(&plain, false).unwrap();
        assert_eq!(body["stream"], false);
        assert!(body.get("stream_options").is_none() && body.get("tools").is_none());
    }

    #[test]
    fn parameters_never_replace_what_fairlead_writes() {
        for (member, _) in OWN_MEMBERS {
            let mut bad = request();
            bad.parameters.insert(member.to_owned(), json!(1));
            let error = render(&bad, true).unwrap_err();
            assert_eq!(error.kind, ModelErrorKind::Refused);
            assert!(
                error
                    .message
                    .starts_with(&format!("spec.model.parameters.{member}: ")),
                "{}",
                error.message
            );
        }
    }

    #[test]
    fn the_bound_may_go_by_its_newer_name() {
        let mut newer = request();
        for (asked, sent) in [(50, 50), (5000, 100)] {
            newer
                .parameters
                .insert("max_completion_tokens".to_owned(), json!(asked));
            let body = render(&newer, true).unwrap();
            assert_eq!(body["max_completion_tokens"], sent);
            assert!(body.get("max_tokens").is_none());
        }
        newer
            .parameters
            .insert("max_completion_tokens".to_owned(), json!("many"));
        assert_eq!(render(&newer, true).unwrap_err().kind, ModelErrorKind::Refused);
    }
}

//! The answer of the chat completions protocol, put together from deltas or taken whole.
//!
//! Servers differ, so nothing is asked for that is not needed: unknown members and values are passed over, and calls
//! are told apart by index, else by id, else by order.

use super::error::{bounded, failure, of_error_member};
use fairlead_crds::{TurnUsage, canonical};
use fairlead_decide::model::{ModelError, ModelErrorKind, ModelResponse, RawCall};
use serde_json::Value;

/// Most bytes of text, names, ids and arguments of one answer: what a turn can hold.
pub const MAX_ANSWER_BYTES: usize = 512 * 1024;
/// What a call costs beside its text, so that empty ones are bounded too.
const CALL_OVERHEAD_BYTES: usize = 64;

/// An answer as far as it was read.
#[derive(Debug, Default)]
pub(super) struct Answer {
    text: String,
    refusal: String,
    calls: Vec<Call>,
    finish_reason: Option<String>,
    usage: Option<TurnUsage>,
    id: Option<String>,
    bytes: usize,
    begun: bool,
}

#[derive(Debug, Default)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

impl Answer {
    /// Whether any piece of the answer has come.
    pub(super) fn begun(&self) -> bool {
        self.begun
    }

    /// Whether the model has said why it stopped: what follows is at most the usage.
    pub(super) fn finished(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// Takes one event of a stream in, or a whole answer.
    ///
    /// # Errors
    ///
    /// An error object in it, or an answer that has become larger than a turn can hold.
    pub(super) fn absorb(&mut self, value: &Value) -> Result<(), ModelError> {
        if let Some(error) = value.get("error").and_then(of_error_member) {
            return Err(ModelError {
                answer_begun: self.begun,
                ..error
            });
        }
        if self.id.is_none() {
            self.id = value
                .get("id")
                .and_then(Value::as_str)
                .filter(|id| !id.is_empty())
                .map(|id| bounded(id.to_owned(), 256));
        }
        if let Some(usage) = value.get("usage").filter(|usage| usage.is_object()) {
            self.usage = Some(read_usage(usage));
        }
        // One answer is asked for; another is not ours.
        let choice = value
            .get("choices")
            .and_then(Value::as_array)
            .and_then(|choices| {
                choices
                    .iter()
                    .find(|choice| choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0)
            });
        let Some(choice) = choice else { return Ok(()) };
        self.begun = true;
        if let Some(delta) = choice.get("delta").filter(|delta| delta.is_object()) {
            self.piece(delta, false)?;
        } else if let Some(message) = choice.get("message") {
            self.piece(message, true)?;
        }
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.finish_reason = Some(bounded(reason.to_owned(), 64));
        }
        Ok(())
    }

    /// The answer, without its times.
    ///
    /// # Errors
    ///
    /// `Protocol`, when nothing in what was read was an answer.
    pub(super) fn into_response(self) -> Result<ModelResponse, ModelError> {
        if !self.begun {
            return Err(failure(
                ModelErrorKind::Protocol,
                "the answer holds no choice; is spec.baseUrl that of a chat completions API?",
            ));
        }
        let text = if self.text.is_empty() {
            self.refusal
        } else {
            self.text
        };
        Ok(ModelResponse {
            text: Some(text).filter(|text| !text.is_empty()),
            calls: self
                .calls
                .into_iter()
                .map(|call| RawCall {
                    id: call.id,
                    name: call.name,
                    arguments: call.arguments,
                })
                .collect(),
            finish_reason: self.finish_reason,
            usage: self.usage,
            request_id: self.id,
            first_delta_millis: None,
            latency_millis: 0,
        })
    }

    fn piece(&mut self, piece: &Value, whole: bool) -> Result<(), ModelError> {
        let text = text_of(piece.get("content"));
        let refusal = text_of(piece.get("refusal"));
        self.count(text.len() + refusal.len())?;
        self.text.push_str(&text);
        self.refusal.push_str(&refusal);
        for call in piece
            .get("tool_calls")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            self.call_piece(call, whole)?;
        }
        Ok(())
    }

    fn call_piece(&mut self, piece: &Value, whole: bool) -> Result<(), ModelError> {
        let function = piece.get("function").unwrap_or(&Value::Null);
        let id = piece.get("id").and_then(Value::as_str).unwrap_or("");
        let name = function.get("name").and_then(Value::as_str).unwrap_or("");
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            // Some servers give the object itself.
            Some(object) => canonical::to_string(object),
        };
        let index = piece.get("index").and_then(Value::as_u64);
        self.count(id.len() + name.len() + arguments.len())?;
        let at = if whole { None } else { self.place(index, id, name) };
        let at = match at {
            Some(at) => at,
            None => {
                self.count(CALL_OVERHEAD_BYTES)?;
                self.calls.push(Call {
                    index,
                    ..Call::default()
                });
                self.calls.len() - 1
            }
        };
        let Some(call) = self.calls.get_mut(at) else {
            return Ok(());
        };
        let repeats = name == call.name && (!arguments.is_empty() || (!id.is_empty() && id == call.id));
        if call.arguments.is_empty() && !repeats {
            call.name.push_str(name);
        }
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        call.arguments.push_str(&arguments);
        Ok(())
    }

    /// Which call a piece belongs to; `None` is a new one.
    fn place(&self, index: Option<u64>, id: &str, name: &str) -> Option<usize> {
        let begins_another =
            |call: &Call| !id.is_empty() && !call.id.is_empty() && id != call.id && !name.is_empty();
        if index.is_some() {
            // Some servers give every call the index 0: another id with a name is another call.
            return self
                .calls
                .iter()
                .rposition(|call| call.index == index)
                .filter(|at| !begins_another(&self.calls[*at]));
        }
        if !id.is_empty()
            && let Some(at) = self.calls.iter().rposition(|call| call.id == id)
        {
            return Some(at);
        }
        let last = self.calls.last()?;
        let anew = begins_another(last) || (!name.is_empty() && !last.arguments.is_empty());
        (!anew).then(|| self.calls.len() - 1)
    }

    fn count(&mut self, bytes: usize) -> Result<(), ModelError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > MAX_ANSWER_BYTES {
            return Err(ModelError {
                answer_begun: true,
                ..failure(
                    ModelErrorKind::TooLarge,
                    format!("the answer is larger than the {MAX_ANSWER_BYTES} bytes that a turn can hold"),
                )
            });
        }
        Ok(())
    }
}

/// Text given as a string or as a list of parts.
fn text_of(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts
            .iter()
            .filter_map(|part| part.get("text")?.as_str())
            .collect(),
        _ => String::new(),
    }
}

fn read_usage(usage: &Value) -> TurnUsage {
    let number = |value: Option<&Value>| value.and_then(Value::as_i64).unwrap_or(0).max(0);
    TurnUsage {
        input_tokens: number(usage.get("prompt_tokens")),
        output_tokens: number(usage.get("completion_tokens")),
        cached_tokens: number(usage.pointer("/prompt_tokens_details/cached_tokens")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn delta(delta: Value) -> Value {
        json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
    }

    fn calls(deltas: &[Value]) -> Vec<(String, String, String)> {
        let mut answer = Answer::default();
        for calls in deltas {
            answer.absorb(&delta(json!({"tool_calls": calls}))).unwrap();
        }
        let response = answer.into_response().unwrap();
        response
            .calls
            .into_iter()
            .map(|c| (c.id, c.name, c.arguments))
            .collect()
    }

    fn made(id: &str, name: &str, arguments: &str) -> (String, String, String) {
        (id.to_owned(), name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn calls_are_told_apart_by_index() {
        let got = calls(&[
            json!([{"index": 0, "id": "a", "type": "function", "function": {"name": "get_", "arguments": ""}}]),
            json!([{"index": 0, "function": {"name": "time"}}]),
            json!([{"index": 1, "id": "b", "function": {"name": "ls", "arguments": "{"}}, {"index": 0, "function": {"arguments": "{\"x\""}}]),
            json!([{"index": 0, "function": {"arguments": ":1}"}}, {"index": 1, "function": {"arguments": "}"}}]),
        ]);
        assert_eq!(got, [made("a", "get_time", "{\"x\":1}"), made("b", "ls", "{}")]);
    }

    #[test]
    fn calls_without_an_index_are_told_apart_by_id_or_order() {
        let by_id = calls(&[
            json!([{"id": "a", "function": {"name": "f", "arguments": "{"}}, {"id": "b", "function": {"name": "g", "arguments": "{"}}]),
            json!([{"id": "a", "function": {"arguments": "}"}}, {"id": "b", "function": {"arguments": "}"}}]),
        ]);
        assert_eq!(by_id, [made("a", "f", "{}"), made("b", "g", "{}")]);
        let by_order = calls(&[
            json!([{"id": "a", "function": {"name": "f"}}]),
            json!([{"function": {"arguments": "{}"}}]),
            json!([{"id": "b", "function": {"name": "g", "arguments": "{}"}}]),
        ]);
        assert_eq!(by_order, [made("a", "f", "{}"), made("b", "g", "{}")]);
        let nameless = calls(&[json!([
            {"function": {"name": "f", "arguments": "{}"}}, {"function": {"name": "f", "arguments": {"k": 1.0}}},
        ])]);
        assert_eq!(nameless, [made("", "f", "{}"), made("", "f", "{\"k\":1}")]);
    }

    #[test]
    fn habits_of_servers_are_put_up_with() {
        let one_index = calls(&[json!([
            {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}},
            {"index": 0, "id": "b", "function": {"name": "f", "arguments": "{}"}},
        ])]);
        assert_eq!(one_index, [made("a", "f", "{}"), made("b", "f", "{}")]);
        let repeated_name = calls(&[
            json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]),
            json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]),
            json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]),
            json!([{"index": 0, "id": "x", "function": {"arguments": "}"}}]),
        ]);
        assert_eq!(repeated_name, [made("a", "f", "{}")]);
    }

    #[test]
    fn a_whole_answer_is_read_with_unknown_members() {
        let mut answer = Answer::default();
        answer
            .absorb(&json!({
                "id": "req-1", "object": "x", "new": {"a": 1},
                "choices": [
                    {"index": 1, "message": {"content": "not ours"}},
                    {"index": 0, "finish_reason": "brand_new", "message": {
                        "role": "assistant", "reasoning": "…", "content": [{"type": "text", "text": "a"}, {"type": "x"}, {"text": "b"}],
                        "tool_calls": [{"id": "1", "type": "new", "function": {"name": "f", "arguments": "{}"}},
                                       {"id": "1", "function": {"name": "f", "arguments": "{"}}],
                    }},
                ],
                "usage": {"prompt_tokens": 5, "completion_tokens": -3, "prompt_tokens_details": {"cached_tokens": 2}, "x": {}},
            }))
            .unwrap();
        let response = answer.into_response().unwrap();
        assert_eq!(response.text.as_deref(), Some("ab"));
        assert_eq!(response.calls.len(), 2);
        assert_eq!(response.finish_reason.as_deref(), Some("brand_new"));
        assert_eq!(
            response.usage,
            Some(TurnUsage {
                input_tokens: 5,
                output_tokens: 0,
                cached_tokens: 2
            })
        );
        assert_eq!(response.request_id.as_deref(), Some("req-1"));
    }

    #[test]
    fn a_refusal_is_text_where_there_is_no_other() {
        let mut answer = Answer::default();
        answer
            .absorb(&delta(json!({"content": null, "refusal": "I will "})))
            .unwrap();
        answer.absorb(&delta(json!({"refusal": "not."}))).unwrap();
        assert_eq!(
            answer.into_response().unwrap().text.as_deref(),
            Some("I will not.")
        );
    }

    #[test]
    fn nothing_and_too_much_are_told() {
        let mut empty = Answer::default();
        empty.absorb(&json!({"choices": []})).unwrap();
        assert_eq!(empty.into_response().unwrap_err().kind, ModelErrorKind::Protocol);
        let mut flood = Answer::default();
        let piece = delta(json!({"tool_calls": [{"id": "", "function": {"name": "f", "arguments": "1"}}]}));
        let error = (0..100_000).find_map(|_| flood.absorb(&piece).err()).unwrap();
        assert_eq!((error.kind, error.answer_begun), (ModelErrorKind::TooLarge, true));
    }
}

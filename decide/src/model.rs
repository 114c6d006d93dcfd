//! One request to a model and one answer, in Fairlead's own words; each wire protocol is a rendering of these.

use fairlead_crds::TurnUsage;
use fairlead_crds::values::OpenObject;
use serde::{Deserialize, Serialize};

/// A request, derived from a run's stored objects alone, so that it can be derived again byte for byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelRequest {
    /// Number of the turn it belongs to, from 1.
    pub turn: i64,
    /// Name of the model, as the provider knows it.
    pub model: String,
    /// The conversation, oldest first.
    pub messages: Vec<Message>,
    /// The tools offered, in the order of the run.
    pub tools: Vec<ToolDefinition>,
    /// Further members of the request, sent as they are.
    pub parameters: OpenObject,
    /// Most tokens of the answer.
    pub max_output_tokens: i64,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Message {
    /// Instructions.
    System {
        /// The text.
        text: String,
    },
    /// What the user says.
    User {
        /// The text.
        text: String,
    },
    /// What the model said.
    Assistant {
        /// Its text, if any.
        text: Option<String>,
        /// The calls it made, with ids as rewritten.
        calls: Vec<MessageCall>,
    },
    /// The result of one call.
    Tool {
        /// Id of the call, as rewritten.
        call_id: String,
        /// Name of the tool.
        name: String,
        /// The result's canonical text, or what the model is told instead.
        text: String,
    },
}

/// A call inside an assistant's message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageCall {
    /// Id, as rewritten.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments.
    pub arguments: OpenObject,
}

/// A tool as the model is told of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// Name the model calls it by.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments.
    pub schema: OpenObject,
}

/// A complete answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelResponse {
    /// The text, absent when empty.
    pub text: Option<String>,
    /// The calls, in order.
    pub calls: Vec<RawCall>,
    /// Why the model stopped, in the provider's word.
    pub finish_reason: Option<String>,
    /// Tokens, where the provider reports them.
    pub usage: Option<TurnUsage>,
    /// The provider's own id of the request.
    pub request_id: Option<String>,
    /// Milliseconds from the request to the first piece of the answer.
    pub first_delta_millis: Option<i64>,
    /// Milliseconds from the request to the end of the answer.
    pub latency_millis: i64,
}

/// A call as the model wrote it; nothing about it has been judged.
#[derive(Clone, Debug, PartialEq)]
pub struct RawCall {
    /// Id the model gave; may be empty or used before.
    pub id: String,
    /// Name, as written.
    pub name: String,
    /// Arguments, as written: meant to be the text of a JSON object.
    pub arguments: String,
}

/// Why one try of a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelError {
    /// What kind of failure.
    pub kind: ModelErrorKind,
    /// HTTP status, where there was one.
    pub status: Option<u16>,
    /// Seconds the provider asks to wait before the next try.
    pub retry_after_seconds: Option<i64>,
    /// Whether any piece of an answer had been received: then the request is not repeated.
    pub answer_begun: bool,
    /// One sentence, without secrets, at most 2,048 bytes; holds the provider's own message where there is one.
    pub message: String,
}

/// Kinds of failure of one try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ModelErrorKind {
    /// No connection could be made.
    Connect,
    /// A time limit passed.
    Timeout,
    /// The connection broke before the answer was complete.
    Disconnected,
    /// HTTP 429 or 529.
    RateLimited,
    /// Any other HTTP 5xx.
    Server,
    /// HTTP 401 or 403.
    Unauthorized,
    /// Any other HTTP 4xx, a redirect included.
    Refused,
    /// The answer could not be read.
    Protocol,
    /// The answer is larger than a turn may be.
    TooLarge,
    /// No step of the script matches.
    ScriptExhausted,
    /// The Secret named is missing, lacks the key, or may not be read.
    SecretNotReadable,
}

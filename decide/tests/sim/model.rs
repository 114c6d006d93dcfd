//! A model that proposes calls at random, good and bad ones, and at last answers.

use super::rng::Rng;
use fairlead_crds::TurnUsage;
use fairlead_decide::cluster::{CANCEL, GET, WAIT};
use fairlead_decide::model::{Message, ModelError, ModelErrorKind, ModelRequest, ModelResponse, RawCall};
use serde_json::json;

/// How a model behaves.
#[derive(Clone, Debug)]
pub struct Mood {
    /// Turns after which it answers for sure.
    pub turns: i64,
    /// Chance in thousandths that a request fails.
    pub errors: u32,
    /// Only one good, short call a turn.
    pub plain: bool,
}

pub fn respond(request: &ModelRequest, mood: &Mood, rng: &mut Rng) -> Result<ModelResponse, ModelError> {
    if rng.chance(mood.errors) {
        return Err(error(rng));
    }
    let usage = Some(TurnUsage {
        input_tokens: 10,
        output_tokens: 5,
        cached_tokens: 0,
    });
    let response = ModelResponse {
        usage,
        latency_millis: 1,
        ..ModelResponse::default()
    };
    let done = request.turn > mood.turns || (!mood.plain && rng.chance(150));
    if done || request.tools.is_empty() {
        return Ok(ModelResponse {
            text: Some(format!("answer {}", request.turn)),
            ..response
        });
    }
    let count = if mood.plain { 1 } else { rng.range(1, 5) };
    let calls = (0..count).map(|n| call(request, mood, n, rng)).collect();
    Ok(ModelResponse { calls, ..response })
}

fn error(rng: &mut Rng) -> ModelError {
    let kinds = [
        ModelErrorKind::Connect,
        ModelErrorKind::Connect,
        ModelErrorKind::RateLimited,
        ModelErrorKind::RateLimited,
        ModelErrorKind::Server,
        ModelErrorKind::Server,
        ModelErrorKind::Timeout,
        ModelErrorKind::Disconnected,
        ModelErrorKind::Refused,
    ];
    let kind = *rng.pick(&kinds).unwrap();
    let retry_after_seconds =
        (kind == ModelErrorKind::RateLimited && rng.chance(500)).then(|| rng.range(0, 5));
    ModelError {
        kind,
        status: None,
        retry_after_seconds,
        answer_begun: rng.chance(50),
        message: "scripted".into(),
    }
}

fn call(request: &ModelRequest, mood: &Mood, n: i64, rng: &mut Rng) -> RawCall {
    let id = if mood.plain {
        format!("c{}", request.turn)
    } else {
        match rng.range(0, 20) {
            0 => String::new(),
            1 => "same".to_owned(),
            2 => "has space".to_owned(),
            _ => format!("c{}-{n}", request.turn),
        }
    };
    let tools: Vec<_> = request
        .tools
        .iter()
        .map(|t| t.name.clone())
        .filter(|t| !is_builtin(t))
        .collect();
    let name = rng.pick(&tools).cloned().unwrap_or_default();
    if mood.plain {
        return RawCall {
            id,
            name,
            arguments: json!({"ms": rng.range(1, 300)}).to_string(),
        };
    }
    match rng.range(0, 20) {
        0 => RawCall {
            id,
            name: "no-such-tool".into(),
            arguments: "{}".into(),
        },
        1 => RawCall {
            id,
            name,
            arguments: "{\"ms\": ".into(),
        },
        2 => RawCall {
            id,
            name,
            arguments: json!({"ms": "long"}).to_string(),
        },
        3..=5 => builtin(request, id, rng),
        _ => RawCall {
            id,
            name,
            arguments: arguments(rng).to_string(),
        },
    }
}

fn is_builtin(name: &str) -> bool {
    [GET, WAIT, CANCEL].contains(&name)
}

/// A call of a built-in on an execution that a result named, or on none.
fn builtin(request: &ModelRequest, id: String, rng: &mut Rng) -> RawCall {
    let named: Vec<String> = request
        .messages
        .iter()
        .filter_map(|m| match m {
            Message::Tool { text, .. } => serde_json::from_str::<serde_json::Value>(text).ok(),
            _ => None,
        })
        .filter_map(|v| v["execution_id"].as_str().map(str::to_owned))
        .collect();
    let target = rng.pick(&named).cloned().unwrap_or_else(|| "nobody".into());
    let name = (*rng.pick(&[GET, WAIT, CANCEL]).unwrap()).to_owned();
    let mut arguments = json!({"execution_id": target});
    if name == WAIT && rng.chance(700) {
        arguments["timeout_seconds"] = rng.range(0, 20).into();
    }
    RawCall {
        id,
        name,
        arguments: arguments.to_string(),
    }
}

/// Arguments of a simulated tool: how long it runs, its exit code, the size of its output, whether it obeys SIGTERM.
pub fn arguments(rng: &mut Rng) -> serde_json::Value {
    let ms = match rng.range(0, 10) {
        0..=5 => rng.range(1, 800),
        6..=8 => rng.range(800, 12_000),
        _ => rng.range(12_000, 60_000),
    };
    let exit = if rng.chance(150) { rng.range(1, 4) } else { 0 };
    json!({"ms": ms, "exit": exit, "size": rng.range(0, 2500), "deaf": rng.chance(100),
           "leaves": if rng.chance(100) { rng.range(1, 4_000) } else { 0 }})
}

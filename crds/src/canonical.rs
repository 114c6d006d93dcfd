//! Canonical JSON (RFC 8785) and the digests made from it.
//!
//! The API server rewrites numbers (`1.0` comes back as `1`, `12345678901234567890` as `12345678901234567000`), so
//! a digest of the bytes that were sent would not equal one of the bytes that are stored. Both have this form.

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// Largest integer that survives a reader which keeps numbers as IEEE 754 doubles: 2^53.
pub const MAX_SAFE_INTEGER: u64 = 1 << 53;

/// `bytes` as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut out, b| {
            // Into a String this cannot fail.
            let _ = write!(out, "{b:02x}");
            out
        })
}

/// SHA-256 of `bytes`, as lower-case hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// SHA-256 of the canonical form of `value`, as lower-case hex.
pub fn digest(value: &Value) -> String {
    sha256_hex(to_string(value).as_bytes())
}

/// `value` in the form of RFC 8785: no white space, members sorted by UTF-16 code units, numbers as ECMAScript
/// prints them.
pub fn to_string(value: &Value) -> String {
    let mut out = String::new();
    write_value(value, &mut out);
    out
}

/// JSON pointer of the first integer in `value` beyond 2^53 in magnitude, which the API server would round.
pub fn unsafe_integer(value: &Value) -> Option<String> {
    match value {
        Value::Number(n) => {
            let magnitude = n.as_u64().or_else(|| n.as_i64().map(i64::unsigned_abs));
            let rounded_already =
                magnitude.is_none() && n.as_f64().is_some_and(|f| f.fract() == 0.0 && f.abs() > 9.0e15);
            (magnitude.is_some_and(|m| m > MAX_SAFE_INTEGER) || rounded_already).then(String::new)
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(i, item)| unsafe_integer(item).map(|rest| format!("/{i}{rest}"))),
        Value::Object(map) => map.iter().find_map(|(key, item)| {
            unsafe_integer(item).map(|rest| format!("/{}{rest}", key.replace('~', "~0").replace('/', "~1")))
        }),
        _ => None,
    }
}

fn write_value(value: &Value, out: &mut String) {
    match value {
        Value::Number(n) => write_number(n, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut members: Vec<_> = map.iter().collect();
            members.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            out.push('{');
            for (i, (key, item)) in members.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(key, out);
                out.push(':');
                write_value(item, out);
            }
            out.push('}');
        }
        Value::String(s) => write_string(s, out),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Null => out.push_str("null"),
    }
}

/// RFC 8785 §3.2.2.2: only the two-character escapes and `\u00xx` for the other controls.
fn write_string(s: &str, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn write_number(n: &serde_json::Number, out: &mut String) {
    if n.is_u64() || n.is_i64() {
        let _ = write!(out, "{n}");
        return;
    }
    let f = n.as_f64().unwrap_or(0.0);
    if f == 0.0 {
        out.push('0');
        return;
    }
    if f < 0.0 {
        out.push('-');
    }
    // `{:e}` prints the shortest digits that read back to the same double, as ECMAScript wants them.
    let shortest = format!("{:e}", f.abs());
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    let point = exponent.parse::<i32>().unwrap_or(0) + 1;
    layout(&digits, point, out);
}

/// ECMAScript `Number::toString`, steps 6 to 12: where the point stands decides the form.
fn layout(digits: &str, point: i32, out: &mut String) {
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    if count <= point && point <= 21 {
        out.push_str(digits);
        out.extend(std::iter::repeat_n(
            '0',
            usize::try_from(point - count).unwrap_or(0),
        ));
    } else if 0 < point && point <= 21 {
        let (whole, fraction) = digits.split_at(usize::try_from(point).unwrap_or(0));
        let _ = write!(out, "{whole}.{fraction}");
    } else if -6 < point && point <= 0 {
        out.push_str("0.");
        out.extend(std::iter::repeat_n('0', usize::try_from(-point).unwrap_or(0)));
        out.push_str(digits);
    } else {
        let (first, rest) = digits.split_at(1);
        out.push_str(first);
        if !rest.is_empty() {
            let _ = write!(out, ".{rest}");
        }
        let _ = write!(out, "e{}{}", if point > 0 { '+' } else { '-' }, (point - 1).abs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn members_are_sorted_and_numbers_are_ecmascript() {
        let v = json!({"b": 1.0, "a": [1e21, 1e-7, 0.000001, 123.456, -0.0, 100], "\u{20ac}": "\u{7}\"\\"});
        assert_eq!(
            to_string(&v),
            "{\"a\":[1e+21,1e-7,0.000001,123.456,0,100],\"b\":1,\"\u{20ac}\":\"\\u0007\\\"\\\\\"}"
        );
    }

    #[test]
    fn what_the_api_server_rewrites_has_the_same_digest() {
        assert_eq!(
            digest(&json!({"x": 1.0, "y": 1e2})),
            digest(&json!({"y": 100, "x": 1}))
        );
    }

    #[test]
    fn integers_beyond_2_53_are_found_with_their_place() {
        assert_eq!(
            unsafe_integer(&json!({"a/b": [1, 9_007_199_254_740_993_u64]})),
            Some("/a~1b/1".into())
        );
        assert_eq!(
            unsafe_integer(&json!(-9_007_199_254_740_993_i64)),
            Some(String::new())
        );
        assert_eq!(unsafe_integer(&json!(9_007_199_254_740_992_u64)), None);
        assert_eq!(
            unsafe_integer(&serde_json::from_str("123456789012345678901234567890").unwrap()),
            Some(String::new())
        );
    }
}

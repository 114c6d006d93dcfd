//! Text for people: durations, tables, colours. Pure, so that every form has a test.

mod paint;
mod table;

pub use paint::{Paint, Tone};
pub use table::{Cell, Columns, table};

use crate::args::ObjectForm;
use anyhow::{Context, Result};
use serde::Serialize;

/// An object as JSON or YAML, ending with a newline.
pub fn object<T: Serialize>(value: &T, form: ObjectForm) -> Result<String> {
    let text = match form {
        ObjectForm::Json => serde_json::to_string_pretty(value).context("print as JSON")?,
        ObjectForm::Yaml => serde_saphyr::to_string(value).context("print as YAML")?,
    };
    Ok(format!("{}\n", text.trim_end()))
}

/// An age or a length of time with two units at most, as kubectl prints ages: `45s`, `3m12s`, `5h`, `2d`.
pub fn age(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 if seconds % 60 == 0 => format!("{minutes}m"),
        120..600 => format!("{minutes}m{}s", seconds % 60),
        600..10_800 => format!("{minutes}m"),
        10_800..172_800 => format!("{hours}h"),
        _ => format!("{days}d"),
    }
}

/// Milliseconds as a person says them: `35 ms`, `1.2 s`, `75 s`.
pub fn millis(millis: i64) -> String {
    match millis {
        ..1000 => format!("{millis} ms"),
        1000..60_000 => format!("{}.{} s", millis / 1000, millis % 1000 / 100),
        _ => age(millis / 1000),
    }
}

/// A number with its thousands set apart.
pub fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if number < 0 { format!("-{text}") } else { text }
}

/// `1 turn`, `2 turns`.
pub fn count(number: i64, one: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {one}{plural}", grouped(number))
}

/// Text of others with its control characters made visible: it must not move the cursor of the terminal it is shown
/// on, or change the title.
pub fn visible(text: &str) -> String {
    let keep = |c: char| !c.is_control() || c == '\n' || c == '\t';
    if text.chars().all(keep) {
        return text.to_owned();
    }
    text.chars()
        .map(|c| {
            if keep(c) {
                c.to_string()
            } else {
                c.escape_default().to_string()
            }
        })
        .collect()
}

/// The first line of a text, cut to `most` characters with a mark.
pub fn excerpt(text: &str, most: usize) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let whole = line.len() == text.trim().len() && line.chars().count() <= most;
    let cut: String = line.chars().take(most).collect();
    visible(&if whole { cut } else { format!("{cut}…") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units_at_most() {
        let said: Vec<String> = [0, 119, 120, 192, 600, 10_799, 10_800, 172_799, 172_800, -5]
            .map(age)
            .to_vec();
        assert_eq!(
            said,
            [
                "0s", "119s", "2m", "3m12s", "10m", "179m", "3h", "47h", "2d", "0s"
            ]
        );
    }

    #[test]
    fn milliseconds_and_numbers_read_well() {
        assert_eq!(
            [35, 1250, 59_999, 75_000].map(millis),
            ["35 ms", "1.2 s", "59.9 s", "75s"]
        );
        assert_eq!(
            [0, 999, 1000, 1_234_567, -1000].map(grouped),
            ["0", "999", "1,000", "1,234,567", "-1,000"]
        );
        assert_eq!([1, 2].map(|n| count(n, "turn")), ["1 turn", "2 turns"]);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(visible("a\tb\n\u{1b}[2Jc\r"), "a\tb\n\\u{1b}[2Jc\\r");
    }

    #[test]
    fn an_excerpt_is_one_line_and_says_that_it_is_cut() {
        assert_eq!(excerpt("short", 10), "short");
        assert_eq!(excerpt("first\nsecond", 10), "first…");
        assert_eq!(excerpt("0123456789abc", 10), "0123456789…");
        assert_eq!(excerpt("ends with a newline\n", 40), "ends with a newline");
    }

    #[test]
    fn objects_are_printed_as_json_and_yaml() {
        let value = serde_json::json!({"a": [1]});
        assert_eq!(
            object(&value, ObjectForm::Json).unwrap(),
            "{\n  \"a\": [\n    1\n  ]\n}\n"
        );
        assert_eq!(object(&value, ObjectForm::Yaml).unwrap(), "a:\n- 1\n");
    }
}

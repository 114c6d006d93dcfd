//! Canonical output: the one text that status, model, CLI and audit see of what a tool wrote.
//!
//! The text is valid UTF-8 and at most a limit of bytes, its own marks included. Output over the limit becomes a
//! `<persisted-output>` block with its size, the execution that has the rest, its first and its last part.
//!
//! An output that could not be read to its end has a `<persisted-output-cut-off>` mark at its end that says so.
//!
//! Two things in the bytes are changed, always: what is not UTF-8, and NUL, which many readers of text stop at, become
//! U+FFFD; and the `<` before `persisted-output` or `/persisted-output`, in any case of letters, becomes `&lt;`, so
//! that no tool can forge a block or end one. Other control characters are kept as they are.

/// Canonical text and whether anything was cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canonical {
    /// Valid UTF-8 within the limit.
    pub text: String,
    /// Whether it is a block with parts instead of the whole output, or the end of the output may be missing.
    pub truncated: bool,
}

const NAME: &str = "persisted-output";
const FIRST: (&str, &str) = ("<persisted-output-first>\n", "\n</persisted-output-first>\n");
const LAST: (&str, &str) = ("<persisted-output-last>\n", "\n</persisted-output-last>\n");
const CUT_OFF: &str = "persisted-output-cut-off";
const END: &str = "</persisted-output>";
/// Stands for a block where the limit is too small for one.
const STUB: &str = "<persisted-output/>";

/// The canonical text of an output of `total_bytes` bytes, at most `max_bytes` bytes long.
///
/// `head` are its first bytes and `tail` its last ones, each at least the smaller of `total_bytes` and `max_bytes`
/// (more is allowed; with `head` the whole output, `tail` is not read). `execution` is the name of the execution that
/// keeps the whole.
pub fn canonical(head: &[u8], tail: &[u8], total_bytes: u64, max_bytes: usize, execution: &str) -> Canonical {
    make(head, tail, total_bytes, max_bytes, execution, "")
}

/// The canonical text of the first `read_bytes` bytes of an output whose end may be missing: it counts as truncated,
/// and a mark at its end says so.
///
/// The rest is as in [`canonical`].
pub fn canonical_cut_off(
    head: &[u8],
    tail: &[u8],
    read_bytes: u64,
    max_bytes: usize,
    execution: &str,
) -> Canonical {
    let mark = format!(
        "\n<{CUT_OFF}>\nThe end of this output may be missing: {read_bytes} bytes of it could be read, and what was \
         written after them is lost.\n</{CUT_OFF}>"
    );
    make(head, tail, read_bytes, max_bytes, execution, &mark)
}

/// `mark` is put behind the last byte.
fn make(
    head: &[u8],
    tail: &[u8],
    total_bytes: u64,
    max_bytes: usize,
    execution: &str,
    mark: &str,
) -> Canonical {
    let whole = head.len() as u64 >= total_bytes;
    let mut first = clean(if whole { head } else { without_cut_end(head) });
    if whole {
        first.push_str(mark);
    }
    if whole && first.len() <= max_bytes {
        return Canonical {
            text: first,
            truncated: !mark.is_empty(),
        };
    }
    let last = if whole {
        first.clone()
    } else {
        clean(without_cut_begin(tail)) + mark
    };
    Canonical {
        text: block(&first, &last, total_bytes, max_bytes, execution),
        truncated: true,
    }
}

/// Canonical text cut again to a smaller limit, as when a run's limits are lower than the tool's.
///
/// `text` is canonical already, and `total_bytes` and `execution` are those it was made with. Text within the limit
/// comes back as it is, so doing it twice is the same as once.
pub fn cut(text: &str, max_bytes: usize, total_bytes: u64, execution: &str) -> String {
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    // Clean text never holds the marks themselves, so a text with all of them is a block of ours.
    match parts(text) {
        Some((first, last)) => block(first, last, total_bytes, max_bytes, execution),
        None => block(text, text, total_bytes, max_bytes, execution),
    }
}

/// JSON that a YAML reader reads as the same value.
///
/// The API server reads the body of a server-side apply as YAML, which refuses some characters that JSON takes as they
/// are, and folds others as line breaks. Both kinds, which in JSON can only be inside strings, become escapes.
pub fn yaml_safe(json: String) -> String {
    let unsafe_in_yaml = |c: char| {
        matches!(
            c,
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
        )
    };
    if !json.contains(unsafe_in_yaml) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + json.len() / 8);
    for c in json.chars() {
        if unsafe_in_yaml(c) {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

/// First and last part of a block.
fn parts(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('<')?.strip_prefix(NAME)?;
    let (_, rest) = text.split_once(FIRST.0)?;
    let (first, rest) = rest.split_once(FIRST.1)?;
    let last = rest
        .strip_prefix(LAST.0)?
        .strip_suffix(END)?
        .strip_suffix(LAST.1)?;
    Some((first, last))
}

/// A block of at most `max_bytes` with as much of the beginning of `first` and the end of `last` as fits.
fn block(first: &str, last: &str, total_bytes: u64, max_bytes: usize, execution: &str) -> String {
    let head = format!(
        "<{NAME} execution=\"{execution}\" total-bytes=\"{total_bytes}\">\n\
         The output has {total_bytes} bytes, too many to show here. More of it is kept on the node that ran execution \
         {execution}. Its first and its last part follow.\n"
    );
    let frame = [&head, FIRST.0, FIRST.1, LAST.0, LAST.1, END]
        .iter()
        .map(|s| s.len())
        .sum::<usize>();
    let Some(room) = max_bytes.checked_sub(frame) else {
        return if STUB.len() <= max_bytes {
            STUB.to_owned()
        } else {
            String::new()
        };
    };
    // Half each; what one side does not need is the other's.
    let first_room = (room / 2).max(room.saturating_sub(last.len()));
    let first = first
        .get(..first.floor_char_boundary(first_room))
        .unwrap_or_default();
    let last_room = room - first.len();
    let last = last
        .get(last.ceil_char_boundary(last.len().saturating_sub(last_room))..)
        .unwrap_or_default();
    [&head, FIRST.0, first, FIRST.1, LAST.0, last, LAST.1, END].concat()
}

/// Valid UTF-8 without NUL and without anything that reads as a mark of ours. Never shorter than `bytes`.
fn clean(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut out = String::with_capacity(text.len());
    let mut rest: &str = &text;
    while let Some(at) = rest.find(['<', '\0']) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        out.push_str(match from.strip_prefix('<') {
            None => "\u{fffd}",
            Some(after) if is_mark(after) => "&lt;",
            Some(_) => "<",
        });
        rest = from.get(1..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// Whether what follows a `<` makes it a mark of ours.
fn is_mark(after: &str) -> bool {
    let name = after.strip_prefix('/').unwrap_or(after);
    name.get(..NAME.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(NAME))
}

/// `bytes` without a character that the cut at their end went through.
fn without_cut_end(bytes: &[u8]) -> &[u8] {
    for back in 1..=3.min(bytes.len()) {
        let at = bytes.len() - back;
        let length = match bytes.get(at) {
            Some(0xc2..=0xdf) => 2,
            Some(0xe0..=0xef) => 3,
            Some(0xf0..=0xf4) => 4,
            Some(0x80..=0xbf) => continue,
            _ => 1,
        };
        return if length > back {
            bytes.get(..at).unwrap_or(bytes)
        } else {
            bytes
        };
    }
    bytes
}

/// `bytes` without the rest of a character that the cut at their beginning went through.
fn without_cut_begin(bytes: &[u8]) -> &[u8] {
    let rest = bytes
        .iter()
        .take(3)
        .take_while(|byte| matches!(byte, 0x80..=0xbf))
        .count();
    bytes.get(rest..).unwrap_or_default()
}

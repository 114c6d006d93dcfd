//! The regular expressions of a schema: how large each is when compiled, and whether all together are small enough.
//!
//! They are matched in time linear in the text, but the factor is the size of the automaton: a short pattern with a
//! large repetition can take milliseconds for a kilobyte. So their sizes are bounded, and known when a check is counted.

use jsonschema::{PatternOptions, Validator};
use serde_json::json;
use std::collections::HashMap;

/// Most bytes of one compiled pattern.
pub(super) const MAX_PATTERN_BYTES: usize = 64 * 1024;
/// Most bytes of all compiled patterns of a schema, each rounded up to a power of two of at least [`MIN_BYTES`].
const MAX_TOTAL_BYTES: usize = 256 * 1024;
/// Most bytes of the memory in which a pattern's matches are sped up.
const MAX_CACHE_BYTES: usize = 64 * 1024;
const MIN_BYTES: usize = 512;
/// Up to which size a pattern is compiled to tell a large one from one that is none.
const TELL_BYTES: usize = 1024 * 1024;

/// How patterns of up to `bytes` are compiled.
pub(super) fn options(bytes: usize) -> PatternOptions<jsonschema::Regex> {
    PatternOptions::regex()
        .size_limit(bytes)
        .dfa_size_limit(MAX_CACHE_BYTES)
}

/// Sizes of `patterns`, which stand at these places, in bytes.
///
/// A pattern that cannot be compiled at all is left out: the schema's compilation says why.
pub(super) fn sizes(patterns: &[(String, String)]) -> Result<HashMap<String, usize>, String> {
    let mut sizes = HashMap::new();
    let mut total = 0_usize;
    for (pattern, at) in patterns {
        if sizes.contains_key(pattern) {
            continue;
        }
        let Some(bytes) = size(pattern) else {
            if compiles(pattern, TELL_BYTES) {
                return Err(format!(
                    "spec.inputSchema: the regular expression at {at} is larger than {MAX_PATTERN_BYTES} bytes when \
                     compiled; use smaller repetitions, or minLength and maxLength"
                ));
            }
            continue;
        };
        total = total.saturating_add(bytes);
        if total > MAX_TOTAL_BYTES {
            return Err(format!(
                "spec.inputSchema: the regular expressions up to {at} are larger than {MAX_TOTAL_BYTES} bytes when \
                 compiled; use fewer or smaller ones, or enum, minLength and maxLength"
            ));
        }
        sizes.insert(pattern.clone(), bytes);
    }
    Ok(sizes)
}

/// The smallest limit that `pattern` fits in.
fn size(pattern: &str) -> Option<usize> {
    let doubled = |bytes: &usize| bytes.checked_mul(2).filter(|bytes| *bytes <= MAX_PATTERN_BYTES);
    std::iter::successors(Some(MIN_BYTES), doubled).find(|bytes| compiles(pattern, *bytes))
}

fn compiles(pattern: &str, bytes: usize) -> bool {
    build(pattern, bytes).is_ok()
}

fn build(pattern: &str, bytes: usize) -> Result<Validator, ()> {
    let schema = json!({"pattern": pattern});
    let options = jsonschema::draft202012::options()
        .offline()
        .with_pattern_options(options(bytes));
    options.build(&schema).map_err(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_patterns_are_small_and_large_ones_are_told_from_faulty_ones() {
        let sizes_of = |patterns: &[&str]| {
            let named: Vec<_> = patterns
                .iter()
                .map(|p| ((*p).to_owned(), "#/x".to_owned()))
                .collect();
            sizes(&named)
        };
        let ordinary = [
            "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
            "^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\\.[A-Za-z]{2,}$",
            "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
            "^\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}(\\.\\d+)?Z$",
            "^https?://[^\\s/]+(/.*)?$",
            "^[\\w./-]+$",
            "\\S",
            "^\\p{L}+$",
            "^.{1,100}$",
            "^v\\d+$",
        ];
        let known = sizes_of(&ordinary).expect("all fit together");
        assert_eq!(known.len(), ordinary.len());
        assert!(
            known.values().all(|bytes| *bytes <= MAX_PATTERN_BYTES),
            "{known:?}"
        );
        let large = sizes_of(&["^[ab]*a[ab]{1000}\\W"]).expect_err("too large");
        assert!(large.contains("at #/x is larger than 65536 bytes"), "{large}");
        let many: Vec<String> = (0..9).map(|n| format!("^[ab]*a[ab]{{{}}}\\W", 400 + n)).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let large = sizes_of(&many).expect_err("too large together");
        assert!(large.contains("larger than 262144 bytes"), "{large}");
        assert_eq!(
            sizes_of(&["(", "^(?=a)"]),
            Ok(HashMap::new()),
            "said by the compilation of the schema"
        );
    }
}

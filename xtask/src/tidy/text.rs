//! What may not be written where.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Problem;

/// Most lines of code in a source file: blank lines, comments and tests are not counted.
const MOST_LINES: usize = 400;
/// Marks of work that was left undone. Split, so that this file is not among the finds.
const MARKS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
/// Where `unsafe` may be allowed: the supervisor.
const UNSAFE: &[&str] = &["node-agent/supervisor/"];
/// Names the lint that forbids it elsewhere. Split, as above.
const UNSAFE_LINT: &str = concat!("unsafe", "_code");
/// What the core may not touch: clocks, the environment, files, threads, randomness.
const IMPURE: &[&str] = &[
    "::now(",
    "std::env",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "Instant",
    "SystemTime",
    "rand::",
];

/// Checks all files.
pub fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    for file in files {
        let path = root.join(file);
        let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        // What is not text is not ours to judge here.
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        let name = file.to_string_lossy();
        problems.extend(check_file(&name, &text, &root.to_string_lossy()));
    }
    Ok(problems)
}

/// Checks one file. `root` is where the repository is on this machine.
fn check_file(name: &str, text: &str, root: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut say = |line: Option<usize>, what: String| {
        let place = line.map_or_else(|| name.to_owned(), |line| format!("{name}:{}", line + 1));
        problems.push(Problem::new(place, what));
    };
    let is_rust = name.ends_with(".rs");
    if is_rust {
        let ours = text
            .lines()
            .take_while(|line| !line.starts_with("#[cfg(test)]"))
            .map(str::trim_start);
        let lines = ours
            .filter(|line| !line.is_empty() && !line.starts_with("//"))
            .count();
        if lines > MOST_LINES && !is_test(name) {
            say(
                None,
                format!("{lines} lines of code before its tests; split it at {MOST_LINES}"),
            );
        }
    }
    // The supervisor repeats them with the one difference that it may use `unsafe`.
    let inherits = name.ends_with("Cargo.toml")
        && name.contains('/')
        && !UNSAFE.iter().any(|place| name.starts_with(place));
    if inherits && !text.contains("[lints]\nworkspace = true") {
        say(
            None,
            "does not take the workspace's lints: add [lints] workspace = true".to_owned(),
        );
    }
    let pure = name.starts_with("decide/src/");
    let mut in_tests = false;
    for (number, line) in text.lines().enumerate() {
        in_tests |= line.starts_with("#[cfg(test)]");
        if let Some(mark) = MARKS.iter().find(|mark| has_word(line, mark)) {
            say(Some(number), format!("{mark}: do it, or open an issue"));
        }
        if line.contains(root) || line.contains(concat!("/ro", "ot/")) || line.contains(concat!("/ho", "me/"))
        {
            say(Some(number), "a path of one machine".to_owned());
        }
        if is_rust && line.contains(UNSAFE_LINT) && !UNSAFE.iter().any(|place| name.starts_with(place)) {
            say(
                Some(number),
                format!("unsafe code is for {} only", UNSAFE.join(", ")),
            );
        }
        if pure
            && !in_tests
            && let Some(word) = IMPURE.iter().find(|word| code(line).contains(**word))
        {
            say(
                Some(number),
                format!("{word}: the core gets time and randomness as arguments, and does no IO"),
            );
        }
    }
    problems
}

fn is_test(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("tests.rs") || name.starts_with("e2e/")
}

/// The line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line.get(at + word.len()..).and_then(|text| text.chars().next());
        ![before, after]
            .into_iter()
            .flatten()
            .any(|c| c.is_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(name: &str, text: &str) -> Vec<String> {
        let found = check_file(name, text, "/somewhere/fairlead");
        found
            .into_iter()
            .map(|problem| format!("{}: {}", problem.place, problem.what))
            .collect()
    }

    #[test]
    fn undone_work_is_found_as_a_word() {
        let mark = MARKS[0];
        assert_eq!(problems("a.rs", &format!("\n// {mark}: later")).len(), 1);
        assert!(problems("a.rs", &format!("let {mark}S = 1;")).is_empty());
    }

    #[test]
    fn the_core_may_speak_of_clocks_but_not_read_one() {
        let call = "let t = Timestamp::now();";
        assert_eq!(problems("decide/src/a.rs", call).len(), 1);
        assert!(problems("decide/src/a.rs", "// never Timestamp::now()").is_empty());
        assert!(
            problems(
                "decide/src/a.rs",
                &format!("#[cfg(test)]\nmod tests {{ {call} }}")
            )
            .is_empty()
        );
        assert!(problems("operator/src/a.rs", call).is_empty());
    }

    #[test]
    fn tests_do_not_count_as_length() {
        let code = "fn f() {}\n".repeat(401);
        assert_eq!(problems("a/src/a.rs", &code).len(), 1);
        let tests = format!("#[cfg(test)]\n{code}");
        assert!(problems("a/src/a.rs", &tests).is_empty());
        assert!(problems("a/tests/a.rs", &code).is_empty());
    }

    #[test]
    fn allowing_what_is_for_the_supervisor_is_found_elsewhere() {
        let line = format!("#![allow({UNSAFE_LINT})]");
        assert_eq!(problems("operator/src/main.rs", &line).len(), 1);
        assert!(problems("node-agent/supervisor/src/sys.rs", &line).is_empty());
    }

    #[test]
    fn paths_of_a_machine_and_missing_lints_are_found() {
        assert_eq!(problems("README.md", "cd /somewhere/fairlead/cli").len(), 1);
        assert_eq!(problems("cli/Cargo.toml", "[package]").len(), 1);
        assert!(problems("cli/Cargo.toml", "[lints]\nworkspace = true\n").is_empty());
        assert!(problems("Cargo.toml", "[workspace]").is_empty());
    }
}

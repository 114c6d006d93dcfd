//! Every word a user may meet in a condition or a reason is explained in the documentation.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::Problem;

/// The only file with these words.
const WORDS: &str = "crds/src/conditions.rs";
/// Where they are explained.
const PAGE: &str = "docs/troubleshooting.md";

/// Checks that the page names every word.
pub fn check(root: &Path) -> Result<Vec<Problem>> {
    let read = |name: &str| fs::read_to_string(root.join(name)).with_context(|| format!("read {name}"));
    let (source, page) = (read(WORDS)?, read(PAGE)?);
    let missing = words(&source).filter(|word| !page.contains(&format!("`{word}`")));
    Ok(missing
        .map(|word| Problem::new(PAGE, format!("does not explain {word}, which stands in {WORDS}")))
        .collect())
}

/// The values of the string constants in a source file.
fn words(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| {
        let value = line
            .trim()
            .strip_prefix("pub const ")?
            .split_once(": &str = \"")?
            .1;
        value.strip_suffix("\";")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_constants_are_found() {
        let source =
            "mod reason {\n    /// Why.\n    pub const A: &str = \"Answered\";\n    const N: u8 = 1;\n}";
        assert_eq!(words(source).collect::<Vec<_>>(), ["Answered"]);
    }
}

//! `cargo xtask tidy`: what the compiler cannot check about the repository.
//!
//! Which crate may depend on which, how long files may be (functions are clippy's), where `unsafe` may stand, what the
//! core may not touch, what must not be written anywhere, and that every reason a user may meet is explained.

mod arrows;
mod reasons;
mod text;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::repo;

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// File or package.
    pub place: String,
    /// What is wrong, and what to do.
    pub what: String,
}

impl Problem {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            what: what.into(),
        }
    }
}

/// Checks the repository; prints each problem, and fails if there is one.
pub fn run() -> Result<()> {
    let root = repo::root();
    let files = files(&root)?;
    let mut problems = text::check(&root, &files)?;
    problems.extend(arrows::check(&root)?);
    problems.extend(reasons::check(&root)?);
    problems.sort();
    for problem in &problems {
        eprintln!("{}: {}", problem.place, problem.what);
    }
    if !problems.is_empty() {
        bail!("tidy: {} problem(s)", problems.len());
    }
    println!("tidy: {} files, {} arrows", files.len(), arrows::FORBIDDEN.len());
    Ok(())
}

/// Every file that is or would be in git, relative to `root`.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut command = Command::new("git");
    command
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let names = String::from_utf8(output.stdout).context("read the names of files in git as UTF-8")?;
    let files = names
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(PathBuf::from);
    // What was deleted and not yet committed is listed as well.
    Ok(files.filter(|file| root.join(file).is_file()).collect())
}

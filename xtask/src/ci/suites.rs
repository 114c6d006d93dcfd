//! The test programs: built once for the whole workspace, then run tier by tier.
//!
//! A `cargo test --package` for each tier would resolve other features for each and build the dependencies again.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::tally::{CannotRun, Tally};
use crate::programs::{Profile, Programs};
use crate::repo;

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Suite {
    /// Directory of its package, from the repository's root.
    package: PathBuf,
    /// Name of the library, program or test file it was made from.
    target: String,
    program: PathBuf,
}

/// The test programs, once they are built.
#[derive(Debug, Default)]
pub struct Suites {
    built: Option<Vec<Suite>>,
}

impl Suites {
    /// Builds all of them, and the programs that the whole-system tests start, with the diagnostics going to standard
    /// error.
    pub fn build(&mut self) -> Result<()> {
        Programs::build(Profile::Debug)?;
        let mut command = Command::new("cargo");
        command.current_dir(repo::root()).stdout(Stdio::piped());
        command.args([
            "test",
            "--locked",
            "--workspace",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ]);
        let output = command.spawn().and_then(|child| child.wait_with_output());
        let output = output.with_context(|| format!("run {command:?}"))?;
        if !output.status.success() {
            bail!("{command:?} failed with {}", output.status);
        }
        let messages = String::from_utf8(output.stdout).context("read cargo's messages as UTF-8")?;
        let suites: Vec<Suite> = messages
            .lines()
            .filter_map(|line| suite(line, &repo::root()))
            .collect();
        println!("{} test programs", suites.len());
        self.built = Some(suites);
        Ok(())
    }

    /// Runs those of the packages in these directories, one after the other.
    pub fn run(&mut self, tally: &mut Tally, packages: &[&str]) -> Result<()> {
        if self.built.is_none() {
            self.build()?;
        }
        let suites = self.built.as_deref().unwrap_or_default();
        let mut failed = Vec::new();
        for suite in suites
            .iter()
            .filter(|suite| packages.iter().any(|package| suite.package == Path::new(package)))
        {
            println!("--- {} {}", suite.package.display(), suite.target);
            let directory = repo::root().join(&suite.package);
            let mut command = Command::new(&suite.program);
            command
                .current_dir(&directory)
                .env("CARGO_MANIFEST_DIR", &directory);
            if !run_counted(&mut command, tally)? {
                failed.push(format!("{} {}", suite.package.display(), suite.target));
            }
        }
        if !failed.is_empty() {
            bail!("{}", failed.join(", "));
        }
        Ok(())
    }

    /// As [`Suites::run`], for suites that make control groups, namespaces and other users.
    pub fn run_as_root(&mut self, tally: &mut Tally, packages: &[&str]) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Err(CannotRun("needs root, for control groups and namespaces".to_owned()).into());
        }
        self.run(tally, packages)
    }
}

/// Runs a command, shows its standard output as it comes and counts the closing lines in it; true if it succeeded.
fn run_counted(command: &mut Command, tally: &mut Tally) -> Result<bool> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("start {command:?}"))?;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.with_context(|| format!("read the output of {command:?}"))?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            tally.read(&line);
        }
    }
    let status = child.wait().with_context(|| format!("wait for {command:?}"))?;
    Ok(status.success())
}

/// The test program that a message of cargo names, if it does
/// (<https://doc.rust-lang.org/cargo/reference/external-tools.html#artifact-messages>).
fn suite(message: &str, root: &Path) -> Option<Suite> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    Some(Suite {
        package: manifest.parent()?.strip_prefix(root).ok()?.to_path_buf(),
        target: message["target"]["name"].as_str()?.to_owned(),
        program: message["executable"].as_str()?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_read_from_cargo_s_messages() {
        let message = r#"{"reason": "compiler-artifact", "manifest_path": "/r/node-agent/supervisor/Cargo.toml",
            "target": {"name": "spawn"}, "profile": {"test": true}, "executable": "/r/target/debug/deps/spawn-1"}"#;
        let found = suite(message, Path::new("/r")).unwrap();
        assert_eq!(found.package, Path::new("node-agent/supervisor"));
        assert_eq!(
            (found.target.as_str(), found.program.as_path()),
            ("spawn", Path::new("/r/target/debug/deps/spawn-1"))
        );
        let library = message.replace("\"test\": true", "\"test\": false");
        assert_eq!(suite(&library, Path::new("/r")), None);
        assert_eq!(suite("not json", Path::new("/r")), None);
    }
}

//! Checkers that are not crates of ours, each of one version, kept in the cache after its first use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::repo;

const CARGO_DENY: &str = "0.20.2";
const ACTIONLINT: &str = "v1.7.12";
const ZIZMOR: &str = "1.32.0";

/// `FAIRLEAD_CACHE`, else `~/.cache/fairlead`: what is built once for a machine.
pub fn cache() -> Result<PathBuf> {
    if let Some(directory) = std::env::var_os("FAIRLEAD_CACHE") {
        return Ok(directory.into());
    }
    let home = std::env::var_os("HOME").context("find the cache: HOME and FAIRLEAD_CACHE are both unset")?;
    Ok(Path::new(&home).join(".cache/fairlead"))
}

/// Advisories aside, what dependencies may be: <https://embarkstudios.github.io/cargo-deny>.
pub fn cargo_deny() -> Result<PathBuf> {
    let package = format!("cargo-deny@{CARGO_DENY}");
    once(
        &format!("cargo-deny-{CARGO_DENY}"),
        "bin/cargo-deny",
        |directory| {
            let mut command = Command::new("cargo");
            command
                .args(["install", "--quiet", "--locked", &package, "--root"])
                .arg(directory);
            command
        },
    )
}

/// A checker of workflow files: <https://github.com/rhysd/actionlint>.
pub fn actionlint() -> Result<PathBuf> {
    let package = format!("github.com/rhysd/actionlint/cmd/actionlint@{ACTIONLINT}");
    once(&format!("actionlint-{ACTIONLINT}"), "actionlint", |directory| {
        let mut command = Command::new("go");
        command.args(["install", &package]).env("GOBIN", directory);
        command
    })
}

/// A checker of workflow files for weaknesses: <https://docs.zizmor.sh>.
pub fn zizmor() -> Result<PathBuf> {
    let package = format!("zizmor=={ZIZMOR}");
    once(&format!("zizmor-{ZIZMOR}"), "bin/zizmor", |directory| {
        let mut command = Command::new("python3");
        command.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--target",
        ]);
        command.arg(directory).arg(&package);
        command
    })
}

/// A program of the control plane's build, such as helm.
pub fn control_plane_program(name: &str) -> Result<PathBuf> {
    let script = repo::root().join("hack/control-plane/build.sh");
    let output = Command::new(&script)
        .arg(name)
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("start {} {name}", script.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let path = said
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}=")));
    match path {
        Some(path) if output.status.success() => Ok(path.into()),
        _ => bail!(
            "{} {name} failed with {}: {said}",
            script.display(),
            output.status
        ),
    }
}

/// The program `path` of a tool, installed by `install` into the directory it is given unless it is there. The
/// directory gets its name when it is whole, so a broken installation is never used.
fn once(name: &str, path: &str, install: impl FnOnce(&Path) -> Command) -> Result<PathBuf> {
    let tools = cache()?.join("tools");
    let directory = tools.join(name);
    let program = directory.join(path);
    if program.exists() {
        return Ok(program);
    }
    let partial = tools.join(format!(".{name}.{}", std::process::id()));
    fs::create_dir_all(&partial).with_context(|| format!("make {}", partial.display()))?;
    eprintln!("installing {name} into {} (once)", tools.display());
    let mut command = install(&partial);
    let status = command.status().with_context(|| format!("start {command:?}"))?;
    if !status.success() || !partial.join(path).exists() {
        let _ = fs::remove_dir_all(&partial);
        bail!("{command:?} ended with {status} and did not make {path}");
    }
    if let Err(error) = fs::rename(&partial, &directory) {
        let _ = fs::remove_dir_all(&partial);
        // Another one may have been quicker.
        if !program.exists() {
            return Err(error)
                .with_context(|| format!("move {} to {}", partial.display(), directory.display()));
        }
    }
    Ok(program)
}

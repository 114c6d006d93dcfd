//! Our own programs, built by cargo.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::repo;

/// A cargo profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// Quick to build.
    Debug,
    /// Quick to run.
    Release,
}

/// Our programs, built.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Directory they are in.
    pub dir: PathBuf,
}

impl Programs {
    /// Packages of the programs, each named as its program is.
    pub const PACKAGES: [&str; 4] = [
        "fairlead-operator",
        "fairlead-node-agent",
        "fairlead-supervisor",
        "kubectl-fairlead",
    ];

    /// Builds the programs with cargo, whose progress goes to standard error.
    pub fn build(profile: Profile) -> Result<Self> {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(repo::root()).args(["build", "--bins"]);
        for package in Self::PACKAGES {
            command.args(["--package", package]);
        }
        if profile == Profile::Release {
            command.arg("--release");
        }
        let status = command.status().with_context(|| format!("start {command:?}"))?;
        if !status.success() {
            bail!("{command:?} failed with {status}");
        }
        Self::link_supervisor(profile)?;
        Ok(Self::there(profile))
    }

    /// Puts a supervisor that is linked statically in the place of the one that cargo built, in a release build. It is
    /// static in the image as well, and has 0.7 MiB less resident memory: no part of a shared C library, no dynamic linker.
    ///
    /// Only `cargo rustc` passes a flag to one package. In `RUSTFLAGS` it would reach procedural macros, which cannot be
    /// static.
    ///
    /// # Errors
    /// When cargo fails, most likely for want of a static C library.
    pub fn link_supervisor(profile: Profile) -> Result<()> {
        let Some(args) = static_link(profile) else {
            return Ok(());
        };
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(repo::root()).args(args);
        let status = command.status().with_context(|| format!("start {command:?}"))?;
        if !status.success() {
            bail!(
                "{command:?} failed with {status}; it needs the static C library \
                 (package libc6-dev of Debian, glibc-static of Fedora)"
            );
        }
        Ok(())
    }

    /// The programs as an earlier [`Programs::build`] left them.
    pub fn there(profile: Profile) -> Self {
        let directory = match profile {
            Profile::Debug => "debug",
            Profile::Release => "release",
        };
        Self {
            dir: repo::target_dir().join(directory),
        }
    }

    /// Path of the program called `name`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// What cargo is told to link the supervisor statically; `None` where it need not be told.
fn static_link(profile: Profile) -> Option<[&'static str; 9]> {
    // With musl everything is static anyway.
    let dynamic = cfg!(target_env = "gnu");
    (profile == Profile::Release && dynamic).then_some([
        "rustc",
        "--release",
        "--package",
        "fairlead-supervisor",
        "--bin",
        "fairlead-supervisor",
        "--",
        "-C",
        "target-feature=+crt-static",
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_supervisor_of_a_release_is_static() {
        let told = static_link(Profile::Release).map(|args| args.join(" "));
        let flag = told.as_deref().is_none_or(|told| told.ends_with("+crt-static"));
        assert!(flag && told.is_some() == cfg!(target_env = "gnu"), "{told:?}");
        assert_eq!(
            static_link(Profile::Debug),
            None,
            "a build for tests costs no second link"
        );
    }
}

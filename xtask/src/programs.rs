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
        Ok(Self::there(profile))
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

//! The programs of the control plane, found or built by `hack/control-plane/build.sh`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::repo;

/// Paths of the programs a control plane needs.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// etcd.
    pub etcd: PathBuf,
    /// kube-apiserver.
    pub apiserver: PathBuf,
    /// kube-controller-manager.
    pub controller_manager: PathBuf,
    /// helm.
    pub helm: PathBuf,
    /// kubectl: our own where `PATH` has none, else just its name.
    pub kubectl: PathBuf,
}

impl Binaries {
    /// Finds the programs; the first call on a machine builds them, which takes minutes and needs Go.
    pub fn ensure() -> Result<Self> {
        let script = repo::root().join("hack/control-plane/build.sh");
        // Progress of a build goes to standard error, which stays the caller's.
        let output = Command::new(&script)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("run {}", script.display()))?;
        if !output.status.success() {
            bail!("{} failed with {}", script.display(), output.status);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let mut paths: BTreeMap<&str, PathBuf> = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, path)| (name, path.into()))
            .collect();
        let mut take = |name: &str| {
            paths
                .remove(name)
                .with_context(|| format!("{} named no path for {name}", script.display()))
        };
        Ok(Self {
            etcd: take("etcd")?,
            apiserver: take("kube-apiserver")?,
            controller_manager: take("kube-controller-manager")?,
            helm: take("helm")?,
            kubectl: take("kubectl").unwrap_or_else(|_| "kubectl".into()),
        })
    }
}

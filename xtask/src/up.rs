//! `cargo xtask up` and `down`: a whole installation on this machine, in the background.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fairlead_crds::canonical::hex;
use sha2::{Digest, Sha256};

use crate::cgroup::Tree;
use crate::control_plane::binaries::Binaries;
use crate::control_plane::{ControlPlane, Options};
use crate::ledger::Ledger;
use crate::programs::{Profile, Programs};
use crate::stack::{Stack, node_name};
use crate::{install, repo};

/// The operator's name.
const OPERATOR: &str = "operator";

/// What `up` shall bring up.
#[derive(Clone, Debug, clap::Args)]
pub struct Up {
    /// Number of nodes, each a Node object with an agent, a control group root and a spool of its own.
    /// Fewer than are running stops none.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub nodes: u32,
    /// Cargo profile of our programs.
    #[arg(long, value_enum, default_value = "release")]
    pub profile: Profile,
}

/// Where the state of `up` is: `.fairlead/` in the repository.
pub fn state_dir() -> PathBuf {
    repo::root().join(".fairlead")
}

/// The control groups of `up`, named after the repository's path so that two clones on one machine do
/// not meet.
pub fn groups() -> Result<Tree> {
    let digest = Sha256::digest(repo::root().as_os_str().as_encoded_bytes());
    let hash = hex(&digest);
    Tree::named(&format!("fairlead-up-{}", &hash[..8]))
}

/// Does [`up`], and says how to reach what runs then.
pub fn run(options: &Up) -> Result<()> {
    up(options)?;
    let kubectl = Binaries::ensure()?.kubectl;
    let programs = Programs::there(options.profile).dir;
    println!(
        "\n{}",
        environment(&state_dir().join("kubeconfig"), &programs, &kubectl)
    );
    Ok(())
}

/// Brings up what is missing and leaves it running: a control plane, the chart, an operator, and the
/// nodes. Of what runs already, only those of our programs are restarted that were built anew since. If it
/// fails, what it started is ended again. Gives the time each step took.
pub fn up(up: &Up) -> Result<Steps> {
    if !rustix::process::geteuid().is_root() {
        bail!("`up` makes control groups and PID namespaces, which needs root: run it as root");
    }
    let mut steps = Steps::new();
    let programs = Programs::build(up.profile)?;
    steps.done("programs built");
    let dir = state_dir();
    let _lock = lock(&dir)?;
    steps.last = Instant::now();

    let control_plane = ControlPlane::start(&Options {
        dir: dir.clone(),
        fsync: true,
    })?;
    steps.done("control plane ready");
    install_chart(&control_plane, &dir)?;
    steps.done("chart installed");
    let mut stack = Stack::open(&dir, control_plane.cluster(), &programs, groups()?)?;
    let mut names = vec![OPERATOR.to_owned()];
    stop_outdated(&mut stack, OPERATOR)?;
    stack.start_operator(OPERATOR)?;
    let nodes: BTreeSet<u32> = stack.running_nodes()?.into_iter().chain(0..up.nodes).collect();
    for index in nodes {
        stop_outdated(&mut stack, &node_name(index))?;
        names.push(stack.start_node(index)?.0);
    }
    for name in &names {
        stack.wait_ready(name)?;
    }
    steps.done("operator and nodes ready");
    stack.detach()?;
    control_plane.detach()?;
    Ok(steps)
}

/// The line that makes `kubectl` and `kubectl fairlead` of this installation work in a shell. Where there is no kubectl
/// on `PATH`, and `kubectl` is therefore the path of one that was built, the line has that too, and one before it says
/// so.
pub fn environment(kubeconfig: &Path, programs: &Path, kubectl: &Path) -> String {
    let export = format!(
        "export KUBECONFIG={} PATH=$PATH:{}",
        kubeconfig.display(),
        programs.display()
    );
    match kubectl.parent().filter(|dir| dir.is_absolute()) {
        Some(dir) => format!(
            "there is no kubectl on PATH; one was built: {}\n{export}:{}",
            kubectl.display(),
            dir.display()
        ),
        None => export,
    }
}

/// Ends a part if one of its programs was built anew since it was started, and says so.
fn stop_outdated(stack: &mut Stack, name: &str) -> Result<()> {
    let outdated = stack.outdated(name)?;
    if outdated.is_empty() {
        return Ok(());
    }
    println!("{name} is restarted: new {}", outdated.join(", "));
    stack
        .stop(name)
        .with_context(|| format!("end {name}, to start its new program"))
}

/// Installs the chart unless exactly this chart was installed here before.
fn install_chart(control_plane: &ControlPlane, dir: &Path) -> Result<()> {
    let digest = digest_of(&repo::chart())?;
    let marker = dir.join("chart.sha256");
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == digest) {
        return Ok(());
    }
    install::chart(control_plane.cluster(), &[])?;
    fs::write(&marker, digest).with_context(|| format!("write {}", marker.display()))
}

/// A digest over the paths and contents of all files in `dir`.
fn digest_of(dir: &Path) -> Result<String> {
    fn walk(dir: &Path, digest: &mut Sha256) -> Result<()> {
        let entries = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
        let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
        let mut paths = paths.with_context(|| format!("list {}", dir.display()))?;
        paths.sort();
        for path in paths {
            if path.is_dir() {
                walk(&path, digest)?;
            } else {
                let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
                let path = path.as_os_str().as_encoded_bytes();
                for part in [path, &bytes] {
                    digest.update((part.len() as u64).to_be_bytes());
                    digest.update(part);
                }
            }
        }
        Ok(())
    }
    let mut digest = Sha256::new();
    walk(dir, &mut digest)?;
    Ok(hex(&digest.finalize()))
}

/// Ends and removes all that [`up`] made; without anything to remove it does nothing.
pub fn down() -> Result<()> {
    let dir = state_dir();
    if dir.exists() {
        let _lock = lock(&dir)?;
        let mut ledger = Ledger::open(&dir)?;
        let stopped = ledger.names()?;
        let (ours, control_plane): (Vec<String>, Vec<String>) = ledger
            .names()?
            .into_iter()
            .partition(|name| name == OPERATOR || name.starts_with("node-"));
        for name in ours {
            ledger.stop(&name, Duration::from_secs(10))?;
        }
        for name in control_plane {
            // Its data goes with it, so there is nothing for it to finish.
            ledger.stop(&name, Duration::ZERO)?;
        }
        ledger.detach()?;
        groups()?.remove()?;
        fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
        println!("stopped: {}; removed {}", stopped.join(", "), dir.display());
    } else {
        println!("nothing to stop: there is no {}", dir.display());
    }
    // Also after somebody removed the state by hand.
    groups()?.remove()
}

/// Takes the lock that keeps two of `up` and `down` from working at once, and waits for it. `down`
/// removes the directory with the lock in it, so the lock counts only if it is still there afterwards.
fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    loop {
        // Logs and requests are no business of the tools, which run under users of their own.
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.with_context(|| format!("make {}", dir.display()))?;
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        file.lock().with_context(|| format!("lock {}", path.display()))?;
        let held = file
            .metadata()
            .with_context(|| format!("look at the locked {}", path.display()))?;
        if fs::metadata(&path).is_ok_and(|there| there.ino() == held.ino()) {
            return Ok(file);
        }
    }
}

/// Prints each step with the time it took, and keeps both.
#[derive(Debug)]
pub struct Steps {
    last: Instant,
    /// What was done and how long it took, in order.
    pub taken: Vec<(String, Duration)>,
}

impl Steps {
    /// No step yet; the first one begins now.
    pub fn new() -> Self {
        Self {
            last: Instant::now(),
            taken: Vec::new(),
        }
    }

    /// A step has ended, and the next one begins.
    pub fn done(&mut self, what: &str) {
        let took = self.last.elapsed();
        println!("{:>7.1} s  {what}", took.as_secs_f64());
        self.taken.push((what.to_owned(), took));
        self.last = Instant::now();
    }
}

impl Default for Steps {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubectl_that_was_built_is_named_and_put_on_the_path() {
        let line = |kubectl: &str| {
            environment(
                Path::new("/r/kubeconfig"),
                Path::new("/r/debug"),
                Path::new(kubectl),
            )
        };
        assert_eq!(
            line("kubectl"),
            "export KUBECONFIG=/r/kubeconfig PATH=$PATH:/r/debug"
        );
        assert_eq!(
            line("/cache/bin/kubectl"),
            "there is no kubectl on PATH; one was built: /cache/bin/kubectl\n\
             export KUBECONFIG=/r/kubeconfig PATH=$PATH:/r/debug:/cache/bin"
        );
    }
}

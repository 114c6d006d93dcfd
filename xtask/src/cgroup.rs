//! A cgroup v2 tree of our own, for node agents that share a machine.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::wait;

/// Controllers that node agents have a use for.
const CONTROLLERS: [&str; 4] = ["cpu", "io", "memory", "pids"];

/// A directory below the machine's cgroup2 mount that we made, and may remove.
#[derive(Clone, Debug)]
pub struct Tree {
    path: PathBuf,
}

impl Tree {
    /// The tree called `name` below the first cgroup2 mount in `/proc/self/mountinfo`, be it there or
    /// not. Works on a hybrid hierarchy too, where that mount has no controllers to limit with.
    pub fn named(name: &str) -> Result<Self> {
        let path = "/proc/self/mountinfo";
        let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        let mount = mount_of(&text).with_context(|| format!("{path} lists no cgroup2 file system"))?;
        Ok(Self {
            path: Path::new(mount).join(name),
        })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the tree, which passes on those of [`CONTROLLERS`] that it has, and directory `child` in it.
    pub fn create(&self, child: &str) -> Result<PathBuf> {
        let directory = self.path.join(child);
        make(&self.path)?;
        let available = read(&self.path.join("cgroup.controllers"))?;
        let control = self.path.join("cgroup.subtree_control");
        for controller in available
            .split_whitespace()
            .filter(|name| CONTROLLERS.contains(name))
        {
            let value = format!("+{controller}");
            fs::write(&control, &value)
                .with_context(|| format!("write '{value}' to {}", control.display()))?;
        }
        make(&directory)?;
        Ok(directory)
    }

    /// Kills everything in the tree and removes it. Fails if it is not empty within 10 s.
    pub fn remove(&self) -> Result<()> {
        if !self.path.exists() {
            return Ok(());
        }
        wait::until(
            &format!("{} to be empty and removed", self.path.display()),
            Duration::from_secs(10),
            Duration::from_millis(20),
            || {
                let kill = self.path.join("cgroup.kill");
                match fs::write(&kill, "1") {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        Err(error).with_context(|| format!("write '1' to {}", kill.display()))?;
                    }
                    _ => {}
                }
                remove_groups(&self.path)?;
                Ok((!self.path.exists()).then_some(()))
            },
            || read(&self.path.join("cgroup.events")).unwrap_or_else(|error| format!("{error:#}")),
        )
    }
}

/// The mount point of the first cgroup2 entry; see proc(5) for the form of a line.
fn mount_of(mountinfo: &str) -> Option<&str> {
    mountinfo.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        file_system
            .starts_with("cgroup2 ")
            .then(|| mount.split(' ').nth(4))
            .flatten()
    })
}

/// Removes the groups below `path` and `path` itself, children first; those that are busy stay.
fn remove_groups(path: &Path) -> Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("list {}", path.display()))?,
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path())?;
        }
    }
    match fs::remove_dir(path) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ResourceBusy) => {
            Err(error).with_context(|| format!("remove control group {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn make(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!("make control group {}: {error}; this needs root", path.display())
        }
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("make control group {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::mount_of;

    #[test]
    fn finds_cgroup2_on_pure_and_hybrid_hosts_and_says_when_there_is_none() {
        let hybrid = "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_of(hybrid), Some("/sys/fs/cgroup/unified"));
        let pure = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(mount_of(pure), Some("/sys/fs/cgroup"));
        assert_eq!(mount_of("22 1 8:1 / / rw - ext4 /dev/cgroup2 rw\n"), None);
    }
}

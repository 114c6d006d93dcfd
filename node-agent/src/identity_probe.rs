//! The start-up probe: what a tool's user must not reach, it does not reach.

use anyhow::{Context, Result, bail};
use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a Pod's ServiceAccount token is mounted.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// What must be out of reach.
#[derive(Debug)]
pub(crate) struct Secrets {
    /// Files that must not be readable.
    files: Vec<PathBuf>,
    /// Directories that must not be listable.
    directories: Vec<PathBuf>,
    /// Files that must not be writable.
    controls: Vec<PathBuf>,
}

impl Secrets {
    /// The agent's credentials, the spool, and the group of all tools.
    pub(crate) fn new(kubeconfig: Option<&Path>, spool: &Path, payload: Option<&Path>) -> Self {
        let credentials = kubeconfig.unwrap_or(Path::new(POD_TOKEN));
        Self {
            files: vec![credentials.to_owned(), spool.join("identity"), spool.join("lock")],
            directories: vec![spool.to_owned(), spool.join("runs")],
            controls: payload
                .into_iter()
                .flat_map(|group| [group.join("cgroup.procs"), group.join("cgroup.kill")])
                .collect(),
        }
    }
}

/// Tries everything with the rights of `user`, on a thread of its own that ends afterwards: on Linux a thread has its
/// own credentials, and giving up user 0 gives up every capability. Blocks.
///
/// # Errors
/// What can be reached, and what can be done about it.
pub(crate) fn probe(secrets: &Arc<Secrets>, user: u32) -> Result<()> {
    let thread = std::thread::Builder::new().name("identity-probe".to_owned());
    let secrets = Arc::clone(secrets);
    let thread = thread
        .spawn(move || as_user(&secrets, user))
        .context("start the identity probe")?;
    match thread.join() {
        Ok(result) => result,
        Err(_) => bail!("the identity probe ended without an answer"),
    }
}

fn as_user(secrets: &Secrets, user: u32) -> Result<()> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_groups(&[]).context("drop supplementary groups (needs CAP_SETGID)")?;
    set_thread_res_gid(gid, gid, gid).with_context(|| format!("become group {user}"))?;
    set_thread_res_uid(uid, uid, uid).with_context(|| format!("become user {user}"))?;
    for path in &secrets.files {
        refused("read", path, OpenOptions::new().read(true).open(path).map(drop))?;
    }
    for path in &secrets.directories {
        refused("list", path, fs::read_dir(path).map(drop))?;
    }
    for path in &secrets.controls {
        refused("write", path, OpenOptions::new().write(true).open(path).map(drop))?;
    }
    Ok(())
}

fn refused(act: &str, path: &Path, result: io::Result<()>) -> Result<()> {
    match result {
        Ok(()) => bail!(
            "a tool's user can {act} {}: take that right away (chmod go-rwx)",
            path.display()
        ),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_a_tool_can_reach_is_named_and_the_process_keeps_its_rights() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: becoming another user needs root");
            return;
        }
        let spool = std::env::temp_dir().join(format!("fairlead-probe-{}", std::process::id()));
        fs::create_dir(&spool).unwrap();
        fs::create_dir(spool.join("runs")).unwrap();
        let token = spool.with_extension("token");
        fs::write(&token, "secret").unwrap();
        let mode =
            |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let ask = || {
            probe(&Arc::new(Secrets::new(Some(&token), &spool, None)), 60_000)
                .map_err(|error| error.to_string())
        };
        mode(&token, 0o600);
        mode(&spool, 0o700);
        assert_eq!(ask(), Ok(()));
        mode(&token, 0o644);
        assert_eq!(
            ask(),
            Err(format!(
                "a tool's user can read {}: take that right away (chmod go-rwx)",
                token.display()
            ))
        );
        mode(&token, 0o600);
        mode(&spool, 0o755);
        assert!(
            ask()
                .unwrap_err()
                .contains(&format!("can list {}", spool.display()))
        );
        assert!(
            rustix::process::geteuid().is_root(),
            "only the probe's own thread gave up its rights"
        );
        fs::remove_dir_all(&spool).unwrap();
        fs::remove_file(&token).unwrap();
    }
}

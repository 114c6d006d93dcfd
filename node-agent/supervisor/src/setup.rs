//! Everything before the loop: lock, epoch, groups, reclaim. May allocate and wait, within bounds.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fairlead_supervisor::cgroup::{self, Group};

use crate::config::{BackendChoice, Config};
use crate::log;
use crate::os;
use crate::os_signal;

/// Longest wait for leftover groups of earlier starts to become empty and go away.
const RECLAIM_BOUND: Duration = Duration::from_secs(10);
/// Longest wait for one of our own groups at the end.
const REMOVE_BOUND: Duration = Duration::from_secs(2);
const LOCK_RETRY_MS: u32 = 200;
const PREFIXES: [&str; 4] = ["supervisor-", "agent-", "payload-", "probe-"];
/// Kept of the root's `memory.max` for the agent and us, so that tools cannot take us along.
const MEMORY_RESERVE: u64 = 128 * 1024 * 1024;
/// Kept of the root's `pids.max`.
const PIDS_RESERVE: u64 = 64;

/// The spool's lock and what it remembers.
pub(crate) struct Lock {
    file: File,
    last_epoch: u32,
}

/// Takes the spool's lock, waiting for another supervisor to end. `Ok(None)` = told to stop meanwhile.
///
/// # Errors
/// Those of making, opening and locking, with the path.
pub(crate) fn lock_spool(spool: &Path) -> io::Result<Option<Lock>> {
    let act = |what: &str, e: io::Error| io::Error::new(e.kind(), format!("{what} {}: {e}", spool.display()));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(spool)
        .map_err(|e| act("make spool", e))?;
    fs::set_permissions(spool, fs::Permissions::from_mode(0o700))
        .map_err(|e| act("close spool to others", e))?;
    let path = spool.join("lock");
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let mut file = open.map_err(|e| act("open the lock of spool", e))?;
    let mut told = false;
    while !os::try_lock(file.as_fd()).map_err(|e| act("lock spool", e))? {
        if !told {
            log::warn(format_args!(
                "spool {} is locked by another supervisor: waiting",
                spool.display()
            ));
            told = true;
        }
        if os_signal::wait_stop_signal(LOCK_RETRY_MS) {
            return Ok(None);
        }
    }
    let mut text = String::new();
    file.read_to_string(&mut text)
        .map_err(|e| act("read the lock of spool", e))?;
    let last_epoch = read_epoch(&text).map_err(|e| act("read the lock of spool", e))?;
    Ok(Some(Lock { file, last_epoch }))
}

/// The epoch that was written down; 0 before the first.
fn read_epoch(text: &str) -> io::Result<u32> {
    let text = text.trim_end();
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| {
        let message = format!("it holds {text:?}, not a number: stop all tools and remove it to begin anew");
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

impl Lock {
    /// The number of this start: higher than any before on this spool and than any group that is left.
    ///
    /// # Errors
    /// Those of writing it down.
    pub(crate) fn next_epoch(&mut self, root: Option<&Group>) -> io::Result<u32> {
        let mut last = self.last_epoch;
        for group in root
            .into_iter()
            .flat_map(|root| root.children().unwrap_or_default())
        {
            last = last.max(epoch_of(group.path()).unwrap_or(0));
        }
        let epoch = last.wrapping_add(1).max(1);
        // Always as long as the longest, so that there is no moment at which the file holds no number.
        self.file.write_all_at(format!("{epoch:010}\n").as_bytes(), 0)?;
        self.file.sync_data()?;
        Ok(epoch)
    }
}

/// The number in the name of one of our groups.
fn epoch_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let rest = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    let mut numbers = rest.split('-').map(|number| number.parse::<u32>().ok());
    let first = numbers.next()??;
    numbers.all(|number| number.is_some()).then_some(first)
}

/// The groups of this start.
pub(crate) struct Groups {
    root: Group,
    origin: Option<PathBuf>,
    supervisor: Group,
    pub(crate) payload: Group,
}

/// The directory below which groups may be made, or `None` for the process-group backend.
///
/// # Errors
/// Why there is none, where one is required.
pub(crate) fn find_root(config: &Config) -> io::Result<Option<Group>> {
    if config.backend == BackendChoice::ProcessGroup {
        return Ok(None);
    }
    let found = match &config.cgroup_root {
        Some(path) => Ok(path.clone()),
        None => cgroup::find_own_group(),
    };
    let checked = found.and_then(|path| {
        cgroup::check_root(&path)?;
        let probe = Group::at(path.join(format!("probe-{}", std::process::id())));
        // One that was killed with the same number may have left it.
        probe.kill_until_empty(REMOVE_BOUND).map_err(io::Error::other)?;
        probe.remove(REMOVE_BOUND).map_err(io::Error::other)?;
        let probe = Group::create(probe.path()).map_err(io::Error::other)?;
        probe.write("cgroup.kill", "1").map_err(io::Error::other)?;
        probe.remove(REMOVE_BOUND).map_err(io::Error::other)?;
        Ok(Group::at(path))
    });
    match checked {
        Ok(root) => Ok(Some(root)),
        // A root that was named is meant: another backend in its place would be a surprise.
        Err(e) if config.backend == BackendChoice::CgroupV2 || config.cgroup_root.is_some() => Err(e),
        Err(e) => {
            log::warn(format_args!(
                "no cgroup v2 ({e}): processes are kept together by process groups only"
            ));
            Ok(None)
        }
    }
}

impl Groups {
    /// Reclaims what earlier starts left, makes the groups of this one and moves this process into its own.
    ///
    /// # Errors
    /// Those of making a group or moving; a leftover that cannot be reclaimed is logged and left.
    pub(crate) fn make(root: Group, epoch: u32) -> io::Result<Groups> {
        let origin = cgroup::find_own_group().ok();
        let supervisor = root.child(&format!("supervisor-{epoch}"));
        Group::create(supervisor.path()).map_err(io::Error::other)?;
        supervisor.write("cgroup.procs", "0").map_err(io::Error::other)?;
        reclaim(&root, Some(&supervisor));
        let payload = root.child(&format!("payload-{epoch}"));
        Group::create(payload.path()).map_err(io::Error::other)?;
        if let Err(e) = root.enable_controllers() {
            log::warn(format_args!("{e}"));
        }
        match payload.enable_controllers() {
            Ok(missing) if missing.is_empty() => {}
            Ok(missing) => log::warn(format_args!(
                "no {} controller below {}: those limits cannot be set",
                missing.join(", "),
                payload.path().display()
            )),
            Err(e) => log::warn(format_args!("{e}: limits of that kind cannot be set")),
        }
        reserve(&root, &payload, "memory.max", MEMORY_RESERVE);
        reserve(&root, &payload, "pids.max", PIDS_RESERVE);
        Ok(Groups {
            root,
            origin,
            supervisor,
            payload,
        })
    }

    /// A fresh group for one start of the agent.
    ///
    /// # Errors
    /// Those of `mkdir(2)`.
    pub(crate) fn agent(&self, epoch: u32, start: u32) -> cgroup::Result<Group> {
        Group::create(self.root.path().join(format!("agent-{epoch}-{start}")))
    }

    /// At the end: removes every group of ours, after leaving our own one if the way back is open.
    pub(crate) fn remove(self) {
        let home = self.origin.map(Group::at);
        if let Some(home) = home.filter(|home| !home.path().starts_with(self.supervisor.path())) {
            // A group that hands controllers on takes no process: then our own group stays for the next start.
            let _ = home.write("cgroup.procs", "0");
        }
        reclaim(&self.root, None);
    }
}

/// What the root is limited to, less what the agent and we need.
fn reserve(root: &Group, payload: &Group, file: &str, keep: u64) {
    let Some(limit) = root.read(file).ok().and_then(|text| text.parse::<u64>().ok()) else {
        return;
    };
    // A root that is smaller than twice the reserve is shared in halves.
    let rest = limit.saturating_sub(keep).max(limit / 2);
    if let Err(e) = payload.write(file, &rest.to_string()) {
        log::warn(format_args!("{e}: tools may use up what the agent needs"));
    }
}

/// Kills and removes every group of ours below the root, except one. The bound is for all of them together.
fn reclaim(root: &Group, keep: Option<&Group>) {
    let groups = match root.children() {
        Ok(groups) => groups,
        Err(e) => return log::warn(format_args!("{e}")),
    };
    let end = std::time::Instant::now() + RECLAIM_BOUND;
    for group in groups {
        let ours = epoch_of(group.path()).is_some();
        let own = group
            .procs()
            .is_ok_and(|pids| pids.contains(&std::process::id().cast_signed()));
        if !ours || own || keep == Some(&group) {
            continue;
        }
        let left = end.saturating_duration_since(std::time::Instant::now());
        let emptied = group.kill_until_empty(left);
        let removed = group.remove(left.min(REMOVE_BOUND));
        match (emptied, removed) {
            (Ok(true), Ok(())) => log::info(format_args!("reclaimed group {}", group.path().display())),
            (emptied, removed) => log::warn(format_args!(
                "group {} is left over: emptied {emptied:?}, removed {removed:?}",
                group.path().display()
            )),
        }
    }
}

/// Directories that private mount namespaces hide: the spool and what the command line names.
///
/// # Errors
/// `InvalidInput` for a path that is no directory, with the path: a mount can only hide what is there.
pub(crate) fn hidden(config: &Config) -> io::Result<Vec<CString>> {
    let mut paths = Vec::new();
    for path in std::iter::once(&config.spool).chain(&config.hide) {
        let invalid = |why: &str| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("--hide {}: {why}", path.display()),
            )
        };
        if !path.is_dir() {
            return Err(invalid("is no directory"));
        }
        paths.push(CString::new(path.as_os_str().as_bytes()).map_err(|_| invalid("contains a NUL byte"))?);
    }
    Ok(paths)
}

/// Opens `/dev/null` for every standard descriptor that is closed, so that none of ours gets its number.
///
/// # Errors
/// Those of opening `/dev/null`.
pub(crate) fn fill_standard_descriptors() -> io::Result<()> {
    loop {
        let file = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        if std::os::fd::AsRawFd::as_raw_fd(&file) > 2 {
            return Ok(());
        }
        // The number stays open for the life of the process.
        std::mem::forget(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epoch_on_disk_is_a_number_or_an_error() {
        for (text, epoch) in [("", Some(0)), ("7\n", Some(7)), ("0000000012\n", Some(12))] {
            assert_eq!(read_epoch(text).ok(), epoch, "{text:?}");
        }
        for text in ["x", "\0\0\0", "1 2", "-1"] {
            assert!(read_epoch(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_epoch_only_grows_and_a_longer_number_leaves_nothing_of_a_shorter() {
        let spool = std::env::temp_dir().join(format!("fairlead-epoch-{}", std::process::id()));
        for expected in 1..12 {
            let mut lock = lock_spool(&spool).expect("lock").expect("not told to stop");
            assert_eq!(lock.next_epoch(None).expect("epoch"), expected);
        }
        fs::write(spool.join("lock"), "4294967294\n").expect("write");
        let mut lock = lock_spool(&spool).expect("lock").expect("not told to stop");
        assert_eq!(lock.next_epoch(None).expect("epoch"), u32::MAX);
        drop(lock);
        fs::write(spool.join("lock"), "torn").expect("write");
        let error = lock_spool(&spool).err().expect("refused").to_string();
        assert!(error.contains("torn"), "{error}");
        fs::remove_dir_all(spool).expect("remove");
    }

    #[test]
    fn the_epoch_is_read_from_our_names_only() {
        for (name, epoch) in [
            ("supervisor-3", Some(3)),
            ("agent-12-4", Some(12)),
            ("payload-x", None),
            ("payload-3.slice", None),
            ("agent-3-x", None),
            ("system.slice", None),
        ] {
            assert_eq!(epoch_of(Path::new(name)), epoch, "{name}");
        }
    }
}

//! The spool: one directory per attempt, one per run, and the identity of the volume.
//!
//! ```text
//! <spool>/identity                  random id of the volume, part of the node's incarnation
//! <spool>/<uid>-<attempt>/slot      the attempt's journal
//! <spool>/<uid>-<attempt>/stdout    its output
//! <spool>/runs/<run uid>/           /tmp and home of a run, owned by the run's user
//! ```

use crate::ids;
use crate::remove::remove_tree;
use anyhow::{Context, Result, bail};
use fairlead_decide::node::{AttemptKey, Held, Moment, Refused, RunKey};
use fairlead_supervisor::cgroup::Group;
use fairlead_supervisor::slot::{FILE_SLOT, FILE_STDOUT, Journal, Slot, parse_attempt_name};
use fairlead_supervisor::step::Step;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const IDENTITY: &str = "identity";
const RUNS: &str = "runs";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The spool directory.
#[derive(Clone, Debug)]
pub(crate) struct Spool {
    dir: PathBuf,
}

impl Spool {
    /// Opens the spool and makes what is missing in it. The supervisor made the directory itself and holds its lock.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let dir = dir
            .canonicalize()
            .with_context(|| format!("open spool {}", dir.display()))?;
        let runs = dir.join(RUNS);
        make_dir(&runs).with_context(|| format!("make {}", runs.display()))?;
        Ok(Self { dir })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// Identity of the node's memory: the kernel's boot id and this volume's own id, made on first use.
    pub(crate) fn incarnation(&self) -> Result<String> {
        let boot = fs::read_to_string(BOOT_ID).with_context(|| format!("read {BOOT_ID}"))?;
        let path = self.dir.join(IDENTITY);
        let id = match fs::read_to_string(&path) {
            Ok(id) => id,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let id = format!("{:032x}", rand::random::<u128>());
                // Whole or not at all: an id that changes would make every running execution unknown.
                let draft = self.dir.join("identity.new");
                write_synced(&draft, &id).with_context(|| format!("write {}", draft.display()))?;
                fs::rename(&draft, &path).with_context(|| format!("rename to {}", path.display()))?;
                let synced = File::open(&self.dir).and_then(|dir| dir.sync_all());
                synced.with_context(|| format!("sync {}", self.dir.display()))?;
                id
            }
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        let (boot, id) = (boot.trim(), id.trim());
        if id.len() != 32 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            bail!(
                "{} holds {id:?}, not 32 hexadecimal digits: remove it to begin anew",
                path.display()
            );
        }
        Ok(format!("{boot}.{id}"))
    }

    /// Directory of an attempt.
    pub(crate) fn attempt(&self, key: &AttemptKey) -> PathBuf {
        self.dir.join(key.to_string())
    }

    /// Output file of an attempt.
    pub(crate) fn stdout(&self, key: &AttemptKey) -> PathBuf {
        self.attempt(key).join(FILE_STDOUT)
    }

    /// Opens the slot of an attempt.
    pub(crate) fn slot(&self, key: &AttemptKey) -> io::Result<Slot> {
        Slot::open(&self.attempt(key).join(FILE_SLOT))
    }

    /// Directory of a run; `None` for a UID that cannot be the name of a directory.
    pub(crate) fn run(&self, run: &RunKey) -> Option<PathBuf> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let fits = (1..=64).contains(&run.0.len()) && run.0.bytes().all(plain);
        fits.then(|| self.dir.join(RUNS).join(&run.0))
    }

    /// Removes an attempt's directory; one that is not there is removed.
    pub(crate) fn remove_attempt(&self, key: &AttemptKey) -> io::Result<()> {
        remove_tree(&self.attempt(key))
    }

    /// Removes a run's directory; one that is not there is removed.
    pub(crate) fn remove_run(&self, run: &RunKey) -> io::Result<()> {
        self.run(run).map_or(Ok(()), |path| remove_tree(&path))
    }

    /// Every run's directory with the user that owns it.
    pub(crate) fn runs(&self) -> Result<Vec<(RunKey, u32)>> {
        let dir = self.dir.join(RUNS);
        let mut runs = Vec::new();
        for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
            let entry = entry.with_context(|| format!("list {}", dir.display()))?;
            let meta = entry
                .metadata()
                .with_context(|| format!("look at {}", entry.path().display()))?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if meta.uid() == 0 {
                // Made, but not yet given to its user: nothing ever ran in it.
                remove_tree(&entry.path()).with_context(|| format!("remove {}", entry.path().display()))?;
            } else {
                runs.push((RunKey(name), meta.uid()));
            }
        }
        Ok(runs)
    }

    /// The journal of every attempt. `epoch` is that of the present supervisor, and `group_of` names the group of an
    /// attempt that was started in an epoch.
    pub(crate) fn held(
        &self,
        epoch: u32,
        group_of: impl Fn(&AttemptKey, u32) -> Option<Group>,
    ) -> Result<Vec<Held>> {
        let mut held = Vec::new();
        for entry in fs::read_dir(&self.dir).with_context(|| format!("list {}", self.dir.display()))? {
            let entry = entry.with_context(|| format!("list {}", self.dir.display()))?;
            let Some(key) = parse_attempt_name(&entry.file_name()) else {
                continue;
            };
            let key = ids::from_wire(&key);
            let mut journal = match self.slot(&key).and_then(|slot| slot.read()) {
                // A directory without its slot is one that was never finished: nothing was asked for.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Journal::default(),
                // Whatever it says must be known before anything is started.
                other => other?,
            };
            let same_life = journal
                .intent
                .as_ref()
                .is_some_and(|intent| intent.epoch == epoch);
            if same_life
                && journal
                    .refused
                    .is_some_and(|refused| refused.step == Step::Sender)
            {
                // The supervisor was told to forget it; see `Link::open`.
                journal.refused = None;
            }
            let started_in = journal.intent.as_ref().map_or(epoch, |intent| intent.epoch);
            let group = group_of(&key, started_in).filter(|group| group.path().exists());
            held.push(read_held(key, &journal, group.as_ref()));
        }
        Ok(held)
    }
}

fn read_held(key: AttemptKey, journal: &Journal, group: Option<&Group>) -> Held {
    let intent = journal.intent.as_ref();
    let stamp = |boot_ms: u64, unix_ms: u64| Moment {
        boot_ms,
        unix_ms: ids::unix(unix_ms),
    };
    Held {
        key,
        user: intent.map(|intent| intent.uid),
        incarnation: intent
            .map(|intent| intent.incarnation.clone())
            .unwrap_or_default(),
        epoch: intent.map_or(0, |intent| intent.epoch),
        accepted: intent.map_or_else(Moment::default, |intent| {
            let unix_ms = ids::unix(intent.accepted_unix_ms);
            let now = ids::now();
            let ago = u64::try_from(now.unix_ms - unix_ms).unwrap_or(0);
            Moment {
                boot_ms: now.boot_ms.saturating_sub(ago),
                unix_ms,
            }
        }),
        deadline_ms: intent.map_or(0, |intent| intent.deadline_ms),
        spawned: journal
            .spawned
            .map(|spawned| stamp(spawned.boottime_ms, spawned.unix_ms)),
        refused: journal.refused.map(|refused| Refused {
            step: refused.step.name().to_owned(),
            errno: refused.errno,
        }),
        exited: journal.exited.map(|exited| {
            let at = stamp(exited.exit.boottime_ms, exited.unix_ms);
            ids::exit(exited.exit.wait_status, exited.exit.cause, at)
        }),
        reported: journal.reported.is_some(),
        group: group.is_some(),
        group_unused: group.is_some_and(|group| {
            group.usage().is_ok_and(|usage| usage.cpu_usec == Some(0))
                && group.populated().is_ok_and(|some| !some)
        }),
    }
}

fn write_synced(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Makes a directory that only its owner may enter; one that is there stays.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("fairlead-spool-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn the_incarnation_stays_with_the_volume_and_a_torn_one_is_refused() {
        let dir = scratch("identity");
        let first = Spool::open(&dir).unwrap().incarnation().unwrap();
        assert_eq!(Spool::open(&dir).unwrap().incarnation().unwrap(), first);
        assert!(first.len() <= 128, "fits into the binding");
        fs::write(dir.join(IDENTITY), "short").unwrap();
        let error = Spool::open(&dir).unwrap().incarnation().unwrap_err().to_string();
        assert!(error.contains("identity") && error.contains("short"), "{error}");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn attempts_without_a_slot_are_held_without_a_user_and_other_files_are_not_ours() {
        let dir = scratch("held");
        let spool = Spool::open(&dir).unwrap();
        let key = AttemptKey {
            uid: "0b7d2c1e-1111-4222-8333-944445555666".into(),
            attempt: 2,
        };
        fs::create_dir(spool.attempt(&key)).unwrap();
        fs::create_dir(dir.join("lost+found")).unwrap();
        let held = spool.held(1, |_, _| None).unwrap();
        assert_eq!(held.len(), 1);
        assert_eq!((&held[0].key, held[0].user), (&key, None));
        spool.remove_attempt(&key).unwrap();
        spool.remove_attempt(&key).unwrap();
        assert!(spool.held(1, |_, _| None).unwrap().is_empty());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_run_cannot_name_a_path() {
        let dir = scratch("runs");
        let spool = Spool::open(&dir).unwrap();
        for name in ["", "..", "a/b", ".", &"x".repeat(65)] {
            assert!(spool.run(&RunKey(name.to_owned())).is_none(), "{name:?}");
        }
        assert!(spool.run(&RunKey("0b7d2c1e-1111".into())).is_some());
        fs::remove_dir_all(dir).unwrap();
    }
}

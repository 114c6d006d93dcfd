//! What the machine can isolate, found by doing it.

use std::path::Path;
use std::time::Duration;

use crate::cgroup::{self, CONTROLLERS, Group, Limits};
use crate::sys;
use crate::wire::Backend;

const PROBE_BOUND: Duration = Duration::from_secs(5);
const PROBE_LIMITS: Limits = Limits {
    memory_max: Some(64 * 1024 * 1024),
    pids_max: Some(16),
    cpu_max_millis: Some(1_000),
};

/// The group that gets limits and a process.
const LEAF: &str = "leaf";

/// The answer of [`probe`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The best backend there is.
    pub backend: Backend,
    /// Controllers without which limits cannot be set, among `memory`, `pids`, `cpu`.
    pub missing: Vec<&'static str>,
    /// Why it is not cgroup v2, or why controllers that `root` has are missing below it.
    pub reason: Option<String>,
}

impl Probe {
    /// Whether everything the `required` setting asks for is there.
    pub fn complete(&self) -> bool {
        self.backend == Backend::CgroupV2 && self.missing.is_empty()
    }
}

/// Makes a group below `root`, hands controllers to it, sets and reads back limits, puts a process in,
/// kills it, sees the group empty, removes it.
///
/// Where the caller itself lives in `root`, which forbids handing on controllers, it moves to a leaf for
/// the time of the probe and back. Nothing is left behind.
pub fn probe(root: &Path) -> Probe {
    let none = |reason: String| Probe {
        backend: Backend::ProcessGroup,
        missing: CONTROLLERS.to_vec(),
        reason: Some(reason),
    };
    if let Err(e) = cgroup::check_root(root) {
        return none(e.to_string());
    }
    let root = Group::at(root);
    let top = Group::at(root.path().join(format!("probe-{}", std::process::id())));
    // One that was killed with the same number may have left it.
    let cleared = top
        .kill_until_empty(PROBE_BOUND)
        .and_then(|_| top.remove(PROBE_BOUND));
    let top = match cleared.and_then(|()| Group::create(top.path())) {
        Ok(top) => top,
        Err(e) => return none(e.to_string()),
    };
    let answer = match probe_below(&root, &top) {
        Ok((missing, refused)) => Probe {
            backend: Backend::CgroupV2,
            missing,
            reason: refused.map(|e| e.to_string()),
        },
        Err(e) => none(e.to_string()),
    };
    // Only the leaf: if the way back was closed, the caller itself is in the group beside it.
    match top
        .child(LEAF)
        .kill_until_empty(PROBE_BOUND)
        .and_then(|_| top.remove(PROBE_BOUND))
    {
        Ok(()) => answer,
        Err(e) => none(e.to_string()),
    }
}

/// Missing controllers, and the error by which they could not be handed on.
type Found = (Vec<&'static str>, Option<cgroup::Error>);

fn probe_below(root: &Group, top: &Group) -> cgroup::Result<Found> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let inside = root.procs()?.contains(&own);
    let before = root.read("cgroup.subtree_control")?;
    let home = top.child("self");
    if inside {
        Group::create(home.path())?;
        home.write("cgroup.procs", "0")?;
    }
    let result = probe_leaf(root, top);
    if inside {
        // What the probe switched on is switched off again, from below, else the way back is closed.
        for name in CONTROLLERS {
            let _ = top.write("cgroup.subtree_control", &format!("-{name}"));
            if !before.split_whitespace().any(|word| word == name) {
                // A controller that was never on answers this with an error, and nothing is to be done.
                let _ = root.write("cgroup.subtree_control", &format!("-{name}"));
            }
        }
        root.write("cgroup.procs", "0")?;
    }
    result
}

fn probe_leaf(root: &Group, top: &Group) -> cgroup::Result<Found> {
    // Somebody else's processes in `root` make this EBUSY: then the children have what they have.
    let enabled = root.enable_controllers();
    let leaf = Group::create(top.child(LEAF).path())?;
    let refused = match enabled {
        Ok(_) => top.enable_controllers().err(),
        Err(e) => Some(e),
    };
    match refused {
        Some(e) if !matches!(e.errno(), Some(libc::EBUSY | libc::EOPNOTSUPP)) => Err(e),
        refused => Ok((probe_limits(&leaf)?, refused)),
    }
}

fn probe_limits(leaf: &Group) -> cgroup::Result<Vec<&'static str>> {
    let there = leaf.controllers()?;
    let missing: Vec<&'static str> = CONTROLLERS
        .into_iter()
        .filter(|name| !there.contains(name))
        .collect();
    let has = |name: &str| !missing.contains(&name);
    leaf.set_limits(&Limits {
        memory_max: PROBE_LIMITS.memory_max.filter(|_| has("memory")),
        pids_max: PROBE_LIMITS.pids_max.filter(|_| has("pids")),
        cpu_max_millis: PROBE_LIMITS.cpu_max_millis.filter(|_| has("cpu")),
    })?;
    let failed = |source| cgroup::Error {
        act: "start a process for the probe".into(),
        source,
    };
    let child = sys::Sleeper::start().map_err(failed)?;
    leaf.write("cgroup.procs", &child.pid().to_string())?;
    leaf.kill()?;
    child.reap().map_err(failed)?;
    if leaf.kill_until_empty(PROBE_BOUND)? {
        return Ok(missing);
    }
    let source = std::io::ErrorKind::TimedOut.into();
    Err(cgroup::Error {
        act: format!("empty group {} by cgroup.kill", leaf.path().display()),
        source,
    })
}

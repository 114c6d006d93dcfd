//! A start: slot, run directory, files, group with limits, and the request to the supervisor, in this order, so that
//! whatever stops in between leaves a record that says how far it came.

use crate::host::Host;
use crate::ids;
use crate::spool::make_dir;
use fairlead_crds::conditions::reason;
use fairlead_crds::{Binding, Controller, ErrorClass, Network, PlanResources};
use fairlead_decide::node::{Start, StartFailure};
use fairlead_decide::template::{Rendered, render};
use fairlead_supervisor::cgroup::{Group, Limits};
use fairlead_supervisor::client::SpawnFds;
use fairlead_supervisor::command::command_memfd;
use fairlead_supervisor::slot::{FILE_SLOT, FILE_STDOUT, Intent, Slot};
use fairlead_supervisor::sys;
use fairlead_supervisor::wire::{FLAG_PRIVATE_MOUNTS, FLAG_PRIVATE_NETWORK, FLAG_PRIVATE_PIDS, Key, Spawn};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where the run's directory is inside the tool's mount namespace.
const HOME: &str = "/tmp";
/// Processes of ours in a tool's group, which must not count as the tool's: the init of its PID namespace.
pub(crate) const INIT_PROCESSES: u64 = 1;
/// Longest wait for a group that a failed start leaves to go away.
const REMOVE_BOUND: Duration = Duration::from_millis(500);

type Result<T> = std::result::Result<T, StartFailure>;

/// Makes everything and asks for the process. What was made is removed again when something fails. Blocks.
pub(crate) fn start(host: &Host, start: &Start) -> Result<()> {
    prepare_and_ask(host, start).map_err(|failure| StartFailure {
        leaves: !undo(host, start),
        ..failure
    })
}

/// Whether no group is left. A directory that stays goes with the object.
fn undo(host: &Host, start: &Start) -> bool {
    let key = &start.key;
    let mut clean = true;
    if let Some(group) = host.group(key)
        && let Err(error) = group.remove(REMOVE_BOUND)
    {
        tracing::warn!(execution = %key, %error, "a failed start leaves its group");
        clean = false;
    }
    if let Err(error) = host.spool.remove_attempt(key) {
        tracing::warn!(execution = %key, %error, "a failed start leaves its directory");
    }
    clean
}

fn prepare_and_ask(host: &Host, start: &Start) -> Result<()> {
    let spec = &start.object.spec;
    let binding = spec
        .binding
        .as_ref()
        .ok_or_else(|| failed("read the binding", "there is none"))?;
    let key = ids::to_wire(&start.key).ok_or_else(|| failed("read the UID", &start.key.uid))?;
    let rendered = render(&binding.plan.command, &spec.arguments).map_err(|error| StartFailure {
        reason: reason::START_FAILED,
        message: format!("fill the arguments into the command: {error}"),
        class: ErrorClass::InvalidArgument,
        leaves: false,
    })?;
    let limits = limits(&binding.plan.resources, &host.node.missing_controllers)?;
    // A start that a dead agent did not finish may have left its directory: nothing of it ever ran.
    host.spool
        .remove_attempt(&start.key)
        .map_err(|error| failed("clear the attempt's directory", error))?;
    let dir = host.spool.attempt(&start.key);
    make_dir(&dir).map_err(|error| storage("make the attempt's directory", &error))?;
    let slot = Slot::create(&dir.join(FILE_SLOT)).map_err(|error| storage("make the slot", &error))?;
    let stdout = output_file(dir.join(FILE_STDOUT))?;
    let home = run_dir(host, start)?;
    let intent = intent(host, start, binding, key)?;
    slot.write_intent(&intent)
        .map_err(|error| storage("write the intent", &error))?;
    let group = make_group(host, start, &limits, binding.plan.resources.oom_group)?;
    ask(
        host,
        start,
        binding,
        key,
        &rendered,
        &Files {
            slot,
            stdout,
            home,
            group,
        },
    )
}

struct Files {
    slot: Slot,
    stdout: File,
    home: File,
    group: Option<OwnedFd>,
}

fn ask(
    host: &Host,
    start: &Start,
    binding: &Binding,
    key: Key,
    rendered: &Rendered,
    files: &Files,
) -> Result<()> {
    let env = environment(start, binding);
    let command = command_memfd(&rendered.argv, &env).map_err(|error| failed("pass the command", error))?;
    let stdin = stdin(rendered.stdin.as_deref()).map_err(|error| failed("pass standard input", error))?;
    let spawn = Spawn {
        key,
        uid: start.user,
        gid: start.user,
        deadline_ms: start.deadline_ms,
        grace_ms: grace_ms(binding),
        nofile: host.open_files,
        store_max_bytes: host.store_max_bytes,
        flags: FLAG_PRIVATE_MOUNTS | FLAG_PRIVATE_PIDS | network_flag(binding),
    };
    let fds = SpawnFds {
        cgroup: files.group.as_ref().map(AsFd::as_fd),
        slot: files.slot.as_fd(),
        command: command.as_fd(),
        stdin: stdin.as_fd(),
        stdout: files.stdout.as_fd(),
        stderr: None,
        home: Some(files.home.as_fd()),
    };
    host.link
        .spawn(&spawn, &fds)
        .map_err(|error| failed("ask the supervisor for the process", error))
}

fn network_flag(binding: &Binding) -> u32 {
    match binding.plan.network {
        Network::None => FLAG_PRIVATE_NETWORK,
        Network::Host => 0,
    }
}

fn grace_ms(binding: &Binding) -> u32 {
    u32::try_from(binding.plan.timeouts.grace_seconds)
        .unwrap_or(0)
        .saturating_mul(1_000)
}

fn intent(host: &Host, start: &Start, binding: &Binding, key: Key) -> Result<Intent> {
    let fence = u128::from_str_radix(&binding.fence, 16);
    let fence = fence.map_err(|error| failed("read the binding's fence", error))?;
    Ok(Intent {
        key,
        uid: start.user,
        gid: start.user,
        fence: fence.to_be_bytes(),
        epoch: host.link.epoch,
        incarnation: host.node.incarnation.clone(),
        group: format!("tx-{}", start.key),
        deadline_ms: start.deadline_ms,
        accepted_unix_ms: sys::realtime_ms(),
    })
}

/// Environment from nothing. The tool's own entries come last, and so win.
fn environment(start: &Start, binding: &Binding) -> Vec<String> {
    let meta = &start.object.metadata;
    let (namespace, name) = (
        meta.namespace.as_deref().unwrap_or(""),
        meta.name.as_deref().unwrap_or(""),
    );
    let own = binding
        .plan
        .command
        .env
        .iter()
        .map(|var| (var.name.as_str(), var.value.clone()));
    let base = [
        ("PATH", PATH.to_owned()),
        ("HOME", HOME.to_owned()),
        ("TMPDIR", HOME.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("FAIRLEAD_EXECUTION", name.to_owned()),
        ("FAIRLEAD_IDEMPOTENCY_KEY", format!("{namespace}/{name}")),
    ];
    let mut env: Vec<(&str, String)> = Vec::new();
    for (name, value) in base.into_iter().chain(own) {
        env.retain(|(known, _)| *known != name);
        env.push((name, value));
    }
    env.into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

fn stdin(text: Option<&str>) -> io::Result<OwnedFd> {
    let Some(text) = text else {
        return Ok(File::open("/dev/null")?.into());
    };
    let fd = sys::memfd(c"fairlead-stdin")?;
    sys::pwrite_all(fd.as_raw_fd(), text.as_bytes(), 0)?;
    Ok(fd)
}

fn output_file(path: PathBuf) -> Result<File> {
    // Not O_APPEND, which splice(2) refuses.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path);
    file.map_err(|error| storage(&format!("make {}", path.display()), &error))
}

/// The run's directory, owned by the run's user.
fn run_dir(host: &Host, start: &Start) -> Result<File> {
    let path = host
        .spool
        .run(&start.run)
        .ok_or_else(|| failed("read the run's UID", &start.run.0))?;
    make_dir(&path).map_err(|error| storage(&format!("make {}", path.display()), &error))?;
    // Again each time, since a dead agent may have stopped between the two.
    let user = Some(start.user);
    std::os::unix::fs::chown(&path, user, user)
        .map_err(|error| failed(&format!("give {} to user {}", path.display(), start.user), error))?;
    File::open(&path).map_err(|error| failed(&format!("open {}", path.display()), error))
}

fn make_group(host: &Host, start: &Start, limits: &Limits, oom_group: bool) -> Result<Option<OwnedFd>> {
    let Some(group) = host.group(&start.key) else {
        return Ok(None);
    };
    // What a dead agent left that did not come to ask for the process.
    group
        .remove(REMOVE_BOUND)
        .map_err(|error| failed("clear the attempt's group", error))?;
    let group = Group::create(group.path()).map_err(|error| failed("make the attempt's group", error))?;
    let oom_group = || match limits.memory_max {
        Some(_) if !oom_group => group.write_checked("memory.oom.group", "0", "0"),
        _ => Ok(()),
    };
    group
        .set_limits(limits)
        .and_then(|()| oom_group())
        .map_err(|error| StartFailure {
            reason: reason::LIMIT_UNAVAILABLE,
            ..failed("set a limit", error)
        })?;
    group
        .open()
        .map(Some)
        .map_err(|error| failed("open the attempt's group", error))
}

/// The limits that can be set here.
///
/// # Errors
/// When one that the tool's author asked for cannot.
fn limits(resources: &PlanResources, missing: &[String]) -> Result<Limits> {
    // One that this version does not know cannot be set either.
    let absent = |controller: Controller| {
        controller == Controller::Unknown || missing.iter().any(|name| name == controller.kernel_name())
    };
    if let Some(controller) = resources.required.iter().find(|controller| absent(**controller)) {
        let name = controller.kernel_name();
        return Err(StartFailure {
            reason: reason::LIMIT_UNAVAILABLE,
            message: format!(
                "the tool asks for a limit of the cgroup controller {name}, which this node does not have: \
                 take the limit out of the tool's resources, or use a node with it"
            ),
            class: ErrorClass::Local,
            leaves: false,
        });
    }
    let set = |controller, value: i64| u64::try_from(value).ok().filter(|_| !absent(controller));
    Ok(Limits {
        memory_max: set(Controller::Memory, resources.memory_max_bytes),
        pids_max: set(Controller::Pids, resources.max_processes).map(|max| max + INIT_PROCESSES),
        cpu_max_millis: set(Controller::Cpu, resources.cpu_millicores),
    })
}

fn failed(act: &str, error: impl std::fmt::Display) -> StartFailure {
    StartFailure {
        reason: reason::START_FAILED,
        message: format!("{act}: {error}"),
        class: ErrorClass::Local,
        leaves: false,
    }
}

/// A failure of the spool: full, or broken.
fn storage(act: &str, error: &io::Error) -> StartFailure {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    let full = matches!(error.kind(), StorageFull | QuotaExceeded);
    StartFailure {
        reason: if full {
            reason::SPOOL_FULL
        } else {
            reason::START_FAILED
        },
        ..failed(act, error)
    }
}

/// Open files for tools: as many as this process may have, at most 4,096. Never more than the supervisor has, since a
/// limit can only be lowered without privilege.
pub(crate) fn open_files() -> u32 {
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    own.map_or(4_096, |own| u32::try_from(own.min(4_096)).unwrap_or(4_096))
}

/// Bytes in the output file so far.
pub(crate) fn measure(host: &Host, key: &fairlead_decide::node::AttemptKey) -> u64 {
    fs::metadata(host.spool.stdout(key)).map_or(0, |meta| meta.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(required: Vec<Controller>) -> PlanResources {
        PlanResources {
            memory_max_bytes: 8_388_608,
            cpu_millicores: 500,
            max_processes: 9,
            oom_group: true,
            required,
        }
    }

    #[test]
    fn a_limit_that_was_asked_for_and_cannot_be_set_fails_the_start() {
        let missing = ["memory".to_owned()];
        let best_effort = limits(&resources(vec![Controller::Pids]), &missing).unwrap();
        assert_eq!(
            (best_effort.memory_max, best_effort.pids_max),
            (None, Some(9 + INIT_PROCESSES))
        );
        let failure = limits(&resources(vec![Controller::Memory]), &missing).unwrap_err();
        assert_eq!(failure.reason, reason::LIMIT_UNAVAILABLE);
        assert!(
            failure.message.contains("controller memory"),
            "{}",
            failure.message
        );
    }
}

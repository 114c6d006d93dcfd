//! How an attempt ended: phase, reason, fault and outcome from the recorded facts.

use super::attempt::is_cancelled;
use super::types::*;
use super::world::{Attempt, Process};
use fairlead_crds::conditions::reason;
use fairlead_crds::{Controller, ErrorClass, ExecutionPhase, Outcome, PLAN_VERSION, ToolExecution};

/// The end of an attempt in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) phase: ExecutionPhase,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) class: Option<ErrorClass>,
    pub(super) outcome: Outcome,
    /// Whether this node can say that nothing of it is left.
    pub(super) looked: bool,
}

impl Verdict {
    fn failed(reason: &'static str, outcome: Outcome, message: impl Into<String>) -> Self {
        Self {
            phase: ExecutionPhase::Failed,
            reason,
            message: message.into(),
            class: Some(ErrorClass::Local),
            outcome,
            looked: true,
        }
    }

    fn unseen(mut self) -> Self {
        self.looked = false;
        self
    }
}

/// The end of an attempt that must not be started, if it must not.
pub(super) fn before_the_start(node: &Node, object: &ToolExecution) -> Option<Verdict> {
    let binding = object.spec.binding.as_ref()?;
    if binding.incarnation != node.incarnation {
        let message = format!(
            "bound to incarnation {} of node {}, which is now {}: whether it ran is not known",
            binding.incarnation, node.name, node.incarnation
        );
        return Some(Verdict::failed(reason::OTHER_INCARNATION, Outcome::Unknown, message).unseen());
    }
    if object.status.as_ref().and_then(|status| status.phase) == Some(ExecutionPhase::Running) {
        let message = "it ran, but its record on the node is gone: how it ended is not known";
        return Some(Verdict::failed(reason::SUPERVISION_LOST, Outcome::Unknown, message).unseen());
    }
    if is_cancelled(object) {
        return Some(Verdict {
            phase: ExecutionPhase::Cancelled,
            class: None,
            ..Verdict::failed(
                reason::CANCELLED,
                Outcome::NotStarted,
                "cancelled before it was started",
            )
        });
    }
    if binding.plan_version > PLAN_VERSION {
        let message = format!(
            "the plan has version {}, and this node agent knows up to {PLAN_VERSION}: upgrade the node agent",
            binding.plan_version
        );
        return Some(Verdict::failed(
            reason::PLAN_VERSION,
            Outcome::NotStarted,
            message,
        ));
    }
    None
}

/// The end of an attempt that was begun and of which nothing runs any more.
pub(super) fn at_the_end(object: &ToolExecution, attempt: &Attempt) -> Verdict {
    let verdict = as_it_ended(object, attempt);
    if attempt.unseen { verdict.unseen() } else { verdict }
}

fn as_it_ended(object: &ToolExecution, attempt: &Attempt) -> Verdict {
    let process = &attempt.process;
    if let Some(failure) = &process.start_failed {
        let mut verdict = Verdict::failed(failure.reason, Outcome::NotStarted, failure.message.clone());
        verdict.class = Some(failure.class);
        return verdict;
    }
    // What was seen to run was not refused, whatever else is recorded.
    let ran = process.spawned.is_some() || process.exited.is_some();
    if let Some(refused) = process.refused.as_ref().filter(|_| !ran) {
        return not_started(object, refused);
    }
    if was_timed_out(process) {
        let seconds = object
            .spec
            .binding
            .as_ref()
            .map_or(0, |binding| binding.plan.timeouts.hard_seconds);
        let message = format!("stopped by its hard timeout of {seconds} s");
        let verdict = Verdict::failed(reason::HARD_TIMEOUT, Outcome::Unknown, message);
        return Verdict {
            phase: ExecutionPhase::TimedOut,
            ..verdict
        };
    }
    if was_cancelled(object, process) {
        let verdict = Verdict::failed(reason::CANCELLED, Outcome::Unknown, "cancelled while it ran");
        return Verdict {
            phase: ExecutionPhase::Cancelled,
            class: None,
            ..verdict
        };
    }
    if was_drained_away(process) {
        let message = "stopped, since the node's agent was told to end";
        return Verdict::failed(reason::NODE_DRAINING, Outcome::Unknown, message);
    }
    let Some(exit) = process.exited.filter(|_| !process.lost) else {
        return Verdict::failed(reason::SUPERVISION_LOST, Outcome::Unknown, lost_message(process));
    };
    let message = match exit.cause {
        Cause::AgentLost => "killed, since the node agent was away for too long",
        Cause::Shutdown => "killed, since the node's supervisor was stopped",
        Cause::Requested => "killed by the node agent",
        Cause::None | Cause::Deadline => return by_itself(object, attempt, exit),
    };
    Verdict::failed(reason::SUPERVISION_LOST, Outcome::Unknown, message)
}

fn lost_message(process: &Process) -> String {
    match (process.spawned, process.kill_at) {
        (_, Some(_)) => "killed, but its end was not seen".to_owned(),
        (Some(_), None) => "the node's supervisor ended while it ran".to_owned(),
        (None, None) => "the node's supervisor ended while it was being started".to_owned(),
    }
}

/// The step of a start that names the tool's own program.
const LAST_STEP: &str = "Exec";

fn not_started(object: &ToolExecution, refused: &Refused) -> Verdict {
    if is_cancelled(object) {
        let verdict = Verdict::failed(
            reason::CANCELLED,
            Outcome::NotStarted,
            "cancelled before it was started",
        );
        return Verdict {
            phase: ExecutionPhase::Cancelled,
            class: None,
            ..verdict
        };
    }
    let error = match refused.errno {
        0 => "the process ended there".to_owned(),
        errno => std::io::Error::from_raw_os_error(errno).to_string(),
    };
    let binding = object.spec.binding.as_ref();
    let program = binding
        .and_then(|b| b.plan.command.argv.first().cloned())
        .unwrap_or_default();
    let node = binding.map(|b| b.node_name.as_str()).unwrap_or_default();
    // The steps before the last are about what the node makes for any tool.
    let message = if refused.step == LAST_STEP {
        let missing = std::io::Error::from_raw_os_error(refused.errno).kind() == std::io::ErrorKind::NotFound;
        let fix = if missing {
            "; name a program that is there: tools run in the node agent's image, on its PATH"
        } else {
            ""
        };
        format!(
            "spec.runner.command.argv[0] of the tool: {program:?} could not be started on node {node}: step {}: {error}{fix}",
            refused.step
        )
    } else {
        format!(
            "node {node} could not make the process that was to run {program:?}: step {}: {error}; look at the log of its \
             node agent, and at what its container may do",
            refused.step
        )
    };
    Verdict::failed(reason::START_FAILED, Outcome::NotStarted, message)
}

fn was_timed_out(process: &Process) -> bool {
    match process.exited {
        Some(exit) => {
            let before = process
                .deadline_reached
                .is_some_and(|at| at.boot_ms <= exit.at.boot_ms);
            exit.cause == Cause::Deadline || (before && exit.cause == Cause::None)
        }
        None => process.deadline_reached.is_some(),
    }
}

/// A leader that ended with code 0 before it was told to stop has completed all the same.
fn was_cancelled(object: &ToolExecution, process: &Process) -> bool {
    if !is_cancelled(object) {
        return false;
    }
    let told = process.term_at.into_iter().chain(process.kill_at).min();
    match process.exited {
        None => told.is_some(),
        Some(exit) if exit.cause == Cause::Requested => true,
        Some(exit) => match told {
            Some(at) => at <= exit.at.boot_ms,
            // After a restart nobody remembers that it was told.
            None => matches!(exit.wait, Wait::Signal(SIGTERM | SIGKILL)) && exit.cause == Cause::None,
        },
    }
}

/// As with a cancel: a leader that ended before it was told to has ended by itself.
fn was_drained_away(process: &Process) -> bool {
    let told = process.term_at.into_iter().chain(process.kill_at).min();
    process.drained_away && told.is_some_and(|told| process.exited.is_none_or(|exit| told <= exit.at.boot_ms))
}

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

fn by_itself(object: &ToolExecution, attempt: &Attempt, exit: Exit) -> Verdict {
    let left_some = attempt.process.left_some_behind();
    let leftovers = if left_some {
        "; processes it left behind were killed"
    } else {
        ""
    };
    let killed = attempt.collected.as_ref();
    let killed = killed.filter(|collected| collected.oom_kills > 0);
    match (exit.wait, killed) {
        (Wait::Code(0), _) => Verdict {
            phase: ExecutionPhase::Succeeded,
            reason: if left_some {
                reason::LEFTOVER_KILLED
            } else {
                reason::COMPLETED
            },
            message: format!("exit code 0{leftovers}"),
            class: None,
            outcome: Outcome::Completed,
            looked: true,
        },
        (_, Some(collected)) => {
            let message = out_of_memory(object, collected) + leftovers;
            Verdict::failed(reason::OUT_OF_MEMORY, Outcome::Unknown, message)
        }
        (Wait::Code(code), None) => {
            let message = format!("exit code {code}{leftovers}");
            let verdict = Verdict::failed(reason::NON_ZERO_EXIT, Outcome::Completed, message);
            Verdict {
                class: None,
                ..verdict
            }
        }
        (Wait::Signal(signal), None) => {
            // These come from outside; a program that crashed has come to an end of its own.
            let from_outside = matches!(signal, SIGHUP | SIGINT | SIGKILL | SIGTERM);
            let outcome = if from_outside {
                Outcome::Unknown
            } else {
                Outcome::Completed
            };
            let message = format!("ended by signal {signal}{leftovers}");
            let verdict = Verdict::failed(reason::SIGNALLED, outcome, message);
            Verdict {
                class: None,
                ..verdict
            }
        }
    }
}

/// Whose limit it was, how high that is, and what to change.
fn out_of_memory(object: &ToolExecution, collected: &Collected) -> String {
    let resources = object
        .spec
        .binding
        .as_ref()
        .map(|binding| &binding.plan.resources);
    let own = resources.map_or(0, |resources| resources.memory_max_bytes);
    let written = resources.is_some_and(|resources| resources.required.contains(&Controller::Memory));
    let default = if written { "" } else { ", which has its default" };
    let field = "spec.resources.memoryMaxBytes of the tool";
    let kills = format!("memory.events: oom_kill {}", collected.oom_kills);
    match collected.oom_at {
        Some(OomAt::Own) | None => format!(
            "the kernel killed for memory at the call's own limit of {own} bytes ({field}{default}; {kills}): raise it, \
             or let the command use less"
        ),
        Some(OomAt::AllTools { max_bytes, reached }) => format!(
            "the kernel killed for memory, not at the call's own limit of {own} bytes, but at the {max_bytes} bytes that \
             all calls on the node have together (memory.max of the group above, reached {reached} times so far; {kills}): \
             give the node agent's Pod more memory, give the node a smaller capacity, or lower {field}"
        ),
        Some(OomAt::Above) => format!(
            "the kernel killed for memory, neither at the call's own limit of {own} bytes nor at that of all calls on the \
             node together: the node agent's Pod or the machine ran out of memory ({kills}); give the node a smaller \
             capacity, or lower {field}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_step_of_a_start_is_about_the_tools_program() {
        let object: ToolExecution = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "x"},
            "spec": {"tool": {"toolRef": {"name": "t"}}, "binding": {
                "nodeName": "n1", "incarnation": "i", "attempt": 1, "fence": "f", "term": 1, "planVersion": 1,
                "admittedAt": "2026-01-01T00:00:00Z", "callDigest": "d", "decisions": [],
                "plan": {
                    "toolGeneration": 1, "command": {"argv": ["tool"]}, "network": "None", "outputMaxBytes": 1024,
                    "timeouts": {"hardSeconds": 1, "graceSeconds": 1},
                    "resources": {"memoryMaxBytes": 1, "cpuMillicores": 1, "maxProcesses": 1, "oomGroup": true},
                },
            }},
        }))
        .unwrap();
        for (step, errno, begins, says) in [
            (
                "Exec",
                2,
                "spec.runner.command.argv[0] of the tool: \"tool\"",
                "No such file",
            ),
            (
                "Network",
                1,
                "node n1 could not make the process",
                "Operation not permitted",
            ),
        ] {
            let step = step.to_owned();
            let verdict = not_started(&object, &Refused { step, errno });
            assert_eq!(verdict.outcome, Outcome::NotStarted);
            assert!(
                verdict.message.starts_with(begins) && verdict.message.contains(says),
                "{}",
                verdict.message
            );
        }
    }
}

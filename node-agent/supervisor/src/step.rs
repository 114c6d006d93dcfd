//! The named steps from a Spawn request to a running program.
//!
//! The order of the variants is the order in which they are done. Those up to [`Step::Clone`] are the
//! supervisor's, the rest are the child's. A spawn that ends at any of them ran nothing of the tool.

/// One step of a spawn. The names are part of status messages, so they stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Step {
    /// The request itself: flags, descriptors or numbers do not fit together.
    Request = 1,
    /// The supervisor is stopping, or the agent that asked is dead.
    Sender = 2,
    /// The table of entries is full.
    Table = 3,
    /// User or group is 0 or outside the range.
    IdRange = 4,
    /// The command block could not be read or is malformed.
    Command = 5,
    /// The group's control files could not be opened.
    Group = 6,
    /// A pipe could not be made.
    Pipe = 7,
    /// `clone3` failed: ENOENT the group is gone, EBUSY it has inner groups with controllers, EAGAIN a
    /// process limit is reached.
    Clone = 8,
    /// The child joins its group by a write, where `clone3` into it is not available.
    Join = 9,
    /// The child waits until it is registered (process-group backend).
    Register = 10,
    /// New session.
    Session = 11,
    /// Signal dispositions and mask.
    Signals = 12,
    /// A network namespace of its own, the loopback device there switched on.
    Network = 13,
    /// Resource limits.
    Rlimits = 14,
    /// All mounts made private.
    MountPrivate = 15,
    /// The agent's files hidden.
    Hide = 16,
    /// The home directory bound over `/tmp`, and an empty `/dev/shm`.
    PrivateTmp = 17,
    /// All mounts made read-only, but for `/tmp` and `/dev/shm`; the own `/proc` comes after it.
    ReadOnly = 18,
    /// A `/proc` of the own PID namespace; then the first process there makes the leader, which goes on with the steps.
    Init = 19,
    /// The capability bounding set emptied.
    BoundingSet = 20,
    /// Supplementary groups, group, user.
    Identity = 21,
    /// Ambient, inheritable, permitted and effective capabilities emptied.
    Capabilities = 22,
    /// `no_new_privs` set.
    NoNewPrivs = 23,
    /// Standard descriptors set, all others close on exec.
    Descriptors = 24,
    /// Working directory and umask.
    WorkingDirectory = 25,
    /// `execve`.
    Exec = 26,
}

const STEPS: [(Step, &str); 26] = [
    (Step::Request, "Request"),
    (Step::Sender, "Sender"),
    (Step::Table, "Table"),
    (Step::IdRange, "IdRange"),
    (Step::Command, "Command"),
    (Step::Group, "Group"),
    (Step::Pipe, "Pipe"),
    (Step::Clone, "Clone"),
    (Step::Join, "Join"),
    (Step::Register, "Register"),
    (Step::Session, "Session"),
    (Step::Signals, "Signals"),
    (Step::Network, "Network"),
    (Step::Rlimits, "Rlimits"),
    (Step::MountPrivate, "MountPrivate"),
    (Step::Hide, "Hide"),
    (Step::PrivateTmp, "PrivateTmp"),
    (Step::ReadOnly, "ReadOnly"),
    (Step::Init, "Init"),
    (Step::BoundingSet, "BoundingSet"),
    (Step::Identity, "Identity"),
    (Step::Capabilities, "Capabilities"),
    (Step::NoNewPrivs, "NoNewPrivs"),
    (Step::Descriptors, "Descriptors"),
    (Step::WorkingDirectory, "WorkingDirectory"),
    (Step::Exec, "Exec"),
];

impl Step {
    /// The byte that stands for this step on pipes and in records.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The step of a byte, or `None`.
    pub fn from_code(code: u8) -> Option<Step> {
        let index = usize::from(code).checked_sub(1)?;
        STEPS.get(index).map(|(step, _)| *step)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        STEPS[usize::from(self.code() - 1)].1
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_comes_back() {
        for (step, name) in STEPS {
            assert_eq!(Step::from_code(step.code()), Some(step));
            assert_eq!(step.name(), name);
        }
        assert_eq!(Step::from_code(0), None);
        assert_eq!(Step::from_code(u8::MAX), None);
        assert_eq!(STEPS.len(), usize::from(Step::Exec.code()));
    }
}

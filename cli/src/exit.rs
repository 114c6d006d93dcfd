//! Exit codes, the same for every verb.

use std::process::ExitCode;

/// How the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// What was asked for is there and well: the run succeeded, the output was printed, every check passed.
    Success = 0,
    /// It is there and not well: the run failed, there is no output, a check failed.
    Failure = 1,
    /// The run was cancelled.
    Cancelled = 2,
    /// The object is not there, or the command line is wrong.
    NotFound = 3,
    /// The cluster could not be asked: no kubeconfig, no connection, no rights.
    Unreachable = 4,
    /// Ended by Ctrl-C, as a shell would report it.
    Interrupted = 130,
}

/// The table shown by `--help`.
pub const HELP: &str = "Exit codes:
  0    the run succeeded, the output was printed, every check passed
  1    the run failed, there is no output, a check failed
  2    the run was cancelled
  3    the object is not there, or the command line is wrong
  4    the cluster could not be asked
  130  ended by Ctrl-C";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The code of an error that ended a verb.
pub fn of_error(error: &anyhow::Error) -> Exit {
    match error.downcast_ref::<kube::Error>() {
        // A selector or a name that the server cannot read is a wrong command line.
        Some(kube::Error::Api(status)) if status.is_not_found() || status.code == 400 => Exit::NotFound,
        _ => Exit::Unreachable,
    }
}

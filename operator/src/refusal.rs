//! What a refusal of the API server means for the write that it answers.

use fairlead_decide::cluster::{WriteFailure, WriteFailureKind};
use fairlead_installation::is_too_large;

/// Most bytes that are kept of what the server said to a write.
const MESSAGE_MAX_BYTES: usize = 2048;

/// Whether the name is taken.
pub(crate) fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}

/// One that may succeed later, as it is.
pub(crate) fn transient(error: &kube::Error) -> WriteFailure {
    WriteFailure {
        kind: WriteFailureKind::Transient,
        message: bounded(error.to_string()),
    }
}

/// A refusal may quote what it refuses, however long that is.
fn bounded(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(MESSAGE_MAX_BYTES));
    message
}

/// What a refusal of the API server means for us.
pub(crate) fn failure(error: kube::Error) -> WriteFailure {
    let kube::Error::Api(status) = &error else {
        return transient(&error);
    };
    let kind = match status.code {
        _ if is_too_large(status) => WriteFailureKind::Invalid,
        409 => WriteFailureKind::Conflict,
        404 | 410 => WriteFailureKind::Gone,
        400 | 422 => WriteFailureKind::Invalid,
        _ => WriteFailureKind::Transient,
    };
    WriteFailure {
        kind,
        message: bounded(status.message.clone()),
    }
}

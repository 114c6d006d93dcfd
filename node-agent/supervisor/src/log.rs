//! Lines on standard error. The supervisor has no log library, since it must stay small; nothing on the
//! spawn path logs unless it fails for the first time.

use std::fmt::Arguments;

/// Something a person may want to know.
pub(crate) fn info(message: Arguments<'_>) {
    eprintln!(
        "level=info component=supervisor pid={} {message}",
        std::process::id()
    );
}

/// Something that should not be so.
pub(crate) fn warn(message: Arguments<'_>) {
    eprintln!(
        "level=warn component=supervisor pid={} {message}",
        std::process::id()
    );
}

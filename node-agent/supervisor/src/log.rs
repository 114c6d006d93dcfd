//! Lines on standard error. The supervisor has no log library, since it must stay small. A line is put
//! together on the stack and written in one call, so that it is whole among the lines of others.

use std::fmt::Arguments;
use std::io::Write;
use std::os::fd::AsFd;

use crate::{os, os_poll};

/// Longest line in bytes; the rest of a longer one is cut.
const LINE_MAX: usize = 1_024;

/// Something a person may want to know.
pub(crate) fn info(message: Arguments<'_>) {
    line("info", message);
}

/// Something that should not be so.
pub(crate) fn warn(message: Arguments<'_>) {
    line("warn", message);
}

fn line(level: &str, message: Arguments<'_>) {
    let mut buffer = [0u8; LINE_MAX];
    let mut rest = &mut buffer[..LINE_MAX - 1];
    let pid = std::process::id();
    // Fails only when the line is longer than the buffer, which then holds its beginning.
    let _ = write!(rest, "level={level} component=supervisor pid={pid} msg={message}");
    let len = LINE_MAX - 1 - rest.len();
    buffer[len] = b'\n';
    // Nobody who reads slowly may keep us from killing in time: a line for which there is no room is dropped. A closed
    // standard error is no reason to stop.
    let stderr = std::io::stderr();
    if os_poll::writable_now(stderr.as_fd()) {
        let _ = os::write_now(stderr.as_fd(), &buffer[..=len]);
    }
}

//! Where groups may be made: the own group, and what a root must be.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The cgroup v2 directory of the calling process, from the texts of `/proc/self/cgroup` and
/// `/proc/self/mountinfo` (`proc(5)`). Works on hybrid hosts and inside cgroup namespaces.
///
/// # Errors
/// `NotFound` with what is missing.
pub fn own_group(proc_self_cgroup: &str, mountinfo: &str) -> io::Result<PathBuf> {
    let missing = |what: &str| io::Error::new(io::ErrorKind::NotFound, what.to_owned());
    let own = proc_self_cgroup
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .ok_or_else(|| missing("/proc/self/cgroup has no line for cgroup v2 (0::)"))?;
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        if right.split(' ').next() != Some("cgroup2") {
            continue;
        }
        let mut fields = left.split(' ').skip(3);
        let (Some(root), Some(mount)) = (fields.next(), fields.next()) else {
            continue;
        };
        // With a namespace the mount may show a subtree only; a group outside of it has no path here.
        let Ok(below) = Path::new(own).strip_prefix(root) else {
            continue;
        };
        return Ok(Path::new(&unescape(mount)).join(below));
    }
    Err(missing(
        "/proc/self/mountinfo has no cgroup2 mount that shows the own group",
    ))
}

/// Reads the files of the calling process and applies [`own_group`].
///
/// # Errors
/// As [`own_group`], and those of reading the files.
pub fn find_own_group() -> io::Result<PathBuf> {
    own_group(
        &fs::read_to_string("/proc/self/cgroup")?,
        &fs::read_to_string("/proc/self/mountinfo")?,
    )
}

/// Refuses a directory below which no groups may be made by us.
///
/// # Errors
/// `NotFound` if it is no directory, `InvalidInput` if it is not in a cgroup v2 hierarchy,
/// `PermissionDenied` if it is the host's root group, which alone has no `cgroup.events`.
pub fn check_root(root: &Path) -> io::Result<()> {
    let fail = |kind, why: &str| {
        Err(io::Error::new(
            kind,
            format!("cgroup root {}: {why}", root.display()),
        ))
    };
    if !root.is_dir() {
        return fail(io::ErrorKind::NotFound, "no such directory");
    }
    if !root.join("cgroup.procs").exists() || !root.join("cgroup.controllers").exists() {
        return fail(io::ErrorKind::InvalidInput, "not a cgroup v2 directory");
    }
    if !root.join("cgroup.events").exists() {
        return fail(
            io::ErrorKind::PermissionDenied,
            "is the host's root group; give a group below it",
        );
    }
    Ok(())
}

/// mountinfo writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let code = text
            .get(at + 1..at + 4)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) if *byte == b'\\' => {
                out.push(code);
                at += 4;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

//! Removal of a directory that a tool owns, by one that has every right.
//!
//! A process of the tool may still be there and exchange names while they are looked at, so no path is followed: every
//! step starts from an open directory, and no link is opened. A tool may have nested directories deeper than a stack or
//! the longest path allows, so none but those of the first level is entered: a directory found below one is moved up.

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Names held in memory at once.
const BATCH: usize = 4_096;

/// Removes a directory and everything in it; one that is not there is removed. The path to its parent is trusted, the
/// directory itself and all below it are not.
///
/// # Errors
/// The first that is not the result of a change by another: such a one is looked at again.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = match openat(CWD, parent, directory() & !OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    loop {
        let root = match open_dir(parent.as_fd(), name) {
            Ok(root) => root,
            Err(Errno::NOENT) => return Ok(()),
            // No directory: it goes as the file or link it is.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return ignore_absent(unlinkat(&parent, name, AtFlags::empty()));
            }
            Err(error) => return Err(error.into()),
        };
        for entry in names(root.as_fd())? {
            remove_entry(root.as_fd(), &entry)?;
        }
        match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // What was moved up, or came meanwhile.
            Err(Errno::NOTEMPTY | Errno::NOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Removes an entry of the first level; directories in it are moved up beside it.
fn remove_entry(root: BorrowedFd<'_>, name: &CString) -> io::Result<()> {
    if unlink_file(root, name)? {
        return Ok(());
    }
    let dir = match open_dir(root, name) {
        // Exchanged meanwhile: the next round sees what it is now.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        other => other?,
    };
    for inner in names(dir.as_fd())? {
        if !unlink_file(dir.as_fd(), &inner)? {
            let up = format!("removed-{:032x}", rand::random::<u128>());
            ignore_absent(renameat(&dir, &inner, root, &up))?;
        }
    }
    match unlinkat(root, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::NOTDIR) => Ok(()),
        other => ignore_absent(other),
    }
}

/// Removes what is no directory. `false`: it is one.
fn unlink_file(dir: BorrowedFd<'_>, name: &CString) -> io::Result<bool> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn ignore_absent(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}

fn directory() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn open_dir(parent: BorrowedFd<'_>, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    openat(parent, name, directory(), Mode::empty())
}

/// Names in a directory without `.` and `..`, at most [`BATCH`] of them: who removes them comes back for the rest.
fn names(dir: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)?.take(BATCH) {
        let entry = entry?;
        if ![c".", c".."].contains(&entry.file_name()) {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{RenameFlags, renameat_with};
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("fairlead-remove-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_tree_is_removed_however_deep_it_is() {
        let dir = scratch("deep");
        let root = dir.join("run");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("file"), "x").unwrap();
        std::os::unix::fs::symlink("/etc", root.join("link")).unwrap();
        // Built from the inside out, since no path may be as long as this tree is deep.
        for _ in 0..1_500 {
            let next = dir.join("next");
            fs::create_dir(&next).unwrap();
            fs::write(next.join("file"), "x").unwrap();
            if root.join("deep").exists() {
                fs::rename(root.join("deep"), next.join("deep")).unwrap();
            }
            fs::rename(&next, root.join("deep")).unwrap();
        }
        remove_tree(&root).unwrap();
        assert!(!root.exists() && Path::new("/etc/passwd").exists());
        remove_tree(&root).unwrap();
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_link_in_the_place_of_the_directory_is_not_followed() {
        let dir = scratch("link");
        let outside = dir.join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("keep"), "x").unwrap();
        symlink(&outside, dir.join("run")).unwrap();
        remove_tree(&dir.join("run")).unwrap();
        assert!(outside.join("keep").exists() && fs::symlink_metadata(dir.join("run")).is_err());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_directory_that_becomes_a_link_again_and_again_leads_nowhere() {
        let dir = scratch("swap");
        let (root, outside) = (dir.join("run"), dir.join("outside"));
        fs::create_dir(&outside).unwrap();
        let keep: Vec<PathBuf> = (0..20).map(|n| outside.join(format!("keep-{n}"))).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Fails while either is missing, which is the other's doing.
                    let _ = renameat_with(CWD, root.join("a"), CWD, root.join("b"), RenameFlags::EXCHANGE);
                }
            });
            for _ in 0..50 {
                fs::create_dir_all(root.join("a/inner")).unwrap();
                for file in &keep {
                    fs::write(file, "x").unwrap();
                    fs::write(root.join("a").join(file.file_name().unwrap()), "x").unwrap();
                }
                symlink(&outside, root.join("b")).unwrap();
                std::thread::yield_now();
                remove_tree(&root).unwrap();
                assert!(!root.exists());
                assert!(keep.iter().all(|file| file.exists()), "it went outside");
            }
            stop.store(true, Ordering::Relaxed);
        });
        fs::remove_dir_all(dir).unwrap();
    }
}

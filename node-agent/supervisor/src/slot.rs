//! The slot: one preallocated file per attempt that says how far it came.
//!
//! A slot is made before anything else of an attempt, so a full disk refuses the start instead of eating
//! the record of an end. It lives in the page cache like any file: it survives every process, not the
//! machine (the node's incarnation covers that), so nothing is synced.
//!
//! Layout: [`BLOCKS`] blocks of [`BLOCK_LEN`] bytes, each with its own checksum and written by one side
//! only, then two tail rings of [`RING_LEN`] bytes (stdout, stderr). A block that is torn, foreign or
//! corrupt reads as absent.
//!
//! | block | writer |
//! | --- | --- |
//! | intent, reported | agent |
//! | spawned, refused, exited | supervisor |
//! | output | the supervisor's pump |

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::slot_blocks::write_block;
pub use crate::slot_blocks::{read_journal, write_exited, write_output, write_refused, write_spawned};
use crate::slot_codec::BlockWriter;
use crate::step::Step;
use crate::sys;
use crate::wire::{Exit, Key};

/// Bytes of one block.
pub const BLOCK_LEN: usize = 512;
/// Number of blocks, some of them spare.
pub const BLOCKS: usize = 8;
/// Bytes of one tail ring.
pub const RING_LEN: usize = 64 * 1024;
/// Bytes of a slot file.
pub const SLOT_LEN: u64 = (BLOCK_LEN * BLOCKS + 2 * RING_LEN) as u64;
/// Longest group name and incarnation stored in an intent, in bytes.
pub const TEXT_MAX: usize = 160;
/// Name of the slot inside an attempt's spool directory.
pub const FILE_SLOT: &str = "slot";
/// Name of the spool file of stdout, and of both streams when they share one pipe.
pub const FILE_STDOUT: &str = "stdout";
/// Name of the spool file of stderr, where streams are separate.
pub const FILE_STDERR: &str = "stderr";

/// Blocks by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    Intent = 0,
    Spawned = 1,
    Refused = 2,
    Exited = 3,
    Reported = 4,
    Output = 5,
}

/// Written by the agent before it asks for the spawn: what would be needed to answer for the attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Which attempt.
    pub key: Key,
    /// User of the tool, quarantined until the slot is gone.
    pub uid: u32,
    /// Group of the tool.
    pub gid: u32,
    /// `binding.fence`.
    pub fence: [u8; 16],
    /// Supervisor epoch in which the attempt was to start.
    pub epoch: u32,
    /// The node's incarnation, at most [`TEXT_MAX`] bytes.
    pub incarnation: String,
    /// Name of the attempt's group below the payload group, at most [`TEXT_MAX`] bytes.
    pub group: String,
    /// Hard timeout, absolute `CLOCK_BOOTTIME` milliseconds; 0 = none.
    pub deadline_ms: u64,
    /// Wall clock of the acceptance, Unix milliseconds.
    pub accepted_unix_ms: u64,
}

/// Written by the supervisor after the successful exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spawned {
    /// Process id of the leader, or of the init of its PID namespace where it has one.
    pub pid: i32,
    /// `CLOCK_BOOTTIME` milliseconds.
    pub boottime_ms: u64,
    /// Wall clock, Unix milliseconds.
    pub unix_ms: u64,
}

/// Written by the supervisor when the spawn ended before the program ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Where.
    pub step: Step,
    /// Error number; 0 if the child died there without one.
    pub errno: i32,
    /// Wall clock, Unix milliseconds.
    pub unix_ms: u64,
}

/// Written by the supervisor when the leader was reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exited {
    /// How.
    pub exit: Exit,
    /// Wall clock, Unix milliseconds.
    pub unix_ms: u64,
}

/// Written by the agent when the terminal status was read back from the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// Wall clock, Unix milliseconds.
    pub unix_ms: u64,
}

/// What happened to the bytes of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOutput {
    /// Bytes the tool wrote.
    pub total: u64,
    /// Bytes of them in the spool file (a prefix).
    pub stored: u64,
    /// Error number at which storing ended before the quota; 0 = none.
    pub errno: i32,
    /// Every writer closed the pipe.
    pub ended: bool,
}

impl StreamOutput {
    /// Bytes that are not in the spool file. The last [`RING_LEN`] of them are in the ring.
    pub fn dropped(&self) -> u64 {
        self.total.saturating_sub(self.stored)
    }
}

/// Written by the pump at the end of a stream, and while bytes go to the ring. Absent = all bytes so far
/// are in the spool files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Stdout, or both when they share one pipe.
    pub stdout: StreamOutput,
    /// Stderr, where it has a pipe of its own.
    pub stderr: StreamOutput,
}

/// All valid blocks of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    /// See [`Intent`].
    pub intent: Option<Intent>,
    /// See [`Spawned`].
    pub spawned: Option<Spawned>,
    /// See [`Refused`].
    pub refused: Option<Refused>,
    /// See [`Exited`].
    pub exited: Option<Exited>,
    /// See [`Reported`].
    pub reported: Option<Reported>,
    /// See [`Output`].
    pub output: Option<Output>,
}

/// Which stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Stdout, or both when they share one pipe.
    Stdout = 0,
    /// Stderr.
    Stderr = 1,
}

impl Stream {
    /// Offset of the stream's ring in the slot file.
    pub fn ring_offset(self) -> u64 {
        (BLOCK_LEN * BLOCKS + RING_LEN * self as usize) as u64
    }
}

/// An open slot file: the agent's view.
#[derive(Debug)]
pub struct Slot {
    file: File,
    path: PathBuf,
}

impl Slot {
    /// Makes and preallocates a new slot, readable by its owner only.
    ///
    /// # Errors
    /// Those of `open(2)` (EEXIST: there is one) and `fallocate(2)` (ENOSPC, EDQUOT: no room, do not start);
    /// the message names the path. A file that could not be preallocated is removed.
    pub fn create(path: &Path) -> io::Result<Slot> {
        let act = |e: io::Error| io::Error::new(e.kind(), format!("make slot {}: {e}", path.display()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(act)?;
        if let Err(e) = sys::preallocate(file.as_fd(), SLOT_LEN) {
            // The error that matters is the missing space; an empty slot left behind reads as absent.
            let _ = std::fs::remove_file(path);
            return Err(act(e));
        }
        Ok(Slot {
            file,
            path: path.to_owned(),
        })
    }

    /// Opens an existing slot.
    ///
    /// # Errors
    /// Those of `open(2)`, with the path.
    pub fn open(path: &Path) -> io::Result<Slot> {
        let act = |e: io::Error| io::Error::new(e.kind(), format!("open slot {}: {e}", path.display()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(act)?;
        Ok(Slot {
            file,
            path: path.to_owned(),
        })
    }

    /// Writes the intent. To be done, and to have succeeded, before the Spawn is sent.
    ///
    /// # Errors
    /// `InvalidInput` if a text is longer than [`TEXT_MAX`]; those of `pwrite(2)`.
    pub fn write_intent(&self, intent: &Intent) -> io::Result<()> {
        for (name, text) in [("incarnation", &intent.incarnation), ("group", &intent.group)] {
            if text.len() > TEXT_MAX {
                let message = format!("slot {}: {name} of {} bytes", self.path.display(), text.len());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
        }
        let mut w = BlockWriter::new(Block::Intent as u16);
        w.bytes(&intent.key.uid);
        w.u32(intent.key.attempt);
        w.u32(intent.uid);
        w.u32(intent.gid);
        w.bytes(&intent.fence);
        w.u32(intent.epoch);
        w.u64(intent.deadline_ms);
        w.u64(intent.accepted_unix_ms);
        w.text(&intent.incarnation);
        w.text(&intent.group);
        self.write(Block::Intent, &w.finish())
    }

    /// Notes that the terminal status is known to be stored by the API.
    ///
    /// # Errors
    /// Those of `pwrite(2)`, with the path.
    pub fn write_reported(&self, reported: &Reported) -> io::Result<()> {
        let mut w = BlockWriter::new(Block::Reported as u16);
        w.u64(reported.unix_ms);
        self.write(Block::Reported, &w.finish())
    }

    /// Reads all blocks. A block that was never written, or not wholly, is `None`.
    ///
    /// # Errors
    /// Those of `pread(2)`, with the path.
    pub fn read(&self) -> io::Result<Journal> {
        read_journal(self.as_raw_fd())
            .map_err(|e| io::Error::new(e.kind(), format!("read slot {}: {e}", self.path.display())))
    }

    /// The last bytes of a stream that did not go to its spool file, oldest first, at most [`RING_LEN`].
    ///
    /// # Errors
    /// Those of `pread(2)`, with the path.
    pub fn read_tail(&self, stream: Stream, output: &StreamOutput) -> io::Result<Vec<u8>> {
        let act =
            |e: io::Error| io::Error::new(e.kind(), format!("read tail of {}: {e}", self.path.display()));
        let mut ring = vec![0u8; RING_LEN];
        let mut done = 0;
        while done < ring.len() {
            let n = sys::pread(
                self.as_raw_fd(),
                &mut ring[done..],
                stream.ring_offset() + done as u64,
            )
            .map_err(act)?;
            if n == 0 {
                return Err(act(io::ErrorKind::UnexpectedEof.into()));
            }
            done += n;
        }
        let dropped = output.dropped();
        if dropped < RING_LEN as u64 {
            ring.truncate(dropped as usize);
        } else {
            ring.rotate_left((dropped % RING_LEN as u64) as usize);
        }
        Ok(ring)
    }

    fn write(&self, block: Block, bytes: &[u8; BLOCK_LEN]) -> io::Result<()> {
        write_block(self.as_raw_fd(), block, bytes).map_err(|e| {
            io::Error::new(
                e.kind(),
                format!("write {block:?} of slot {}: {e}", self.path.display()),
            )
        })
    }
}

impl AsFd for Slot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for Slot {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// Name of an attempt's spool directory and, after `tx-`, of its group.
pub fn attempt_name(key: &Key) -> String {
    key.to_string()
}

/// Reads back [`attempt_name`]. `None` for any other name.
pub fn parse_attempt_name(name: &OsStr) -> Option<Key> {
    let text = std::str::from_utf8(name.as_bytes()).ok()?;
    let (uid, attempt) = text.rsplit_once('-')?;
    let key = Key::parse(uid, attempt.parse().ok()?)?;
    (attempt_name(&key) == text).then_some(key)
}

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;

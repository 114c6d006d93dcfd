//! The blocks the supervisor and its pump write, and reading all of them. Writing allocates nothing.

use std::io;
use std::os::fd::RawFd;

use crate::slot::{
    BLOCK_LEN, BLOCKS, Block, Exited, Intent, Journal, Output, Refused, Reported, Spawned, StreamOutput,
};
use crate::slot_codec::{BlockReader, BlockWriter};
use crate::step::Step;
use crate::sys;
use crate::wire::{Cause, Exit, Key};

pub(crate) fn write_block(fd: RawFd, block: Block, bytes: &[u8; BLOCK_LEN]) -> io::Result<()> {
    sys::pwrite_all(fd, bytes, (block as usize * BLOCK_LEN) as u64)
}

/// The supervisor's record of a successful exec. Allocates nothing.
///
/// # Errors
/// Those of `pwrite(2)`.
pub fn write_spawned(fd: RawFd, spawned: &Spawned) -> io::Result<()> {
    let mut w = BlockWriter::new(Block::Spawned as u16);
    w.i32(spawned.pid);
    w.u64(spawned.boottime_ms);
    w.u64(spawned.unix_ms);
    write_block(fd, Block::Spawned, &w.finish())
}

/// The supervisor's record of a spawn that ran nothing. Allocates nothing.
///
/// # Errors
/// Those of `pwrite(2)`.
pub fn write_refused(fd: RawFd, refused: &Refused) -> io::Result<()> {
    let mut w = BlockWriter::new(Block::Refused as u16);
    w.u8(refused.step.code());
    w.i32(refused.errno);
    w.u64(refused.unix_ms);
    write_block(fd, Block::Refused, &w.finish())
}

/// The supervisor's record of an end. Allocates nothing.
///
/// # Errors
/// Those of `pwrite(2)`.
pub fn write_exited(fd: RawFd, exited: &Exited) -> io::Result<()> {
    let mut w = BlockWriter::new(Block::Exited as u16);
    w.i32(exited.exit.wait_status);
    w.u8(exited.exit.cause.code());
    w.u64(exited.exit.boottime_ms);
    w.u64(exited.exit.user_us);
    w.u64(exited.exit.system_us);
    w.u64(exited.exit.max_rss_kib);
    w.u64(exited.unix_ms);
    write_block(fd, Block::Exited, &w.finish())
}

/// The pump's account of both streams. Allocates nothing.
///
/// # Errors
/// Those of `pwrite(2)`.
pub fn write_output(fd: RawFd, output: &Output) -> io::Result<()> {
    let mut w = BlockWriter::new(Block::Output as u16);
    for stream in [&output.stdout, &output.stderr] {
        w.u64(stream.total);
        w.u64(stream.stored);
        w.i32(stream.errno);
        w.u8(stream.ended.into());
    }
    write_block(fd, Block::Output, &w.finish())
}

/// Reads all blocks from an open slot.
///
/// # Errors
/// Those of `pread(2)`.
pub fn read_journal(fd: RawFd) -> io::Result<Journal> {
    let mut bytes = [0u8; BLOCK_LEN * BLOCKS];
    let mut done = 0;
    while done < bytes.len() {
        match sys::pread(fd, &mut bytes[done..], done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    let open = |block: Block| {
        let at = block as usize * BLOCK_LEN;
        BlockReader::open(&bytes[at..at + BLOCK_LEN], block as u16)
    };
    Ok(Journal {
        intent: open(Block::Intent).and_then(|mut r| read_intent(&mut r)),
        spawned: open(Block::Spawned).map(|mut r| Spawned {
            pid: r.i32(),
            boottime_ms: r.u64(),
            unix_ms: r.u64(),
        }),
        refused: open(Block::Refused).and_then(|mut r| {
            Some(Refused {
                step: Step::from_code(r.u8())?,
                errno: r.i32(),
                unix_ms: r.u64(),
            })
        }),
        exited: open(Block::Exited).and_then(|mut r| read_exited(&mut r)),
        reported: open(Block::Reported).map(|mut r| Reported { unix_ms: r.u64() }),
        output: open(Block::Output).map(|mut r| Output {
            stdout: read_stream(&mut r),
            stderr: read_stream(&mut r),
        }),
    })
}

fn read_intent(r: &mut BlockReader<'_>) -> Option<Intent> {
    Some(Intent {
        key: Key {
            uid: r.array(),
            attempt: r.u32(),
        },
        uid: r.u32(),
        gid: r.u32(),
        fence: r.array(),
        epoch: r.u32(),
        deadline_ms: r.u64(),
        accepted_unix_ms: r.u64(),
        incarnation: r.text()?,
        group: r.text()?,
    })
}

fn read_exited(r: &mut BlockReader<'_>) -> Option<Exited> {
    let wait_status = r.i32();
    let cause = Cause::from_code(r.u8())?;
    Some(Exited {
        exit: Exit {
            wait_status,
            cause,
            boottime_ms: r.u64(),
            user_us: r.u64(),
            system_us: r.u64(),
            max_rss_kib: r.u64(),
        },
        unix_ms: r.u64(),
    })
}

fn read_stream(r: &mut BlockReader<'_>) -> StreamOutput {
    StreamOutput {
        total: r.u64(),
        stored: r.u64(),
        errno: r.i32(),
        ended: r.u8() != 0,
    }
}

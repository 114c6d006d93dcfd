//! The program, its arguments and environment, as one block in memory passed by descriptor.
//!
//! Layout, little-endian: magic (4), argument count (4), environment count (4), length of the strings in
//! bytes (4), then the NUL-terminated strings: arguments, then `NAME=value` entries.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys;

/// Most bytes of a whole block, header included.
pub const COMMAND_MAX_BYTES: usize = 256 * 1024;
/// Most strings (arguments plus environment entries) of a block.
pub const COMMAND_MAX_STRINGS: usize = 4_096;
/// Bytes before the strings.
pub const HEADER_LEN: usize = 16;

const MAGIC: [u8; 4] = *b"FLSC";
const NAME: &CStr = c"fairlead-command";

/// Makes the block. The program is `argv[0]`; without a slash it is looked up in the `PATH` of `env`.
///
/// # Errors
/// `InvalidInput` for no argument, a NUL byte inside a string, an environment entry without `=`, too many
/// strings or too many bytes; else those of `memfd_create(2)` and `pwrite(2)`.
pub fn command_memfd<A, E>(argv: &[A], env: &[E]) -> io::Result<OwnedFd>
where
    A: AsRef<[u8]>,
    E: AsRef<[u8]>,
{
    let block = encode(argv, env)?;
    let fd = sys::memfd(NAME)?;
    sys::pwrite_all(fd.as_raw_fd(), &block, 0)?;
    Ok(fd)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

fn encode<A: AsRef<[u8]>, E: AsRef<[u8]>>(argv: &[A], env: &[E]) -> io::Result<Vec<u8>> {
    if argv.first().is_none_or(|program| program.as_ref().is_empty()) {
        return Err(invalid(
            "command without a program: argv[0] is missing or empty".into(),
        ));
    }
    let mut strings = Vec::new();
    let all = argv
        .iter()
        .map(AsRef::as_ref)
        .chain(env.iter().map(AsRef::as_ref));
    for (index, text) in all.enumerate() {
        if text.contains(&0) {
            return Err(invalid(format!("command string {index} contains a NUL byte")));
        }
        if index >= argv.len() && !text.contains(&b'=') {
            let name = String::from_utf8_lossy(text);
            return Err(invalid(format!("environment entry {name:?} has no '='")));
        }
        strings.extend_from_slice(text);
        strings.push(0);
    }
    let count = argv.len() + env.len();
    if count > COMMAND_MAX_STRINGS {
        return Err(invalid(format!(
            "command of {count} strings, at most {COMMAND_MAX_STRINGS}"
        )));
    }
    let len = strings.len() + HEADER_LEN;
    if len > COMMAND_MAX_BYTES {
        return Err(invalid(format!(
            "command of {len} bytes, at most {COMMAND_MAX_BYTES}"
        )));
    }
    let mut block = Vec::with_capacity(len);
    block.extend_from_slice(&MAGIC);
    for number in [argv.len(), env.len(), strings.len()] {
        block.extend_from_slice(&(number as u32).to_le_bytes());
    }
    block.append(&mut strings);
    Ok(block)
}

/// Counts of a block whose structure was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Number of arguments, at least 1.
    pub argc: usize,
    /// Number of environment entries.
    pub envc: usize,
}

/// Checks a block: header, bounds, and that the strings are exactly as many as it says.
/// `None` if it is malformed. Allocates nothing.
pub fn check(block: &[u8]) -> Option<Counts> {
    let header = block.get(..HEADER_LEN)?;
    let number = |at: usize| {
        let mut bytes = [0u8; 4];
        bytes.copy_from_slice(&header[at..at + 4]);
        u32::from_le_bytes(bytes) as usize
    };
    let (argc, envc, len) = (number(4), number(8), number(12));
    let strings = block.get(HEADER_LEN..)?;
    let fits = header[..4] == MAGIC
        && (1..=COMMAND_MAX_STRINGS).contains(&argc)
        && envc <= COMMAND_MAX_STRINGS - argc
        && strings.len() == len
        && strings.last() == Some(&0)
        && strings.first() != Some(&0)
        && strings.iter().filter(|b| **b == 0).count() == argc + envc;
    fits.then_some(Counts { argc, envc })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_checked_and_its_bounds_are_refused() {
        let block = encode(&["/bin/echo", "a b", ""], &["PATH=/bin"]).expect("encode");
        assert_eq!(check(&block), Some(Counts { argc: 3, envc: 1 }));
        assert_eq!(check(&block[..block.len() - 1]), None, "cut");
        assert_eq!(check(&block[..3]), None, "no header");
        let mut wrong = block.clone();
        wrong[4] = 9;
        assert_eq!(check(&wrong), None, "count too high");
        wrong[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(check(&wrong), None, "count overflows");
        let none: [&str; 0] = [];
        for error in [
            encode(&none, &none).expect_err("no program"),
            encode(&["a\0b"], &none).expect_err("nul"),
            encode(&["a"], &["PATH"]).expect_err("no ="),
            encode(&["a".repeat(COMMAND_MAX_BYTES)], &none).expect_err("too long"),
            encode(&vec!["a"; COMMAND_MAX_STRINGS + 1], &none).expect_err("too many"),
        ] {
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}

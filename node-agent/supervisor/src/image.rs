//! Buffers for the program to be started, made once: no memory is asked for on the spawn path.

use std::os::fd::{AsRawFd, BorrowedFd};

use fairlead_supervisor::command::{self, COMMAND_MAX_BYTES, COMMAND_MAX_STRINGS, HEADER_LEN};
use fairlead_supervisor::sys;

/// Bytes for all candidate paths of one program.
const PATHS_MAX: usize = 16 * 1024;
/// Directories of PATH that are tried.
const PROGRAMS_MAX: usize = 64;
/// Where a program without a slash is looked for when the environment names no PATH.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// One command at a time.
pub(crate) struct Image {
    block: Vec<u8>,
    paths: Vec<u8>,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    programs: Vec<*const libc::c_char>,
}

impl Image {
    pub(crate) fn new() -> Image {
        Image {
            block: vec![0; COMMAND_MAX_BYTES],
            paths: vec![0; PATHS_MAX],
            argv: Vec::with_capacity(COMMAND_MAX_STRINGS + 1),
            envp: Vec::with_capacity(COMMAND_MAX_STRINGS + 1),
            programs: Vec::with_capacity(PROGRAMS_MAX),
        }
    }

    /// Reads a command block and points the arrays into it.
    ///
    /// # Errors
    /// The error number: EINVAL for a malformed block, E2BIG for one that is too long, ENAMETOOLONG if the
    /// candidates do not fit, else that of the read.
    pub(crate) fn load(&mut self, fd: BorrowedFd<'_>) -> Result<(), i32> {
        let mut len = 0;
        while len < self.block.len() {
            match sys::pread(fd.as_raw_fd(), &mut self.block[len..], len as u64) {
                Ok(0) => break,
                Ok(n) => len += n,
                Err(e) => return Err(e.raw_os_error().unwrap_or(libc::EIO)),
            }
        }
        if len == self.block.len() && !matches!(sys::pread(fd.as_raw_fd(), &mut [0], len as u64), Ok(0)) {
            return Err(libc::E2BIG);
        }
        let counts = command::check(&self.block[..len]).ok_or(libc::EINVAL)?;
        self.argv.clear();
        self.envp.clear();
        for (index, text) in self.block[HEADER_LEN..len]
            .split_inclusive(|b| *b == 0)
            .enumerate()
        {
            let list = if index < counts.argc {
                &mut self.argv
            } else {
                &mut self.envp
            };
            list.push(text.as_ptr().cast());
        }
        self.argv.push(std::ptr::null());
        self.envp.push(std::ptr::null());
        self.find_programs(len, counts.argc)
    }

    fn find_programs(&mut self, len: usize, argc: usize) -> Result<(), i32> {
        self.programs.clear();
        let mut strings = self.block[HEADER_LEN..len].split(|b| *b == 0);
        let program = strings.next().ok_or(libc::EINVAL)?;
        if program.contains(&b'/') {
            self.programs.push(program.as_ptr().cast());
            return Ok(());
        }
        let path = strings
            .skip(argc - 1)
            .find_map(|e| e.strip_prefix(b"PATH="))
            .unwrap_or(DEFAULT_PATH);
        let mut at = 0;
        // A relative or empty entry would look into the tool's own working directory.
        for dir in path.split(|b| *b == b':').filter(|dir| dir.starts_with(b"/")) {
            let end = at + dir.len() + 1 + program.len();
            if end >= self.paths.len() || self.programs.len() == PROGRAMS_MAX {
                return Err(libc::ENAMETOOLONG);
            }
            self.paths[at..at + dir.len()].copy_from_slice(dir);
            self.paths[at + dir.len()] = b'/';
            self.paths[at + dir.len() + 1..end].copy_from_slice(program);
            self.paths[end] = 0;
            self.programs.push(self.paths[at..].as_ptr().cast());
            at = end + 1;
        }
        Ok(())
    }

    /// Null-terminated array of the arguments.
    pub(crate) fn argv(&self) -> *const *const libc::c_char {
        self.argv.as_ptr()
    }

    /// Null-terminated array of the environment.
    pub(crate) fn envp(&self) -> *const *const libc::c_char {
        self.envp.as_ptr()
    }

    /// Paths to try, in order; each is a terminated string.
    pub(crate) fn programs(&self) -> &[*const libc::c_char] {
        &self.programs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use std::os::fd::AsFd;

    fn load(argv: &[&str], env: &[&str]) -> (Image, Result<(), i32>) {
        let fd = command::command_memfd(argv, env).expect("memfd");
        let mut image = Image::new();
        let result = image.load(fd.as_fd());
        (image, result)
    }

    fn texts(list: &[*const libc::c_char]) -> Vec<String> {
        list.iter()
            .filter(|p| !p.is_null())
            // SAFETY: the pointers lead to terminated strings inside the image, which outlives the call.
            .map(|p| unsafe { CStr::from_ptr(*p) }.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn arrays_point_to_the_strings_and_end_with_null() {
        let (image, result) = load(&["sh", "-c", ""], &["A=1", "PATH=/x::rel:/y"]);
        assert_eq!(result, Ok(()));
        assert_eq!(texts(&image.argv), ["sh", "-c", ""]);
        assert_eq!(texts(&image.envp), ["A=1", "PATH=/x::rel:/y"]);
        assert_eq!(texts(&image.programs), ["/x/sh", "/y/sh"]);
        assert!(image.argv.last().is_some_and(|p| p.is_null()));
        let (image, _) = load(&["./sh"], &["PATH=/x"]);
        assert_eq!(texts(&image.programs), ["./sh"]);
        let (image, _) = load(&["sh", "PATH=/argument"], &[]);
        assert_eq!(texts(&image.programs)[0], "/usr/local/sbin/sh");
    }

    #[test]
    fn bad_blocks_are_refused() {
        let path = format!("PATH={}", "/d:".repeat(PROGRAMS_MAX + 1));
        assert_eq!(load(&["sh"], &[&path]).1, Err(libc::ENAMETOOLONG));
        let fd = sys::memfd(c"bad").expect("memfd");
        assert_eq!(Image::new().load(fd.as_fd()), Err(libc::EINVAL), "empty");
        sys::pwrite_all(fd.as_raw_fd(), &vec![1; COMMAND_MAX_BYTES + 1], 0).expect("write");
        assert_eq!(Image::new().load(fd.as_fd()), Err(libc::E2BIG));
        let (_, write) = sys::pipe(0).expect("pipe");
        assert!(Image::new().load(write.as_fd()).is_err(), "a pipe is no block");
    }
}

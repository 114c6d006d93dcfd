//! The floor: the kernel's calls and nothing else.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use fairlead_supervisor::cgroup::Group;

use crate::{BOUND, SLEEPER, paced};

/// mkdir, clone3 into the group, exec of `true`, wait, `populated 0`, rmdir.
pub(crate) fn spawn(top: &Path, count: u32, gap: Duration) -> Vec<Duration> {
    let program = Program::new(&["true"]);
    paced(count, gap, |index| {
        let start = Instant::now();
        let group = Group::create(top.join(format!("bare-{index}"))).expect("make the group");
        let child = program.start(&group);
        child.wait();
        assert!(!group.populated().expect("read cgroup.events"));
        group.remove_once().expect("remove the group");
        start.elapsed()
    })
}

/// One `cgroup.kill`, every process reaped, `populated 0`.
pub(crate) fn kill(top: &Path, processes: u32, rounds: u32) -> Vec<Duration> {
    let program = Program::new(&SLEEPER);
    let mut samples = Vec::new();
    for round in 0..rounds {
        let group = Group::create(top.join(format!("bare-kill-{round}"))).expect("make the group");
        let children: Vec<Child> = (0..processes).map(|_| program.start(&group)).collect();
        let start = Instant::now();
        group.kill().expect("kill the group");
        children.iter().for_each(Child::wait);
        assert!(group.kill_until_empty(BOUND).expect("empty the group"));
        samples.push(start.elapsed());
        group.remove(BOUND).expect("remove the group");
    }
    samples
}

/// What is executed: made before, so that the child allocates nothing.
struct Program {
    path: CString,
    args: Vec<CString>,
}

struct Child {
    handle: OwnedFd,
}

impl Program {
    fn new(argv: &[&str]) -> Self {
        let path = ["/usr/bin", "/bin"]
            .iter()
            .map(|directory| Path::new(directory).join(argv[0]))
            .find(|path| path.exists())
            .expect("the program is in /usr/bin or /bin");
        let text = |text: &str| CString::new(text).expect("no NUL");
        Self {
            path: text(path.to_str().expect("UTF-8")),
            args: argv.iter().map(|arg| text(arg)).collect(),
        }
    }

    fn start(&self, group: &Group) -> Child {
        let directory = group.open().expect("open the group");
        let mut argv: Vec<*const libc::c_char> = self.args.iter().map(|arg| arg.as_ptr()).collect();
        argv.push(std::ptr::null());
        let env: [*const libc::c_char; 1] = [std::ptr::null()];
        let mut handle: libc::c_int = -1;
        // SAFETY: clone_args is plain data for which all zeros is valid.
        let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
        args.flags = libc::CLONE_PIDFD as u64 | CLONE_INTO_CGROUP;
        args.pidfd = (&raw mut handle) as u64;
        args.exit_signal = libc::SIGCHLD as u64;
        args.cgroup = directory.as_raw_fd() as u64;
        // SAFETY: without CLONE_VM this is a fork: the child goes on in a copy. `args` and the place of the handle
        // outlive the call.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
        if pid == 0 {
            // SAFETY: path, arguments and environment are NUL-terminated and the lists end with a null pointer.
            unsafe { libc::execve(self.path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
            // SAFETY: ends the child at once, without the parent's handlers.
            unsafe { libc::_exit(127) };
        }
        assert!(pid > 0, "clone3: {}", std::io::Error::last_os_error());
        // SAFETY: clone3 has just made this descriptor, and nobody else owns it.
        let handle = unsafe { OwnedFd::from_raw_fd(handle) };
        Child { handle }
    }
}

/// Kernel 5.7, `include/uapi/linux/sched.h`.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

impl Child {
    fn wait(&self) {
        // SAFETY: siginfo_t is plain data for which all zeros is valid.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let id = self.handle.as_raw_fd().unsigned_abs();
        // SAFETY: `info` is valid to write to.
        let result = unsafe { libc::waitid(libc::P_PIDFD, id, &raw mut info, libc::WEXITED) };
        assert_eq!(result, 0, "waitid: {}", std::io::Error::last_os_error());
    }
}

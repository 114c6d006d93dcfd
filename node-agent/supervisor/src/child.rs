//! The child between clone and exec: a flat list of named steps.
//!
//! Nothing here allocates, locks or returns. Each step is announced by its byte on the status pipe before
//! it is tried; a failure is [`FAILED`] and the error number. The pipe closes on a successful exec, so the
//! supervisor sees either the end of the pipe after the byte of [`Step::Exec`], or how far the child came.

use std::ffi::{CStr, CString};
use std::os::fd::RawFd;

use fairlead_supervisor::step::Step;

use crate::init;
use crate::os;
use crate::os_clone;
use crate::os_signal;

/// Byte before the four of a little-endian error number.
pub(crate) const FAILED: u8 = 0xff;
/// Most bytes a child ever writes to the status pipe.
pub(crate) const REPORT_MAX: usize = 64;

const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
const LAST_CAPABILITY: libc::c_ulong = 63;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// An empty directory nobody may enter: no block, two inodes, no permission.
const HIDE_OPTIONS: &CStr = c"size=4k,nr_inodes=2,mode=0";
const TMP: &CStr = c"/tmp";
const SHM: &CStr = c"/dev/shm";
/// Its pages count as memory of the tool's group; the size bounds it where no memory limit can be set.
const SHM_OPTIONS: &CStr = c"size=64m,mode=1777";

/// Everything the child needs, made before the clone. Descriptors are -1 where a step does not apply.
pub(crate) struct Plan<'a> {
    pub(crate) status: RawFd,
    pub(crate) join: RawFd,
    pub(crate) register: RawFd,
    pub(crate) stdin: RawFd,
    pub(crate) stdout: RawFd,
    pub(crate) stderr: RawFd,
    pub(crate) home: RawFd,
    pub(crate) private_mounts: bool,
    pub(crate) private_network: bool,
    /// Where the init of an own PID namespace reports the leader's end; -1 without one.
    pub(crate) report: RawFd,
    pub(crate) hide: &'a [CString],
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nofile: u32,
    pub(crate) programs: &'a [*const libc::c_char],
    pub(crate) argv: *const *const libc::c_char,
    pub(crate) envp: *const *const libc::c_char,
}

type Outcome = Result<(), i32>;
type Act = fn(&Plan<'_>) -> Outcome;

/// The order matters: the group first, the network's socket before the limit of descriptors, of which a child is born
/// with all of the supervisor's, mounts while still root and before the descriptors that lead there
/// are closed, the bounding set before the user changes, capabilities after it, exec last.
const STEPS: [(Step, Act); 18] = [
    (Step::Join, join),
    (Step::Register, register),
    (Step::Session, session),
    (Step::Signals, signals),
    (Step::Network, network),
    (Step::Rlimits, rlimits),
    (Step::MountPrivate, mount_private),
    (Step::Hide, hide),
    (Step::PrivateTmp, private_tmp),
    (Step::ReadOnly, read_only),
    (Step::Init, fork_leader),
    (Step::BoundingSet, bounding_set),
    (Step::Identity, identity),
    (Step::Capabilities, capabilities),
    (Step::NoNewPrivs, no_new_privs),
    (Step::Descriptors, descriptors),
    (Step::WorkingDirectory, working_directory),
    (Step::Exec, exec),
];

/// Does all steps; ends in the program or in `_exit(127)`.
pub(crate) fn run(plan: &Plan<'_>) -> ! {
    for (step, act) in STEPS {
        report(plan.status, &[step.code()]);
        if let Err(errno) = act(plan) {
            let [a, b, c, d] = errno.to_le_bytes();
            report(plan.status, &[FAILED, a, b, c, d]);
            break;
        }
    }
    // SAFETY: _exit takes a number and runs nothing of ours.
    unsafe { libc::_exit(127) }
}

fn report(fd: RawFd, bytes: &[u8]) {
    // SAFETY: the pointer and length describe the borrowed `bytes`. A supervisor that is gone cannot be told.
    unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

fn done(result: libc::c_long) -> Outcome {
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Only where the child could not be born in its group.
fn join(plan: &Plan<'_>) -> Outcome {
    if plan.join < 0 {
        return Ok(());
    }
    // SAFETY: one byte of a static string is written; "0" means the writer itself.
    done(unsafe { libc::write(plan.join, c"0".as_ptr().cast(), 1) } as libc::c_long)
}

/// Without a group nothing may run before the supervisor has noted the number of the session.
fn register(plan: &Plan<'_>) -> Outcome {
    if plan.register < 0 {
        return Ok(());
    }
    let mut byte = 0u8;
    // SAFETY: one byte is read into a local.
    match unsafe { libc::read(plan.register, (&raw mut byte).cast(), 1) } {
        1 => Ok(()),
        0 => Err(libc::EPIPE),
        _ => Err(last_errno()),
    }
}

fn session(_: &Plan<'_>) -> Outcome {
    // SAFETY: no memory is passed.
    done(libc::c_long::from(unsafe { libc::setsid() }))
}

/// Handlers went with the clone flag or are none; what our parents ignored would stay ignored.
fn signals(_: &Plan<'_>) -> Outcome {
    os_signal::reset_signals().map_err(|e| os::errno(&e))
}

fn rlimits(plan: &Plan<'_>) -> Outcome {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `none` is valid for the call.
    done(libc::c_long::from(unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &none)
    }))?;
    if plan.nofile == 0 {
        return Ok(());
    }
    let files = libc::rlimit {
        rlim_cur: plan.nofile.into(),
        rlim_max: plan.nofile.into(),
    };
    // SAFETY: `files` is valid for the call.
    done(libc::c_long::from(unsafe {
        libc::setrlimit(libc::RLIMIT_NOFILE, &files)
    }))
}

fn mount(source: &CStr, target: &CStr, kind: &CStr, flags: libc::c_ulong, options: &CStr) -> Outcome {
    let (source, target, kind) = (source.as_ptr(), target.as_ptr(), kind.as_ptr());
    // SAFETY: all four are terminated strings that outlive the call.
    done(libc::c_long::from(unsafe {
        libc::mount(source, target, kind, flags, options.as_ptr().cast())
    }))
}

/// Nothing mounted from here on may reach the namespace we came from.
fn mount_private(plan: &Plan<'_>) -> Outcome {
    if !plan.private_mounts {
        return Ok(());
    }
    mount(c"none", c"/", c"", libc::MS_REC | libc::MS_PRIVATE, c"")
}

/// Before the private `/tmp`, which may itself cover some of these paths.
fn hide(plan: &Plan<'_>) -> Outcome {
    if !plan.private_mounts {
        return Ok(());
    }
    let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    for path in plan.hide {
        mount(c"tmpfs", path, c"tmpfs", flags, HIDE_OPTIONS)?;
    }
    Ok(())
}

/// The supervisor entered the home directory before the clone, and the kernel moved the working directory
/// into the new namespace. A descriptor would still point into the old one, from which nothing can be bound.
fn private_tmp(plan: &Plan<'_>) -> Outcome {
    if !plan.private_mounts {
        return Ok(());
    }
    mount(c".", TMP, c"", libc::MS_BIND, c"")?;
    let flags = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_NOSUID | libc::MS_NODEV;
    mount(c"none", TMP, c"", flags, c"")?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    match mount(c"tmpfs", SHM, c"tmpfs", flags, SHM_OPTIONS) {
        // A root without it has no shared memory to keep apart.
        Err(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// What a tool writes ends with it: only its home and its shared memory are left to write to. Devices, pipes and sockets
/// stay as they are, since a read-only mount is about files.
fn read_only(plan: &Plan<'_>) -> Outcome {
    if !plan.private_mounts {
        return Ok(());
    }
    set_read_only(c"/", true)?;
    set_read_only(TMP, false)?;
    match set_read_only(SHM, false) {
        Err(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// Makes the mount at `path` and all below it read-only, or that one writable again (mount_setattr(2)).
fn set_read_only(path: &CStr, set: bool) -> Outcome {
    // SAFETY: mount_attr is plain data for which all zeros is valid.
    let mut wish: libc::mount_attr = unsafe { std::mem::zeroed() };
    let flags = if set {
        wish.attr_set = libc::MOUNT_ATTR_RDONLY;
        libc::AT_RECURSIVE
    } else {
        wish.attr_clr = libc::MOUNT_ATTR_RDONLY;
        0
    };
    let (path, size) = (path.as_ptr(), size_of::<libc::mount_attr>());
    // SAFETY: a terminated string, and a structure of the size that is told; both outlive the call.
    done(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path,
            flags,
            &raw const wish,
            size,
        )
    })
}

/// Made here and not by the clone: it takes the kernel a while, in which the supervisor could not kill. The loopback
/// device of a new namespace is down; programs that talk to themselves expect it up.
fn network(plan: &Plan<'_>) -> Outcome {
    if !plan.private_network {
        return Ok(());
    }
    // SAFETY: a number only.
    done(libc::c_long::from(unsafe { libc::unshare(libc::CLONE_NEWNET) }))?;
    // SAFETY: numbers only. The socket is closed on exec with everything else.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    done(libc::c_long::from(socket))?;
    // SAFETY: ifreq is plain data for which all zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is a valid ifreq that outlives the call (netdevice(7)).
    done(libc::c_long::from(unsafe {
        libc::ioctl(socket, libc::SIOCSIFFLAGS as _, &raw const request)
    }))
}

/// The first process stays behind as init and the second goes on. The init gives up its rights as the tool does: a
/// failure to do so ends it, and the leader with it.
fn fork_leader(plan: &Plan<'_>) -> Outcome {
    if plan.report < 0 {
        return Ok(());
    }
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount(c"proc", c"/proc", c"proc", flags, c"")?;
    let leader = os_clone::fork_plain().map_err(|e| os::errno(&e))?;
    if leader == 0 {
        return Ok(());
    }
    init::close_all_but(plan.report);
    let confined = bounding_set(plan)
        .and_then(|()| identity(plan))
        .and_then(|()| capabilities(plan))
        .and_then(|()| no_new_privs(plan))
        .and_then(|()| init::die_with_the_supervisor(plan.report));
    init::hide_from_the_tool();
    match confined {
        Ok(()) => init::serve(plan.report, leader),
        Err(_) => init::give_up(),
    }
}

/// What no program can get back, not even by a set-user-id file.
fn bounding_set(_: &Plan<'_>) -> Outcome {
    for capability in 0..=LAST_CAPABILITY {
        // SAFETY: this prctl takes numbers only.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) } < 0 {
            let errno = last_errno();
            // EINVAL: one past the last capability of this kernel.
            return if errno == libc::EINVAL && capability > 0 {
                Ok(())
            } else {
                Err(errno)
            };
        }
    }
    Ok(())
}

/// By plain system calls: the C library's functions would ask other threads to follow.
fn identity(plan: &Plan<'_>) -> Outcome {
    let (uid, gid) = (plan.uid, plan.gid);
    let none = std::ptr::null::<libc::gid_t>();
    // SAFETY: an empty list is passed.
    done(unsafe { libc::syscall(libc::SYS_setgroups, 0, none) })?;
    // SAFETY: numbers only.
    done(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: numbers only.
    done(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapabilitySet {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn capabilities(_: &Plan<'_>) -> Outcome {
    // SAFETY: this prctl takes numbers only.
    done(libc::c_long::from(unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    }))?;
    let header = CapabilityHeader {
        version: CAPABILITY_VERSION_3,
        pid: 0,
    };
    let none = [CapabilitySet {
        effective: 0,
        permitted: 0,
        inheritable: 0,
    }; 2];
    // SAFETY: version 3 takes a header and two sets, which these are (capget(2)).
    done(unsafe { libc::syscall(libc::SYS_capset, &header, none.as_ptr()) })
}

fn no_new_privs(_: &Plan<'_>) -> Outcome {
    // SAFETY: this prctl takes numbers only.
    done(libc::c_long::from(unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    }))
}

/// Ours are all close-on-exec already; the second half is for what a future change may forget.
fn descriptors(plan: &Plan<'_>) -> Outcome {
    for (fd, standard) in [(plan.stdin, 0), (plan.stdout, 1), (plan.stderr, 2)] {
        // SAFETY: both are numbers; the supervisor keeps 0 to 2 open, so no source is among the targets.
        done(libc::c_long::from(unsafe { libc::dup2(fd, standard) }))?;
    }
    // SAFETY: numbers only; the status pipe must live until exec, hence the flag.
    done(unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) })
}

/// As the tool's user, so that a directory closed to it is an error here and not a surprise later.
fn working_directory(plan: &Plan<'_>) -> Outcome {
    // SAFETY: a number only.
    unsafe { libc::umask(0o022) };
    if plan.private_mounts {
        // SAFETY: a static terminated string.
        return done(libc::c_long::from(unsafe { libc::chdir(TMP.as_ptr()) }));
    }
    if plan.home >= 0 {
        // SAFETY: a number only.
        return done(libc::c_long::from(unsafe { libc::fchdir(plan.home) }));
    }
    // SAFETY: a static terminated string.
    done(libc::c_long::from(unsafe { libc::chdir(c"/".as_ptr()) }))
}

/// Tries the candidates in order, like a shell: what is not there is passed over, and a file that may not
/// be executed is the error only if no other candidate is better.
fn exec(plan: &Plan<'_>) -> Outcome {
    let mut error = libc::ENOENT;
    for program in plan.programs {
        // SAFETY: the program is a terminated string, and both arrays are null-terminated arrays of
        // terminated strings, all made before the clone and never freed.
        unsafe { libc::execve(*program, plan.argv, plan.envp) };
        match last_errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => error = libc::EACCES,
            other => return Err(other),
        }
    }
    Err(error)
}

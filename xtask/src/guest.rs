//! A second kernel to test in: User Mode Linux, booted over the host's own file system in about two seconds.
//!
//! It has cgroup v2 with every controller, whatever the host has, and its processes, groups, memory and mounts are its
//! own. Files are not: the guest is root on the host's file system, except below `/run` and `/var/tmp`.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, geteuid};

use crate::process::Identity;
use crate::{repo, wait};

/// Set for all that runs in the guest.
pub const ENV_INSIDE: &str = "FAIRLEAD_GUEST";
/// What Debian's package `user-mode-linux` calls the kernel.
const KERNEL: &str = "linux.uml";
/// The first process of the guest.
const INIT: &str = "hack/guest/init.sh";
/// Most bytes of the console and of the output that an error shows.
const SHOWN: usize = 4_000;
/// How long a killed guest may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// The guest's kernel, or why no guest can be started here.
///
/// # Errors
/// A sentence that names what is missing.
pub fn available() -> Result<PathBuf, String> {
    if !geteuid().is_root() {
        return Err("the kernel guest needs root, to act as root on the host's file system".to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|directory| directory.join(KERNEL))
        .find(|path| path.is_file());
    found.ok_or_else(|| format!("there is no {KERNEL} in PATH: install Debian's package user-mode-linux"))
}

/// Whether this process runs in the guest.
pub fn is_inside() -> bool {
    std::env::var_os(ENV_INSIDE).is_some()
}

/// A guest that is booted for one command.
#[derive(Clone, Debug)]
pub struct Guest {
    /// Its memory in MiB: at least 64, default 512. The host gives it page by page, as it is touched.
    pub memory_mib: u32,
    /// How long the boot and the command may take together; then it is killed. Default 120 s.
    pub limit: Duration,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            memory_mib: 512,
            limit: Duration::from_secs(120),
        }
    }
}

/// What a command in the guest left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its standard output and standard error in their real order, invalid UTF-8 replaced.
    pub text: String,
    /// Its exit code as a shell sees it: 128 + N for a death by signal N.
    pub exit_code: i32,
}

impl Guest {
    /// Boots a guest, runs a shell script in it as root, with `/` as its directory, and waits for the guest's end.
    ///
    /// Nothing of the guest outlives the call, nor the calling thread.
    ///
    /// # Errors
    /// The guest cannot be started, did not end within its limit, or ended before the script did; the error shows the
    /// end of its console and what the script wrote until then.
    pub fn run(&self, script: &str) -> Result<Output> {
        let kernel = available().map_err(anyhow::Error::msg)?;
        let directory = Directory::make()?;
        let command = directory.file("command");
        fs::write(&command, script).with_context(|| format!("write {}", command.display()))?;
        let mut child = self.boot(&kernel, &directory)?;
        let ended = wait::until(
            "the kernel guest to power off",
            self.limit,
            Duration::from_millis(20),
            || child.try_wait().context("wait for the kernel guest"),
            || directory.evidence(),
        );
        if ended.is_err() {
            end(&mut child)?;
        }
        ended?;
        let code = fs::read_to_string(directory.file("exit-code")).unwrap_or_default();
        match code.trim().parse() {
            Ok(exit_code) => Ok(Output {
                text: directory.text("output"),
                exit_code,
            }),
            Err(_) => bail!(
                "the kernel guest ended before its command: {}",
                directory.evidence()
            ),
        }
    }

    /// As [`Guest::run`], for a program and its arguments.
    ///
    /// # Errors
    /// Those of [`Guest::run`].
    pub fn run_argv(&self, argv: &[&str]) -> Result<Output> {
        self.run(&format!("exec {}\n", quoted(argv)))
    }

    fn boot(&self, kernel: &Path, directory: &Directory) -> Result<Child> {
        let console = directory.file("console");
        let console = fs::File::create(&console).with_context(|| format!("make {}", console.display()))?;
        // The kernel's threads and the guest's processes are processes of the host. In a PID namespace they cannot
        // outlive the launcher, nor the launcher us.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "unshare"]);
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
        command.arg(kernel);
        command.arg(format!("mem={}M", self.memory_mib));
        command.args([
            "root=/dev/root",
            "rootfstype=hostfs",
            "rootflags=/",
            "rw",
            "quiet",
        ]);
        command.args(["con=null", "con0=null,fd:1"]);
        command.arg(format!("init={}", repo::root().join(INIT).display()));
        command.arg(format!("uml_dir={}/", directory.file("uml").display()));
        command.arg(format!("FAIRLEAD_GUEST_DIR={}", directory.path.display()));
        let errors = console.try_clone().context("share the guest's console")?;
        command.stdin(Stdio::null()).stdout(console).stderr(errors);
        let child = command.process_group(0).spawn();
        child.with_context(|| format!("start {command:?}"))
    }
}

/// Kills the launcher and the first process of its PID namespace, and waits for both. A namespace's first process is
/// gone only when all others are (pid_namespaces(7)).
fn end(launcher: &mut Child) -> Result<()> {
    let first = match Identity::of(launcher.id())? {
        Some(process) => process.children()?,
        None => Vec::new(),
    };
    // It may have ended just now.
    let _ = launcher.kill();
    launcher.wait().context("wait for the killed kernel guest")?;
    for process in first {
        process.signal(Signal::KILL)?;
        if !process.wait(KILL_LIMIT)? {
            bail!(
                "process {} of the kernel guest lives {KILL_LIMIT:?} after its kill",
                process.pid
            );
        }
    }
    Ok(())
}

/// A shell line that is exactly these words.
pub fn quoted(argv: &[&str]) -> String {
    let words: Vec<String> = argv
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', r"'\''")))
        .collect();
    words.join(" ")
}

/// What host and guest share of one run. Removed at the end.
struct Directory {
    path: PathBuf,
}

impl Directory {
    fn make() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = repo::target_dir().join(format!("guest/{}-{number}", std::process::id()));
        // The words of a kernel's command line cannot be quoted.
        if path.to_string_lossy().contains(char::is_whitespace) {
            bail!(
                "the kernel guest cannot be given the path {}: it has a blank in it",
                path.display()
            );
        }
        fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self { path })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.file(name)).unwrap_or_default()).into_owned()
    }

    fn evidence(&self) -> String {
        let [console, output] = ["console", "output"].map(|name| tail(&self.text(name)).to_owned());
        format!("console: {console:?}; output: {output:?}")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // It lies below the build directory; what is left there is removed with that.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn tail(text: &str) -> &str {
    let start = (text.len().saturating_sub(SHOWN)..=text.len()).find(|at| text.is_char_boundary(*at));
    start.and_then(|start| text.get(start..)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_and_tails_end_on_characters() {
        assert_eq!(quoted(&["a b", "it's", "$x"]), r"'a b' 'it'\''s' '$x'");
        let long = "ä".repeat(SHOWN);
        assert_eq!(tail(&long).len(), SHOWN);
        assert_eq!(tail(&format!("{long}a")).len(), SHOWN - 1);
        assert_eq!(tail("short"), "short");
    }
}

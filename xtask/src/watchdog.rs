//! A shell that ends processes and control groups when we are gone, however we went.
//!
//! A destructor is not enough: statics are never dropped, and a test runner may be killed. The shell
//! reads what to clean up from a pipe; the end of the pipe is our end.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result};

/// Field 22 of `/proc/PID/stat` (proc(5)), counted from behind the command's closing bracket: a number
/// that names a process together with its start time is never somebody else's.
const SCRIPT: &str = r#"
processes= groups= trees=
while read -r kind first second; do
  case $kind in
    process) processes="$processes $first:$second" ;;
    cgroup) groups="$groups $first"; trees="$trees ${first%/*}" ;;
    release) exit 0 ;;
  esac
done
for process in $processes; do
  pid=${process%%:*}
  started=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d' ' -f20)
  if [ "$started" = "${process#*:}" ]; then kill -KILL "$pid"; fi
done
for group in $groups; do
  [ -e "$group" ] && echo 1 > "$group/cgroup.kill"
  tries=0
  while [ -e "$group" ] && [ $tries -lt 100 ]; do
    find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
    tries=$((tries + 1))
    sleep 0.05
  done
done
for tree in $trees; do rmdir "$tree" 2>/dev/null; done
"#;

/// The watching shell. Dropping it lets it clean up, and waits for that.
#[derive(Debug)]
pub struct Watchdog {
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl Watchdog {
    /// Starts the shell in a process group of its own, out of reach of the terminal's signals.
    pub fn start() -> Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("start the watchdog shell `sh`")?;
        let pipe = shell.stdin.take();
        Ok(Self { shell, pipe })
    }

    /// Has the process with this number and start time (clock ticks since boot) killed in the end.
    pub fn process(&mut self, pid: u32, start_ticks: u64) -> Result<()> {
        self.tell(&format!("process {pid} {start_ticks}"))
    }

    /// Has the control group killed and removed in the end, with all below it, and the directory it is in
    /// too if nothing else is there. Both are ours; the path holds no blanks.
    pub fn cgroup(&mut self, path: &Path) -> Result<()> {
        self.tell(&format!("cgroup {}", path.display()))
    }

    /// Ends the watch without any clean-up.
    pub fn release(mut self) -> Result<()> {
        self.tell("release")
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        let pipe = self.pipe.as_mut().context("the watchdog's pipe is closed")?;
        writeln!(pipe, "{line}").with_context(|| format!("tell the watchdog '{line}'"))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.pipe.take());
        // Nothing can be done about a shell that cannot be waited for.
        let _ = self.shell.wait();
    }
}

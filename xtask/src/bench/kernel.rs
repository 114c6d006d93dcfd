//! One start and one kill through the supervisor, beside the kernel's calls alone.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::samples::Samples;
use super::{Row, Table};
use crate::cgroup::Tree;
use crate::programs::Programs;
use crate::{repo, wait};

/// Longest that one series may take.
const SERIES_LIMIT: Duration = Duration::from_secs(300);

/// Measures and adds the rows.
pub fn measure(table: &mut Table, programs: &Programs, tool: &Path, quick: bool) -> Result<()> {
    let groups = Tree::named(&format!("fairlead-bench-{}", std::process::id()))?;
    let place = Place {
        supervisor: programs.path("fairlead-supervisor"),
        tool: tool.to_owned(),
        dir: repo::target_dir().join(format!("bench-{}", std::process::id())),
        groups,
    };
    let measured = place.rows(table, quick);
    let removed = place.groups.remove();
    fs::remove_dir_all(&place.dir).with_context(|| format!("remove {}", place.dir.display()))?;
    measured.and(removed)
}

struct Place {
    supervisor: PathBuf,
    tool: PathBuf,
    dir: PathBuf,
    groups: Tree,
}

impl Place {
    /// The sides are measured in turns, a slice of each at a time: what else the machine does meets both.
    fn rows(&self, table: &mut Table, quick: bool) -> Result<()> {
        fs::create_dir_all(&self.dir).with_context(|| format!("make {}", self.dir.display()))?;
        let slices = if quick { 1 } else { 4 };
        for (pacing, gap, count) in [("100 ms apart", "100", "25"), ("back to back", "0", "250")] {
            let ways = [
                ("own user and groups", "shared", "0", "≤ 2.5 ×"),
                (
                    "and its own namespaces: mounts, PID with an init, IPC, network",
                    "private",
                    "0",
                    "≤ floor + 4 ms",
                ),
                (
                    "the same with 512 MiB in the agent",
                    "private",
                    "512",
                    "≤ floor + 4 ms",
                ),
            ];
            let mut floor = Vec::new();
            let mut ours = ways.map(|_| Vec::new());
            for _ in 0..slices {
                floor.push(self.bare("bare-spawn", &[count, gap])?);
                for ((_, tmp, ballast, _), series) in ways.iter().zip(&mut ours) {
                    series.push(self.supervised("spawn", &[count, gap, tmp, ballast])?);
                }
            }
            let floor = Samples::merged(floor)?;
            for ((how, .., aim), series) in ways.into_iter().zip(ours) {
                let path = format!("`true` through the supervisor, {pacing}, {how}: prepare → group removed");
                table.push(Row::times(&path, &Samples::merged(series)?, &floor, aim));
            }
        }
        for (processes, rounds) in [("100", "5"), ("1000", "2")] {
            let (mut floor, mut ours) = (Vec::new(), Vec::new());
            for _ in 0..slices {
                floor.push(self.bare("bare-kill", &[processes, rounds])?);
                ours.push(self.supervised("kill", &[processes, rounds])?);
            }
            let path = format!("kill and verify {processes} processes");
            table.push(Row::times(
                &path,
                &Samples::merged(ours)?,
                &Samples::merged(floor)?,
                "≤ 4 ×",
            ));
        }
        table.note(
            "Starts and kills: the floor is a loop of mkdir, clone3 into the group, exec, waitid, read of cgroup.events \
             and rmdir in a small process; for kills one write to cgroup.kill, every waitid, and the read. Ours adds \
             spool directory, journal slot, request to the supervisor, user change, pipes to the spool, and their answers."
                .to_owned(),
        );
        Ok(())
    }

    fn bare(&self, verb: &str, numbers: &[&str]) -> Result<Samples> {
        let group = self.groups.create("bare")?;
        let mut command = Command::new(&self.tool);
        command.arg(verb).arg(&group).args(numbers);
        let output = command.output().with_context(|| format!("start {command:?}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{command:?} failed with {}: {said}", output.status);
        }
        Samples::parse(&String::from_utf8_lossy(&output.stdout))
    }

    /// Starts a supervisor whose agent measures, and ends it when the agent has.
    fn supervised(&self, verb: &str, numbers: &[&str]) -> Result<Samples> {
        let [spool, result, log] = ["spool", "result", "log"].map(|name| self.dir.join(name));
        let _ = fs::remove_file(&result);
        // Its tools may not read it, so it is made as a node's is.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&spool);
        made.with_context(|| format!("make {}", spool.display()))?;
        let group = self.groups.create("supervised")?;
        let output = fs::File::create(&log).with_context(|| format!("make {}", log.display()))?;
        let errors = output.try_clone().context("share the supervisor's log")?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.supervisor);
        command.arg("--agent").arg(&self.tool).arg("--spool").arg(&spool);
        command
            .arg("--cgroup-root")
            .arg(&group)
            .args(["--drain-seconds", "0", "--", verb]);
        command.arg(&result).arg(&spool).args(numbers);
        command.stdout(output).stderr(errors);
        let mut child = command.spawn().with_context(|| format!("start {command:?}"))?;
        let measured = wait_for(&mut child, &result, &log);
        // It may have ended just now; its agent and its tools end with it, or with their groups.
        let _ = child.kill();
        child.wait().context("wait for the supervisor")?;
        measured
    }
}

fn wait_for(supervisor: &mut Child, result: &Path, log: &Path) -> Result<Samples> {
    wait::until(
        &format!("{} to be written", result.display()),
        SERIES_LIMIT,
        Duration::from_millis(50),
        || {
            if let Some(status) = supervisor.try_wait().context("look at the supervisor")? {
                bail!("the supervisor ended with {status}: {}", tail(log));
            }
            if tail(log).contains("panicked") {
                bail!("the measuring agent failed: {}", tail(log));
            }
            match fs::read_to_string(result) {
                Ok(text) => Samples::parse(&text).map(Some),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error).with_context(|| format!("read {}", result.display())),
            }
        },
        || tail(log),
    )
}

fn tail(path: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().rev().take(20).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

//! A tool that writes at full speed: what it costs the parts, the disk, and the other tools.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::cluster::{Load, OPERATOR_NAME, Talk, samples};
use super::memory::Memory;
use super::{Row, Table};
use crate::stack::Stack;

/// `--store-max-bytes` of a node agent that is not told otherwise.
const STORE_MAX_BYTES: u64 = 1 << 30;
/// Room for what is kept of an attempt beside its stored output: journal and tail rings, and block sizes.
const BESIDE: u64 = 1 << 20;
/// Executions of `true` before the flood.
const ALONE: &str = "50";
/// How often memory and disk are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Floods node 0 for `seconds` and adds the rows.
pub fn measure(table: &mut Table, load: &Load, stack: &Stack, seconds: u32) -> Result<()> {
    let mut talk = load.talk(&["noise", &seconds.to_string(), ALONE])?;
    expect(&mut talk, "alone")?;
    let before = Memory::read(stack, OPERATOR_NAME)?;
    talk.go_on()?;
    let uid = expect(&mut talk, "flooding ")?;
    talk.go_on()?;
    let attempt = stack.spool(0).join(format!("{uid}-1"));
    let peak = peak_until(stack, || expect(&mut talk, "ended"))?;
    let disk = bytes_on_disk(&attempt)?;
    talk.go_on()?;
    let said = talk.end()?;
    let answer: Value = serde_json::from_str(&said).with_context(|| format!("read {said:?} of the load"))?;
    let written = answer["bytes"]
        .as_f64()
        .context("the load did not say how much was written")?;
    let flood = format!("`yes` for {seconds} s");
    memory_row(table, &flood, before, peak);
    let mib = |bytes: f64| format!("{:.0} MiB", bytes / f64::from(1 << 20));
    table.push(Row {
        path: format!(
            "{flood}, {} written: bytes on disk; floor the quota",
            mib(written)
        ),
        ours: mib(disk as f64),
        floor: mib((STORE_MAX_BYTES + BESIDE) as f64),
        ratio: if disk <= STORE_MAX_BYTES + BESIDE {
            "within"
        } else {
            "beyond"
        }
        .to_owned(),
        aim: "≤ quota",
    });
    table.push(Row::times(
        &format!("execution of `true` bound at its creation, beside {flood} on its node; floor alone"),
        &samples(&answer, "beside")?,
        &samples(&answer, "quiet")?,
        "≤ 2 ×",
    ));
    Ok(())
}

fn memory_row(table: &mut Table, flood: &str, before: Memory, peak: Memory) {
    let parts = [
        ("supervisor", before.supervisor, peak.supervisor),
        ("pump", before.pump, peak.pump),
        ("agent", before.agent, peak.agent),
        ("operator", before.operator, peak.operator),
        ("inits of calls", before.inits, peak.inits),
    ];
    let growth = parts.map(|(name, before, peak)| (name, peak.saturating_sub(before) as f64 / 1024.0));
    let all: f64 = growth.iter().map(|(_, mib)| mib).sum();
    let each = growth.map(|(name, mib)| format!("{name} {mib:.1}")).join(", ");
    let ours = format!("{all:.1} MiB ({each})");
    table.push(Row::alone(
        &format!("{flood}: growth of resident memory, peak"),
        ours,
        "≤ 16 MiB",
    ));
}

/// What follows `word` in the next line of the load.
fn expect(talk: &mut Talk, word: &str) -> Result<String> {
    let line = talk.line()?;
    match line.strip_prefix(word) {
        Some(rest) => Ok(rest.to_owned()),
        None => bail!("the load said {line:?} in place of {word:?}"),
    }
}

/// The most memory of each part until `wait` returns.
fn peak_until(stack: &Stack, wait: impl FnOnce() -> Result<String>) -> Result<Memory> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let looks = scope.spawn(|| -> Result<Memory> {
            let mut peak = Memory::read(stack, OPERATOR_NAME)?;
            while !over.load(Ordering::Relaxed) {
                thread::sleep(LOOK);
                peak = peak.max(Memory::read(stack, OPERATOR_NAME)?);
            }
            Ok(peak)
        });
        let waited = wait();
        over.store(true, Ordering::Relaxed);
        let peak = looks
            .join()
            .map_err(|_| anyhow::anyhow!("the look at the memory panicked"))?;
        waited.and(peak)
    })
}

/// What the files of a directory take on disk (`st_blocks`, of 512 bytes each).
fn bytes_on_disk(directory: &Path) -> Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(directory).with_context(|| format!("list {}", directory.display()))? {
        let entry = entry.with_context(|| format!("list {}", directory.display()))?;
        let meta = entry
            .metadata()
            .with_context(|| format!("look at {}", entry.path().display()))?;
        total += meta.blocks() * 512;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_on_disk_are_those_of_blocks_and_not_of_holes() {
        let dir = std::env::temp_dir().join(format!("fairlead-bench-disk-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = std::fs::File::create(dir.join("sparse")).unwrap();
        file.set_len(1 << 30).unwrap();
        std::fs::write(dir.join("full"), vec![b'y'; 1 << 20]).unwrap();
        let bytes = super::bytes_on_disk(&dir).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!((1 << 20..1 << 22).contains(&bytes), "{bytes}");
    }
}

//! `cargo xtask bench`: how quick the parts are, each figure beside the floor of the same run.
//!
//! A floor is what remains when everything of ours is taken away: the kernel's own calls, or the API server's writes.
//! Both sides are measured on the same machine, one right after the other and at the same pacing, so that the ratio
//! means something where the figures alone do not.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::programs::{Profile, Programs};
use crate::repo;
use table::{Row, Table};

mod cluster;
mod flood;
mod kernel;
mod memory;
mod samples;
mod table;

/// Example of `fairlead-supervisor` that measures starts and kills.
const KERNEL_TOOL: &str = "bench";
/// Example of `fairlead-e2e` that makes the load of a cluster.
const CLUSTER_TOOL: &str = "load";

/// What `bench` shall measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Bench {
    /// A quarter of the samples
    #[arg(long)]
    pub quick: bool,
    /// Measure these parts only
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Kernel, Part::Cluster])]
    pub only: Vec<Part>,
    /// Build the programs with this cargo profile
    #[arg(long, value_enum, default_value = "release")]
    pub profile: Profile,
}

/// A part of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Starts and kills through the supervisor, without Kubernetes
    Kernel,
    /// Executions and runs through everything
    Cluster,
}

/// Measures, prints the table and leaves it in `target/bench.md`.
///
/// # Errors
/// Not root, a program that cannot be built or started, or a measurement that did not end.
pub fn run(bench: &Bench) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("bench needs root, for control groups and namespaces");
    }
    let mut table = Table::default();
    table.note(machine()?);
    table.note(format!("Programs: {:?} build.", bench.profile));
    let programs = build(bench)?;
    let example = |name: &str| programs.dir.join("examples").join(name);
    if bench.only.contains(&Part::Kernel) {
        kernel::measure(&mut table, &programs, &example(KERNEL_TOOL), bench.quick)?;
    }
    if bench.only.contains(&Part::Cluster) {
        cluster::measure(&mut table, &programs, &example(CLUSTER_TOOL), bench.quick)?;
    }
    let text = table.markdown();
    println!("{text}");
    let path = repo::target_dir().join("bench.md");
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

/// Builds what the parts need, in one go: cargo builds a dependency again for each selection of packages that asks other
/// features of it.
fn build(bench: &Bench) -> Result<Programs> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(repo::root()).args(["build", "--bins"]);
    command.args(["--package", "fairlead-supervisor", "--example", KERNEL_TOOL]);
    if bench.only.contains(&Part::Cluster) {
        for package in Programs::PACKAGES {
            command.args(["--package", package]);
        }
        command.args(["--package", "fairlead-e2e", "--example", CLUSTER_TOOL]);
    }
    if bench.profile == Profile::Release {
        command.arg("--release");
    }
    let status = command.status().with_context(|| format!("start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed with {status}");
    }
    Programs::link_supervisor(bench.profile)?;
    Ok(Programs::there(bench.profile))
}

fn machine() -> Result<String> {
    let read = |path: &str| fs::read_to_string(path).with_context(|| format!("read {path}"));
    let cores = std::thread::available_parallelism().context("count the cores")?;
    let cpuinfo = read("/proc/cpuinfo")?;
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    Ok(format!(
        "Machine: {cores} cores ({model}), kernel {}, {} MiB of memory, load {} at the start.",
        read("/proc/sys/kernel/osrelease")?.trim(),
        memory::total_mib()?,
        read("/proc/loadavg")?.split(' ').next().unwrap_or_default(),
    ))
}

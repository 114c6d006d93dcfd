//! `cargo xtask ci`: every tier of checks and tests, in order, the cheapest first.
//!
//! A tier that fails does not stop the ones after it. A tier that cannot run says why; with `CI=true` that is a failure,
//! so that nobody's pipeline is green because it tested nothing.

mod suites;
mod tally;

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::generate::{self, Gen};
use crate::{repo, tidy, tools};
use suites::Suites;
use tally::{Row, Tally, Verdict};

/// What `ci` shall run.
#[derive(Clone, Debug, clap::Args)]
pub struct Ci {
    /// Run these tiers only, by name
    #[arg(long, value_name = "TIER", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Print the names of the tiers and what each checks
    #[arg(long)]
    pub list: bool,
}

/// A tier: its name, what it checks, and how.
struct Tier {
    name: &'static str,
    checks: &'static str,
    run: fn(&mut Suites, &mut Tally) -> Result<()>,
}

const TIERS: &[Tier] = &[
    Tier {
        name: "fmt",
        checks: "rustfmt",
        run: |_, _| cargo(&["fmt", "--all", "--check", "--", "--files-with-diff"]),
    },
    Tier {
        name: "gen",
        checks: "generated files are up to date",
        run: |_, _| generate::run(&Gen { check: true }),
    },
    Tier {
        name: "tidy",
        checks: "arrows between crates, sizes, banned words",
        run: |_, _| tidy::run(),
    },
    Tier {
        name: "clippy",
        checks: "lints of the workspace, warnings refused",
        run: |_, _| clippy(),
    },
    Tier {
        name: "deny",
        checks: "bans, licences and sources of dependencies",
        run: |_, _| deny(),
    },
    Tier {
        name: "workflows",
        checks: "actionlint and zizmor on .github",
        run: |_, _| workflows(),
    },
    Tier {
        name: "chart",
        checks: "helm lint and helm template",
        run: |_, _| chart(),
    },
    Tier {
        name: "build",
        checks: "our programs and every test program",
        run: |suites, _| suites.build(),
    },
    Tier {
        name: "core",
        checks: "the decision core: tables, laws, simulation",
        run: |s, t| s.run(t, &["decide"]),
    },
    Tier {
        name: "unit",
        checks: "one effect at a time",
        run: |s, t| s.run(t, UNIT),
    },
    Tier {
        name: "kernel",
        checks: "supervisor: spawning, groups, kills; needs root",
        run: |s, t| s.run_as_root(t, &["node-agent/supervisor"]),
    },
    Tier {
        name: "system",
        checks: "everything together on a real control plane and in a kernel guest; needs root",
        run: |s, t| s.run_as_root(t, &["xtask", "e2e"]),
    },
];

/// Crates whose tests need neither root nor a cluster.
const UNIT: &[&str] = &["crds", "admin", "operator", "node-agent", "cli"];

/// Runs the tiers and prints how each ended; gives whether all passed.
///
/// The last line is `N passed, N failed`: every test counts one, and every tier without tests of its own counts one.
pub fn run(ci: &Ci) -> Result<bool> {
    if ci.list {
        TIERS
            .iter()
            .for_each(|tier| println!("{:<10} {}", tier.name, tier.checks));
        return Ok(true);
    }
    if let Some(unknown) = ci
        .only
        .iter()
        .find(|name| !TIERS.iter().any(|tier| tier.name == **name))
    {
        bail!("there is no tier {unknown}; see: cargo xtask ci --list");
    }
    let start = Instant::now();
    let strict = std::env::var_os("CI").is_some_and(|value| value == "true");
    let mut suites = Suites::default();
    let rows: Vec<Row> = TIERS
        .iter()
        .filter(|tier| ci.only.is_empty() || ci.only.iter().any(|name| name == tier.name))
        .map(|tier| run_tier(tier, &mut suites, strict))
        .collect();
    Ok(finish(&rows, start.elapsed()))
}

fn run_tier(tier: &Tier, suites: &mut Suites, strict: bool) -> Row {
    println!("\n=== {}: {}", tier.name, tier.checks);
    let start = Instant::now();
    let mut tally = Tally::default();
    let result = (tier.run)(suites, &mut tally);
    let row = Row::new(tier.name, start.elapsed(), tally, result, strict);
    println!("{}", row.line());
    row
}

fn finish(rows: &[Row], took: Duration) -> bool {
    println!("\n=== all tiers");
    rows.iter().for_each(|row| println!("{}", row.line()));
    println!("total      {}", tally::time(took));
    let passed: u64 = rows.iter().map(|row| row.tally.passed).sum();
    let failed: u64 = rows.iter().map(|row| row.tally.failed).sum();
    println!("{passed} passed, {failed} failed");
    !rows.iter().any(|row| matches!(row.verdict, Verdict::Failed(_)))
}

/// Runs a command in the repository's root, its output going where ours goes.
fn run_command(command: &mut Command) -> Result<()> {
    let status = command
        .current_dir(repo::root())
        .status()
        .with_context(|| format!("start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed with {status}");
    }
    Ok(())
}

fn cargo(args: &[&str]) -> Result<()> {
    run_command(Command::new("cargo").args(args))
}

fn clippy() -> Result<()> {
    cargo(&[
        "clippy",
        "--quiet",
        "--locked",
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ])
}

fn deny() -> Result<()> {
    run_command(Command::new(tools::cargo_deny()?).args(["--locked", "check", "bans", "licenses", "sources"]))
}

fn workflows() -> Result<()> {
    // Checks of the scripts inside depend on what else is installed, so they are left out.
    run_command(Command::new(tools::actionlint()?).args(["-shellcheck=", "-pyflakes="]))?;
    run_command(Command::new(tools::zizmor()?).args(["--offline", "--no-progress", ".github"]))
}

fn chart() -> Result<()> {
    let helm = tools::control_plane_program("helm")?;
    let chart = repo::chart();
    run_command(Command::new(&helm).args(["lint", "--strict"]).arg(&chart))?;
    let mut template = Command::new(&helm);
    template
        .args(["template", "fairlead"])
        .arg(&chart)
        .args(["--namespace", "fairlead-system"]);
    let output = template.output().with_context(|| format!("start {template:?}"))?;
    if !output.status.success() {
        bail!(
            "{template:?} failed with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

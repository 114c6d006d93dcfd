//! `cargo xtask VERB`: the repository's tools.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::{bench, ci, demo, generate, tidy, up};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The repository's tools")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start a control plane, install the chart and run our programs, in the background
    Up(up::Up),
    /// Make the generated files: CRDs as YAML and as templates of the chart
    Gen(generate::Gen),
    /// Stop and remove everything that `up` made
    Down,
    /// From nothing to an answer: `up`, the quickstart, and the evidence that a tool ran
    Demo(demo::Demo),
    /// Check what the compiler cannot: arrows between crates, sizes, banned words
    Tidy,
    /// Run every tier of checks and tests
    Ci(ci::Ci),
    /// Measure, and print each figure beside the floor of the same run
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    // A backtrace of ours says nothing to who reads this: the chain of causes does.
    act(Cli::parse().verb).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn act(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Up(options) => up::run(&options),
        Verb::Gen(options) => generate::run(&options),
        Verb::Down => up::down(),
        Verb::Demo(options) => demo::run(&options),
        Verb::Tidy => tidy::run(),
        Verb::Bench(options) => bench::run(&options),
        // Its closing line is the last word; what failed was said above it.
        Verb::Ci(options) => return ci::run(&options).map(|passed| ExitCode::from(u8::from(!passed))),
    }
    .map(|()| ExitCode::SUCCESS)
}

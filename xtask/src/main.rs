//! `cargo xtask VERB`: the repository's tools.

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::{generate, up};

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
}

fn main() -> Result<()> {
    match Cli::parse().verb {
        Verb::Up(options) => up::up(&options),
        Verb::Gen(options) => generate::run(&options),
        Verb::Down => up::down(),
    }
}

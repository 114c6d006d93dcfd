//! `cargo xtask VERB`: the repository's tools.

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::up;

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
    /// Stop and remove everything that `up` made
    Down,
}

fn main() -> Result<()> {
    match Cli::parse().verb {
        Verb::Up(options) => up::up(&options),
        Verb::Down => up::down(),
    }
}

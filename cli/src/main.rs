//! `kubectl fairlead`: look at agent runs and their tool calls with the rights of whoever runs it.
//!
//! It only reads. What it prints is made by pure functions (`story`, `runs_table`, `findings`, `text`); the modules
//! named after a verb ask the cluster and write to the terminal.

mod args;
mod check;
mod connect;
mod exit;
mod findings;
mod fixes;
mod models;
mod output;
mod runs;
mod runs_table;
mod story;
mod story_facts;
mod text;
mod watch;

use args::{Cli, Verb};
use exit::Exit;
use std::io::ErrorKind;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Two TLS providers may be linked through other crates; without a choice the client refuses to guess.
    if rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .is_err()
    {
        eprintln!("error: a TLS provider was installed before main began");
        return Exit::Unreachable.into();
    }
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(code) => return code.into(),
    };
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run(cli)).into(),
        Err(error) => {
            eprintln!("error: start the runtime: {error}");
            Exit::Unreachable.into()
        }
    }
}

async fn run(cli: Cli) -> Exit {
    tokio::select! {
        exit = asked(&cli) => exit,
        _ = tokio::signal::ctrl_c() => Exit::Interrupted,
    }
}

/// Does what was asked, and says what went wrong.
async fn asked(cli: &Cli) -> Exit {
    let target = match connect::connect(&cli.connection).await {
        Ok(target) => target,
        Err(error) => {
            eprintln!("error: {}", fixes::chain(&error));
            return exit::of_error(&error);
        }
    };
    let done = match &cli.verb {
        Verb::Runs(options) => runs::run(&target, options).await,
        Verb::Watch(options) => watch::run(&target, options).await,
        Verb::Output(options) => output::run(&target, options).await,
        Verb::Check(options) => check::run(&target, options).await,
    };
    done.unwrap_or_else(|error| {
        // A reader that has seen enough, such as head, is no failure.
        let closed = error.downcast_ref::<std::io::Error>();
        if closed.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) {
            return Exit::Success;
        }
        eprintln!("error: {}", fixes::chain(&error));
        if let Some(fix) = fixes::of(&error, &target) {
            eprintln!("fix: {fix}");
        }
        exit::of_error(&error)
    })
}

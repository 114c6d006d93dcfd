//! `fairlead-supervisor`: the privileged parent of the node agent and of every tool process.
//!
//! One thread, one epoll. It starts the agent and starts it again, spawns tools on the agent's request,
//! records their ends in their slots, and kills when told, when a deadline passes, or when no agent comes
//! back. It knows no policy and no Kubernetes. See `fairlead_supervisor::wire` for the protocol.

use std::process::ExitCode;

mod agent;
#[cfg(test)]
mod alloc_tests;
mod child;
mod config;
mod hold;
mod image;
mod init;
mod lifecycle;
mod log;
mod os;
mod os_clone;
mod os_poll;
mod os_signal;
mod pump;
mod pump_link;
mod pump_wire;
mod requests;
mod setup;
mod spawn;
mod supervisor;
mod table;

/// Exit code for a command line that is not understood (`sysexits.h`).
const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    let config = match config::parse(std::env::args_os().skip(1)) {
        Ok(Some(config)) => config,
        Ok(None) => {
            println!("{}", config::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("{message}\n{}", config::USAGE);
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            log::warn(format_args!("cannot go on: {e}"));
            ExitCode::FAILURE
        }
    }
}

fn run(config: config::Config) -> std::io::Result<()> {
    setup::fill_standard_descriptors()?;
    os_signal::block_signals()?;
    // Children inherit the place; a directory somebody may want to unmount is a bad one.
    std::env::set_current_dir("/")?;
    let Some(mut lock) = setup::lock_spool(&config.spool)? else {
        return Ok(());
    };
    let hide = setup::hidden(&config)?;
    let root = setup::find_root(&config)?;
    let epoch = lock.next_epoch(root.as_ref())?;
    let groups = match root {
        Some(root) => Some(setup::Groups::make(root, epoch)?),
        None => None,
    };
    if std::process::id() != 1 {
        os::become_subreaper()?;
    }
    let files = os::raise_nofile()?;
    log::info(format_args!(
        "epoch {epoch}, spool {}, up to {files} descriptors",
        config.spool.display()
    ));
    let result = supervisor::Supervisor::new(config, epoch, groups, hide)?.run();
    drop(lock);
    result
}

//! `fairlead-node-agent`: executes what is bound to its node.

use clap::Parser;
use fairlead_node_agent::{Args, check_isolation, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = Args::parse();
    if args.check_isolation {
        return check_isolation(args.cgroup_root.as_deref());
    }
    if rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .is_err()
    {
        eprintln!("fairlead-node-agent: another TLS provider was installed before");
        return ExitCode::FAILURE;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // Blocking work is short and bound by the disk; more threads would only cost memory.
        .max_blocking_threads(16)
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(run(args));
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(anyhow::Error::new(error).context("start the runtime")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fairlead-node-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

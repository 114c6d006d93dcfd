//! `fairlead-operator`.

use anyhow::{Context, Result};
use clap::Parser;
use fairlead_admin::Shutdown;
use fairlead_operator::config::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::process::ExitCode;

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    match start().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fairlead-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn start() -> Result<()> {
    let config = Config::parse();
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    fairlead_admin::init_telemetry("info")?;
    let shutdown = Shutdown::on_signals()?;
    let mut kube = match &config.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .with_context(|| format!("read the kubeconfig {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
        }
        None => kube::Config::infer()
            .await
            .context("find out how to reach the API server")?,
    };
    // A watch may be quiet for minutes; everything else is bounded by its caller.
    kube.read_timeout = None;
    // When a write is sent again is decided by the core, which also knows whether this process still leads.
    kube.default_retry = false;
    let client = kube::Client::try_from(kube).context("make a client for the API server")?;
    fairlead_operator::run(config, client, shutdown).await
}

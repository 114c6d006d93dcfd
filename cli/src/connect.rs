//! Reaching the cluster as kubectl would.

use crate::args::Connection;
use anyhow::{Context, Result, bail};
use fairlead_crds::reading::Readable;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::Event;
use kube::{Client, Config};

/// A client and the namespace it works in.
pub struct Target {
    /// The client, with the user's own rights.
    pub client: Client,
    /// `--namespace`, else the context's, else `default`.
    pub namespace: String,
    /// Address of the API server.
    pub server: String,
}

/// Connects with `--kubeconfig`, else `KUBECONFIG`, else `~/.kube/config`, else the ServiceAccount of the Pod.
pub async fn connect(connection: &Connection) -> Result<Target> {
    let config = config(connection).await?;
    let namespace = connection
        .namespace
        .clone()
        .unwrap_or_else(|| config.default_namespace.clone());
    let server = config.cluster_url.to_string();
    let client = Client::try_from(config)
        .with_context(|| format!("set up the connection to the API server {server}"))?;
    Ok(Target {
        client,
        namespace,
        server,
    })
}

async fn config(connection: &Connection) -> Result<Config> {
    let options = KubeConfigOptions {
        context: connection.context.clone(),
        ..KubeConfigOptions::default()
    };
    let kubeconfig = match &connection.kubeconfig {
        Some(path) => {
            Kubeconfig::read_from(path).with_context(|| format!("read --kubeconfig {}", path.display()))?
        }
        None => match Kubeconfig::read() {
            Ok(kubeconfig) => kubeconfig,
            Err(error) if connection.context.is_some() => {
                return Err(error).context("read KUBECONFIG or ~/.kube/config, to find --context");
            }
            Err(error) => match Config::incluster() {
                Ok(config) => return Ok(config),
                Err(_) => {
                    bail!("read KUBECONFIG or ~/.kube/config: {error}; set KUBECONFIG or pass --kubeconfig")
                }
            },
        },
    };
    let wanted = options.context.as_ref().or(kubeconfig.current_context.as_ref());
    let wanted = wanted.map_or_else(
        || "use the kubeconfig's current context, and it names none".to_owned(),
        |name| format!("use context {name:?} of the kubeconfig"),
    );
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    config.map_err(|error| {
        anyhow::anyhow!("{wanted}: {error}; choose one with --context; see: kubectl config get-contexts")
    })
}

/// A watch goes on after an error that may pass (a restarting API server); refused rights, a missing kind or a wrong
/// selector do not pass, and end it.
pub fn unless_passing<K>(
    event: kube::runtime::watcher::Result<Event<Readable<K>>>,
    what: &str,
) -> Option<Result<Event<K>>> {
    use kube::runtime::watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    match event {
        Ok(Event::Apply(object)) => readable(object).map(|object| Ok(Event::Apply(object))),
        Ok(Event::InitApply(object)) => readable(object).map(|object| Ok(Event::InitApply(object))),
        Ok(Event::Delete(object)) => readable(object).map(|object| Ok(Event::Delete(object))),
        Ok(Event::Init) => Some(Ok(Event::Init)),
        Ok(Event::InitDone) => Some(Ok(Event::InitDone)),
        Err(InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error)) if is_final(&error) => {
            Some(Err(anyhow::Error::from(error).context(format!("watch {what}"))))
        }
        Err(error) => {
            eprintln!("watch {what}: {error}; trying again");
            None
        }
    }
}

/// An object that can be read; of one that cannot, a line on standard error.
pub fn readable<K>(object: Readable<K>) -> Option<K> {
    object.0.map_err(|unread| eprintln!("left out: {unread}")).ok()
}

fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 401 | 403 | 404))
}

//! Public servers of the chat completions protocol that others wrote, on loopback: the proxy of LiteLLM and aimock.
//! `operator/tests/public_servers.rs` includes this file as well, for which it uses nothing of this crate.
//!
//! `hack/model-servers/install.sh` fetches both into the cache. Where it cannot, the tests say so and pass, but with
//! `CI=true` they fail.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a server may take until it answers: LiteLLM imports half a minute long on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(180);

/// Where the servers are, by name, as the script prints it; or `None` where they cannot be had.
///
/// # Panics
/// With `CI=true`, where they cannot be had.
pub fn installed() -> Option<&'static BTreeMap<String, String>> {
    static PLACES: OnceLock<Result<BTreeMap<String, String>, String>> = OnceLock::new();
    match PLACES.get_or_init(install) {
        Ok(places) => Some(places),
        Err(why) if std::env::var_os("CI").is_some_and(|ci| ci == "true") => {
            panic!("the model servers are not there: {why}")
        }
        Err(why) => {
            eprintln!("skipped, the model servers are not there: {why}");
            None
        }
    }
}

fn install() -> Result<BTreeMap<String, String>, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/model-servers/install.sh");
    let output = Command::new(&script).output();
    let output = output.map_err(|error| format!("{}: {error}", script.display()))?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {}: {told}", script.display(), output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    Ok(pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
}

/// A server process, its log and its scratch directory; all gone when it is dropped.
#[derive(Debug)]
pub struct ModelServer {
    child: Child,
    directory: PathBuf,
    port: u16,
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl ModelServer {
    /// Starts LiteLLM's proxy: its clients must show `key`, and its model `relayed` is that of `upstream`, a base URL,
    /// which it shows `upstream_key`.
    ///
    /// # Panics
    /// When it does not answer within [`START_LIMIT`].
    pub async fn litellm(
        places: &BTreeMap<String, String>,
        upstream: &str,
        upstream_key: &str,
        key: &str,
    ) -> Self {
        let config = json!({
            "model_list": [{"model_name": "relayed", "litellm_params":
                {"model": "openai/upstream", "api_base": upstream, "api_key": upstream_key}}],
            "general_settings": {"master_key": key},
            "router_settings": {"num_retries": 0},
        });
        Self::start("litellm", "/health/liveliness", |port, directory| {
            // JSON is YAML.
            std::fs::write(directory.join("config.yaml"), config.to_string()).unwrap();
            let mut command = Command::new(&places["python"]);
            command
                .args([
                    "-c",
                    "from litellm.proxy.proxy_cli import run_server; run_server()",
                ])
                .args(["--config", "config.yaml", "--host", "127.0.0.1"])
                .args(["--port", &port.to_string(), "--telemetry", "False"])
                .env("PYTHONPATH", &places["modules"])
                .env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
            command
        })
        .await
    }

    /// Starts aimock with these fixtures; it streams in pieces of three characters.
    ///
    /// # Panics
    /// When it does not answer within [`START_LIMIT`].
    pub async fn aimock(places: &BTreeMap<String, String>, fixtures: &Value) -> Self {
        Self::start("aimock", "/health", |port, directory| {
            let fixtures = json!({"fixtures": fixtures}).to_string();
            std::fs::write(directory.join("fixtures.json"), fixtures).unwrap();
            let mut command = Command::new(&places["node"]);
            command
                .arg(&places["aimock"])
                .args(["--port", &port.to_string(), "--fixtures", "fixtures.json"])
                .args(["--chunk-size", "3", "--strict", "--validate-on-load"])
                .args(["--log-level", "warn"]);
            command
        })
        .await
    }

    /// Starts what `command` makes of a port and a scratch directory, and waits until `ready` answers 200.
    async fn start(name: &str, ready: &str, command: impl FnOnce(u16, &Path) -> Command) -> Self {
        let directory = std::env::temp_dir().join(format!("fairlead-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let log = std::fs::File::create(directory.join("log")).unwrap();
        let child = command(port, &directory)
            .current_dir(&directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut server = Self {
            child,
            directory,
            port,
        };
        let start = Instant::now();
        let url = server.url(ready);
        while !reqwest::get(&url)
            .await
            .is_ok_and(|answer| answer.status().is_success())
        {
            let ended = server.child.try_wait().unwrap();
            assert!(
                ended.is_none() && start.elapsed() < START_LIMIT,
                "{name} does not answer at {url} (ended: {ended:?}):\n{}",
                server.log()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        server
    }

    /// URL of a path of this server.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Events of a streamed answer to `request` that carry pieces of tool calls, read past any client of ours.
    ///
    /// # Panics
    /// When it does not answer.
    pub async fn call_deltas(&self, key: &str, request: &Value) -> usize {
        let answer = reqwest::Client::new()
            .post(self.url("/v1/chat/completions"))
            .bearer_auth(key)
            .json(request)
            .send()
            .await
            .unwrap();
        let text = answer.text().await.unwrap();
        text.lines()
            .filter(|line| line.starts_with("data:") && line.contains("\"tool_calls\":[{"))
            .count()
    }
}

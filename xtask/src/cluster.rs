//! A cluster as the tools reach it: an address, an authority, and kubectl and helm to speak with it.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// Who a kubeconfig speaks as.
#[derive(Clone, Copy, Debug)]
pub enum User<'a> {
    /// A client certificate and its key, by path.
    Certificate(&'a Path, &'a Path),
    /// A bearer token.
    Token(&'a str),
}

/// A cluster and the means to reach it as its administrator.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// `https://127.0.0.1:PORT`.
    pub server: String,
    /// PEM file of the authority that signed the server's certificate.
    pub ca: PathBuf,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// kubectl.
    pub kubectl: PathBuf,
    /// helm.
    pub helm: PathBuf,
    /// Directory for the caches of kubectl and helm, so that they leave none in the home directory.
    pub cache: PathBuf,
}

impl Cluster {
    /// Writes a kubeconfig for `user` to `path`, readable by its owner only; it appears whole or not.
    pub fn write_kubeconfig(&self, user: User<'_>, path: &Path) -> Result<()> {
        let credentials = match user {
            User::Certificate(certificate, key) => {
                json!({"client-certificate": certificate, "client-key": key})
            }
            User::Token(token) => json!({"token": token}),
        };
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fairlead",
                          "cluster": {"server": self.server, "certificate-authority": self.ca}}],
            "users": [{"name": "fairlead", "user": credentials}],
            "contexts": [{"name": "fairlead", "context": {"cluster": "fairlead", "user": "fairlead"}}],
            "current-context": "fairlead",
        });
        let text = serde_saphyr::to_string(&config).context("print a kubeconfig as YAML")?;
        let partial = path.with_extension("partial");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("write {}", partial.display()))?;
        fs::rename(&partial, path)
            .with_context(|| format!("move {} to {}", partial.display(), path.display()))
    }

    /// Runs kubectl as the administrator and gives its standard output; a failure carries what it said.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_as(&self.kubeconfig, args, None)
    }

    /// As [`Cluster::kubectl`], with another kubeconfig and optionally an object for `-f -`.
    pub fn kubectl_as(&self, kubeconfig: &Path, args: &[&str], input: Option<&Value>) -> Result<String> {
        let mut command = Command::new(&self.kubectl);
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--cache-dir")
            .arg(self.cache.join("kubectl"))
            .args(args);
        run(command, input.map(Value::to_string))
    }

    /// Server-side applies one object as the administrator.
    pub fn apply(&self, object: &Value) -> Result<()> {
        let args = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--field-manager=fairlead-xtask",
            "-f",
            "-",
        ];
        self.kubectl_as(&self.kubeconfig, &args, Some(object)).map(drop)
    }

    /// Runs helm as the administrator.
    pub fn helm(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.helm);
        for (variable, directory) in [
            ("HELM_CACHE_HOME", "helm/cache"),
            ("HELM_CONFIG_HOME", "helm/config"),
            ("HELM_DATA_HOME", "helm/data"),
        ] {
            command.env(variable, self.cache.join(directory));
        }
        command.args(args).arg("--kubeconfig").arg(&self.kubeconfig);
        run(command, None)
    }
}

/// Runs a command to its end, giving it `input`, and returns its standard output.
fn run(mut command: Command, input: Option<String>) -> Result<String> {
    let line = format!("{command:?}");
    let stdin = if input.is_some() {
        Stdio::piped()
    } else {
        Stdio::null()
    };
    let spawned = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.with_context(|| format!("start {line}"))?;
    if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
        // A command that ends before it read everything says why on standard error.
        let _ = pipe.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .with_context(|| format!("wait for {line}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{line} failed with {}: {}", output.status, said.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("read the output of {line} as UTF-8"))
}

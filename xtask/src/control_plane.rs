//! A real control plane on loopback ports: etcd, kube-apiserver and kube-controller-manager.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cluster::{Cluster, User};
use crate::ledger::{Ledger, Spec};
use crate::ports::Ports;
use crate::{repo, wait};

pub mod binaries;
mod flags;
pub mod pki;

use binaries::Binaries;
use pki::Pki;

/// Time a control plane may take until it is ready; it needs about 4 s on two idle cores.
const READY_LIMIT: Duration = Duration::from_secs(120);
const ETCD: &str = "etcd";
const APISERVER: &str = "kube-apiserver";
const CONTROLLER_MANAGER: &str = "kube-controller-manager";

/// How to start a control plane.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of its state: certificates, data, logs, records of processes, `audit.log`, `kubeconfig`.
    /// What runs there is left running, what is stored there is used again.
    pub dir: PathBuf,
    /// Whether etcd flushes each write to disk. True for every measurement; false makes tests quicker.
    pub fsync: bool,
}

/// A running control plane. Unless it is [detached](ControlPlane::detach), the processes it started end
/// with it, also if our own process is killed.
#[derive(Debug)]
pub struct ControlPlane {
    dir: PathBuf,
    ledger: Ledger,
    cluster: Cluster,
    ca_pem: String,
    /// Keeps a second run of the same test program out of our directory.
    _turn: Option<File>,
}

impl ControlPlane {
    /// Starts what of the control plane does not run in `options.dir`, and waits until the API server is
    /// ready and the controllers work. The first call on a machine builds the programs.
    ///
    /// # Errors
    /// When a program cannot be built or started, ends early (with the end of its log), or is not ready
    /// within two minutes.
    pub fn start(options: &Options) -> Result<Self> {
        let binaries = Binaries::ensure()?;
        fs::create_dir_all(&options.dir).with_context(|| format!("make {}", options.dir.display()))?;
        let dir = options
            .dir
            .canonicalize()
            .with_context(|| format!("resolve {}", options.dir.display()))?;
        let options = Options {
            dir,
            fsync: options.fsync,
        };
        let mut attempt = 0;
        loop {
            attempt += 1;
            match Starting::new(&options, &binaries)?.run() {
                Ok(control_plane) => return Ok(control_plane),
                // A port that was free a moment ago may be taken: choose others, unless somebody knows them.
                Err((error, true)) if attempt < 4 => {
                    eprintln!("control plane: {error:#}; trying other ports")
                }
                Err((error, _)) => return Err(error),
            }
        }
    }

    /// Starts a fresh control plane for one test program, without flushing, in
    /// `target/control-planes/NAME`. What an earlier run left there is removed first, so that data and
    /// logs of the last run can be read after it; while an earlier run still works there, this waits.
    pub fn for_tests(name: &str) -> Result<Self> {
        let parent = repo::target_dir().join("control-planes");
        fs::create_dir_all(&parent).with_context(|| format!("make {}", parent.display()))?;
        let lock = parent.join(format!("{name}.lock"));
        let turn = File::create(&lock).with_context(|| format!("create {}", lock.display()))?;
        turn.lock().with_context(|| format!("lock {}", lock.display()))?;
        let dir = parent.join(name);
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
        }
        let control_plane = Self::start(&Options { dir, fsync: false })?;
        Ok(Self {
            _turn: Some(turn),
            ..control_plane
        })
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.cluster.kubeconfig
    }

    /// `https://127.0.0.1:PORT`.
    pub fn server_url(&self) -> &str {
        &self.cluster.server
    }

    /// The certificate of the server's authority, as PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The API server's audit log: one JSON event a line, level Metadata, for every request.
    pub fn audit_log(&self) -> PathBuf {
        audit_log(&self.dir)
    }

    /// The cluster, for [`crate::install`] and for kubectl.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The state directory, absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Process numbers by program name.
    pub fn pids(&self) -> Result<BTreeMap<String, u32>> {
        let mut pids = BTreeMap::new();
        for name in [ETCD, APISERVER, CONTROLLER_MANAGER] {
            if let Some(process) = self.ledger.process(name)? {
                pids.insert(name.to_owned(), process.pid);
            }
        }
        Ok(pids)
    }

    /// Lets the processes live on after this value.
    pub fn detach(mut self) -> Result<()> {
        self.ledger.detach()
    }
}

fn audit_log(dir: &Path) -> PathBuf {
    dir.join("audit.log")
}

/// One attempt to start.
struct Starting<'a> {
    options: &'a Options,
    binaries: &'a Binaries,
    pki: Pki,
    ledger: Ledger,
    ports: Ports,
    ports_are_new: bool,
    launched: Vec<&'static str>,
}

impl<'a> Starting<'a> {
    fn new(options: &'a Options, binaries: &'a Binaries) -> Result<Self> {
        let ports = Ports::load(&options.dir.join("control-plane.json"))?;
        Ok(Self {
            options,
            binaries,
            pki: Pki::ensure(&options.dir.join("pki"))?,
            ledger: Ledger::open(&options.dir)?,
            ports_are_new: ports.is_empty(),
            ports,
            launched: Vec::new(),
        })
    }

    /// Starts everything; an error comes with whether other ports may help.
    fn run(mut self) -> Result<ControlPlane, (anyhow::Error, bool)> {
        match self.start() {
            Ok((cluster, ca_pem)) => Ok(ControlPlane {
                dir: self.options.dir.clone(),
                ledger: self.ledger,
                cluster,
                ca_pem,
                _turn: None,
            }),
            Err(error) => {
                let taken = format!("{error:#}").contains("address already in use");
                let again = taken && self.ports_are_new && self.ports.forget().is_ok();
                Err((error, again))
            }
        }
    }

    fn start(&mut self) -> Result<(Cluster, String)> {
        let dir = self.options.dir.clone();
        let [etcd, peer, port] = self.ports.choose(["etcd", "etcd-peer", "kube-apiserver"])?;
        let cluster = Cluster {
            server: format!("https://127.0.0.1:{port}"),
            ca: self.pki.ca.clone(),
            kubeconfig: dir.join("kubeconfig"),
            kubectl: self.binaries.kubectl.clone(),
            helm: self.binaries.helm.clone(),
            cache: dir.join("cache"),
        };
        let admin = User::Certificate(&self.pki.admin.certificate, &self.pki.admin.key);
        cluster.write_kubeconfig(admin, &cluster.kubeconfig)?;
        let controller = User::Certificate(
            &self.pki.controller_manager.certificate,
            &self.pki.controller_manager.key,
        );
        let controller_kubeconfig = dir.join("controller-manager.kubeconfig");
        cluster.write_kubeconfig(controller, &controller_kubeconfig)?;
        let policy = dir.join("audit-policy.yaml");
        fs::write(&policy, flags::AUDIT_POLICY).with_context(|| format!("write {}", policy.display()))?;

        // The API server waits for etcd by itself, so the two start side by side.
        self.launch(
            ETCD,
            &self.binaries.etcd,
            flags::etcd(&dir.join("etcd"), etcd, peer, self.options.fsync),
        )?;
        let flags = flags::apiserver(&self.pki, port, etcd, &policy, &audit_log(&dir));
        self.launch(APISERVER, &self.binaries.apiserver, flags)?;
        self.wait_for("the API server to be ready", || {
            // Asking the port first spares a process per look while nobody listens.
            Ok(TcpStream::connect(("127.0.0.1", port)).is_ok()
                && cluster.kubectl(&["get", "--raw", "/readyz"]).is_ok())
        })?;
        let flags = flags::controller_manager(&self.pki, &controller_kubeconfig);
        self.launch(CONTROLLER_MANAGER, &self.binaries.controller_manager, flags)?;
        self.wait_for("the controllers to work", || {
            Ok(cluster
                .kubectl(&["get", "serviceaccount", "default", "--namespace=default"])
                .is_ok())
        })?;
        let ca =
            fs::read_to_string(&self.pki.ca).with_context(|| format!("read {}", self.pki.ca.display()))?;
        Ok((cluster, ca))
    }

    fn launch(&mut self, name: &'static str, program: &Path, args: Vec<String>) -> Result<()> {
        let spec = Spec {
            name: name.to_owned(),
            program: program.to_path_buf(),
            args,
            env: Vec::new(),
            launcher: false,
        };
        self.ledger.ensure(&spec)?;
        self.launched.push(name);
        Ok(())
    }

    /// Waits for `condition`, and fails at once when a process that should serve it has ended.
    fn wait_for(&self, what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
        wait::until(
            what,
            READY_LIMIT,
            Duration::from_millis(100),
            || {
                for name in &self.launched {
                    if !self.ledger.is_running(name)? {
                        bail!("{name} ended: {}", self.ledger.log_tail(name));
                    }
                }
                Ok(condition()?.then_some(()))
            },
            || {
                self.launched
                    .iter()
                    .map(|name| format!("\n{name}: {}", self.ledger.log_tail(name)))
                    .collect()
            },
        )
    }
}

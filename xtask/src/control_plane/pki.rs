//! Keys and certificates of a throw-away control plane.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A certificate file and the file of its key.
#[derive(Clone, Debug)]
pub struct Pair {
    /// PEM certificate.
    pub certificate: PathBuf,
    /// PEM key, readable by its owner only.
    pub key: PathBuf,
}

/// The files of one control plane.
#[derive(Clone, Debug)]
pub struct Pki {
    /// Certificate of the authority that signed all others.
    pub ca: PathBuf,
    /// Serving certificate of the API server, for 127.0.0.1, localhost and the cluster's own names.
    pub server: Pair,
    /// Client of group `system:masters`: the administrator.
    pub admin: Pair,
    /// Client `system:kube-controller-manager`.
    pub controller_manager: Pair,
    /// Private key that signs ServiceAccount tokens.
    pub service_accounts: PathBuf,
    /// Public key that verifies them.
    pub service_accounts_public: PathBuf,
}

impl Pki {
    /// The files in `dir`, made there when `dir` does not exist. They appear all or none.
    pub fn ensure(dir: &Path) -> Result<Self> {
        if !dir.exists() {
            let partial = dir.with_extension("partial");
            if partial.exists() {
                fs::remove_dir_all(&partial).with_context(|| format!("remove {}", partial.display()))?;
            }
            fs::create_dir_all(&partial).with_context(|| format!("make {}", partial.display()))?;
            create(&Self::at(&partial))
                .with_context(|| format!("make certificates in {}", partial.display()))?;
            fs::rename(&partial, dir)
                .with_context(|| format!("move {} to {}", partial.display(), dir.display()))?;
        }
        Ok(Self::at(dir))
    }

    fn at(dir: &Path) -> Self {
        let pair = |name: &str| Pair {
            certificate: dir.join(format!("{name}.crt")),
            key: dir.join(format!("{name}.key")),
        };
        Self {
            ca: dir.join("ca.crt"),
            server: pair("server"),
            admin: pair("admin"),
            controller_manager: pair("controller-manager"),
            service_accounts: dir.join("service-accounts.key"),
            service_accounts_public: dir.join("service-accounts.pub"),
        }
    }
}

fn create(files: &Pki) -> Result<()> {
    let key = KeyPair::generate()?;
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    authority
        .distinguished_name
        .push(DnType::CommonName, "fairlead-control-plane");
    write_private(&files.ca, &authority.self_signed(&key)?.pem())?;
    let authority = Issuer::new(authority, key);

    let names = [
        "127.0.0.1",
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
    ];
    let mut server = CertificateParams::new(names.map(str::to_owned).to_vec())?;
    server
        .distinguished_name
        .push(DnType::CommonName, "kube-apiserver");
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    issue(server, &authority, &files.server)?;
    issue(
        client("fairlead-admin", Some("system:masters")),
        &authority,
        &files.admin,
    )?;
    issue(
        client("system:kube-controller-manager", None),
        &authority,
        &files.controller_manager,
    )?;
    let signer = KeyPair::generate()?;
    write_private(&files.service_accounts, &signer.serialize_pem())?;
    write_private(&files.service_accounts_public, &signer.public_key_pem())
}

/// A client certificate: Kubernetes reads the user from the common name, groups from the organisation.
fn client(user: &str, group: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn issue(mut params: CertificateParams, authority: &Issuer<'_, KeyPair>, files: &Pair) -> Result<()> {
    let key = KeyPair::generate()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let certificate = params.signed_by(&key, authority)?;
    write_private(&files.certificate, &certificate.pem())?;
    write_private(&files.key, &key.serialize_pem())
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let mut file = file.with_context(|| format!("create {}", path.display()))?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("write {}", path.display()))
}

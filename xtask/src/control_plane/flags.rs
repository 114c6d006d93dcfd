//! Command lines of the control plane's processes.

use std::path::Path;

use super::pki::Pki;

/// ServiceAccount issuer; tokens minted without an audience are for it.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Everything once, when it is answered, without bodies: enough to count requests by user and verb.
pub const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

/// Flags of etcd. `fsync` false leaves out the flush after each write: quick, and lost with the machine.
pub fn etcd(data: &Path, client: u16, peer: u16, fsync: bool) -> Vec<String> {
    let (client, peer) = (
        format!("http://127.0.0.1:{client}"),
        format!("http://127.0.0.1:{peer}"),
    );
    let mut flags = vec![
        "--name=fairlead".to_owned(),
        format!("--data-dir={}", data.display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=fairlead={peer}"),
        "--log-level=warn".to_owned(),
    ];
    if !fsync {
        flags.push("--unsafe-no-fsync".to_owned());
    }
    flags
}

/// Flags of kube-apiserver on `port`, with etcd on `etcd`.
pub fn apiserver(pki: &Pki, port: u16, etcd: u16, audit_policy: &Path, audit_log: &Path) -> Vec<String> {
    vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        // A loopback address cannot be an endpoint of the `kubernetes` Service, which nobody uses here.
        "--advertise-address=127.0.0.1".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        format!("--tls-cert-file={}", pki.server.certificate.display()),
        format!("--tls-private-key-file={}", pki.server.key.display()),
        format!("--client-ca-file={}", pki.ca.display()),
        format!("--service-account-issuer={ISSUER}"),
        format!(
            "--service-account-key-file={}",
            pki.service_accounts_public.display()
        ),
        format!(
            "--service-account-signing-key-file={}",
            pki.service_accounts.display()
        ),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
        format!("--audit-policy-file={}", audit_policy.display()),
        format!("--audit-log-path={}", audit_log.display()),
        "--audit-log-format=json".to_owned(),
        // One file, however long a test counts in it (megabytes; without this it is cut at 100).
        "--audit-log-maxsize=4096".to_owned(),
        "--audit-log-maxbackup=1".to_owned(),
    ]
}

/// Flags of kube-controller-manager.
///
/// Without a kubelet nothing renews Nodes or runs Pods, so the controllers that would taint and
/// remove them are off: identities of node agents hang on such objects.
pub fn controller_manager(pki: &Pki, kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--authentication-kubeconfig={}", kubeconfig.display()),
        format!("--authorization-kubeconfig={}", kubeconfig.display()),
        format!("--root-ca-file={}", pki.ca.display()),
        format!("--service-account-private-key-file={}", pki.service_accounts.display()),
        "--use-service-account-credentials=true".to_owned(),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
        // The default of 20 requests a second makes the start of some 40 controllers take 5 s.
        "--kube-api-qps=200".to_owned(),
        "--kube-api-burst=400".to_owned(),
        "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller,-pod-garbage-collector-controller"
            .to_owned(),
    ]
}

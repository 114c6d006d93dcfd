//! Which network a tool sees.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use fairlead_supervisor::wire::FLAG_PRIVATE_NETWORK;
use rig::{Rig, ready};

/// The test program as the agent: see the rig.
#[test]
fn fake_agent() {
    rig::be_agent();
}

/// Tries the listeners of the test, then talks to itself.
fn script(port: u16, abstract_name: &str) -> String {
    format!(
        r#"import socket
def reach(what, family, address):
    try:
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.settimeout(2)
            s.connect(address)
        print(what, "reached")
    except OSError as e:
        print(what, e.strerror)
reach("tcp", socket.AF_INET, ("127.0.0.1", {port}))
reach("abstract", socket.AF_UNIX, "\0{abstract_name}")
with socket.create_server(("127.0.0.1", 0)) as own:
    reach("itself", socket.AF_INET, own.getsockname())
print(",".join(name for _, name in socket.if_nameindex()))
"#
    )
}

#[test]
fn a_private_network_has_a_loopback_device_and_nothing_else() {
    if !ready() {
        return;
    }
    let tcp = TcpListener::bind("127.0.0.1:0").expect("listen");
    let name = format!("fairlead-test-network-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("address");
    let _unix = UnixListener::bind_addr(&address).expect("listen");
    let script = script(tcp.local_addr().expect("address").port(), &name);
    let rig = Rig::start("network", &[]);
    let (mut agent, _) = rig.agent();

    let attempt = rig.attempt(1);
    let (status, output) = agent.run(&attempt, &["python3", "-c", &script]);
    assert_eq!(status, 0, "{output}");
    let expected = "tcp Connection refused\nabstract Connection refused\nitself reached\nlo\n";
    assert_eq!(output, expected);

    let mut attempt = rig.attempt(2);
    attempt.spawn.flags &= !FLAG_PRIVATE_NETWORK;
    let (status, output) = agent.run(&attempt, &["python3", "-c", &script]);
    assert_eq!(status, 0, "{output}");
    assert!(
        output.starts_with("tcp reached\nabstract reached\nitself reached\n"),
        "{output}"
    );
}

#[test]
fn what_lies_outside_has_no_route() {
    if !ready() {
        return;
    }
    let rig = Rig::start("route", &[]);
    let (mut agent, _) = rig.agent();
    let attempt = rig.attempt(1);
    // The metadata address of clouds, and one of the documentation's (RFC 5737, RFC 3849).
    let script = r#"import socket
for address in ["169.254.169.254", "192.0.2.1", "2001:db8::1"]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.socket(family, socket.SOCK_DGRAM).connect((address, 80))
        print(address, "has a route")
    except OSError as e:
        print(e.strerror)
"#;
    let (status, output) = agent.run(&attempt, &["python3", "-c", script]);
    assert_eq!(
        (status, output.as_str()),
        (0, "Network is unreachable\n".repeat(3).as_str())
    );
}

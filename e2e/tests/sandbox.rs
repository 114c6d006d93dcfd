//! What a hostile tool reaches, and what it does not.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_crds::{ExecutionPhase, ToolExecution};
use fairlead_e2e::fleet::*;
use fairlead_e2e::{cluster_for_programs, namespace};
use serde_json::json;

/// Prints `reached` or the error for each address in `$1` and following.
const CONNECT: &str = r#"import socket, sys
for address in sys.argv[1:]:
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 2).close()
        print("reached")
    except OSError as e:
        print(e.strerror)
"#;

async fn output(ns: &str, name: &str) -> String {
    let execution: ToolExecution = ended_execution(ns, name, SOON).await;
    let status = execution.status.unwrap();
    assert_eq!(status.phase, Some(ExecutionPhase::Succeeded), "{status:?}");
    status.output.unwrap().text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_reaches_no_network_unless_it_is_given_the_nodes() {
    drop(fleet(1));
    let ns = namespace("network").await;
    let server = cluster_for_programs().server_url();
    let server = server.strip_prefix("https://").unwrap();
    for (name, network) in [("alone", "None"), ("host", "Host")] {
        let mut tool = shell_tool(name, "");
        tool["spec"]["network"] = json!(network);
        tool["spec"]["runner"]["command"]["argv"] =
            json!(["python3", "-c", CONNECT, server, "169.254.169.254:80"]);
        made(&ns, &tool).await;
        made(&ns, &own_execution(name, name, "")).await;
    }
    assert_eq!(
        output(&ns, "alone").await,
        "Connection refused\nNetwork is unreachable\n"
    );
    let host = output(&ns, "host").await;
    assert!(host.starts_with("reached\n"), "{host}");
}

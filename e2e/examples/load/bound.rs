//! Executions that are bound when they are made, as the calls of a run are.

use std::time::{Duration, Instant};

use fairlead_crds::names::{COMPONENT_NODE_AGENT, LABEL_COMPONENT, node_lease};
use fairlead_crds::{Binding, ToolExecution};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};

use crate::calls::{call, tool};
use crate::floor::delete;
use crate::seen::Seen;
use crate::{SYSTEM, client, executions, flood, micros, spaced};

/// Binds executions of one tool as the operator would.
pub struct Binder {
    tool: &'static str,
    /// What the operator itself wrote for such an execution.
    model: Binding,
    /// Name and incarnation of each node.
    nodes: Vec<(String, String)>,
    user: Api<ToolExecution>,
    operator: Api<ToolExecution>,
}

impl Binder {
    /// For executions of `name`, which runs `argv`. Makes one as a user to see what the operator writes.
    pub async fn of(name: &'static str, argv: &[&str]) -> Self {
        tool(name, argv).await;
        let user = executions("LOAD_USER").await;
        let seen = Seen::start(executions("LOAD_USER").await).await;
        let first = format!("first-{name}");
        user.create(&PostParams::default(), &call(&first, name))
            .await
            .expect("create");
        seen.wait(&first, |times| times.bound.is_some()).await;
        let object = user.get(&first).await.expect("read the execution");
        delete(&user, &first).await;
        let leases: Api<Lease> = Api::namespaced(client("LOAD_OPERATOR").await, SYSTEM);
        let of_nodes = ListParams::default().labels(&format!("{LABEL_COMPONENT}={COMPONENT_NODE_AGENT}"));
        let leases = leases.list(&of_nodes).await.expect("list Leases").items;
        let mut nodes: Vec<_> = leases
            .into_iter()
            .map(|lease| {
                let mut annotations = lease.metadata.annotations.expect("annotations");
                let incarnation = annotations.remove(node_lease::INCARNATION);
                (
                    lease.metadata.name.expect("a name"),
                    incarnation.expect("an incarnation"),
                )
            })
            .collect();
        nodes.sort();
        Self {
            tool: name,
            model: object.spec.binding.expect("it is bound"),
            nodes,
            user,
            operator: executions("LOAD_OPERATOR").await,
        }
    }

    /// From its creation by the operator's token until the user sees that it succeeded, and deletes it.
    pub async fn round_trip(&self, seen: &Seen, name: &str, node: usize, number: usize) -> Duration {
        let object = self.execution(name, node, number);
        let start = Instant::now();
        self.operator
            .create(&PostParams::default(), &object)
            .await
            .expect("create");
        let took = seen.success(name).await - start;
        delete(&self.user, name).await;
        took
    }

    /// An execution that is bound to node number `node`; its fence is `number`.
    pub fn execution(&self, name: &str, node: usize, number: usize) -> ToolExecution {
        let (node_name, incarnation) = self.nodes[node].clone();
        let mut object = call(name, self.tool);
        object.spec.binding = Some(Binding {
            node_name,
            incarnation,
            fence: format!("{number:032x}"),
            admitted_at: jiff::Timestamp::now(),
            ..self.model.clone()
        });
        object
    }
}

/// `true`, spaced and as a flood; the operator's token makes, and the user watches and deletes.
pub async fn measure(count: usize, in_flight: usize, total: usize) -> Value {
    let binder = Binder::of("true", &["true"]).await;
    let seen = Seen::start(executions("LOAD_USER").await).await;
    let once = async |name: String, index: usize| {
        binder
            .round_trip(&seen, &name, index % binder.nodes.len(), index)
            .await
    };
    let round_trips = spaced(count, |index| once(format!("bound-{index}"), index)).await;
    let per_second = flood(in_flight, total, async |index| {
        once(format!("bound-flood-{index}"), index).await;
    })
    .await;
    json!({"spaced": micros(round_trips), "perSecond": per_second})
}

//! Which Leases a node agent may write.

use fairlead_e2e::*;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

#[tokio::test]
async fn an_agent_keeps_the_lease_of_its_own_node_only() {
    cluster();
    let (agent, other) = (node_agent("node-e1").await, node_agent("node-e2").await);
    let lease = |name: &str| Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some("me".to_owned()),
            ..LeaseSpec::default()
        }),
    };
    let parameters = PostParams::default();
    leases(agent.clone())
        .create(&parameters, &lease("node-e1"))
        .await
        .expect("its own Lease may be made");
    let made = leases(agent.clone()).create(&parameters, &lease("node-e2")).await;
    refused(
        "create another node's Lease",
        made,
        &["metadata.name", "\"node-e1\"", "\"node-e2\""],
    );

    leases(other.clone())
        .create(&parameters, &lease("node-e2"))
        .await
        .unwrap();
    let renew = json!({"spec": {"holderIdentity": "thief"}});
    let patch = |name: &'static str| {
        let (api, renew) = (leases(agent.clone()), renew.clone());
        async move {
            api.patch(name, &PatchParams::default(), &Patch::Merge(&renew))
                .await
        }
    };
    patch("node-e1").await.expect("its own Lease may be renewed");
    refused(
        "renew another node's Lease",
        patch("node-e2").await,
        &["metadata.name", "\"node-e2\""],
    );
    let leader = patch(fairlead_crds::names::LEADER_LEASE).await;
    refused(
        "take the leader's Lease",
        leader,
        &["metadata.name", "fairlead-operator"],
    );
    let removed = leases(agent.clone())
        .delete("node-e2", &DeleteParams::default())
        .await;
    refused(
        "delete another node's Lease",
        removed,
        &["cannot delete resource"],
    );
}

#[tokio::test]
async fn the_lease_of_a_node_that_is_named_like_the_leader_is_out_of_reach() {
    cluster();
    let agent = node_agent(fairlead_crds::names::LEADER_LEASE).await;
    let patch = json!({"spec": {"leaseTransitions": 99}});
    let api = leases(agent);
    let patch = api
        .patch(
            fairlead_crds::names::LEADER_LEASE,
            &PatchParams::default(),
            &Patch::Merge(&patch),
        )
        .await;
    refused(
        "an agent of a node called fairlead-operator",
        patch,
        &["metadata.name"],
    );
}

use super::*;
use serde_json::json;

fn info(major: &str, minor: &str) -> Info {
    Info {
        major: major.into(),
        minor: minor.into(),
        git_version: format!("v{major}.{minor}"),
        ..Info::default()
    }
}

#[test]
fn an_old_server_is_refused_and_a_vendor_s_plus_is_read() {
    assert_eq!(server_version(&info("1", "32")).verdict, Verdict::Ok);
    assert_eq!(server_version(&info("1", "36+")).verdict, Verdict::Ok);
    assert_eq!(server_version(&info("1", "31")).verdict, Verdict::Fail);
    assert_eq!(server_version(&info("", "")).verdict, Verdict::Fail);
}

fn definition(revision: Option<&str>, established: &str) -> CustomResourceDefinition {
    let annotations = revision.map(|revision| json!({CRD_REVISION_ANNOTATION: revision}));
    serde_json::from_value(json!({
        "metadata": {"name": "tools.fairlead.dev", "annotations": annotations},
        "spec": {"group": "", "names": {"kind": "", "plural": ""}, "scope": "", "versions": []},
        "status": {"conditions": [{"type": "Established", "status": established}]},
    }))
    .unwrap()
}

#[test]
fn a_crd_must_be_there_served_and_new_enough() {
    let seen = |there: &[CustomResourceDefinition]| crd("tools.fairlead.dev", there);
    assert_eq!(seen(&[]).seen, "not there");
    let current = CRD_REVISION.to_string();
    assert_eq!(seen(&[definition(Some(&current), "True")]).verdict, Verdict::Ok);
    assert_eq!(
        seen(&[definition(Some(&current), "False")]).seen,
        "not Established"
    );
    assert_eq!(seen(&[definition(Some("0"), "True")]).verdict, Verdict::Fail);
    assert!(
        seen(&[definition(None, "True")])
            .seen
            .starts_with("has no annotation")
    );
}

#[test]
fn a_policy_that_is_missing_or_has_no_binding_is_named() {
    let all: Vec<String> = ADMISSION_POLICIES.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(policies(&[], &[]).len(), all.len());
    let findings = policies(&all, &all[1..]);
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].check, format!("admission policy {}", all[0]));
    assert_eq!(findings[0].seen, "no binding denies by it");
    assert_eq!(policies(&all, &all)[0].verdict, Verdict::Ok);
}

fn lease(holder: &str, annotations: serde_json::Value) -> Lease {
    serde_json::from_value(json!({
        "metadata": {"name": "node-0", "annotations": annotations},
        "spec": {"holderIdentity": holder, "leaseTransitions": 3},
    }))
    .unwrap()
}

#[test]
fn a_leader_must_be_there_and_renew() {
    assert_eq!(leader(None, false, "fairlead-system").verdict, Verdict::Fail);
    assert_eq!(
        leader(Some(&lease("", json!({}))), true, "x").seen,
        "nobody leads"
    );
    assert_eq!(
        leader(Some(&lease("op-1", json!({}))), false, "x").seen,
        "op-1 stopped renewing its Lease"
    );
    assert_eq!(
        leader(Some(&lease("op-1", json!({}))), true, "x").seen,
        "op-1 leads, term 3"
    );
}

#[test]
fn a_node_says_what_it_cannot_enforce() {
    let said = |backend: &str, missing: &str| {
        let annotations = json!({node_lease::BACKEND: backend, node_lease::MISSING_CONTROLLERS: missing,
                                 node_lease::CAPACITY: "32"});
        node(&lease("node-0", annotations), true, "x")
    };
    assert_eq!(
        said("CgroupV2", ""),
        Finding::ok("node node-0", "CgroupV2, capacity 32")
    );
    assert_eq!(said("CgroupV2", "cpu,memory").verdict, Verdict::Warn);
    assert_eq!(said("ProcessGroup", "").verdict, Verdict::Warn);
    assert_eq!(
        node(&lease("node-0", json!({})), false, "x").verdict,
        Verdict::Fail
    );
}

#[test]
fn each_line_that_is_not_ok_has_its_fix_below_it() {
    let findings = [
        Finding::ok("a", "good"),
        Finding::fail("b", "gone", "bring it back"),
    ];
    assert_eq!(
        lines(&findings, Paint::OFF),
        ["OK    a: good", "FAIL  b: gone", "      fix: bring it back"]
    );
}

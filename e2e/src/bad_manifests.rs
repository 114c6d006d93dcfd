//! The bad manifests in `e2e/bad-manifests`: what must become of each, written at its head.
//!
//! A file is a few comment lines and one or more YAML documents:
//!
//! ```yaml
//! # expect: refused              # or accepted-condition, denied-call or failed-run
//! # says: spec.limits.maxTurns   # one line per part that the answer must contain: field, rule, fix
//! # says: greater than or equal to 1
//! apiVersion: …
//! ```
//!
//! Only the last document is bad; those before it are applied first. A last document of the same kind and name as an
//! earlier one is a change of it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// What must become of the last document of a bad manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The API server refuses it.
    Refused,
    /// It is stored, and its condition `Accepted` (of a Tool) becomes False with a message that says why.
    AcceptedCondition,
    /// It is stored, and the ToolExecution ends as `Denied` with a message that says why.
    DeniedCall,
    /// It is stored, and the AgentRun ends as `Failed`, before any turn, with a message that says why.
    FailedRun,
}

/// One bad manifest.
#[derive(Clone, Debug)]
pub struct BadManifest {
    /// Name of the file, without `.yaml`.
    pub name: String,
    /// What must become of it.
    pub expect: Expect,
    /// Parts that the answer must contain: the field, the rule, the fix.
    pub says: Vec<String>,
    /// The documents, the bad one last.
    pub documents: Vec<Value>,
}

impl BadManifest {
    /// The bad document.
    pub fn bad(&self) -> &Value {
        self.documents.last().expect("a document")
    }

    /// The documents that are applied before it.
    pub fn good(&self) -> &[Value] {
        self.documents.split_last().map_or(&[], |(_, good)| good)
    }

    /// Whether the bad document changes a document before it.
    pub fn is_change(&self) -> bool {
        let id = |object: &Value| (object["kind"].clone(), object["metadata"]["name"].clone());
        self.good().iter().any(|object| id(object) == id(self.bad()))
    }
}

/// Every bad manifest, by name; those that are too large for a file are made here.
///
/// # Panics
/// When a file cannot be read or says nothing of what is expected.
pub fn all() -> Vec<BadManifest> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("bad-manifests");
    let entries =
        fs::read_dir(&directory).unwrap_or_else(|error| panic!("list {}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let mut all: Vec<BadManifest> = paths.iter().map(|path| read(path)).collect();
    all.extend([
        oversize_arguments(),
        oversize_parameters(),
        many_branches(),
        much_to_match(),
        much_to_check(),
    ]);
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn read(path: &Path) -> BadManifest {
    let shown = path.display();
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("read {shown}: {error}"));
    let head = |key: &str| -> Vec<String> {
        let prefix = format!("# {key}: ");
        text.lines()
            .filter_map(|line| line.strip_prefix(&prefix))
            .map(str::to_owned)
            .collect()
    };
    let expect = match head("expect").as_slice() {
        [word] if word == "refused" => Expect::Refused,
        [word] if word == "accepted-condition" => Expect::AcceptedCondition,
        [word] if word == "denied-call" => Expect::DeniedCall,
        [word] if word == "failed-run" => Expect::FailedRun,
        other => panic!("{shown}: `# expect:` says {other:?}"),
    };
    let parse = |document: &str| -> Value {
        serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("parse {shown}: {error}"))
    };
    let says = head("says");
    assert!(!says.is_empty(), "{shown}: no `# says:`");
    BadManifest {
        name: path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        expect,
        says,
        documents: text.split("\n---\n").map(parse).collect(),
    }
}

/// Arguments of 70,000 bytes: valid for the schema, and more than a call may have. Not a file, for its size.
fn oversize_arguments() -> BadManifest {
    let mut call = crate::execution("oversize-arguments");
    call["spec"]["arguments"] = serde_json::json!({"text": "x".repeat(70_000)});
    let mut tool = crate::tool("word");
    tool["spec"]["inputSchema"] =
        serde_json::json!({"type": "object", "properties": {"text": {"type": "string"}}});
    BadManifest {
        name: "execution-arguments-oversize".to_owned(),
        expect: Expect::DeniedCall,
        says: ["arguments", "at most 65536", "send less"]
            .map(str::to_owned)
            .to_vec(),
        documents: vec![tool, call],
    }
}

fn made(name: &str, expect: Expect, says: &[&str], documents: Vec<Value>) -> BadManifest {
    BadManifest {
        name: name.to_owned(),
        expect,
        says: says.iter().map(|part| (*part).to_owned()).collect(),
        documents,
    }
}

/// Parameters of 20,000 bytes: each turn would hold them again.
fn oversize_parameters() -> BadManifest {
    let mut run = crate::run("oversize-parameters");
    run["spec"]["model"]["parameters"] = serde_json::json!({"stop": "x".repeat(20_000)});
    let says = ["spec.model.parameters", "at most 16384", "shorten them"];
    made("run-parameters-oversize", Expect::FailedRun, &says, vec![run])
}

fn branches(count: usize) -> Value {
    let branches: Vec<Value> = (0..count)
        .map(|n| serde_json::json!({"type": "string", "minLength": n}))
        .collect();
    serde_json::json!({"anyOf": branches})
}

fn tool_of_a_list(name: &str, items: Value) -> Value {
    let mut tool = crate::tool(name);
    tool["spec"]["inputSchema"] =
        serde_json::json!({"type": "object", "properties": {"list": {"type": "array", "items": items}}});
    tool
}

/// A thousand branches for each item of a list: little to write, and a lot of work and memory to tell what is wrong.
fn many_branches() -> BadManifest {
    let says = [
        "spec.inputSchema",
        "#/properties/list/items",
        "at most 512",
        "use fewer branches",
    ];
    let tool = tool_of_a_list("many-branches", branches(1000));
    made(
        "tool-schema-many-branches",
        Expect::AcceptedCondition,
        &says,
        vec![tool],
    )
}

/// A text whose match against a large pattern would take seconds.
fn much_to_match() -> BadManifest {
    let tool = tool_of_a_list("letters", serde_json::json!({"pattern": "^[ab]*a[ab]{200}\\W"}));
    let mut call = crate::execution("much-to-match");
    call["spec"]["tool"]["toolRef"]["name"] = Value::from("letters");
    call["spec"]["arguments"] = serde_json::json!({"list": ["ab".repeat(30_000)]});
    let says = ["more than 250000 steps", "shorter texts"];
    made("call-much-to-match", Expect::DeniedCall, &says, vec![tool, call])
}

/// Many items, each judged by many branches.
fn much_to_check() -> BadManifest {
    let tool = tool_of_a_list("many-items", branches(400));
    let mut call = crate::execution("much-to-check");
    call["spec"]["tool"]["toolRef"]["name"] = Value::from("many-items");
    call["spec"]["arguments"] = serde_json::json!({"list": vec![1; 2000]});
    let says = ["more than 250000 steps", "send fewer items"];
    made("call-much-to-check", Expect::DeniedCall, &says, vec![tool, call])
}

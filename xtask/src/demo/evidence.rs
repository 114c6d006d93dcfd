//! That a tool really ran, and that the answer could not have been given without it.

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// One execution of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ran {
    tool: String,
    phase: String,
    exit: String,
    millis: i64,
    backend: String,
    group: String,
}

/// What was read from the objects.
#[derive(Clone, Debug)]
pub struct Evidence {
    ran: Vec<Ran>,
    /// A number that the tool drew when it ran.
    nonce: String,
    /// The control group that the tool saw itself in.
    seen_group: String,
    in_script: bool,
    in_answer: bool,
}

impl Evidence {
    /// Reads a run, the list of its executions, and its provider, as the API server gives them.
    pub fn read(run: &Value, executions: &Value, provider: &Value) -> Result<Self> {
        let items = executions["items"]
            .as_array()
            .context("read the list of executions: no items")?;
        let outputs: Vec<&str> = items
            .iter()
            .filter_map(|item| item["status"]["output"]["text"].as_str())
            .collect();
        let said = |key: &str| {
            outputs
                .iter()
                .flat_map(|text| text.lines())
                .find_map(|line| line.strip_prefix(key))
        };
        let nonce = said("nonce=").context("find the line nonce=… in an output of the run")?;
        let answer = run["status"]["answer"]["text"].as_str().unwrap_or_default();
        Ok(Self {
            ran: items.iter().map(ran).collect(),
            nonce: nonce.to_owned(),
            seen_group: said("cgroup=").unwrap_or_default().to_owned(),
            in_script: provider["spec"].to_string().contains(nonce),
            in_answer: answer.contains(nonce),
        })
    }

    /// The evidence, for a reader.
    pub fn text(&self) -> String {
        let mut text = String::from("what ran\n");
        for ran in &self.ran {
            text.push_str(&format!(
                "  {}: {}, exit code {}, {} ms, in {} {}\n",
                ran.tool, ran.phase, ran.exit, ran.millis, ran.backend, ran.group
            ));
        }
        let word = |yes| if yes { "yes" } else { "no" };
        text.push_str(&format!(
            "  the tool saw itself in control group {}\n",
            self.seen_group
        ));
        text.push_str(&format!(
            "  nonce {}: drawn by the tool; in the script: {}; in the answer: {}",
            self.nonce,
            word(self.in_script),
            word(self.in_answer)
        ));
        text
    }

    /// Fails unless every execution succeeded in a group of its own and the answer holds what only the tool knew.
    pub fn verify(&self) -> Result<()> {
        if self.ran.is_empty() {
            bail!("the run has no executions");
        }
        if let Some(bad) = self
            .ran
            .iter()
            .find(|ran| ran.phase != "Succeeded" || ran.exit != "0")
        {
            bail!(
                "the execution of {} ended {} with exit code {}",
                bad.tool,
                bad.phase,
                bad.exit
            );
        }
        if !self
            .ran
            .iter()
            .any(|ran| !ran.group.is_empty() && self.seen_group.ends_with(&ran.group))
        {
            bail!(
                "no execution reports the control group that the tool saw itself in: {}",
                self.seen_group
            );
        }
        if self.in_script || !self.in_answer {
            bail!(
                "the answer does not prove that the tool ran: nonce {}",
                self.nonce
            );
        }
        Ok(())
    }
}

fn ran(execution: &Value) -> Ran {
    let status = &execution["status"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ran {
        tool: text(&execution["spec"]["tool"]["toolRef"]["name"]),
        phase: text(&status["phase"]),
        exit: status["result"]["exitCode"]
            .as_i64()
            .map_or_else(|| "none".to_owned(), |code| code.to_string()),
        millis: status["usage"]["wallMillis"].as_i64().unwrap_or_default(),
        backend: text(&status["isolation"]["backend"]),
        group: text(&status["isolation"]["group"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn evidence(answer: &str, script: &str, group: &str) -> Evidence {
        let executions = json!({"items": [{
            "spec": {"tool": {"toolRef": {"name": "host-facts"}}},
            "status": {"phase": "Succeeded", "result": {"exitCode": 0}, "usage": {"wallMillis": 12},
                       "isolation": {"backend": "CgroupV2", "group": group},
                       "output": {"text": "kernel=6\ncgroup=/a/payload-1/tx-1\nnonce=n-1\n"}},
        }]});
        let run = json!({"status": {"answer": {"text": answer}}});
        Evidence::read(&run, &executions, &json!({"spec": {"script": script}})).unwrap()
    }

    #[test]
    fn the_answer_must_hold_what_only_the_tool_knew() {
        assert!(evidence("drew n-1.", "{{3}}", "payload-1/tx-1").verify().is_ok());
        assert!(
            evidence("drew nothing", "{{3}}", "payload-1/tx-1")
                .verify()
                .is_err()
        );
        assert!(evidence("drew n-1.", "n-1", "payload-1/tx-1").verify().is_err());
        assert!(evidence("drew n-1.", "{{3}}", "payload-1/tx-2").verify().is_err());
    }

    #[test]
    fn the_evidence_names_group_exit_code_and_duration() {
        assert_eq!(
            evidence("drew n-1.", "{{3}}", "payload-1/tx-1").text(),
            "what ran\n  host-facts: Succeeded, exit code 0, 12 ms, in CgroupV2 payload-1/tx-1\n  \
             the tool saw itself in control group /a/payload-1/tx-1\n  \
             nonce n-1: drawn by the tool; in the script: no; in the answer: yes"
        );
    }
}

//! Every field of a spec changes something: what the model is sent, what runs, what is kept.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use fairlead_crds::{ExecutionPhase, Outcome, RunPhase, SideEffect};
use fairlead_e2e::fleet::*;
use fairlead_e2e::model::{Model, calls};
use fairlead_e2e::namespace;
use serde_json::json;

/// A Tool and a run on it, with every field that a request shows.
fn looking() -> [serde_json::Value; 2] {
    let mut tool = shell_tool("look", "echo looked");
    tool["spec"]["description"] = json!("Looks around.");
    tool["spec"]["sideEffect"] = json!("Read");
    let mut run = run_with("asks", "model", &["look"]);
    run["spec"]["input"] = json!("What is there?");
    run["spec"]["systemPrompt"] = json!("Be brief.");
    run["spec"]["model"] = json!({"providerRef": {"name": "model"}, "name": "big", "parameters": {"temperature": 0.5},
        "maxOutputTokens": 77});
    run["spec"]["serviceAccountName"] = json!("default");
    [tool, run]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_says_what_run_provider_and_tool_say() {
    drop(fleet(1));
    let ns = namespace("request").await;
    let model = Model::start(vec![calls(&[("a", "look", "{}")])]).await;
    made(&ns, &model.provider("model")).await;
    for object in looking() {
        made(&ns, &object).await;
    }
    let run = ended_run(&ns, "asks", SOON).await;
    assert_eq!(
        run.status.as_ref().unwrap().phase,
        Some(RunPhase::Succeeded),
        "{:?}",
        run.status
    );
    let request = &model.requests()[0];
    assert_eq!(
        request["messages"][0],
        json!({"role": "system", "content": "Be brief."})
    );
    assert_eq!(
        request["messages"][1],
        json!({"role": "user", "content": "What is there?"})
    );
    assert_eq!(
        (&request["model"], &request["temperature"]),
        (&json!("big"), &json!(0.5))
    );
    assert!(
        request.to_string().contains("77"),
        "maxOutputTokens is sent: {request}"
    );
    let tools = request["tools"].as_array().unwrap();
    let names: Vec<_> = tools
        .iter()
        .map(|t| t["function"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "look",
            "get_tool_execution",
            "wait_tool_execution",
            "cancel_tool_execution"
        ]
    );
    assert_eq!(tools[0]["function"]["description"], "Looks around.");
    assert_eq!(
        tools[0]["function"]["parameters"]["properties"]["arg"]["type"],
        "string"
    );
    let turns = turns_of(&ns, &run).await;
    assert_eq!(turns[0].spec.tools[0].side_effect, SideEffect::Read);
    assert_eq!(
        turns[1].spec.tools_from, turns[0].metadata.name,
        "unchanged tools are not repeated"
    );
    assert_eq!(turns[0].spec.input.as_deref(), Some("What is there?"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_tools_is_offered_none_unless_it_names_a_set() {
    drop(fleet(1));
    let ns = namespace("offers").await;
    let model = Model::start(vec![]).await;
    made(&ns, &model.provider("model")).await;
    made(&ns, &run_with("bare", "model", &[])).await;
    ended_run(&ns, "bare", SOON).await;
    let mut run = run_with("set", "model", &[]);
    run["spec"]["tools"] = json!([{"builtin": "Executions"}]);
    made(&ns, &run).await;
    ended_run(&ns, "set", SOON).await;
    let requests = model.requests();
    assert!(
        requests[0]["tools"].as_array().is_none_or(Vec::is_empty),
        "{}",
        requests[0]
    );
    assert_eq!(
        requests[1]["tools"].as_array().unwrap().len(),
        3,
        "{}",
        requests[1]
    );
    assert_eq!(requests[0]["model"], "m", "the provider's defaultModel");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_a_turn_has_a_limit_of_its_own() {
    drop(fleet(1));
    let ns = namespace("turn-output").await;
    let model = Model::start(vec![calls(&[
        ("a", "long", "{}"),
        ("b", "long", "{}"),
        ("c", "long", "{}"),
    ])])
    .await;
    made(&ns, &model.provider("model")).await;
    made(&ns, &shell_tool("long", "head -c 4000 /dev/zero | tr '\\0' L")).await;
    let mut run = run_with("capped", "model", &["long"]);
    run["spec"]["limits"] = json!({"maxTurnOutputBytes": 6000});
    made(&ns, &run).await;
    let run = ended_run(&ns, "capped", SOON).await;
    assert_eq!(
        run.status.as_ref().unwrap().phase,
        Some(RunPhase::Succeeded),
        "{:?}",
        run.status
    );
    let request = &model.requests()[1];
    let texts: Vec<_> = request["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["role"] == "tool")
        .map(|m| m["content"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(texts[0], "L".repeat(4000), "the first fits");
    assert!(
        texts.iter().map(String::len).sum::<usize>() <= 6000,
        "{:?}",
        texts.iter().map(String::len).collect::<Vec<_>>()
    );
    assert!(
        texts[1].contains("persisted-output"),
        "what was cut says so: {}",
        texts[1]
    );
    for execution in executions_of(&ns, &run).await {
        assert_eq!(
            execution.status.unwrap().output.unwrap().total_bytes,
            4000,
            "each is stored whole"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_gets_its_arguments_environment_and_input_as_written() {
    drop(fleet(1));
    let ns = namespace("command").await;
    let mut tool = shell_tool("all", "");
    tool["spec"]["runner"]["command"] = json!({
        "argv": ["/bin/sh", "-c", "printf '%s|' \"$@\"; echo \"$COLOUR|$HOME|$PWD|$TMPDIR|$FAIRLEAD_EXECUTION\"; cat; id -u; env | wc -l",
            "tool", "a {{arg}} z", "{{list...}}", "{{absent}}"],
        "env": [{"name": "COLOUR", "value": "blue"}],
        "stdin": "in: {{arg}}\n",
    });
    tool["spec"]["inputSchema"] = json!({"type": "object", "properties": {
        "arg": {"type": "string"}, "list": {"type": "array", "items": {"type": "string"}}, "absent": {"type": "string"}}});
    made(&ns, &tool).await;
    let mut call = own_execution("all", "all", "");
    call["spec"]["arguments"] = json!({"arg": "$(id); 'x' \"y\"", "list": ["one two", "three"]});
    made(&ns, &call).await;
    let status = ended_execution(&ns, "all", SOON).await.status.unwrap();
    assert_eq!(status.phase, Some(ExecutionPhase::Succeeded), "{status:?}");
    let text = status.output.unwrap().text;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[0], "a $(id); 'x' \"y\" z|one two|three|blue|/tmp|/tmp|/tmp|all",
        "{text}"
    );
    assert_eq!(lines[1], "in: $(id); 'x' \"y\"");
    let uid: u32 = lines[2].parse().unwrap();
    assert!((200_000..265_536).contains(&uid), "uid {uid}");
    assert!(
        lines[3].parse::<u32>().unwrap() <= 11,
        "a clean environment: {text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_was_asked_for_and_cannot_be_set_fails_the_call() {
    drop(fleet(1));
    let ns = namespace("limit").await;
    let mut tool = shell_tool("bounded", "echo ran");
    tool["spec"]["resources"] =
        json!({"memoryMaxBytes": 67_108_864, "maxProcesses": 16, "cpuMillicores": 500});
    tool["spec"]["output"] = json!({"maxBytes": 1024});
    made(&ns, &tool).await;
    made(&ns, &own_execution("bounded", "bounded", "")).await;
    let status = ended_execution(&ns, "bounded", SOON).await.status.unwrap();
    let missing = status
        .isolation
        .as_ref()
        .map(|i| i.missing_controllers.clone())
        .unwrap_or_default();
    if missing.is_empty() && status.phase == Some(ExecutionPhase::Succeeded) {
        return; // This node has the controllers, and used them.
    }
    println!("{:?}", status.message);
    assert_eq!(status.phase, Some(ExecutionPhase::Failed), "{status:?}");
    assert_eq!(status.reason.as_deref(), Some("LimitUnavailable"), "{status:?}");
    assert_eq!(status.outcome, Some(Outcome::NotStarted), "{status:?}");
    assert!(
        status.message.unwrap().contains("memory"),
        "the message names the controller"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_changes_between_offer_and_call_is_not_called() {
    drop(fleet(1));
    let ns = namespace("changed").await;
    made(&ns, &shell_tool("moving", "echo old")).await;
    made(
        &ns,
        &script(
            "model",
            &json!([
        {"when": {"turn": 1}, "respond": {"delayMillis": 10_000, "toolCalls": [{"id": "a", "name": "moving"}]}},
        {"when": {"resultMatches": "TOOL_CHANGED"}, "respond": {"text": "It changed."}}]),
        ),
    )
    .await;
    made(&ns, &run_with("surprised", "model", &["moving"])).await;
    let api = turns(&ns).await;
    fairlead_e2e::wait_for("the turn", SOON, || async {
        let list = api.list(&Default::default()).await.map_err(|e| e.to_string())?;
        if list.items.is_empty() {
            Err("no turn".to_owned())
        } else {
            Ok(())
        }
    })
    .await;
    let object = shell_tool("moving", "echo new");
    let patch = json!({"spec": object["spec"]});
    fairlead_e2e::merge(&fairlead_e2e::admin().await, &ns, &object, &patch)
        .await
        .unwrap();
    let run = ended_run(&ns, "surprised", SOON).await;
    assert_eq!(
        run.status
            .as_ref()
            .unwrap()
            .answer
            .as_ref()
            .map(|a| a.text.as_str()),
        Some("It changed."),
        "{:?}",
        run.status
    );
    assert!(executions_of(&ns, &run).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_may_not_be_read_says_how_to_grant_it() {
    drop(fleet(1));
    let ns = namespace("secret").await;
    let model = Model::start(vec![]).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"apiKey": "s3cret"}});
    made(&ns, &secret).await;
    let mut provider = model.provider("model");
    provider["spec"]["credentials"] = json!({"secretRef": {"name": "key"}});
    made(&ns, &provider).await;
    let api: kube::Api<fairlead_crds::ModelProvider> =
        kube::Api::namespaced(fairlead_e2e::admin().await, &ns);
    let ready = |want: &'static str| {
        let api = api.clone();
        async move {
            fairlead_e2e::wait_for("the verdict on the provider", SOON, || async {
                let provider = api.get("model").await.map_err(|e| e.to_string())?;
                let status = provider.status.unwrap_or_default();
                let found = fairlead_crds::conditions::find(&status.conditions, "Ready").cloned();
                found
                    .filter(|c| c.status == want)
                    .ok_or_else(|| format!("{:?}", status.conditions))
            })
            .await
        }
    };
    let told = ready("False").await;
    println!("{}", told.message);
    assert_eq!(told.reason, "SecretNotReadable");
    assert!(
        told.message.contains("kubectl -n ") && told.message.contains("--resource-name=key"),
        "{}",
        told.message
    );
    fairlead_e2e::grant(
        &ns,
        "fairlead-system",
        "fairlead-operator",
        "get",
        "secrets",
        "key",
    )
    .await;
    ready("True").await;
    made(&ns, &run_with("keyed", "model", &[])).await;
    let run = ended_run(&ns, "keyed", SOON).await;
    assert_eq!(
        run.status.as_ref().unwrap().phase,
        Some(RunPhase::Succeeded),
        "{:?}",
        run.status
    );
}

//! Errors as a person reads them, and what to do about them.

use crate::connect::Target;
use kube::Error;

/// What was attempted and why it failed, each said once. Errors of libraries repeat their causes, and show what the API
/// server answered as a data structure.
pub fn chain(error: &anyhow::Error) -> String {
    let mut said: Vec<String> = Vec::new();
    for cause in error.chain() {
        if let Some(Error::Api(status)) = cause.downcast_ref::<Error>() {
            said.push(format!("{} ({} {})", status.message, status.code, status.reason));
            break;
        }
        let text = cause.to_string();
        if !said.last().is_some_and(|last| last.ends_with(&text)) {
            said.push(text);
        }
    }
    said.join(": ")
}

/// What to do about an error that `target` gave; none where the error says it itself.
pub fn of(error: &anyhow::Error, target: &Target) -> Option<String> {
    let namespace = &target.namespace;
    match error.downcast_ref::<Error>()? {
        Error::Api(status) => match status.code {
            400 => Some("mend the selector or the name that the message speaks of".to_owned()),
            401 => Some(
                "log in again, or pass other credentials with --kubeconfig or --context; see: kubectl auth whoami"
                    .to_owned(),
            ),
            403 => Some(format!(
                "work in a namespace that you may read (this one was {namespace}), or ask for the role fairlead-view \
                 there; see: kubectl auth can-i --list --namespace {namespace}"
            )),
            404 => Some("install the chart: the cluster does not serve this kind; see: kubectl fairlead check".to_owned()),
            _ => None,
        },
        _ => Some(format!(
            "check that the API server at {} is up and is the one you mean; see: kubectl config view --minify",
            target.server
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::Client;
    use kube::core::Status;

    fn target() -> Target {
        let config = kube::Config::new("http://127.0.0.1:9/".parse().unwrap());
        Target {
            client: Client::try_from(config).unwrap(),
            namespace: "team-a".to_owned(),
            server: "http://127.0.0.1:9/".to_owned(),
        }
    }

    #[tokio::test]
    async fn each_refusal_has_a_fix_and_none_is_made_up() {
        let target = target();
        let fix = |code: u16| {
            let status = Status::failure("no", "Reason").with_code(code);
            let error = anyhow::Error::from(Error::Api(status.boxed())).context("list agentruns");
            of(&error.context("outer"), &target)
        };
        assert!(fix(403).unwrap().contains("--namespace team-a"));
        assert!(fix(401).unwrap().contains("--kubeconfig"));
        assert!(fix(404).unwrap().contains("kubectl fairlead check"));
        assert_eq!(fix(500), None);
        assert_eq!(of(&anyhow::anyhow!("read a file"), &target), None);

        let error = anyhow::anyhow!("connect: refused").context("connect: refused");
        assert_eq!(
            chain(&error.context("list agentruns")),
            "list agentruns: connect: refused"
        );
        let status = Status::failure("runs is forbidden", "Forbidden").with_code(403);
        let error = anyhow::Error::from(Error::Api(status.boxed())).context("list agentruns");
        assert_eq!(chain(&error), "list agentruns: runs is forbidden (403 Forbidden)");

        let unreachable = target.client.apiserver_version().await.unwrap_err();
        let fix = of(&unreachable.into(), &target).unwrap();
        assert!(fix.contains("http://127.0.0.1:9/"), "{fix}");
    }
}

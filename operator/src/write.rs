//! The writes: one action, one request to the API server, and what its answer means.

use crate::execute::Executor;
use crate::refusal::{failure, is_already_exists, transient};
use crate::sources::Observed;
use fairlead_crds::names::{ANNOTATION_RUN_NAME, LABEL_RUN_UID, MANAGER_OPERATOR};
use fairlead_crds::reading::Readable;
use fairlead_crds::{AgentRun, AgentTurn, Binding, ToolExecution, ToolExecutionSpec};
use fairlead_decide::cluster::{Action, Event, WriteFailure, WriteFailureKind, key_of};
use fairlead_decide::output::yaml_safe;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, Request, ValidationDirective,
};
use kube::{Api, Resource};
use rand::RngCore;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use std::fmt::Debug;
use std::sync::Arc;

impl Executor {
    /// Carries one action out as a write.
    pub(crate) async fn write(&self, action: &Action) -> Result<(), WriteFailure> {
        match action {
            Action::CreateTurn { run, name, spec } => self.create_turn(run, name, spec).await,
            Action::EndTurn { turn, status } => self.apply_status(&**turn, status, true, Event::Turn).await,
            Action::CreateExecution { run, name, spec } => self.create_execution(run, name, spec).await,
            Action::Bind { execution, binding } => self.bind(execution, binding).await,
            Action::Cancel { execution } => self.cancel(execution).await,
            Action::WriteExecution { execution, status } => {
                self.apply_status(&**execution, status, true, Event::Execution)
                    .await
            }
            Action::WriteRun { run, status } => self.apply_status(&**run, status, true, Event::Run).await,
            Action::WriteTool { tool, status } => {
                self.apply_status(&**tool, status, false, Event::Tool).await
            }
            Action::WriteProvider { provider, status } => {
                self.apply_status(&**provider, status, false, Event::Provider)
                    .await
            }
            Action::CheckProvider { provider } => {
                let fault = crate::secrets::check(&self.client, &self.grantee, provider).await;
                let generation = provider.metadata.generation.unwrap_or(0);
                let key = key_of(&provider.metadata);
                self.tell(Event::ProviderChecked {
                    key,
                    generation,
                    fault,
                });
                Ok(())
            }
            Action::DeleteRun { run } => self.delete_run(run).await,
            Action::DeleteExecution { execution } => self.delete(&**execution, Event::Execution).await,
            Action::Ask { .. } | Action::StopAsking { .. } | Action::Want { .. } => Ok(()),
        }
    }

    fn tell(&self, event: Event) {
        let _ = self.out.send(Observed::Event(event));
    }

    fn api<K>(&self, namespace: &str) -> Api<Readable<K>>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The client library's `create`, but its answer does not depend on what others stored in the object.
    async fn create<K>(&self, object: &K) -> kube::Result<Readable<K>>
    where
        K: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
    {
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
        let path = K::url_path(&(), object.meta().namespace.as_deref());
        let request = Request::new(path)
            .create(&post(), body)
            .map_err(kube::Error::BuildRequest)?;
        self.client.request(request).await
    }

    /// Tells what an answer shows. One that cannot be read is an object that the watch warns of.
    fn tell_read<K>(&self, answer: Readable<K>, event: fn(Arc<K>) -> Event) {
        if let Ok(object) = answer.0 {
            self.tell(event(Arc::new(object)));
        }
    }

    async fn create_turn(
        &self,
        run: &AgentRun,
        name: &str,
        spec: &fairlead_crds::AgentTurnSpec,
    ) -> Result<(), WriteFailure> {
        let mut turn = AgentTurn::new(name, spec.clone());
        own(&mut turn.metadata, run);
        match self.create(&turn).await {
            // What has the name is a turn of ours, since nobody else may make any; it is driven only under the digest of
            // the request it records.
            Ok(turn) => {
                self.tell_read(turn, Event::Turn);
                Ok(())
            }
            Err(error) => {
                let api = self.api(&namespace_of(&run.metadata));
                if is_already_exists(&error)
                    && let Ok(Some(turn)) = api.get_opt(name).await
                {
                    self.tell_read(turn, Event::Turn);
                }
                Err(failure(error))
            }
        }
    }

    /// Creates a run's execution. A name that exists is a replay, if it is ours and says the same; it is never adopted
    /// otherwise.
    async fn create_execution(
        &self,
        run: &AgentRun,
        name: &str,
        spec: &ToolExecutionSpec,
    ) -> Result<(), WriteFailure> {
        let mut execution = ToolExecution::new(name, spec.clone());
        if let Some(binding) = &mut execution.spec.binding {
            binding.fence = draw_fence();
        }
        own(&mut execution.metadata, run);
        let error = match self.create(&execution).await {
            Ok(created) => {
                self.tell_read(created, Event::Execution);
                return Ok(());
            }
            Err(error) if is_already_exists(&error) => error,
            // A quota's own lost race is a 409 as well, and says nothing about the name.
            Err(error) => {
                let refused = failure(error);
                let kind = match refused.kind {
                    WriteFailureKind::Conflict => WriteFailureKind::Transient,
                    kind => kind,
                };
                return Err(WriteFailure { kind, ..refused });
            }
        };
        let api = self.api(&namespace_of(&run.metadata));
        let Ok(Some(Readable::<ToolExecution>(Ok(stored)))) = api.get_opt(name).await else {
            return Err(transient(&error));
        };
        if stored.metadata.deletion_timestamp.is_some() {
            return Err(transient(&error));
        }
        if is_replay(&stored, &execution) {
            self.tell(Event::Execution(Arc::new(stored)));
            return Ok(());
        }
        let message =
            format!("the name {name:?} is taken by an execution that is not this call; it is not adopted");
        Err(WriteFailure {
            kind: WriteFailureKind::Conflict,
            message,
        })
    }

    async fn bind(&self, execution: &ToolExecution, binding: &Binding) -> Result<(), WriteFailure> {
        let binding = Binding {
            fence: draw_fence(),
            ..binding.clone()
        };
        let patch = json!({
            "metadata": {"resourceVersion": execution.metadata.resource_version},
            "spec": {"binding": binding},
        });
        self.merge(execution, &patch).await
    }

    async fn cancel(&self, execution: &ToolExecution) -> Result<(), WriteFailure> {
        let patch =
            json!({"metadata": {"uid": execution.metadata.uid}, "spec": {"desiredState": "Cancelled"}});
        self.merge(execution, &patch).await
    }

    async fn merge(&self, execution: &ToolExecution, patch: &Value) -> Result<(), WriteFailure> {
        let api = self.api(&namespace_of(&execution.metadata));
        let name = execution.metadata.name.as_deref().unwrap_or_default();
        let params = PatchParams {
            field_validation: Some(ValidationDirective::Strict),
            ..manager()
        };
        match api.patch(name, &params, &Patch::Merge(patch)).await {
            Ok(stored) => {
                self.tell_read(stored, Event::Execution);
                Ok(())
            }
            Err(error) => self.read_back(&api, name, error, Event::Execution).await,
        }
    }

    /// Applies a status as the operator's field manager; `guarded` by the resourceVersion that was decided on.
    async fn apply_status<K, S>(
        &self,
        object: &K,
        status: &S,
        guarded: bool,
        event: fn(Arc<K>) -> Event,
    ) -> Result<(), WriteFailure>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
        S: Serialize,
    {
        let meta = object.meta();
        let name = meta.name.clone().unwrap_or_default();
        let mut metadata = json!({"name": name, "uid": meta.uid});
        if guarded {
            metadata["resourceVersion"] = json!(meta.resource_version);
        }
        let patch = json!({
            "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": metadata, "status": status,
        });
        let api = self.api(&namespace_of(meta));
        let params = PatchParams {
            field_validation: Some(ValidationDirective::Strict),
            ..manager().force()
        };
        let path = K::url_path(&(), meta.namespace.as_deref());
        match self.apply(&path, &name, &params, &patch).await {
            Ok(stored) => {
                self.tell_read(stored, event);
                Ok(())
            }
            Err(error) => self.read_back(&api, &name, error, event).await,
        }
    }

    /// The client library's `patch_status`, but with a body that the server's YAML reader takes for what it is: a model's
    /// text may hold characters that are JSON and not YAML.
    async fn apply<K: DeserializeOwned>(
        &self,
        path: &str,
        name: &str,
        params: &PatchParams,
        patch: &Value,
    ) -> kube::Result<Readable<K>> {
        let request = Request::new(path)
            .patch_subresource("status", name, params, &Patch::Apply(&()))
            .map_err(kube::Error::BuildRequest)?;
        let body = yaml_safe(patch.to_string()).into_bytes();
        self.client.request(request.map(|_| body)).await
    }

    /// After a lost race the present object is read, so that the next decision is made on it.
    async fn read_back<K>(
        &self,
        api: &Api<Readable<K>>,
        name: &str,
        error: kube::Error,
        event: fn(Arc<K>) -> Event,
    ) -> Result<(), WriteFailure>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let failure = failure(error);
        if failure.kind == WriteFailureKind::Conflict
            && let Ok(Some(stored)) = api.get_opt(name).await
        {
            self.tell_read(stored, event);
        }
        Err(failure)
    }

    /// Deletes a run as it was decided on, and then what belongs to it, in bulk: the garbage collector would come to it
    /// as well, but much later.
    async fn delete_run(&self, run: &AgentRun) -> Result<(), WriteFailure> {
        self.delete(run, Event::Run).await?;
        let namespace = namespace_of(&run.metadata);
        let uid = run.metadata.uid.clone().unwrap_or_default();
        let children = ListParams::default().labels(&format!("{LABEL_RUN_UID}={uid}"));
        let (executions, turns) = tokio::join!(
            self.delete_all::<ToolExecution>(&namespace, &children),
            self.delete_all::<AgentTurn>(&namespace, &children)
        );
        for error in [executions.err(), turns.err()].into_iter().flatten() {
            tracing::info!(run = run.metadata.name, %error, "the garbage collector deletes what belonged to the run");
        }
        Ok(())
    }

    async fn delete_all<K: Resource<DynamicType = ()>>(
        &self,
        namespace: &str,
        which: &ListParams,
    ) -> kube::Result<()> {
        let request = Request::new(K::url_path(&(), Some(namespace)))
            .delete_collection(&DeleteParams::default(), which)
            .map_err(kube::Error::BuildRequest)?;
        self.client.request::<IgnoredAny>(request).await.map(drop)
    }

    /// Deletes an object if it still is as it was decided on: a time to live may have been raised meanwhile.
    async fn delete<K>(&self, object: &K, event: fn(Arc<K>) -> Event) -> Result<(), WriteFailure>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let meta = object.meta();
        let as_decided = Preconditions {
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
        };
        let params = DeleteParams {
            preconditions: Some(as_decided),
            ..DeleteParams::background()
        };
        let name = meta.name.as_deref().unwrap_or_default();
        let request = Request::new(K::url_path(&(), meta.namespace.as_deref())).delete(name, &params);
        // The answer may hold the object, and nothing of it is needed.
        let deleted = match request.map_err(kube::Error::BuildRequest) {
            Ok(request) => self.client.request::<IgnoredAny>(request).await.map(drop),
            Err(error) => Err(error),
        };
        match deleted {
            Ok(()) => Ok(()),
            Err(error) => {
                let api = self.api(&namespace_of(meta));
                self.read_back(&api, name, error, event).await
            }
        }
    }
}

/// 128 random bits, as hex.
fn draw_fence() -> String {
    let mut bits = [0_u8; 16];
    rand::rng().fill_bytes(&mut bits);
    fairlead_crds::canonical::hex(&bits)
}

/// Whether an execution that exists is the one that was to be created: same owner, same call, same arguments.
fn is_replay(stored: &ToolExecution, wanted: &ToolExecution) -> bool {
    let (a, b) = (&stored.spec, &wanted.spec);
    let digest =
        |spec: &ToolExecutionSpec| fairlead_crds::canonical::digest(&Value::Object(spec.arguments.clone()));
    let owned = stored
        .metadata
        .owner_references
        .iter()
        .flatten()
        .map(|o| &o.uid)
        .eq(wanted.metadata.owner_references.iter().flatten().map(|o| &o.uid));
    owned
        && a.run_ref == b.run_ref
        && a.turn == b.turn
        && a.call_id == b.call_id
        && a.tool == b.tool
        && digest(a) == digest(b)
}

fn own(metadata: &mut ObjectMeta, run: &AgentRun) {
    let uid = run.metadata.uid.clone().unwrap_or_default();
    let name = run.metadata.name.clone().unwrap_or_default();
    metadata.namespace.clone_from(&run.metadata.namespace);
    metadata
        .labels
        .get_or_insert_default()
        .insert(LABEL_RUN_UID.to_owned(), uid.clone());
    metadata
        .annotations
        .get_or_insert_default()
        .insert(ANNOTATION_RUN_NAME.to_owned(), name.clone());
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: AgentRun::api_version(&()).into_owned(),
        kind: AgentRun::kind(&()).into_owned(),
        name,
        uid,
        controller: Some(true),
        block_owner_deletion: None,
    }]);
}

fn namespace_of(metadata: &ObjectMeta) -> String {
    metadata.namespace.clone().unwrap_or_default()
}

fn manager() -> PatchParams {
    PatchParams {
        field_manager: Some(MANAGER_OPERATOR.to_owned()),
        ..PatchParams::default()
    }
}

fn post() -> PostParams {
    PostParams {
        field_manager: Some(MANAGER_OPERATOR.to_owned()),
        ..PostParams::default()
    }
}

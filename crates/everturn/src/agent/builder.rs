//! Putting an agent together.

use std::any::TypeId;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::definition::{ContentInSpans, Definition, Handler, OnFailure, Patience, Recovery};
use super::failure::Handled;
use super::local::Local;
use super::policy::SnapshotPolicy;
use super::sign::{SigningKey, SigningKeys};
use super::transform::{Caller, Transforms};
use super::upcast::Upcasters;
use super::{Agent, CustomState};
use crate::clock::{Clock, SystemClock};
use crate::compact::AutoCompaction;
use crate::json::Json;
use crate::live::{Session, Turn};
use crate::schema::Schema;
use crate::state::SessionState;
use crate::store::{Busy, Store};
use crate::stream::{Chunk, StreamLimits};
use crate::{AgentName, AppName, Error, Result, SessionId, UserId};

/// An agent being put together; [`AgentBuilder::build`] makes it one.
#[must_use = "an agent is there once it is built"]
pub struct AgentBuilder<S> {
    name: String,
    description: Option<String>,
    app: Option<AppName>,
    store: Option<Arc<dyn Store>>,
    policy: Option<SnapshotPolicy>,
    schema: Option<Result<Json>>,
    upcasters: Upcasters,
    transforms: Transforms,
    busy: Busy,
    on_failure: OnFailure,
    default_session: Option<SessionId>,
    clock: Option<Arc<dyn Clock>>,
    signing: Vec<SigningKey>,
    limits: StreamLimits,
    patience: Patience,
    content_in_spans: ContentInSpans,
    recovery: Recovery,
    compaction: Option<AutoCompaction>,
    handler: Handler,
    broken: Option<Error>,
    state: PhantomData<fn() -> S>,
}

impl<S: CustomState> Agent<S> {
    /// An agent whose function is called for each turn. The turn ends when the function returns.
    ///
    /// What it returns is given to the caller as [`Output::output`](super::Output); return `()` for nothing.
    pub fn flow<F, Fut, R>(name: impl Into<String>, handler: F) -> AgentBuilder<S>
    where
        F: Fn(Turn<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled<R>> + Send + 'static,
        R: Serialize + 'static,
    {
        AgentBuilder::new(
            name.into(),
            Handler::PerTurn(Arc::new(move |turn| {
                let handled = handler(Turn::of(turn));
                Box::pin(async move { returned(&handled.await?) })
            })),
        )
    }

    /// An agent whose function is called once an invocation and takes its turns itself with
    /// [`Session::next_turn`].
    ///
    /// A turn ends when it is [ended](Turn::end), when the next one is taken, or when the function returns.
    pub fn flow_loop<F, Fut, R>(name: impl Into<String>, handler: F) -> AgentBuilder<S>
    where
        F: Fn(Session<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Handled<R>> + Send + 'static,
        R: Serialize + 'static,
    {
        AgentBuilder::new(
            name.into(),
            Handler::Loop(Arc::new(move |run| {
                let handled = handler(Session::of(run));
                Box::pin(async move { returned(&handled.await?) })
            })),
        )
    }
}

/// What a handler returned, as its caller is given it. `()` is nothing, not `null`.
fn returned<R: Serialize + 'static>(value: &R) -> Handled<Option<Json>> {
    if TypeId::of::<R>() == TypeId::of::<()>() {
        return Ok(None);
    }
    Ok(Some(Json::from_value(value)?))
}

impl<S: CustomState> AgentBuilder<S> {
    /// One whose definition cannot be, which building it says.
    pub(super) fn broken(name: String, error: Error) -> Self {
        let never = Handler::PerTurn(Arc::new(|_| Box::pin(async { Ok(None) })));
        Self { broken: Some(error), ..Self::new(name, never) }
    }

    pub(super) fn new(name: String, handler: Handler) -> Self {
        Self {
            name,
            description: None,
            app: None,
            store: None,
            policy: None,
            schema: None,
            upcasters: Upcasters::default(),
            transforms: Transforms::default(),
            busy: Busy::default(),
            on_failure: OnFailure::default(),
            default_session: None,
            clock: None,
            signing: Vec::new(),
            limits: StreamLimits::default(),
            patience: Patience::default(),
            content_in_spans: ContentInSpans::default(),
            recovery: Recovery::default(),
            compaction: None,
            handler,
            broken: None,
            state: PhantomData,
        }
    }

    /// What it is for, in a sentence.
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = Some(text.into());
        self
    }

    /// The app its sessions belong to; the agent's name unless set.
    pub fn app(mut self, app: AppName) -> Self {
        self.app = Some(app);
        self
    }

    /// Where its sessions live. Without a store the caller keeps the state.
    pub fn store(mut self, store: impl Store + 'static) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// The same, for a store that is shared.
    pub fn shared_store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// When snapshots are taken; at every opportunity unless set.
    pub fn snapshots(mut self, policy: SnapshotPolicy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Checks custom state, where it is loaded, against a schema made of its type.
    pub fn schema_of_state(mut self) -> Self
    where
        S: JsonSchema,
    {
        self.schema = Some(Json::from_value(&schemars::schema_for!(S)));
        self
    }

    /// Checks custom state, where it is loaded, against a JSON schema.
    pub fn state_schema(mut self, schema: Json) -> Self {
        self.schema = Some(Ok(schema));
        self
    }

    /// A step from one version of the custom state's schema to the next: the first from 0 to 1, the second from 1 to 2.
    /// What is stored stays as it is until the next turn writes it.
    pub fn upcast(mut self, step: impl Fn(Json) -> Result<Json> + Send + Sync + 'static) -> Self {
        self.upcasters.push(Arc::new(step));
        self
    }

    /// Shapes every state that leaves: outputs, snapshots, and the patches of custom state. An error withholds it.
    pub fn transform_state(
        mut self,
        transform: impl Fn(SessionState, &Caller) -> Result<SessionState> + Send + Sync + 'static,
    ) -> Self {
        self.transforms.state = Some(Arc::new(transform));
        self
    }

    /// Shapes or drops every chunk that leaves. An error fails the turn.
    pub fn transform_chunk(
        mut self,
        transform: impl Fn(Chunk, &Caller) -> Result<Option<Chunk>> + Send + Sync + 'static,
    ) -> Self {
        self.transforms.chunk = Some(Arc::new(transform));
        self
    }

    /// What a turn does when its branch is busy: waits in order, up to 30 s, unless set.
    pub fn busy(mut self, busy: Busy) -> Self {
        self.busy = busy;
        self
    }

    /// What becomes of a turn whose handler failed.
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// The session of invocations that name none.
    pub fn default_session(mut self, id: SessionId) -> Self {
        self.default_session = Some(id);
        self
    }

    /// Where ids come from; the machine's clock unless set.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Signs the states that clients keep. The first key signs; the others still verify, while clients hold states
    /// signed with them.
    pub fn sign_states(mut self, keys: impl IntoIterator<Item = SigningKey>) -> Self {
        self.signing = keys.into_iter().collect();
        self
    }

    /// How much may wait for a slow reader.
    pub fn stream_limits(mut self, limits: StreamLimits) -> Self {
        self.limits = limits;
        self
    }

    /// How long it waits for what.
    pub fn patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// What becomes of its turns in the background whose process died; they are left unless set.
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.recovery = recovery;
        self
    }

    /// Whether spans carry what was said.
    pub fn content_in_spans(mut self, content: ContentInSpans) -> Self {
        self.content_in_spans = content;
        self
    }

    /// Compacts by itself what the model is shown. A state that the caller keeps has no view, so this needs a store.
    pub fn compaction(mut self, policy: AutoCompaction) -> Self {
        self.compaction = Some(policy);
        self
    }

    /// Makes it an agent, or says what does not fit together.
    pub fn build(self) -> Result<Agent<S>> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let name = AgentName::new(&self.name)?;
        let app = match self.app {
            Some(app) => app,
            None => AppName::new(&self.name)?,
        };
        let needs_store = [
            ("a snapshot policy", self.policy.is_some()),
            ("a default session", self.default_session.is_some()),
            ("a compaction policy", self.compaction.is_some()),
        ];
        if self.store.is_none()
            && let Some((what, _)) = needs_store.into_iter().find(|(_, given)| *given)
        {
            return Err(Error::invalid(format!("agent {name:?} has {what} but no store: give it a store")));
        }
        if self.store.is_some() && !self.signing.is_empty() {
            return Err(Error::invalid(format!(
                "agent {name:?} keeps its states in a store, so there is nothing for clients to sign: leave the keys out"
            )));
        }
        self.compaction.as_ref().map_or(Ok(()), AutoCompaction::check)?;
        let signing = if self.signing.is_empty() { None } else { Some(SigningKeys::new(self.signing)?) };
        let definition = Definition {
            name,
            description: self.description,
            app,
            store: self.store,
            policy: self.policy.unwrap_or_default(),
            schema: self.schema.transpose()?.map(|json| Schema::new("the state schema", json)).transpose()?,
            upcasters: self.upcasters,
            transforms: self.transforms,
            busy: self.busy,
            on_failure: self.on_failure,
            default_session: self.default_session,
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock::new())),
            signing,
            limits: self.limits,
            patience: self.patience,
            content_in_spans: self.content_in_spans,
            compaction: self.compaction,
            handler: self.handler,
            recovery: self.recovery,
            local: Local::default(),
            state_type: TypeId::of::<S>(),
        };
        Ok(Agent { def: Arc::new(definition), user: UserId::default_user(), state: PhantomData })
    }
}

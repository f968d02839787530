//! What the tests of the runtime share.

use std::path::PathBuf;
use std::sync::Arc;

use everturn::store::{Durability, MemoryStore, SqliteOptions, Store};
use everturn::{
    Agent, AgentBuilder, BranchName, Chunk, ErrorKind, Failure, Handled, Json, Message, Messages, Output, Patch,
    Result, SessionId, SessionKey, Turn, UserId,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

/// Runs tests on every store: `name::memory` and `name::sqlite`.
macro_rules! on_every_store {
    ($($(#[$meta:meta])* async fn $name:ident($home:ident: Home) $body:block)*) => {$(
        $(#[$meta])*
        mod $name {
            #[allow(unused_imports, reason = "not every test needs everything its module uses")]
            use super::*;

            async fn check($home: Home) $body

            #[tokio::test]
            async fn memory() {
                check(Home::memory()).await;
            }

            #[tokio::test]
            async fn sqlite() {
                check(Home::sqlite()).await;
            }
        }
    )*};
}

/// A store and where it lives.
pub(crate) struct Home {
    store: Arc<dyn Store>,
    file: Option<(TempDir, PathBuf)>,
}

impl Home {
    pub(crate) fn memory() -> Self {
        Self { store: Arc::new(MemoryStore::new()), file: None }
    }

    pub(crate) fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sessions.db");
        Self { store: open(&path), file: Some((directory, path)) }
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// What another process would see: another handle on the same file, with nothing remembered. In memory there is
    /// only this process.
    pub(crate) fn elsewhere(&self) -> Arc<dyn Store> {
        match &self.file {
            Some((_, path)) => open(path),
            None => self.store.clone(),
        }
    }
}

fn open(path: &PathBuf) -> Arc<dyn Store> {
    let options = SqliteOptions::new(path).durability(Durability::ProcessSafe);
    Arc::new(options.open().unwrap())
}

/// The custom state of most agents here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Tally {
    pub(crate) turns: u32,
    pub(crate) last: String,
}

/// An agent that says what it is told and counts its turns. `fail WHY` and `panic WHY` do that, halfway.
pub(crate) fn echo() -> AgentBuilder<Tally> {
    Agent::flow("echo", echo_turn)
}

pub(crate) async fn echo_turn(turn: Turn<Tally>) -> Handled<()> {
    let text = turn.text();
    let (command, rest) = text.split_once(' ').unwrap_or((&text, ""));
    turn.update_custom(|tally| {
        tally.turns += 1;
        tally.last.clone_from(&text);
    })?;
    match command {
        "fail" => {
            turn.add_message(Message::model("partial"))?;
            return Err(Failure::new("UNAVAILABLE", rest).details(&[1, 2]));
        }
        "panic" => panic!("{rest}"),
        _ => {}
    }
    turn.responder().text(format!("echo: {text}")).await?;
    turn.add_message(Message::model(format!("echo: {text}")))?;
    Ok(())
}

/// An echo on a store.
pub(crate) fn stored(home: &Home) -> Agent<Tally> {
    echo().shared_store(home.store()).build().unwrap()
}

pub(crate) fn sid(id: &str) -> SessionId {
    SessionId::new(id).unwrap()
}

pub(crate) fn user(id: &str) -> UserId {
    UserId::new(id).unwrap()
}

pub(crate) fn branch(name: &str) -> BranchName {
    BranchName::new(name).unwrap()
}

/// The key of a default user's session with the echo agent.
pub(crate) fn key(id: &str) -> SessionKey {
    SessionKey::of("echo", "user", id).unwrap()
}

pub(crate) fn json(text: &str) -> Json {
    Json::parse(text).unwrap()
}

pub(crate) fn texts(messages: &Messages) -> Vec<String> {
    messages.iter().map(Message::text).collect()
}

/// What was said in the state of an output.
pub(crate) fn said(output: &Output) -> Vec<String> {
    texts(output.state.messages())
}

pub(crate) fn kind<T>(refused: Result<T>) -> ErrorKind {
    match refused {
        Ok(_) => panic!("this should have been refused"),
        Err(error) => error.kind(),
    }
}

/// Refused, of a kind, with words in the text that help.
#[track_caller]
pub(crate) fn refused<T>(outcome: Result<T>, kind: ErrorKind, words: &str) {
    let Err(error) = outcome else { panic!("this should have been refused as {kind:?}") };
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error} does not say {words:?}");
}

/// The patches among chunks.
pub(crate) fn patches(chunks: &[Chunk]) -> Vec<&Patch> {
    chunks.iter().filter_map(|chunk| chunk.custom_patch.as_ref()).collect()
}

/// What the model said in chunks.
pub(crate) fn spoken(chunks: &[Chunk]) -> String {
    chunks.iter().map(Chunk::text).collect()
}

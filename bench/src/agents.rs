//! Turns as agents take them: through `Agent::flow`, a kilobyte in and a kilobyte out, an answer kept as agents keep it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use everturn::store::SqliteStore;
use everturn::{Agent, Init, Message, SessionId, Turn};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::texts::{Kind, Texts};
use crate::workload::MESSAGE;

/// A session that gets so long is left, and another one begun.
const TURNS_OF_A_SESSION: usize = 200;

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Count {
    turns: u64,
}

/// An agent that answers with texts of one kind or of all in turn.
fn agent(store: SqliteStore, kind: Option<Kind>) -> Result<Agent<Count>> {
    let answers = Arc::new(AtomicU64::new(0));
    let agent = Agent::flow("bench", move |turn: Turn<Count>| {
        let seed = answers.fetch_add(1, Ordering::Relaxed);
        async move {
            turn.update_custom(|custom| custom.turns += 1)?;
            turn.add_message(Message::model(texts(kind, 1_000_000 + seed).text(MESSAGE)))?;
            Ok(())
        }
    });
    Ok(agent.store(store).build()?)
}

fn texts(kind: Option<Kind>, seed: u64) -> Texts {
    kind.map_or_else(|| Texts::mixed(seed), |kind| Texts::of(kind, seed))
}

/// One session's turns with texts of one kind; the bytes of text in them.
pub(crate) async fn conversation(store: SqliteStore, kind: Kind, turns: usize) -> Result<u64> {
    let agent = agent(store, Some(kind))?;
    let (session, mut texts) = (SessionId::new(format!("{kind:?}"))?, Texts::of(kind, 1));
    let mut bytes = 0;
    for _ in 0..turns {
        let text = texts.text(MESSAGE);
        bytes += text.len();
        let output = agent.run_text(text, Init::session(session.clone())).await?;
        ensure!(output.error.is_none(), "a turn failed: {:?}", output.error);
        bytes += output.message.map_or(0, |message| message.text().len());
    }
    Ok(bytes as u64)
}

/// Agents on a store, and how many sessions they have had so far.
pub(crate) struct Agents {
    agent: Agent<Count>,
    sessions: Arc<AtomicU64>,
}

impl Agents {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Ok(Self { agent: agent(SqliteStore::open(path)?, None)?, sessions: Arc::default() })
    }

    /// Turns by so many sessions at once for so long.
    pub(crate) async fn turns_per_second(&mut self, sessions: usize, time: Duration) -> Result<f64> {
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..sessions {
            let (agent, count) = (self.agent.clone(), self.sessions.clone());
            tasks.spawn(async move {
                let mut turns = 0;
                while start.elapsed() < time {
                    let number = count.fetch_add(1, Ordering::Relaxed);
                    let (session, mut texts) = (SessionId::new(format!("s-{number}"))?, Texts::mixed(number));
                    for _ in 0..TURNS_OF_A_SESSION {
                        let output = agent.run_text(texts.text(MESSAGE), Init::session(session.clone())).await?;
                        ensure!(output.error.is_none(), "a turn failed: {:?}", output.error);
                        turns += 1;
                        if start.elapsed() >= time {
                            break;
                        }
                    }
                }
                anyhow::Ok(turns)
            });
        }
        let mut turns = 0;
        while let Some(done) = tasks.join_next().await {
            turns += done??;
        }
        Ok(f64::from(turns) / start.elapsed().as_secs_f64())
    }
}

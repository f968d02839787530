//! A turn by an agent against the same turn by hand, on the same kind of store.

use std::time::{Duration, Instant};

use anyhow::Result;
use everturn::store::{At, BeginTurn, CreateSession, EndTurn, MemoryStore, Start, Store as _};
use everturn::{
    Agent, Changes, Clock as _, Event, Init, Input, InvocationId, Message, NewSnapshot, SessionId, SessionKey,
    SnapshotId, SystemClock, Turn,
};
use serde::{Deserialize, Serialize};

use crate::report::{Bar, Figure};
use crate::stats::{median, micros};

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "runtime_turn_us",
        what: "an agent's turn less the same turn by hand, at 1,000 messages (us)",
        bar: Bar::AtMost(60.0),
    },
    Figure {
        name: "runtime_flat_ratio",
        what: "an agent's turn at 1,000 messages over one at 10",
        bar: Bar::AtMost(1.2),
    },
    Figure { name: "agent_turn_us", what: "an agent's turn at 1,000 messages (us)", bar: Bar::None },
    Figure { name: "store_turn_us", what: "the same by hand (us)", bar: Bar::None },
    Figure {
        name: "runtime_turn_two_workers_us",
        what: "the first figure where a second, idle worker is woken on the way (us)",
        bar: Bar::None,
    },
];

#[derive(Default, Serialize, Deserialize)]
struct Count {
    turns: u64,
}

const ANSWER: &str = "It is on its way and will be there tomorrow.";

fn agent(store: MemoryStore) -> Result<Agent<Count>> {
    let agent = Agent::flow("bench", |turn: Turn<Count>| async move {
        turn.update_custom(|custom| custom.turns += 1)?;
        turn.add_message(Message::model(ANSWER))?;
        Ok(())
    });
    Ok(agent.store(store).build()?)
}

/// A session that grows, by an agent's turns.
struct ByAgent {
    agent: Agent<Count>,
    session: SessionId,
}

impl ByAgent {
    async fn with(messages: usize) -> Result<Self> {
        let by = Self { agent: agent(MemoryStore::new())?, session: SessionId::new("s")? };
        for _ in 0..messages / 2 {
            by.turn().await?;
        }
        Ok(by)
    }

    async fn turn(&self) -> Result<Duration> {
        let init = Init::session(self.session.clone());
        let start = Instant::now();
        let output = self.agent.run_text("Where is it?", init).await?;
        let took = start.elapsed();
        anyhow::ensure!(output.error.is_none(), "a turn failed");
        Ok(took)
    }
}

/// A session that grows, by hand: what the agent asks of its store, and nothing else.
struct ByHand {
    store: MemoryStore,
    key: SessionKey,
    ids: SystemClock,
    turns: u64,
}

impl ByHand {
    async fn with(messages: usize) -> Result<Self> {
        let store = MemoryStore::new();
        let key = SessionKey::of("bench", "user", "s")?;
        store.create(CreateSession::at(key.clone())).await?;
        let mut by = Self { store, key, ids: SystemClock::new(), turns: 0 };
        for _ in 0..messages / 2 {
            by.turn().await?;
        }
        Ok(by)
    }

    async fn turn(&mut self) -> Result<Duration> {
        let snapshot = SnapshotId::from_uuid(self.ids.uuid());
        let invocation = InvocationId::new(self.ids.uuid().to_string())?;
        self.turns += 1;
        let start = Instant::now();
        let start_at = Start::OpenOrCreate(Box::new(CreateSession::at(self.key.clone())));
        let turn = BeginTurn::new(start_at, invocation, Input::text("Where is it?"));
        let begun = self.store.begin(turn.snapshot(snapshot)).await?.begun()?;
        self.store.state(At::Point(self.key.clone(), begun.point)).await?;
        self.store.state(At::Point(self.key.clone(), begun.from)).await?;
        let custom = everturn::Json::from_value(&Count { turns: self.turns })?;
        let changes = Changes::new().event(Event::model("bench", Message::model(ANSWER))).custom(custom);
        self.store.end(EndTurn::completed(begun.fence, changes).snapshot(NewSnapshot::new(snapshot))).await?;
        Ok(start.elapsed())
    }
}

pub(super) async fn run(samples: usize) -> Result<Vec<f64>> {
    let (short, mut by_hand) = (ByAgent::with(10).await?, ByHand::with(1_000).await?);
    let long = ByAgent::with(1_000).await?;
    let (mut agent, mut hand, mut early) = (Vec::new(), Vec::new(), Vec::new());
    let mut fresh = short;
    for sample in 0..samples {
        // Sessions are made anew, so that "at 10" and "at 1,000" stay what they say.
        if sample % 50 == 0 {
            fresh = ByAgent::with(10).await?;
        }
        agent.push(micros(long.turn().await?));
        hand.push(micros(by_hand.turn().await?));
        early.push(micros(fresh.turn().await?));
    }
    Ok(vec![median(&agent) - median(&hand), median(&agent) / median(&early), median(&agent), median(&hand)])
}

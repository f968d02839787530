//! What an agent allocates for a turn must not grow with its conversation. A count, so that no machine's mood changes it.

use everturn::store::MemoryStore;
use everturn::{Agent, Init, Message, SessionId, Turn};
use serde::{Deserialize, Serialize};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATIONS: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

#[derive(Default, Serialize, Deserialize)]
struct Count {
    turns: u64,
}

/// The median of a few turns after so many messages: queues and tables grow at times.
async fn allocations(messages: usize) -> usize {
    let agent = Agent::flow("count", |turn: Turn<Count>| async move {
        turn.update_custom(|custom| custom.turns += 1)?;
        turn.add_message(Message::model("It is on its way and will be there tomorrow."))?;
        Ok(())
    });
    let agent = agent.store(MemoryStore::new()).build().unwrap();
    let session = SessionId::new("s").unwrap();
    let mut counts = Vec::new();
    for turn in 0..messages / 2 + 21 {
        let region = Region::new(ALLOCATIONS);
        let output = agent.run_text("Where is it?", Init::session(session.clone())).await.unwrap();
        assert!(output.error.is_none());
        if turn >= messages / 2 {
            counts.push(region.change().allocations);
        }
    }
    counts.sort_unstable();
    counts[counts.len() / 2]
}

#[tokio::test]
async fn a_turn_allocates_as_much_after_a_thousand_messages_as_after_ten() {
    let (early, late) = (allocations(10).await, allocations(1_000).await);
    println!("{late} allocations at 1,000 messages, {early} at 10");
    assert!(late <= early + early / 10, "{late} allocations at 1,000 messages, {early} at 10");
    assert!(late <= 200, "{late} allocations for a turn");
}

//! How many chunks a second go from a handler to a reader in the same process.

use std::time::Instant;

use anyhow::Result;
use everturn::model::ModelChunk;
use everturn::{Agent, Init, Json, Turn};

use crate::report::{Bar, Figure};
use crate::stats::median;

pub(super) const FIGURES: &[Figure] = &[Figure {
    name: "chunks_per_s",
    what: "chunks a second from a handler to its connection, in process",
    bar: Bar::AtLeast(500_000.0),
}];

pub(super) async fn run(quick: bool) -> Result<Vec<f64>> {
    let count: u64 = if quick { 100_000 } else { 500_000 };
    let agent = Agent::flow("tokens", move |turn: Turn<Json>| async move {
        let responder = turn.responder();
        let token = ModelChunk::text("token ");
        for _ in 0..count {
            responder.model_chunk(token.clone()).await?;
        }
        Ok(())
    })
    .build()?;
    let mut rates = Vec::new();
    for _ in 0..5 {
        let mut connection = agent.connect(Init::new()).await?;
        let start = Instant::now();
        connection.send_text("go").await?;
        let mut heard = 0;
        while let Some(chunk) = connection.receive().await {
            heard += u64::from(chunk.model_chunk.is_some());
            if chunk.turn_end.is_some() {
                break;
            }
        }
        anyhow::ensure!(heard == count, "{heard} of {count} chunks arrived");
        rates.push(count as f64 / start.elapsed().as_secs_f64());
        connection.output().await?;
    }
    Ok(vec![median(&rates)])
}

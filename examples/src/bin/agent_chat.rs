//! An agent that streams a model's answer, keeps typed state beside it, and goes on where it left off.

use std::sync::Arc;

use everturn::model::{Model, ModelRequest, Reply, ScriptedModel, generate_stream};
use everturn::store::MemoryStore;
use everturn::{Agent, Connection, Init, Result, Turn};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Topics {
    topics: Vec<String>,
}

fn chat(model: Arc<dyn Model>) -> Result<Agent<Topics>> {
    let flow = move |turn: Turn<Topics>| {
        let model = model.clone();
        async move {
            let responder = turn.responder();
            responder.status("generating").await?;
            let mut answer = generate_stream(&*model, ModelRequest::new(turn.model_messages()));
            while let Some(chunk) = answer.next().await {
                responder.model_chunk(chunk?).await?;
            }
            turn.add_message(answer.response()?.message)?;
            turn.update_custom(|custom| custom.topics.push(turn.text()))?;
            responder.status("complete").await?;
            Ok(())
        }
    };
    Agent::flow("chat", flow).store(MemoryStore::new()).build()
}

async fn listen(connection: &mut Connection) {
    while let Some(chunk) = connection.receive().await {
        print!("{}", chunk.text());
        if chunk.turn_end.is_some() {
            break;
        }
    }
    println!();
}

#[tokio::main]
async fn main() -> Result<()> {
    let replies = ["Rust is a language.", "Channels carry values.", "Still channels."];
    let agent = chat(Arc::new(ScriptedModel::new(replies.map(|reply| Reply::text(reply).in_pieces(4)))))?;
    let mut connection = agent.connect(Init::new()).await?;
    for text in ["Tell me about Rust.", "What are channels for?"] {
        connection.send_text(text).await?;
        listen(&mut connection).await;
    }
    let output = connection.output().await?;
    assert_eq!(output.state.messages().len(), 4);
    // Any snapshot is a place to go on from.
    let next = agent.run_text("Go on.", Init::snapshot(output.snapshot_id.expect("taken"))).await?;
    println!("{} messages, topics {:?}", next.state.messages().len(), next.state.custom::<Topics>()?.unwrap().topics);
    Ok(())
}

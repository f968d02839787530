//! An agent that makes something: the artifact is streamed to the caller and kept in the session by one call.

use everturn::store::MemoryStore;
use everturn::{Agent, Artifact, Init, Json, Message, Part, Result, Turn};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Code {
    language: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let agent = Agent::flow("coder", |turn: Turn<Code>| async move {
        turn.update_custom(|custom| custom.language = "rust".to_owned())?;
        let mut main = Artifact::new("main.rs", vec![Part::text("fn main() { println!(\"Hello\"); }")]);
        main.metadata = Some(Json::parse(r#"{"language":"rust"}"#)?);
        turn.add_artifact(main).await?;
        turn.add_message(Message::model("Here is the code you asked for."))?;
        Ok(())
    })
    .store(MemoryStore::new())
    .build()?;

    let mut connection = agent.connect(Init::new()).await?;
    connection.send_text("Write hello world.").await?;
    let chunks = connection.receive_turn().await;
    let streamed: Vec<_> = chunks.iter().filter_map(|chunk| chunk.artifact.as_ref()).collect();
    assert_eq!(streamed.len(), 1, "streamed once");

    let output = connection.output().await?;
    for artifact in &output.artifacts {
        println!(
            "{}: {}",
            artifact.name.as_deref().unwrap_or("unnamed"),
            artifact.parts[0].as_text().unwrap_or_default()
        );
    }
    assert_eq!(output.artifacts.len(), 1, "and kept");
    Ok(())
}

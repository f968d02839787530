//! A handler that takes its turns itself: what it holds lives as long as the invocation.

use everturn::store::MemoryStore;
use everturn::{Agent, Init, Message, Result, Session};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Tally {
    words: usize,
}

#[tokio::main]
async fn main() -> Result<()> {
    let agent = Agent::flow_loop("tally", |session: Session<Tally>| async move {
        let mut longest = String::new();
        while let Some(turn) = session.next_turn().await? {
            let text = turn.text();
            if let Some(word) = text.split(' ').max_by_key(|word| word.len()).filter(|word| word.len() > longest.len())
            {
                longest = word.to_owned();
            }
            turn.update_custom(|custom| custom.words += text.split(' ').count())?;
            turn.add_message(Message::model(format!("The longest so far is {longest:?}.")))?;
            turn.end().await?;
        }
        Ok(longest)
    })
    .store(MemoryStore::new())
    .build()?;

    let mut connection = agent.connect(Init::new()).await?;
    for text in ["a fine day", "extraordinarily so", "indeed"] {
        connection.send_text(text).await?;
    }
    let output = connection.output().await?;
    println!("{}", output.text());
    println!("{} words, {:?} returned", output.state.custom::<Tally>()?.unwrap().words, output.output);
    assert_eq!(output.output_as::<String>()?.as_deref(), Some("extraordinarily"));
    assert_eq!(output.snapshot_ids.len(), 3);
    Ok(())
}

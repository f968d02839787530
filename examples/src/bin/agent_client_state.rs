//! An agent without a store: its caller keeps the state, signed so that it cannot be changed on the way.

use everturn::{Agent, ErrorKind, Init, Json, Message, Result, SessionState, SigningKey, Turn};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize, Deserialize)]
struct Preferences {
    language: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let agent = Agent::flow("helper", |turn: Turn<Preferences>| async move {
        let language = turn.custom()?.language;
        turn.add_message(Message::model(format!("In {language}, then.")))?;
        Ok(())
    })
    .sign_states([SigningKey::new("k1", b"an example's key, not one to keep")?])
    .build()?;

    let custom = Preferences { language: "Swahili".to_owned() };
    let first = agent.run_text("Hello.", Init::new().initial(&custom)?).await?;
    println!("{}", first.text());

    // The whole state goes to the caller and comes back with the next request.
    let kept: SessionState = first.state.to_session_state();
    let signature = first.signature.expect("states are signed");
    let next = agent.run_text("And now?", Init::state(kept.clone()).signature(&signature)).await?;
    println!("{} messages", next.state.messages().len());
    assert_eq!(next.state.messages().len(), 4);

    // A state that was changed is refused.
    let mut forged = kept;
    forged.custom = Some(Json::from_value(&Preferences { language: "Klingon".to_owned() })?);
    let refused = agent.run_text("And now?", Init::state(forged).signature(&signature)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    println!("{refused}");
    Ok(())
}

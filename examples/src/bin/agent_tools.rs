//! An agent with a real model and two tools; one of them runs only when a person agrees.
//!
//! `OPENAI_API_KEY=… cargo run -p everturn-examples --bin agent_tools`, or another model by
//! `EVERTURN_MODEL=anthropic/…` with its key.

use everturn::model::Provider;
use everturn::store::SqliteStore;
use everturn::tool::Tool;
use everturn::{Agent, Init, Input, Interrupt, Json, Prompt, Result, Resume};
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Deserialize, JsonSchema)]
struct Search {
    /// What to look for, in a word or two.
    query: String,
}

#[derive(Deserialize, JsonSchema)]
struct Order {
    /// The tea's name, as `search` gave it.
    tea: String,
    grams: u32,
}

fn shop(model: Provider, file: &std::path::Path) -> Result<Agent<Json>> {
    let search = Tool::new("search", "Finds teas.", |search: Search, _| async move {
        Ok([("Sencha", 9), ("Gyokuro", 24)].map(|(tea, euros)| format!("{tea}, {euros} EUR ({})", search.query)))
    });
    let order = Tool::new("order", "Orders tea. It cannot be taken back.", |order: Order, _| async move {
        Ok(format!("{} g of {} are on their way", order.grams, order.tea))
    });
    let prompt = Prompt::new(model)
        .system("You sell tea. Search before you order, and order only what was asked for.")
        .tools([search.idempotent(), order.requires_approval()]);
    Agent::prompt("shop", prompt).store(SqliteStore::open(file)?).build()
}

#[tokio::main]
async fn main() -> Result<()> {
    let name = std::env::var("EVERTURN_MODEL").unwrap_or_else(|_| "openai/gpt-5-mini".to_owned());
    let directory = tempfile::tempdir().expect("a temporary directory");
    let agent = shop(Provider::new(&name)?, &directory.path().join("shop.db"))?;
    let mut output = agent.run_text("Order 100 g of your cheapest green tea.", Init::new()).await?;
    // The question is on disk: it could as well be answered tomorrow, by another process.
    while let Some(asked) = output.message.as_ref().map(Interrupt::all_in).filter(|asked| !asked.is_empty()) {
        asked.iter().for_each(|one| println!("may it {} {}?  yes", one.name, one.input.clone().unwrap_or_default()));
        let yes = asked.iter().try_fold(Resume::new(), Resume::approve)?;
        output = agent.run(Input::resume(&yes)?, Init::session(output.session_id)).await?;
    }
    match output.error {
        Some(error) => println!("it failed: {}", error.message),
        None => println!("{}\n({} tokens)", output.text(), output.usage.total_tokens),
    }
    Ok(())
}

//! What the model is shown of a long conversation: a window of it, or a summary in place of its beginning.
//!
//! Both are views. What was said stays whole, every older point shows what it showed, and going back to a point before
//! a compaction undoes it.
//!
//! ```
//! use everturn::store::MemoryStore;
//! use everturn::{Agent, Compaction, Init, Json, Message, Turn};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
//! let agent = Agent::flow("helper", |turn: Turn<Json>| async move {
//!     turn.add_message(Message::model(format!("I was shown {} messages.", turn.model_messages().len())))?;
//!     Ok(())
//! })
//! .store(MemoryStore::new())
//! .build()?;
//! let mut output = agent.run_text("One.", Init::new()).await?;
//! let session = output.session_id.clone();
//! for text in ["Two.", "Three."] {
//!     output = agent.run_text(text, Init::session(session.clone())).await?;
//! }
//! assert_eq!(output.text(), "I was shown 5 messages.");
//!
//! // Everything but the last turn is summed up, by a function of yours.
//! let summarise = |messages: Vec<Message>| async move {
//!     Ok(Message::user(format!("(They exchanged {} messages.)", messages.len())))
//! };
//! let compacted = agent.compact(&session, Compaction::new().keep_turns(1), summarise).await?.expect("enough to do");
//! assert_eq!(compacted.summary[0].text(), "(They exchanged 4 messages.)");
//!
//! output = agent.run_text("Four.", Init::session(session.clone())).await?;
//! assert_eq!(output.text(), "I was shown 4 messages.", "the summary, the last turn, and the question");
//! assert_eq!(output.state.messages().len(), 8, "what was said stays whole");
//! assert_eq!(agent.compactions(&session).await?, [compacted]);
//! # Ok(()) }
//! ```

mod auto;
mod head;
mod history;
mod keep;
mod options;
mod plan;
mod summariser;
mod summary;
mod window;

pub use auto::AutoCompaction;
pub(crate) use head::{HeadCompaction, Written};
pub(crate) use history::history;
pub use history::{Compacted, CompactionRecord};
pub use options::{Compaction, OnBranch};
pub(crate) use plan::Plan;
pub use summariser::Summariser;
pub use summary::Summary;
pub(crate) use summary::summarised;
pub use window::Window;

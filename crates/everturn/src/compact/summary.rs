//! What a summariser returns.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

use crate::agent::Handled;
use crate::message::Message;
use crate::model::ModelResponse;
use crate::part::{Part, PartKind};
use crate::run::panic_text;
use crate::state::pairs::Pairs;
use crate::{Error, ErrorKind, Result, Usage};

/// What the model is shown in place of what was said, and what it cost to make.
///
/// ```
/// use everturn::{Message, Summary, Usage};
///
/// let free = Summary::from(Message::user("They talked about tea."));
/// let paid = Summary::new([Message::user("They talked about tea.")]).usage(Usage::tokens(900, 40));
/// assert_eq!(free.messages, paid.messages);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// What is shown.
    pub messages: Vec<Message>,
    /// What it cost.
    pub usage: Usage,
}

impl Summary {
    /// A summary that cost nothing.
    #[must_use]
    pub fn new(messages: impl IntoIterator<Item = Message>) -> Self {
        Self { messages: messages.into_iter().collect(), usage: Usage::default() }
    }

    /// The same at a price.
    #[must_use]
    pub fn usage(mut self, usage: Usage) -> Self {
        self.usage = usage;
        self
    }

    /// The summary, if it can stand for something.
    fn checked(mut self) -> Result<Self> {
        if self.messages.iter().all(is_blank) {
            return Err(Error::invalid(
                "the summary is empty, and would hide what was said: return at least one message with a text",
            ));
        }
        if !Pairs::of(&self.messages).is_whole() {
            return Err(Error::invalid(
                "the summary has a tool's request without its response, or a response alone: keep both or neither",
            ));
        }
        self.messages = self.messages.into_iter().map(Message::without_snapshot_id).collect::<Result<_>>()?;
        Ok(self)
    }
}

/// Whether a message tells a model nothing.
fn is_blank(message: &Message) -> bool {
    let says = |part: &Part| match part.kind() {
        PartKind::Text => part.as_text().is_some_and(|text| !text.trim().is_empty()),
        PartKind::Reasoning => false,
        _ => true,
    };
    !message.parts().iter().any(says)
}

impl From<Vec<Message>> for Summary {
    fn from(messages: Vec<Message>) -> Self {
        Self::new(messages)
    }
}

impl From<Message> for Summary {
    fn from(message: Message) -> Self {
        Self::new([message])
    }
}

impl From<ModelResponse> for Summary {
    fn from(response: ModelResponse) -> Self {
        Self::new([response.message]).usage(response.usage)
    }
}

/// Waits for a summariser. One that fails, panics or says nothing has made no summary.
pub(crate) async fn summarised<R: Into<Summary>>(summarising: impl Future<Output = Handled<R>>) -> Result<Summary> {
    let failed = |kind, why: &str| Error::new(kind, format!("the summariser {why}; nothing was compacted"));
    match AssertUnwindSafe(summarising).catch_unwind().await {
        Ok(Ok(summary)) => summary.into().checked(),
        Ok(Err(failure)) => {
            Err(failed(failure.kind().unwrap_or(ErrorKind::Unavailable), &format!("failed: {failure}")))
        }
        Err(panic) => Err(failed(ErrorKind::Internal, &format!("panicked: {}", panic_text(&*panic)))),
    }
}

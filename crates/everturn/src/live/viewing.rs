//! What the model is shown of a live session.

use std::future::Future;

use super::Session;
use crate::agent::{CustomState, Handled};
use crate::compact::{Compacted, Compaction, Plan, Summary, Window, summarised};
use crate::message::Message;
use crate::state::View;
use crate::{Error, ErrorKind, Result};

impl<S: CustomState> Session<S> {
    /// What the model is shown instead of all messages, if that was changed.
    #[must_use]
    pub fn view(&self) -> Option<View> {
        self.run().work().now.view.as_deref().cloned()
    }

    /// Changes what the model is shown. It counts once the turn completes, like whatever else a turn changes.
    pub fn set_view(&self, mut view: View) -> Result<()> {
        self.keeps_views()?;
        view.summary = view.summary.into_iter().map(Message::without_snapshot_id).collect::<Result<_>>()?;
        let mut work = self.run().work();
        if view.hidden() > work.now.messages.len() {
            return Err(Error::invalid(format!(
                "the view replaces {} messages and there are {}: it would hide what is not said yet",
                view.replaces,
                work.now.messages.len()
            )));
        }
        work.set_view(Some(view), None)
    }

    /// Shows the model all messages again.
    pub fn clear_view(&self) -> Result<()> {
        self.keeps_views()?;
        self.run().work().set_view(None, None)
    }

    /// What the model would be shown through a window: the view's summary and what is pinned, then the end of the rest.
    /// Nothing is changed, so it works without a store as well.
    #[must_use]
    pub fn window(&self, window: Window) -> Vec<Message> {
        let (messages, view) = {
            let work = self.run().work();
            (work.now.messages.clone(), work.now.view.clone())
        };
        window.over(&messages, view.as_deref()).apply(&messages)
    }

    /// Compacts what the model is shown, as part of this turn: undone if the turn fails, in the history once it
    /// completes.
    ///
    /// Unlike with [`Agent::compact`](crate::Agent::compact) the summariser runs while this turn holds its branch, and
    /// others wait for it. The messages of this turn stay, and the options say how many turns before it; with
    /// [`Compaction::keep_messages`] a long turn can be compacted itself. What other tasks add meanwhile is kept; if they
    /// change the messages or the view that are compacted, this is a `Conflict` and changes nothing.
    pub async fn compact<F, Fut, R>(&self, options: Compaction, summarise: F) -> Result<Option<Compacted>>
    where
        F: FnOnce(Vec<Message>) -> Fut + Send,
        Fut: Future<Output = Handled<R>> + Send,
        R: Into<Summary>,
    {
        self.keeps_views()?;
        let plan = {
            let work = self.run().work();
            work.check_open()?;
            Plan::new(&work.now.messages, work.now.view.clone(), work.good.messages.len(), &options)
        };
        let Some(plan) = plan else { return Ok(None) };
        let given = plan.replaced.clone();
        let summary = summarised(async { summarise(given).await }).await?;
        let noted = plan.with(&summary);
        let event = noted.event(self.run().def.name.as_str(), summary.usage)?;
        let mut work = self.run().work();
        if !plan.still_holds(&work.now.messages, work.now.view.as_ref()) {
            return Err(Error::conflict("what is compacted was changed meanwhile: compact again"));
        }
        work.set_view(Some(noted.view), Some(event))?;
        Ok(Some(Compacted { replaced: plan.replaced, summary: summary.messages, usage: summary.usage }))
    }

    fn keeps_views(&self) -> Result<()> {
        match self.run().def.store {
            Some(_) => Ok(()),
            None => Err(Error::new(
                ErrorKind::WrongMode,
                "a state that the caller keeps has no view: show the model a Window, or give the agent a store",
            )),
        }
    }
}

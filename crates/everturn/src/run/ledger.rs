//! The ledger of a turn's tool calls: each is on disk before it runs and after it ended.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::Run;
use super::retry::OfCall;
use crate::Result;
use crate::event::{Event, EventKind};
use crate::json::Json;
use crate::model::generation::hook::{Author, Earlier, Ledger};
use crate::part::ToolRequest;
use crate::tool::run::Answer;
use crate::turn::{ToolEntry, ToolPhase};

/// Keeps the ledger of whatever turn an invocation is in.
pub(crate) struct TurnLedger(pub(crate) Arc<Run>);

#[async_trait]
impl Ledger for TurnLedger {
    fn cancel(&self) -> CancellationToken {
        self.0.running().as_ref().map_or_else(|| self.0.cancel.clone(), |turn| turn.cancel.clone())
    }

    fn next_call(&self) -> String {
        let turn = self.0.running().as_ref().and_then(|turn| turn.fence).map(|fence| fence.turn().to_string());
        let mut work = self.0.work();
        work.calls += 1;
        match turn {
            Some(turn) => format!("{turn}.{}", work.calls),
            None => format!("{}.{}.{}", self.0.invocation, work.turn_index, work.calls),
        }
    }

    fn earlier(&self, request: &ToolRequest) -> Option<Earlier> {
        self.0.earlier_call(request)
    }

    async fn started(&self, calls: &[(&str, &ToolRequest)]) -> Result<()> {
        for (call, request) in calls {
            let input = request.input.clone().unwrap_or_else(Json::empty_object);
            let entry = ToolEntry::new(*call, &request.name, ToolPhase::Started, Some(input));
            self.0.work().note_tool(entry)?;
        }
        self.0.flush().await
    }

    async fn ended(&self, call: &str, name: &str, answer: &Answer, asked_by: Option<&Author>) -> Result<()> {
        let phase = if answer.is_error { ToolPhase::Failed } else { ToolPhase::Finished };
        {
            let mut work = self.0.work();
            work.note_tool(ToolEntry::new(call, name, phase, Some(answer.output.clone())))?;
            if !answer.delta.is_empty() {
                let author = asked_by.map_or(self.0.def.name.as_str(), |author| &author.name);
                let mut event = Event::new(author).with_state(answer.delta.clone());
                event.path = asked_by.map(|author| author.path.clone()).unwrap_or_default();
                event.kind = EventKind::ToolResult;
                event.metadata = Some(Json::from_value(&OfCall { call: call.to_owned() })?);
                work.add_event(event)?;
            }
        }
        self.0.flush().await
    }

    fn interrupted(&self, call: &str, name: &str, payload: &Json) {
        // The turn ends with the question, which the end writes.
        let _ = self.0.work().note_tool(ToolEntry::new(call, name, ToolPhase::Interrupted, Some(payload.clone())));
    }

    async fn iteration_end(&self) -> Result<()> {
        self.0.tool_iteration_end().await.map(drop)
    }
}

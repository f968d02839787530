//! Two processes that write to one session.
//!
//! A harness has handles, not processes; who shares a store between processes starts them and has each one
//! [`write`](write()) by a [`WriterPlan`]. Plans and reports are plain data that serde can carry. When all are done,
//! [`check`] looks whether every turn is where it belongs: on the head's line, refused before any work, or kept beside
//! the line.
//!
//! ```
//! use everturn::SessionKey;
//! use everturn::store::MemoryStore;
//! use everturn::store::conformance::writers::{WhenBusy, WriterPlan, check, write};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> everturn::Result<()> {
//! let store = MemoryStore::new();
//! let session = SessionKey::of("shop", "ann", "order-42")?;
//! let plan = |who: &str| WriterPlan::new(session.clone(), who, WhenBusy::Wait);
//! // Of two processes, in earnest.
//! let (ann, bob) = (plan("ann"), plan("bob"));
//! let (ann, bob) = tokio::try_join!(write(&store, &ann), write(&store, &bob))?;
//! let verdict = check(&store, &plan("ann"), &[ann, bob]).await;
//! assert!(verdict.is_pass(), "{verdict:?}");
//! # Ok(()) }
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::bench::{answer, invocation, texts};
use super::verdict::{Check, Stop, Verdict, holds, same, there};
use crate::store::{
    At, BeginTurn, Busy, CreateSession, EndTurn, EventQuery, MAX_PAGE, RecordQuery, Start, StepTurn, Store, StoreExt,
    VerifyScope,
};
use crate::{Changes, ErrorKind, Input, Message, Point, Result, SessionKey, TurnId, TurnStatus};

/// Longer than two writers take, on any machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a writer does when the other one has the branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WhenBusy {
    /// It waits: all turns are on the head's line.
    Wait,
    /// It gives that turn up: what was refused has left nothing.
    Refuse,
    /// It goes on beside the other: all turns are kept, and those that moved the head are on its line.
    Branch,
}

/// What one of the writers is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct WriterPlan {
    /// The session, the same for all; the first to come creates it.
    pub session: SessionKey,
    /// The writer's name, its own.
    pub who: String,
    /// What to do when the branch is busy, the same for all.
    pub when_busy: WhenBusy,
    /// How many turns, the same for all: 30 unless set.
    pub turns: usize,
}

impl WriterPlan {
    /// A plan for 30 turns.
    #[must_use]
    pub fn new(session: SessionKey, who: impl Into<String>, when_busy: WhenBusy) -> Self {
        Self { session, who: who.into(), when_busy, turns: 30 }
    }

    /// The same for so many turns.
    #[must_use]
    pub fn turns(mut self, turns: usize) -> Self {
        self.turns = turns;
        self
    }
}

/// What became of a writer's turns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WriterReport {
    who: String,
    done: Vec<Done>,
    refused: Vec<usize>,
}

/// A turn that was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Done {
    n: usize,
    turn: TurnId,
    from: Point,
    point: Point,
    on_head: bool,
}

fn asked(who: &str, n: usize) -> String {
    format!("{who} asks {n}")
}

fn answered(who: &str, n: usize) -> String {
    format!("{who} is told {n}")
}

/// Does a writer's turns, each a begin, a step and an end. In the writer's process.
///
/// Anything the store refuses but a busy branch where that may be is an error: once a turn has begun, nobody is in its
/// way.
pub async fn write(store: &dyn Store, plan: &WriterPlan) -> Result<WriterReport> {
    let WriterPlan { session, who, when_busy, turns } = plan;
    store.open_or_create(CreateSession::at(session.clone())).await?;
    let busy = match when_busy {
        WhenBusy::Wait => Busy::Wait(PATIENCE),
        WhenBusy::Refuse => Busy::Refuse,
        WhenBusy::Branch => Busy::Branch,
    };
    let mut report = WriterReport { who: who.clone(), done: Vec::new(), refused: Vec::new() };
    for n in 0..*turns {
        let input = Input::text(asked(who, n));
        let begin = BeginTurn::new(Start::Session(session.clone()), invocation("writer"), input).busy(busy);
        let begun = match store.begin(begin).await {
            Err(error) if error.kind() == ErrorKind::Busy && *when_busy == WhenBusy::Refuse => {
                report.refused.push(n);
                tokio::task::yield_now().await;
                continue;
            }
            begun => begun?.begun()?,
        };
        store.step(StepTurn::new(begun.fence, Changes::new())).await?;
        let receipt = store.end(EndTurn::completed(begun.fence, answer(&answered(who, n)))).await?;
        let (turn, from, point, on_head) = (begun.turn, begun.from, receipt.point, receipt.on_head);
        report.done.push(Done { n, turn, from, point, on_head });
        tokio::task::yield_now().await;
    }
    Ok(report)
}

/// Looks whether all turns of all writers are where they belong. When they have ended, by a handle of its own; the plan
/// is that of any of them.
pub async fn check(store: &dyn Store, plan: &WriterPlan, reports: &[WriterReport]) -> Verdict {
    match look(store, plan, reports).await {
        Ok(()) => Verdict::Passed,
        Err(Stop::Skipped(why)) => Verdict::Skipped(why),
        Err(Stop::Failed(failure)) => Verdict::Failed(failure),
    }
}

async fn look(store: &dyn Store, plan: &WriterPlan, reports: &[WriterReport]) -> Check {
    let session = &plan.session;
    let names: BTreeSet<_> = reports.iter().map(|report| &report.who).collect();
    same(names.len(), reports.len(), "the writers' names: each has its own")?;
    for report in reports {
        let WriterReport { who, done, refused } = report;
        let tried: BTreeSet<_> = done.iter().map(|done| done.n).chain(refused.iter().copied()).collect();
        same((tried.len(), done.len() + refused.len()), (plan.turns, plan.turns), &format!("the turns of {who}"))?;
        match plan.when_busy {
            WhenBusy::Wait | WhenBusy::Branch => same(refused.len(), 0, &format!("the refused turns of {who}"))?,
            WhenBusy::Refuse => {}
        }
        let beside = done.iter().filter(|done| !done.on_head).count();
        if plan.when_busy != WhenBusy::Branch {
            same(beside, 0, &format!("the turns of {who} that are not on the head's line"))?;
        }
        for done in done {
            is_kept(store, session, who, done).await?;
        }
    }
    on_the_line(store, session, reports).await?;
    no_trace_of_the_refused(store, session, reports).await?;
    same(store.running(Some(session)).await?.len(), 0, "the turns still running")?;
    same(store.verify(VerifyScope::Session(session.clone())).await?.damage, None, "the damage")
}

/// The turn completed, and its point has what it follows, its question and its answer.
async fn is_kept(store: &dyn Store, session: &SessionKey, who: &str, done: &Done) -> Check {
    let (question, reply) = (asked(who, done.n), answered(who, done.n));
    let turn = there(store.turn(done.turn).await?, &format!("the turn {question:?}"))?;
    same(turn.status, TurnStatus::Completed, &format!("the status of {question:?}"))?;
    let at = async |point| {
        let state = store.state(At::Point(session.clone(), point)).await?;
        there(state, &format!("a point of {question:?}")).map(|state| texts(&state))
    };
    let before = at(done.from).await?;
    same(at(done.point).await?, [before, vec![question.clone(), reply]].concat(), &format!("what {question:?} left"))
}

/// The head's line has the turns that moved the head, each once, those of each writer in its order, and nothing else.
async fn on_the_line(store: &dyn Store, session: &SessionKey, reports: &[WriterReport]) -> Check {
    let mut line = Vec::new();
    let mut query = EventQuery::of(session.clone()).limit(MAX_PAGE);
    loop {
        let page = store.events(query.clone()).await?;
        line.extend(page.items.iter().flat_map(|event| &event.messages).map(Message::text));
        match page.next {
            Some(cursor) => query = query.from(cursor),
            None => break,
        }
    }
    let mut moved: Vec<_> = reports
        .iter()
        .flat_map(|report| report.done.iter().map(|done| (done.point, &report.who, done)))
        .filter(|(_, _, done)| done.on_head)
        .collect();
    moved.sort_by_key(|(point, _, _)| *point);
    let wanted: Vec<_> = moved.iter().flat_map(|(_, who, done)| [asked(who, done.n), answered(who, done.n)]).collect();
    same(line, wanted, "what is said on the head's line")?;
    for report in reports {
        let order: Vec<_> = report.done.iter().map(|done| done.point).collect();
        holds(order.is_sorted_by(|a, b| a < b), "a writer's turns are in its order")?;
    }
    let record = store.existing(session).await?;
    same(record.turns, moved.len() as u64, "the turns on the head's line")?;
    same(Some(record.head), moved.last().map(|(point, _, _)| *point), "the head")
}

async fn no_trace_of_the_refused(store: &dyn Store, session: &SessionKey, reports: &[WriterReport]) -> Check {
    let refused: Vec<_> =
        reports.iter().flat_map(|report| report.refused.iter().map(|n| asked(&report.who, *n))).collect();
    let mut query = RecordQuery::of(session.clone()).limit(MAX_PAGE);
    loop {
        let page = store.records(query.clone()).await?;
        for record in &page.items {
            let found = refused.iter().find(|text| record.body.as_str().contains(&format!("{text:?}")));
            same(found, None, "a refused turn in the log")?;
        }
        match page.next {
            Some(cursor) => query = query.from(cursor),
            None => return Ok(()),
        }
    }
}

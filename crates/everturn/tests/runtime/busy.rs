//! Busy branches: who waits, who is refused, who goes beside; within a process and across two handles on one file.

use std::sync::Arc;
use std::time::Duration;

use everturn::store::{BranchChange, Busy, Store, StoreExt};
use everturn::{Agent, Connection, ErrorKind, Init, Message, Output, Turn};
use tokio::sync::Notify;

use crate::support::*;

fn s() -> Init {
    Init::session(sid("s"))
}

/// An echo whose turn with the text `hold` says so and ends when it is told to.
fn holding(store: Arc<dyn Store>, hold: &Arc<Notify>) -> everturn::AgentBuilder<Tally> {
    let hold = hold.clone();
    let flow = Agent::flow("echo", move |turn: Turn<Tally>| {
        let hold = hold.clone();
        async move {
            if turn.text() == "hold" {
                turn.responder().text("holding").await?;
                hold.notified().await;
            }
            turn.add_message(Message::model(format!("echo: {}", turn.text())))?;
            Ok(())
        }
    });
    flow.shared_store(store)
}

/// A turn that holds the branch until it is told to end.
async fn held(agent: &Agent<Tally>, init: Init) -> Connection {
    let mut connection = agent.connect(init).await.unwrap();
    connection.send_text("hold").await.unwrap();
    assert_eq!(connection.receive().await.unwrap().text(), "holding");
    connection
}

/// A turn that is on its way into the store.
async fn waiting(agent: &Agent<Tally>, text: &str, init: Init) -> tokio::task::JoinHandle<everturn::Result<Output>> {
    let connection = agent.connect(init).await.unwrap();
    connection.send_text(text).await.unwrap();
    let mut connection = connection;
    let waiting = tokio::spawn(async move { connection.output().await });
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
    waiting
}

on_every_store! {
    async fn a_turn_on_a_busy_branch_waits_and_goes_on_where_the_other_ended(home: Home) {
        let hold = Arc::new(Notify::new());
        let agent = holding(home.store(), &hold).build().unwrap();
        let mut first = held(&agent, s()).await;
        let second = waiting(&agent, "second", s()).await;
        assert!(!second.is_finished());
        hold.notify_one();
        assert!(first.output().await.unwrap().on_head);
        let second = second.await.unwrap().unwrap();
        assert_eq!(said(&second), ["hold", "echo: hold", "second", "echo: second"]);
        assert!(second.on_head);
    }

    async fn waiting_has_a_deadline_after_which_nothing_has_happened(home: Home) {
        let hold = Arc::new(Notify::new());
        let agent = holding(home.store(), &hold).build().unwrap();
        let mut first = held(&agent, s()).await;
        let impatient = s().busy(Busy::Wait(Duration::from_millis(20)));
        assert_eq!(kind(agent.run_text("late", impatient).await), ErrorKind::Busy);
        hold.notify_one();
        let output = first.output().await.unwrap();
        assert_eq!(said(&output), ["hold", "echo: hold"]);
        let rows = agent.snapshots(&sid("s"), |query| query).await.unwrap().items;
        assert_eq!(rows.len(), 1, "what never began leaves no row");
        assert_eq!(said(&agent.run_text("late", s()).await.unwrap()).len(), 4, "later it can be sent again");
    }

    async fn a_busy_branch_may_refuse_at_once(home: Home) {
        let hold = Arc::new(Notify::new());
        let agent = holding(home.store(), &hold).busy(Busy::Refuse).build().unwrap();
        let mut first = held(&agent, s()).await;
        assert_eq!(kind(agent.run_text("refused", s()).await), ErrorKind::Busy);
        let patient = waiting(&agent, "patient", s().busy(Busy::default())).await;
        hold.notify_one();
        first.output().await.unwrap();
        let patient = patient.await.unwrap().unwrap();
        assert_eq!(said(&patient)[2..], ["patient", "echo: patient"], "an invocation may have its own way");
        assert!(agent.run_text("free again", s()).await.is_ok());
    }

    async fn a_busy_branch_may_be_gone_on_with_beside_it(home: Home) {
        let hold = Arc::new(Notify::new());
        let agent = holding(home.store(), &hold).busy(Busy::Branch).build().unwrap();
        agent.run_text("first", s()).await.unwrap();
        let mut holder = held(&agent, s()).await;
        let beside = agent.run_text("beside", s()).await.unwrap();
        assert_eq!(said(&beside)[2..], ["beside", "echo: beside"], "it stands where the holder started");
        assert!(!beside.on_head);
        hold.notify_one();
        let holder = holder.output().await.unwrap();
        assert!(holder.on_head, "nobody pushes the holder off");
        assert_eq!(said(&holder)[2..], ["hold", "echo: hold"]);
        let more = agent.run_text("more", Init::snapshot(beside.snapshot_id.unwrap())).await.unwrap();
        assert_eq!(said(&more)[2..4], ["beside", "echo: beside"], "what went beside can be gone on with");
    }

    async fn only_its_own_branch_is_busy(home: Home) {
        let hold = Arc::new(Notify::new());
        let agent = holding(home.store(), &hold).busy(Busy::Refuse).build().unwrap();
        let first = agent.run_text("first", s()).await.unwrap();
        let change = BranchChange::Create { name: branch("other"), at: first.point.unwrap() };
        home.store().branch(&key("s"), change).await.unwrap();
        let mut holder = held(&agent, s()).await;
        let other = agent.run_text("other", s().branch(branch("other"))).await.unwrap();
        assert_eq!((said(&other).len(), other.on_head), (4, true));
        assert!(agent.run_text("other", Init::session(sid("another"))).await.is_ok());
        let by_snapshot = agent.run_text("by snapshot", Init::snapshot(first.snapshot_id.unwrap())).await.unwrap();
        assert_eq!(said(&by_snapshot)[2], "by snapshot", "a start by snapshot never waits");
        hold.notify_one();
        holder.output().await.unwrap();
    }

    async fn a_failing_turn_frees_its_branch(home: Home) {
        let agent = stored(&home);
        let failing = waiting(&agent, "fail it", s()).await;
        let panicking = waiting(&agent, "panic it", s()).await;
        let last = agent.run_text("last", s()).await.unwrap();
        assert_eq!(said(&last)[..2], ["last", "echo: last"]);
        assert!(failing.await.unwrap().unwrap().error.is_some());
        assert!(panicking.await.unwrap().unwrap().error.is_some());
    }

    async fn an_agent_called_by_the_one_it_calls_is_refused_too(home: Home) {
        let hold = Arc::new(Notify::new());
        let inner = holding(home.store(), &hold).build().unwrap();
        let calls = inner.clone();
        let between = Agent::flow("between", move |turn: Turn<Tally>| {
            let inner = calls.clone();
            async move {
                let called = inner.run_text("inner", s()).await;
                turn.add_message(Message::model(format!("{:?}", called.unwrap_err().kind())))?;
                Ok(())
            }
        });
        let between = between.shared_store(home.store()).build().unwrap();
        let outer = Agent::flow("echo", move |turn: Turn<Tally>| {
            let between = between.clone();
            async move {
                let answer = between.run_text("go", Init::new()).await?;
                turn.add_message(Message::model(answer.text()))?;
                Ok(())
            }
        });
        let outer = outer.shared_store(home.store()).build().unwrap();
        let output = outer.run_text("start", s()).await.unwrap().ok().unwrap();
        assert_eq!(said(&output), ["start", "Busy"], "at once, not after the deadline of 30 s");
    }

    async fn two_handles_take_turns(home: Home) {
        let (hold, other_hold) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let here = holding(home.store(), &hold).build().unwrap();
        let there = holding(home.elsewhere(), &other_hold).build().unwrap();
        let mut first = held(&here, s()).await;
        assert_eq!(kind(there.run_text("no", s().busy(Busy::Refuse)).await), ErrorKind::Busy);
        let impatient = s().busy(Busy::Wait(Duration::from_millis(20)));
        assert_eq!(kind(there.run_text("no", impatient).await), ErrorKind::Busy);
        let beside = there.run_text("beside", s().busy(Busy::Branch)).await.unwrap();
        assert!(!beside.on_head);
        let second = waiting(&there, "second", s()).await;
        hold.notify_one();
        first.output().await.unwrap();
        let second = second.await.unwrap().unwrap();
        assert_eq!(said(&second), ["hold", "echo: hold", "second", "echo: second"]);
        assert_eq!(home.elsewhere().existing(&key("s")).await.unwrap().head, second.point.unwrap());
    }

    async fn many_turns_at_once_from_two_handles_are_all_kept(home: Home) {
        let agents = [stored(&home), echo().shared_store(home.elsewhere()).build().unwrap()];
        let turns = (0..16).map(|n| {
            let agent = agents[n % 2].clone();
            tokio::spawn(async move { agent.run_text(format!("{n}"), s()).await.unwrap() })
        });
        for turn in turns.collect::<Vec<_>>() {
            assert!(turn.await.unwrap().on_head);
        }
        let head = home.elsewhere().head_state(&key("s")).await.unwrap();
        assert_eq!((head.turns(), head.messages().len()), (16, 32));
        let tally: Tally = head.custom().unwrap().to().unwrap();
        assert_eq!(tally.turns, 16, "each stood on the one before");
        let mut kept: Vec<u32> = texts(head.messages()).iter().filter_map(|text| text.parse().ok()).collect();
        kept.sort_unstable();
        assert_eq!(kept, (0..16).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn waiting_turns_go_in_the_order_they_came() {
    let hold = Arc::new(Notify::new());
    let agent = holding(Home::memory().store(), &hold).build().unwrap();
    let mut first = held(&agent, s()).await;
    let mut rest = Vec::new();
    for text in ["a", "b", "c", "d"] {
        rest.push(waiting(&agent, text, s()).await);
    }
    hold.notify_one();
    first.output().await.unwrap();
    let mut last = Vec::new();
    for turn in rest {
        last = said(&turn.await.unwrap().unwrap());
    }
    let asked: Vec<_> = last.iter().step_by(2).collect();
    assert_eq!(asked, ["hold", "a", "b", "c", "d"]);
}

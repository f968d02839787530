//! Compacting a session from outside: what the model is shown changes, what was said does not.

use std::sync::Arc;

use everturn::store::{At, BeginTurn, EventQuery, ForkSession, Start, StoreExt, VerifyScope};
use everturn::{
    Agent, Compaction, ErrorKind, EventKind, Failure, FinishReason, Handled, Json, Message, Part, PointState, Role,
    SessionStatus, SnapshotPolicy, Summary, Usage,
};
use tokio::sync::Notify;

use crate::sessions::{doing, turn};
use crate::support::*;

pub(crate) fn of(messages: &[Message]) -> Vec<String> {
    messages.iter().map(Message::text).collect()
}

/// What the model would be shown of the session `s`, as another process reads it.
pub(crate) async fn shown(home: &Home) -> Vec<String> {
    of(&home.elsewhere().head_state(&key("s")).await.unwrap().model_messages())
}

pub(crate) async fn head(home: &Home) -> PointState {
    home.elsewhere().head_state(&key("s")).await.unwrap()
}

/// A summariser that says how much it was given.
pub(crate) async fn count(messages: Vec<Message>) -> Handled<Message> {
    Ok(Message::user(format!("sum of {}", messages.len())))
}

/// Everything that a refused compaction must leave alone.
async fn footprint(home: &Home) -> (Json, u64, Vec<String>) {
    let store = home.elsewhere();
    let record = store.existing(&key("s")).await.unwrap();
    let state = store.head_state(&key("s")).await.unwrap();
    (Json::from_value(&record).unwrap(), state.point().seq(), of(&state.model_messages()))
}

/// A conversation of so many turns with the echo agent.
async fn talked(home: &Home, turns: &[&str]) -> Agent<Tally> {
    let agent = stored(home);
    for text in turns {
        turn(&agent, text).await;
    }
    agent
}

on_every_store! {
    async fn a_compaction_shows_the_summary_and_keeps_what_was_said(home: Home) {
        let agent = talked(&home, &["a", "b"]).await;
        let before = head(&home).await;
        let record = agent.compact(&sid("s"), Compaction::new(), count).await.unwrap().unwrap();
        assert_eq!(of(&record.replaced), ["a", "echo: a", "b", "echo: b"]);
        assert_eq!(shown(&home).await, ["sum of 4"]);
        let after = head(&home).await;
        assert_eq!(after.messages(), before.messages(), "messages stay whole");
        assert_eq!((after.point(), after.turns()), (record.point, 2), "a compaction is no turn");
        assert_ne!(after.digest(), before.digest(), "what is shown is part of the state");
        let next = turn(&agent, "c").await;
        assert_eq!(said(&next), ["a", "echo: a", "b", "echo: b", "c", "echo: c"]);
        assert_eq!(shown(&home).await, ["sum of 4", "c", "echo: c"]);
        let snapshot = agent.snapshot(next.snapshot_id.unwrap()).await.unwrap().unwrap();
        assert_eq!(snapshot.state.unwrap().messages.len(), 6, "snapshots are whole as well");
        assert_eq!(home.store().verify(VerifyScope::All).await.unwrap().damage, None);
    }

    async fn a_session_never_compacted_has_no_history(home: Home) {
        let agent = talked(&home, &["a"]).await;
        assert_eq!(agent.compactions(&sid("s")).await.unwrap(), []);
    }

    async fn the_history_of_compactions_is_kept_with_what_each_replaced(home: Home) {
        let agent = talked(&home, &["a", "b"]).await;
        let first = agent.compact(&sid("s"), Compaction::new(), count).await.unwrap().unwrap();
        turn(&agent, "new").await;
        let priced = |_| async { Ok(Summary::new([Message::user("sum 2")]).usage(Usage::tokens(70, 7))) };
        let second = agent.compact(&sid("s"), Compaction::new(), priced).await.unwrap().unwrap();
        assert_eq!(of(&second.replaced), ["sum of 4", "new", "echo: new"], "the first summary is replaced too");
        assert_eq!(shown(&home).await, ["sum 2"]);
        assert_eq!(said_in(&head(&home).await).len(), 6);
        let elsewhere = echo().shared_store(home.elsewhere()).build().unwrap();
        let history = elsewhere.compactions(&sid("s")).await.unwrap();
        assert_eq!(history, [first.clone(), second.clone()]);
        assert!(history[0].at <= history[1].at && history[0].point < history[1].point);
        assert_eq!(history[1].usage, Usage::tokens(70, 7));
        let then = home.elsewhere().state(At::Point(key("s"), first.point)).await.unwrap().unwrap();
        assert_eq!(of(&then.model_messages()), ["sum of 4"], "an older point shows what it showed");
    }

    async fn the_last_turns_are_kept_as_they_are(home: Home) {
        let agent = talked(&home, &["a", "b", "c"]).await;
        let record = agent.compact(&sid("s"), Compaction::new().keep_turns(2), count).await.unwrap().unwrap();
        assert_eq!(of(&record.replaced), ["a", "echo: a"]);
        assert_eq!(shown(&home).await, ["sum of 2", "b", "echo: b", "c", "echo: c"]);
        let again = agent.compact(&sid("s"), Compaction::new().keep_turns(2), count).await.unwrap();
        assert_eq!(again, None, "nothing new to sum up");
        assert_eq!(agent.compact(&sid("s"), Compaction::new().keep_turns(9), count).await.unwrap(), None);
        turn(&agent, "d").await;
        agent.compact(&sid("s"), Compaction::new().keep_messages(3), count).await.unwrap().unwrap();
        assert_eq!(shown(&home).await, ["sum of 4", "echo: c", "d", "echo: d"]);
    }

    async fn pinned_messages_outlive_compactions(home: Home) {
        let agent = doing(&home, |turn| async move {
            if turn.text() == "a" {
                turn.add_message(Message::of_text(Role::System, "be brief"))?;
                turn.add_message(Message::model("mark me").with_metadata("pinned", &json("true")))?;
                turn.add_message(Message::model("not me").with_metadata("pinned", &json("false")))?;
            }
            turn.add_message(Message::model(format!("re {}", turn.text())))?;
            Ok(())
        });
        turn(&agent, "a").await;
        turn(&agent, "b").await;
        let options = Compaction::new().pin(|message| message.text() == "re a");
        let record = agent.compact(&sid("s"), options, count).await.unwrap().unwrap();
        assert_eq!(of(&record.replaced), ["a", "not me", "b", "re b"]);
        assert_eq!(shown(&home).await, ["sum of 4", "be brief", "mark me", "re a"]);
        turn(&agent, "c").await;
        let record = agent.compact(&sid("s"), Compaction::new(), count).await.unwrap().unwrap();
        assert_eq!(of(&record.replaced), ["sum of 4", "c", "re c"]);
        assert_eq!(shown(&home).await, ["sum of 3", "be brief", "mark me", "re a"], "what was pinned once stays");
        assert_eq!(agent.compactions(&sid("s")).await.unwrap()[1], record);
        let all = Compaction::new().pin(|_| true);
        turn(&agent, "d").await;
        assert_eq!(agent.compact(&sid("s"), all, count).await.unwrap(), None, "there is nothing left to sum up");
    }

    async fn a_tools_answer_is_never_cut_from_its_question(home: Home) {
        let agent = doing(&home, |turn| async move {
            turn.add_message(Message::new(Role::Model, &[Part::tool_request("look", Some("1"), &json("{}"))]))?;
            turn.add_message(Message::new(Role::Tool, &[Part::tool_response("look", Some("1"), &json("7"))]))?;
            turn.add_message(Message::model("seven"))?;
            Ok(())
        });
        turn(&agent, "a").await;
        turn(&agent, "b").await;
        let record = agent.compact(&sid("s"), Compaction::new().keep_messages(2), count).await.unwrap().unwrap();
        assert_eq!(record.replaced.len(), 5, "up to the question, not up to its answer");
        let state = head(&home).await;
        assert_eq!(state.model_messages()[1..], state.messages().to_vec()[5..]);
        let answers = |message: &Message| message.role() == Role::Tool;
        agent.compact(&sid("s"), Compaction::new().pin(answers), count).await.unwrap().unwrap();
        let roles: Vec<_> = head(&home).await.model_messages().iter().map(Message::role).collect();
        assert_eq!(roles, [Role::User, Role::Model, Role::Tool], "a pinned answer brings its question");
    }

    async fn an_empty_summary_is_refused(home: Home) {
        let agent = talked(&home, &["a"]).await;
        let before = footprint(&home).await;
        let thinking = Message::new(Role::Model, &[Part::reasoning("hm"), Part::text("  ")]);
        let half = Message::new(Role::Model, &[Part::text("x"), Part::tool_request("f", None, &json("1"))]);
        for (empty, words) in [
            (vec![], "empty"),
            (vec![Message::user(" \n")], "empty"),
            (vec![thinking], "empty"),
            (vec![half], "without its response"),
        ] {
            let refusal = agent.compact(&sid("s"), Compaction::new(), |_| async { Ok(empty) }).await;
            refused(refusal, ErrorKind::Invalid, words);
        }
        assert_eq!(footprint(&home).await, before);
    }

    async fn a_summariser_that_fails_or_panics_changes_nothing(home: Home) {
        let agent = talked(&home, &["a"]).await;
        let before = footprint(&home).await;
        let failing = |_| async { Err::<Message, _>(Failure::new("UNAVAILABLE", "no model today")) };
        refused(agent.compact(&sid("s"), Compaction::new(), failing).await, ErrorKind::Unavailable, "no model today");
        let limited = |_| async { Err::<Message, _>(everturn::Error::new(ErrorKind::TooLarge, "too long").into()) };
        refused(agent.compact(&sid("s"), Compaction::new(), limited).await, ErrorKind::TooLarge, "too long");
        let at_once = |_| -> std::future::Ready<Handled<Message>> { panic!("oh no") };
        refused(agent.compact(&sid("s"), Compaction::new(), at_once).await, ErrorKind::Internal, "oh no");
        let later = |_| async {
            tokio::task::yield_now().await;
            if true { panic!("oh dear") }
            Ok(Message::user("never"))
        };
        refused(agent.compact(&sid("s"), Compaction::new(), later).await, ErrorKind::Internal, "oh dear");
        assert_eq!(footprint(&home).await, before);
        agent.compact(&sid("s"), Compaction::new(), count).await.unwrap().unwrap();
    }

    async fn a_turn_while_the_summariser_runs_wins(home: Home) {
        let agent = talked(&home, &["a"]).await;
        let other = agent.clone();
        let slow = |messages: Vec<Message>| async move {
            turn(&other, "meanwhile").await;
            count(messages).await
        };
        refused(agent.compact(&sid("s"), Compaction::new(), slow).await, ErrorKind::Conflict, "read again");
        assert_eq!(shown(&home).await, ["a", "echo: a", "meanwhile", "echo: meanwhile"]);
        assert_eq!(agent.compactions(&sid("s")).await.unwrap(), []);
        let store = home.store();
        let begins = |messages: Vec<Message>| async move {
            let invocation = everturn::InvocationId::new("other")?;
            store.begin(BeginTurn::new(Start::Session(key("s")), invocation, everturn::Input::text("?"))).await?.begun()?;
            count(messages).await
        };
        refused(agent.compact(&sid("s"), Compaction::new(), begins).await, ErrorKind::Busy, "holds the branch");
        assert_eq!(shown(&home).await.len(), 4, "one that still runs wins too");
    }

    async fn a_compaction_waits_for_no_turn_and_pays_for_none(home: Home) {
        let (started, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (tell, wait) = (started.clone(), go.clone());
        let agent = doing(&home, move |turn| {
            let (tell, wait) = (tell.clone(), wait.clone());
            async move {
                if turn.text() == "slow" {
                    tell.notify_one();
                    wait.notified().await;
                }
                turn.add_message(Message::model("ok"))?;
                Ok(())
            }
        });
        turn(&agent, "a").await;
        let running = tokio::spawn({
            let agent = agent.clone();
            async move { turn(&agent, "slow").await }
        });
        started.notified().await;
        let asked = |_| async { panic!("it need not be asked") as Handled<Message> };
        refused(agent.compact(&sid("s"), Compaction::new(), asked).await, ErrorKind::Busy, "holds the branch");
        go.notify_one();
        running.await.unwrap();
        let elsewhere = async move { agent.compact(&sid("s"), Compaction::new(), count).await.unwrap().unwrap() };
        assert_eq!(tokio::spawn(elsewhere).await.unwrap().replaced.len(), 4, "in whatever task it is made");
    }

    async fn a_session_that_waits_for_an_answer_is_not_compacted(home: Home) {
        let agent = doing(&home, |turn| async move {
            match turn.text().as_str() {
                "ask" => turn.finish_reason(FinishReason::Interrupted)?,
                "call" => {
                    turn.add_message(Message::new(Role::Model, &[Part::tool_request("f", None, &json("1"))]))?;
                }
                _ => turn.add_message(Message::model("ok"))?,
            }
            Ok(())
        });
        for question in ["ask", "call"] {
            turn(&agent, question).await;
            let before = footprint(&home).await;
            refused(agent.compact(&sid("s"), Compaction::new(), count).await, ErrorKind::NotResumable, "answer it first");
            assert_eq!(footprint(&home).await, before, "after {question}");
            turn(&agent, "answered").await;
        }
        assert_eq!(home.store().existing(&key("s")).await.unwrap().status, SessionStatus::Idle);
        agent.compact(&sid("s"), Compaction::new(), count).await.unwrap().unwrap();
    }

    async fn the_cost_of_a_summary_is_counted(home: Home) {
        let agent = talked(&home, &["a"]).await;
        let priced = |_| async { Ok(Summary::new([Message::user("sum")]).usage(Usage::tokens(100, 10))) };
        agent.compact(&sid("s"), Compaction::new(), priced).await.unwrap().unwrap();
        assert_eq!(head(&home).await.usage(), Usage::tokens(100, 10));
        assert_eq!(home.elsewhere().existing(&key("s")).await.unwrap().usage, Usage::tokens(100, 10));
        let events = home.elsewhere().events(EventQuery::of(key("s"))).await.unwrap().items;
        let last = events.last().unwrap();
        assert_eq!((last.kind, last.usage, last.turn_index), (EventKind::Compaction, Some(Usage::tokens(100, 10)), None));
    }

    async fn rewinding_before_a_compaction_undoes_it(home: Home) {
        let agent = talked(&home, &["a", "b"]).await;
        let before = head(&home).await;
        let record = agent.compact(&sid("s"), Compaction::new(), count).await.unwrap().unwrap();
        home.store().rewind(&key("s"), before.point()).await.unwrap();
        assert_eq!(shown(&home).await, ["a", "echo: a", "b", "echo: b"]);
        assert_eq!(head(&home).await.digest(), before.digest());
        assert_eq!(agent.compactions(&sid("s")).await.unwrap(), []);
        home.store().rewind(&key("s"), record.point).await.unwrap();
        assert_eq!(shown(&home).await, ["sum of 4"], "and going forth again brings it back");
        assert_eq!(agent.compactions(&sid("s")).await.unwrap(), [record]);
    }

    async fn forks_inherit_compactions_and_go_their_own_ways(home: Home) {
        let agent = talked(&home, &["a"]).await;
        let record = agent.compact(&sid("s"), Compaction::new(), count).await.unwrap().unwrap();
        turn(&agent, "b").await;
        home.store().fork(ForkSession::at(At::head(key("s"))).id(sid("f"))).await.unwrap();
        let fork = home.elsewhere().head_state(&key("f")).await.unwrap();
        assert_eq!(of(&fork.model_messages()), ["sum of 2", "b", "echo: b"]);
        assert_eq!(agent.compactions(&sid("f")).await.unwrap(), std::slice::from_ref(&record));
        let own = agent.compact(&sid("f"), Compaction::new(), count).await.unwrap().unwrap();
        assert_eq!(agent.compactions(&sid("f")).await.unwrap(), [record.clone(), own]);
        assert_eq!(agent.compactions(&sid("s")).await.unwrap(), [record]);
        assert_eq!(shown(&home).await, ["sum of 2", "b", "echo: b"]);
    }

    async fn a_branch_is_compacted_by_itself(home: Home) {
        let agent = talked(&home, &["a"]).await;
        let point = head(&home).await.point();
        let draft = everturn::store::BranchChange::Create { name: branch("draft"), at: point };
        home.store().branch(&key("s"), draft).await.unwrap();
        let (session, draft) = (sid("s"), branch("draft"));
        let record = agent.compact((&session, &draft), Compaction::new(), count).await.unwrap().unwrap();
        assert_eq!(shown(&home).await, ["a", "echo: a"], "main is as it was");
        assert_eq!(agent.compactions((&session, &draft)).await.unwrap(), [record]);
        assert_eq!(agent.compactions(&session).await.unwrap(), []);
        let none = branch("none");
        refused(agent.compact((&session, &none), Compaction::new(), count).await, ErrorKind::NotFound, "none");
    }

    async fn going_on_from_the_latest_snapshot_keeps_the_compaction(home: Home) {
        let agent = talked(&home, &["a"]).await;
        agent.compact(&sid("s"), Compaction::new(), count).await.unwrap().unwrap();
        let latest = agent.latest(&sid("s")).await.unwrap().unwrap();
        agent.run_text("b", everturn::Init::snapshot(latest.snapshot_id)).await.unwrap();
        assert_eq!(shown(&home).await, ["sum of 2", "b", "echo: b"]);
        let never = echo().shared_store(home.store()).snapshots(SnapshotPolicy::never()).build().unwrap();
        never.compact(&sid("s"), Compaction::new(), count).await.unwrap().unwrap();
        let taken = agent.snapshots(&sid("s"), |query| query).await.unwrap().items.len();
        assert_eq!(taken, 3, "two turns and the first compaction");
    }

    async fn what_was_compacted_is_shown_through_the_transform(home: Home) {
        talked(&home, &["secret"]).await;
        let redact = |mut state: everturn::SessionState, _: &everturn::Caller| {
            state.messages = state.messages.iter().map(|m| Message::of_text(m.role(), m.text().replace("secret", "***"))).collect();
            Ok(state)
        };
        let agent = echo().shared_store(home.store()).transform_state(redact).build().unwrap();
        let tell = |messages: Vec<Message>| async move { Ok(Message::user(of(&messages).join(", "))) };
        let record = agent.compact(&sid("s"), Compaction::new(), tell).await.unwrap().unwrap();
        assert_eq!(of(&record.summary), ["secret, echo: secret"], "who compacts sees everything");
        let read = &agent.compactions(&sid("s")).await.unwrap()[0];
        assert_eq!((of(&read.summary), of(&read.replaced)), (vec!["***, echo: ***".into()], vec!["***".into(), "echo: ***".into()]));
    }

    async fn only_ones_own_sessions_are_compacted(home: Home) {
        let agent = talked(&home, &["a"]).await;
        let ann = agent.for_user(user("ann"));
        refused(ann.compact(&sid("s"), Compaction::new(), count).await, ErrorKind::NotFound, "has no session");
        refused(ann.compactions(&sid("s")).await, ErrorKind::NotFound, "has no session");
        let other = Agent::flow("other", echo_turn).app(agent.app().clone()).shared_store(home.store()).build().unwrap();
        refused(other.compact(&sid("s"), Compaction::new(), count).await, ErrorKind::NotFound, "has no session");
    }
}

fn said_in(state: &PointState) -> Vec<String> {
    texts(state.messages())
}

#[tokio::test]
async fn without_a_store_there_is_nothing_to_compact() {
    let agent = echo().build().unwrap();
    refused(agent.compact(&sid("s"), Compaction::new(), count).await, ErrorKind::WrongMode, "Window");
    refused(agent.compactions(&sid("s")).await, ErrorKind::WrongMode, "Window");
}

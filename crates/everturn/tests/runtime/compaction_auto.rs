//! Compactions that happen by themselves, before a turn begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use everturn::model::{Model, ModelChunk, Reply, ScriptedModel};
use everturn::{
    Agent, AutoCompaction, Compaction, ErrorKind, Event, Failure, FinishReason, Handled, Init, Message, Part, Role,
    Summariser, Summary, Turn, TurnKey, Usage,
};

use crate::compaction::{count, head, of, shown};
use crate::sessions::{flow, s, turn};
use crate::support::*;

fn counting() -> Summariser {
    Summariser::new(count)
}

/// An agent that answers with what it is shown.
fn showing(home: &Home, policy: AutoCompaction) -> Agent<Tally> {
    let agent = flow(|turn: Turn<Tally>| async move {
        let seen = of(&turn.model_messages()).join("|");
        match turn.text().as_str() {
            "ask" => turn.finish_reason(FinishReason::Interrupted)?,
            "fail" => return Err(Failure::new("INTERNAL", "no")),
            _ => {}
        }
        turn.responder().text(seen).await?;
        turn.add_message(Message::model(if turn.head_moved() { "moved" } else { "ok" }))?;
        Ok(())
    });
    agent.shared_store(home.store()).compaction(policy).build().unwrap()
}

/// What the model was shown in a turn.
async fn seen(agent: &Agent<Tally>, text: &str, init: Init) -> String {
    let mut connection = agent.connect(init).await.unwrap();
    connection.send_text(text).await.unwrap();
    let mut seen = String::new();
    while let Some(chunk) = connection.receive().await {
        seen += &chunk.text();
        if chunk.turn_end.is_some() {
            break;
        }
    }
    assert_eq!(connection.output().await.unwrap().error, None);
    seen
}

on_every_store! {
    async fn a_session_is_compacted_once_it_has_enough_turns(home: Home) {
        let agent = showing(&home, AutoCompaction::after_turns(3, counting()).keep_turns(1));
        for text in ["a", "b"] {
            turn(&agent, text).await;
        }
        assert_eq!(seen(&agent, "c", s()).await, "a|ok|b|ok|c");
        assert_eq!(seen(&agent, "d", s()).await, "sum of 4|c|ok|d");
        assert_eq!(seen(&agent, "e", s()).await, "sum of 4|c|ok|d|ok|e");
        assert_eq!(seen(&agent, "f", s()).await, "sum of 5|e|ok|f");
        assert_eq!(agent.compactions(&sid("s")).await.unwrap().len(), 2);
        assert_eq!(head(&home).await.messages().len(), 12, "what was said stays whole");
    }

    async fn a_connection_goes_on_over_a_compaction(home: Home) {
        let agent = showing(&home, AutoCompaction::after_turns(2, counting()).keep_turns(1));
        let mut connection = agent.connect(s()).await.unwrap();
        for text in ["a", "b", "c"] {
            connection.send_text(text).await.unwrap();
        }
        let output = connection.output().await.unwrap();
        assert_eq!(said(&output), ["a", "ok", "b", "ok", "c", "ok"], "the head was moved by nobody else");
        assert_eq!(shown(&home).await, ["sum of 2", "b", "ok", "c", "ok"]);
        let mut connection = agent.connect(s()).await.unwrap();
        for text in ["d", "fail"] {
            connection.send_text(text).await.unwrap();
        }
        let failed = connection.output().await.unwrap();
        assert!(failed.error.is_some());
        assert_eq!(shown(&home).await, ["sum of 3", "d", "ok"], "the compaction before a turn that fails stays");
        assert_eq!(failed.point, Some(head(&home).await.point()));
    }

    async fn tokens_are_those_reported_and_an_estimate_of_the_rest(home: Home) {
        let agent = flow(|turn| async move {
            let usage = Usage::tokens(if turn.text() == "big" { 900 } else { 10 }, 50);
            turn.add_event(Event::model("echo", Message::model("ok")).with_usage(usage))?;
            Ok(())
        });
        let policy = AutoCompaction::after_tokens(1_000, counting()).keep_turns(0);
        let agent = agent.shared_store(home.store()).compaction(policy).build().unwrap();
        turn(&agent, "a").await;
        turn(&agent, "big").await;
        turn(&agent, "b").await;
        assert_eq!(agent.compactions(&sid("s")).await.unwrap(), [], "950 reported, and a word");
        turn(&agent, "big").await;
        turn(&agent, &"w".repeat(400)).await;
        let history = agent.compactions(&sid("s")).await.unwrap();
        assert_eq!(history.len(), 1, "950 reported, and a hundred estimated");
        assert_eq!(history[0].replaced.len(), 8, "before the long input, which is shown");
        turn(&agent, "c").await;
        assert_eq!(agent.compactions(&sid("s")).await.unwrap().len(), 1);
    }

    async fn tokens_nobody_reported_are_estimated_and_pictures_count_as_pictures(home: Home) {
        let agent = showing(&home, AutoCompaction::after_tokens(2_000, counting()).keep_turns(0));
        let picture = Part::media(&format!("data:image/png;base64,{}", "A".repeat(100_000)), None);
        let input = everturn::Input::messages([Message::new(Role::User, &[picture])]);
        agent.run(input, s()).await.unwrap();
        turn(&agent, "b").await;
        assert_eq!(agent.compactions(&sid("s")).await.unwrap(), [], "a picture is a thousand tokens, not its bytes");
        turn(&agent, &"w".repeat(8_000)).await;
        assert_eq!(agent.compactions(&sid("s")).await.unwrap().len(), 1);
    }

    async fn a_failing_summariser_lets_the_turn_go_on(home: Home) {
        let tried = Arc::new(AtomicUsize::new(0));
        let tries = tried.clone();
        let failing = Summariser::new(move |_| {
            let tries = tries.clone();
            async move {
                match tries.fetch_add(1, Ordering::SeqCst) {
                    0 => Err(Failure::new("UNAVAILABLE", "no")),
                    1 => panic!("oh no"),
                    2 => Ok(Summary::default()),
                    _ => std::future::pending().await,
                }
            }
        });
        let policy = AutoCompaction::after_turns(1, failing).keep_turns(0).patience(Duration::from_millis(250));
        let agent = showing(&home, policy);
        turn(&agent, "a").await;
        for text in ["b", "c", "d", "e"] {
            turn(&agent, text).await;
        }
        assert_eq!(tried.load(Ordering::SeqCst), 4);
        assert_eq!(shown(&home).await.len(), 10);
        assert_eq!(agent.compactions(&sid("s")).await.unwrap(), []);
    }

    async fn a_turn_meanwhile_wins_and_ours_follows_it(home: Home) {
        let other = stored(&home);
        let racing = Summariser::new(move |messages| {
            let other = other.clone();
            async move {
                turn(&other, "meanwhile").await;
                count(messages).await
            }
        });
        let agent = showing(&home, AutoCompaction::after_turns(1, racing).keep_turns(0));
        turn(&agent, "a").await;
        assert_eq!(seen(&agent, "b", s()).await, "a|ok|meanwhile|echo: meanwhile|b");
        assert_eq!(agent.compactions(&sid("s")).await.unwrap(), []);
    }

    async fn the_cost_of_an_automatic_summary_is_counted(home: Home) {
        let priced = Summariser::new(|_| async { Ok(Summary::new([Message::user("sum")]).usage(Usage::tokens(40, 4))) });
        let agent = showing(&home, AutoCompaction::after_turns(1, priced).keep_turns(0));
        turn(&agent, "a").await;
        assert_eq!(turn(&agent, "b").await.usage, Usage::tokens(40, 4));
        assert_eq!(head(&home).await.usage(), Usage::tokens(40, 4));
    }

    async fn an_expected_head_is_the_one_before_the_compaction(home: Home) {
        let agent = showing(&home, AutoCompaction::after_turns(1, counting()).keep_turns(0));
        let first = turn(&agent, "a").await;
        let before = head(&home).await.point();
        let wrong = everturn::Point::new(before.seq() + 100);
        assert_eq!(kind(agent.run_text("b", s().expect(wrong)).await), ErrorKind::Conflict);
        assert_eq!(head(&home).await.point(), first.point.unwrap(), "a turn that is refused is not paid for");
        assert_eq!(seen(&agent, "b", s().expect(before)).await, "sum of 2|b");
    }

    async fn a_turn_at_the_heads_snapshot_is_compacted_and_one_at_an_older_one_is_not(home: Home) {
        let agent = showing(&home, AutoCompaction::after_turns(1, counting()).keep_turns(0));
        let first = turn(&agent, "a").await.snapshot_id.unwrap();
        let mut connection = agent.connect(Init::snapshot(first)).await.unwrap();
        connection.send_text("b").await.unwrap();
        let second = connection.output().await.unwrap();
        assert!(second.on_head);
        assert_eq!(shown(&home).await, ["sum of 2", "b", "ok"]);
        assert_eq!(seen(&agent, "c", Init::snapshot(first)).await, "a|ok|c", "asked for as it was");
        let third = seen(&agent, "d", Init::snapshot(second.snapshot_id.unwrap())).await;
        assert_eq!(third, "sum of 2|b|ok|d", "it is no longer the head");
    }

    async fn a_key_is_answered_again_after_a_compaction(home: Home) {
        let agent = showing(&home, AutoCompaction::after_turns(1, counting()).keep_turns(0));
        let first = turn(&agent, "a").await.snapshot_id.unwrap();
        for start in [Init::snapshot(first), s()] {
            let key = TurnKey::new(format!("k{}", start.snapshot.is_some())).unwrap();
            let once = agent.run_text("b", start.clone().key(key.clone())).await.unwrap();
            let again = agent.run_text("b", start.key(key)).await.unwrap();
            assert_eq!(once.text(), again.text());
            assert_eq!(said(&once), said(&again));
        }
    }

    async fn a_question_to_a_person_stays_in_sight(home: Home) {
        let agent = showing(&home, AutoCompaction::after_turns(1, counting()).keep_turns(0));
        turn(&agent, "ask").await;
        assert_eq!(seen(&agent, "b", s()).await, "ask|ok|b");
        assert_eq!(seen(&agent, "c", s()).await, "sum of 4|c");
    }

    async fn nobody_waits_for_the_summary_of_a_turn_that_was_cancelled(home: Home) {
        let reached = Arc::new(tokio::sync::Notify::new());
        let tell = reached.clone();
        let hanging = Summariser::new(move |_| {
            tell.notify_one();
            std::future::pending::<Handled<Message>>()
        });
        let agent = showing(&home, AutoCompaction::after_turns(1, hanging).keep_turns(0));
        turn(&stored(&home), "a").await;
        let mut connection = agent.connect(s()).await.unwrap();
        connection.send_text("b").await.unwrap();
        reached.notified().await;
        connection.abort();
        let output = connection.output().await.unwrap();
        assert_eq!(output.finish_reason, Some(FinishReason::Aborted));
        assert_eq!(shown(&home).await, ["a", "echo: a"]);
    }

    async fn a_model_sums_up_with_a_default_instruction(home: Home) {
        let model = ScriptedModel::new([Reply::text("They spelled.").usage(Usage::tokens(20, 5))]);
        let agent = showing(&home, AutoCompaction::after_turns(2, Summariser::model(Arc::new(model.clone()))).keep_turns(1));
        turn(&agent, "alpha").await;
        turn(&agent, "beta").await;
        assert_eq!(seen(&agent, "c", s()).await, "Earlier in this conversation:\nThey spelled.|beta|ok|c");
        let request = &model.requests()[0];
        assert_eq!(request.messages.iter().map(Message::role).collect::<Vec<_>>(), [Role::System, Role::User]);
        let text = request.messages[1].text();
        assert!(text.contains("user:\nalpha") && text.contains("model:\nok") && !text.contains("beta"), "{text}");
        assert_eq!(head(&home).await.usage(), Usage::tokens(20, 5));
    }
}

#[tokio::test]
async fn a_summary_that_a_model_did_not_finish_is_none() {
    let cut_off = ModelChunk::text("They spe").finished(FinishReason::Length, Usage::default());
    let empty = Reply::text(" ");
    let model: Arc<dyn Model> = Arc::new(ScriptedModel::new([Reply::chunks(vec![cut_off]), empty]));
    let summariser = Summariser::instructed(model, "Sum up.");
    let home = Home::memory();
    let agent = stored(&home);
    turn(&agent, "a").await;
    let ask = |messages| summariser.summarise(messages);
    refused(agent.compact(&sid("s"), Compaction::new(), ask).await, ErrorKind::Unavailable, "before its summary");
    refused(agent.compact(&sid("s"), Compaction::new(), ask).await, ErrorKind::Invalid, "empty");
}

#[test]
fn a_policy_that_cannot_work_is_refused_at_build() {
    let home = Home::memory();
    let policy = |policy| echo().shared_store(home.store()).compaction(policy).build();
    refused(
        echo().compaction(AutoCompaction::after_turns(9, counting())).build(),
        ErrorKind::Invalid,
        "give it a store",
    );
    refused(policy(AutoCompaction::after_turns(2, counting())), ErrorKind::Invalid, "keep fewer");
    refused(policy(AutoCompaction::after_tokens(0, counting())), ErrorKind::Invalid, "name a number");
    policy(AutoCompaction::after_turns(3, counting()).pin(|_| true)).unwrap();
}

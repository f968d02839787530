//! Chats: turn after turn with what each needs of the one before, in both state modes, near and far.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use everturn::{
    Agent, AgentClient, AgentInfo, Chat, Chunk, Connection, ErrorKind, FinishReason, Init, Input, InvocationId, Json,
    Output, Registry, Result, SessionId, SharedState, SigningKey, Snapshot, SnapshotId, SnapshotPolicy, SnapshotStatus,
    StateManagement, StreamLimits, Turn, TurnKey, UserId,
};

use crate::support::*;

fn said_in(chat: &Chat) -> Vec<String> {
    texts(chat.state().messages())
}

/// An agent as it looks from another process: all that passes has been JSON in between.
struct Far {
    agent: Agent<Tally>,
}

fn over_the_wire<T: serde::Serialize + serde::de::DeserializeOwned>(sent: &T) -> T {
    let text = Json::from_value(sent).unwrap().to_string();
    json(&text).to().unwrap()
}

impl Far {
    fn of(agent: Agent<Tally>) -> Arc<dyn AgentClient> {
        Arc::new(Self { agent })
    }

    fn output_over_the_wire(near: &Output) -> Output {
        let mut far = Output::new(near.session_id.clone(), near.invocation_id.clone());
        far.state = SharedState::from_session_state(over_the_wire(&near.state.to_session_state()));
        far.message.clone_from(&near.message);
        (far.snapshot_id, far.point, far.on_head) = (near.snapshot_id, near.point, near.on_head);
        (far.finish_reason, far.error, far.usage) = (near.finish_reason, near.error.clone(), near.usage);
        far.signature.clone_from(&near.signature);
        far
    }
}

#[async_trait]
impl AgentClient for Far {
    fn info(&self) -> AgentInfo {
        let near = AgentClient::info(&self.agent);
        AgentInfo::new(near.name, near.app, near.state_management)
    }

    fn for_user(&self, user: UserId) -> Arc<dyn AgentClient> {
        Self::of(self.agent.for_user(user))
    }

    async fn connect(&self, init: Init) -> Result<Connection> {
        let mut near = self.agent.connect(init).await?;
        let (session, invocation) = (near.session_id().clone(), near.invocation_id().clone());
        let (far, mut peer) = Connection::to_peer(session, invocation, StreamLimits::default());
        tokio::spawn(async move {
            let mut open = true;
            let gone = peer.cancelled();
            tokio::pin!(gone);
            loop {
                tokio::select! {
                    input = peer.next_input(), if open => match input {
                        Some(input) => near.send(over_the_wire(&input)).await?,
                        None => {
                            open = false;
                            near.close();
                        }
                    },
                    chunk = near.receive() => match chunk {
                        Some(chunk) => peer.send(over_the_wire::<Chunk>(&chunk)).await?,
                        None => break,
                    },
                    () = &mut gone => break,
                }
            }
            peer.finish(near.output().await.map(|output| Self::output_over_the_wire(&output)));
            Result::<()>::Ok(())
        });
        Ok(far)
    }

    async fn snapshot(&self, id: SnapshotId) -> Result<Option<Snapshot>> {
        Ok(self.agent.snapshot(id).await?.as_ref().map(over_the_wire))
    }

    async fn abort(&self, id: SnapshotId) -> Result<Option<SnapshotStatus>> {
        self.agent.abort(id).await
    }

    async fn wait(&self, id: SnapshotId, within: Option<Duration>) -> Result<Snapshot> {
        Ok(over_the_wire(&self.agent.wait(id, within).await?))
    }

    async fn latest(&self, session: &SessionId) -> Result<Option<Snapshot>> {
        Ok(self.agent.latest(session).await?.as_ref().map(over_the_wire))
    }
}

/// The same chat whatever is between it and its agent.
async fn three_turns(mut chat: Chat) -> Chat {
    let one = chat.send_text("one").await.unwrap();
    assert_eq!((one.finish_reason, one.text()), (Some(FinishReason::Stop), "echo: one".into()));
    let failed = chat.send_text("fail it").await.unwrap();
    assert_eq!(failed.error.unwrap().message, "it");
    assert_eq!(said_in(&chat), ["one", "echo: one"], "a failing turn leaves the chat where it was");
    let mut turn = chat.send_stream(Input::text("two")).await.unwrap();
    let (mut spoken, mut patched) = (String::new(), None);
    while let Some(chunk) = turn.receive().await {
        spoken.push_str(&chunk.text());
        patched = turn.custom_json().cloned();
    }
    assert_eq!(spoken, "echo: two");
    assert_eq!(patched, Some(json(r#"{"turns":2,"last":"two"}"#)));
    let two = turn.output().await.unwrap();
    assert_eq!(said(&two), ["one", "echo: one", "two", "echo: two"]);
    assert_eq!(chat.session_id(), Some(&two.session_id));
    assert_eq!(chat.snapshot_id(), two.snapshot_id);
    assert_eq!(chat.custom::<Tally>().unwrap().unwrap().turns, 2);
    chat
}

on_every_store! {
    async fn a_chat_keeps_what_the_next_turn_needs(home: Home) {
        let agent = stored(&home);
        let chat = three_turns(agent.chat(Init::new())).await;
        let latest = agent.latest(chat.session_id().unwrap()).await.unwrap().unwrap();
        assert_eq!(Some(latest.snapshot_id), chat.snapshot_id());
    }

    async fn a_chat_with_an_agent_that_is_far_away_is_the_same(home: Home) {
        let far = Far::of(stored(&home));
        let chat = three_turns(Chat::new(far.clone(), Init::new())).await;
        let session = chat.session_id().unwrap().clone();
        let loaded = Chat::new(far.clone(), Init::session(session)).load().await.unwrap();
        assert_eq!(said_in(&loaded), said_in(&chat));
        let mut registry = Registry::new();
        registry.register_client(far).unwrap();
        let found = registry.get("echo").unwrap();
        assert_eq!(found.info().state_management, StateManagement::Server);
        let ann = found.for_user(user("ann"));
        assert_eq!(ann.snapshot(chat.snapshot_id().unwrap()).await.unwrap(), None);
        let refused = Chat::new(ann, Init::snapshot(chat.snapshot_id().unwrap())).send_text("hi").await;
        assert_eq!(kind(refused), ErrorKind::NotFound);
    }

    async fn a_chat_is_taken_up_again_by_its_session(home: Home) {
        let agent = stored(&home);
        let mut first = agent.chat(Init::session(sid("s")));
        first.send_text("one").await.unwrap();
        let mut chat = agent.chat(Init::session(sid("s"))).load().await.unwrap();
        assert_eq!((said_in(&chat), chat.snapshot_id()), (said_in(&first), first.snapshot_id()));
        assert_eq!(chat.custom::<Tally>().unwrap().unwrap().turns, 1);
        chat.send_text("two").await.unwrap();
        assert_eq!(said_in(&chat).len(), 4);
        first.send_text("three").await.unwrap();
        assert_eq!(said_in(&first).len(), 6, "on the head, a chat goes on with the session");
    }

    async fn a_chat_is_taken_up_again_by_a_snapshot(home: Home) {
        let agent = stored(&home);
        let mut first = agent.chat(Init::session(sid("s")));
        let one = first.send_text("one").await.unwrap().snapshot_id.unwrap();
        first.send_text("two").await.unwrap();
        let mut chat = agent.chat(Init::snapshot(one)).load().await.unwrap();
        assert_eq!((chat.session_id(), said_in(&chat).len()), (Some(&sid("s")), 2));
        chat.send_text("instead").await.unwrap();
        assert_eq!(said_in(&chat)[2..], ["instead", "echo: instead"]);
        let mismatch = agent.chat(Init::snapshot(one).of_session(sid("other"))).load().await;
        refused(mismatch, ErrorKind::Invalid, "does not belong to session");
    }

    async fn what_is_not_there_cannot_be_loaded(home: Home) {
        let agent = stored(&home);
        assert_eq!(kind(agent.chat(Init::session(sid("s"))).load().await), ErrorKind::NotFound);
        assert_eq!(kind(agent.chat(Init::snapshot(SnapshotId::nil())).load().await), ErrorKind::NotFound);
        refused(agent.chat(Init::new()).load().await, ErrorKind::Invalid, "name one");
        let mut chat = agent.chat(Init::session(sid("s")));
        assert!(chat.send_text("one").await.is_ok(), "but begun");
    }

    async fn a_chat_off_the_head_stays_on_its_own_line(home: Home) {
        for policy in [SnapshotPolicy::always(), SnapshotPolicy::on([])] {
            let session = Init::session(sid(&format!("{policy:?}")));
            let agent = echo().shared_store(home.store()).build().unwrap();
            let start = agent.run_text("start", session.clone()).await.unwrap();
            agent.run_text("two", session.clone()).await.unwrap();
            let point = Init::session(start.session_id.clone()).at(start.point.unwrap());
            let aside = Agent::flow("echo", {
                let (agent, session) = (agent.clone(), session.clone());
                move |turn: Turn<Tally>| {
                    let (agent, session) = (agent.clone(), session.clone());
                    async move {
                        if turn.text() == "aside" {
                            agent.run_text("meanwhile", session).await?;
                        }
                        echo_turn(turn).await
                    }
                }
            });
            let aside = aside.shared_store(home.store()).snapshots(policy).build().unwrap();
            let mut there = aside.chat(point);
            let first = there.send_text("aside").await.unwrap();
            assert!(!first.on_head, "the head had gone on");
            there.send_text("fail there").await.unwrap();
            let next = there.send_text("more").await.unwrap();
            assert!(next.on_head, "with nobody in between it is the head's line again");
            let line = ["start", "echo: start", "aside", "echo: aside", "more", "echo: more"];
            assert_eq!(said_in(&there), line, "its own line, not what others made of the session");
        }
    }

    async fn a_chat_on_a_branch_stays_there(home: Home) {
        let agent = stored(&home);
        let one = agent.run_text("one", Init::session(sid("s"))).await.unwrap();
        let change = everturn::store::BranchChange::Create { name: branch("b"), at: one.point.unwrap() };
        home.store().branch(&key("s"), change).await.unwrap();
        let mut chat = agent.chat(Init::session(sid("s")).branch(branch("b")));
        chat.send_text("two").await.unwrap();
        agent.run_text("elsewhere", Init::session(sid("s"))).await.unwrap();
        chat.send_text("three").await.unwrap();
        assert_eq!(said_in(&chat)[2..], ["two", "echo: two", "three", "echo: three"]);
    }

    async fn a_chat_whose_first_turn_fails_goes_on(home: Home) {
        let agent = stored(&home);
        let mut chat = agent.chat(Init::new().initial(&Tally { turns: 9, last: String::new() }).unwrap());
        chat.send_text("fail it").await.unwrap();
        assert!(chat.snapshot_id().is_some(), "the seed");
        chat.send_text("one").await.unwrap();
        assert_eq!((said_in(&chat).len(), chat.custom::<Tally>().unwrap().unwrap().turns), (2, 10));
    }

    async fn a_turn_that_is_dropped_leaves_the_chat_where_it_was(home: Home) {
        let agent = stored(&home);
        let mut chat = agent.chat(Init::session(sid("s")));
        chat.send_text("one").await.unwrap();
        drop(chat.send_stream(Input::text("two")).await.unwrap());
        assert_eq!(said_in(&chat).len(), 2);
        let three = chat.send_text("three").await.unwrap();
        assert_eq!(said(&three).last().map(String::as_str), Some("echo: three"));
    }

    async fn a_refused_start_leaves_the_chat_as_it_was(home: Home) {
        let agent = stored(&home);
        let mut chat = agent.chat(Init::session(sid("s")).expect(everturn::Point::new(999)));
        assert_eq!(kind(chat.send_text("one").await), ErrorKind::Conflict);
        assert_eq!((chat.session_id(), said_in(&chat).len()), (Some(&sid("s")), 0));
    }

    async fn a_key_is_for_the_first_turn_only(home: Home) {
        let agent = stored(&home);
        let init = || Init::new().key(TurnKey::new("k").unwrap());
        let mut chat = agent.chat(init());
        chat.send_text("one").await.unwrap();
        chat.send_text("two").await.unwrap();
        let mut again = agent.chat(init());
        again.send_text("one").await.unwrap();
        assert_eq!(again.session_id(), chat.session_id(), "a retried first request finds its session");
        assert_eq!(said_in(&again), ["one", "echo: one"]);
    }
}

#[tokio::test]
async fn without_a_store_a_chat_keeps_the_state() {
    let keys = [SigningKey::new("k", &[1; 32]).unwrap()];
    for agent in [echo(), echo().sign_states(keys)] {
        let agent = agent.build().unwrap();
        three_turns(agent.chat(Init::new())).await;
        three_turns(Chat::new(Far::of(agent), Init::new())).await;
    }
}

#[tokio::test]
async fn a_chat_may_begin_with_a_state() {
    let agent = echo().build().unwrap();
    let output = agent.run_text("one", Init::new()).await.unwrap();
    let mut chat = agent.chat(Init::state(output.state.to_session_state()));
    assert_eq!(said_in(&chat).len(), 2, "it can be shown before its next turn");
    chat.send_text("two").await.unwrap();
    assert_eq!((said_in(&chat).len(), chat.session_id()), (4, Some(&output.session_id)));
}

#[tokio::test]
async fn a_far_agent_that_is_lost_is_unavailable() {
    let ids = || (sid("s"), InvocationId::new("i").unwrap());
    let (session, invocation) = ids();
    let (mut connection, mut peer) = Connection::to_peer(session, invocation, StreamLimits::default());
    connection.send_text("hi").await.unwrap();
    assert_eq!(peer.next_input().await.unwrap().messages[0].text(), "hi");
    peer.is_with(sid("found"));
    assert_eq!(connection.session_id(), &sid("found"));
    drop(peer);
    assert!(connection.send_text("hello?").await.is_err());
    refused(connection.output().await, ErrorKind::Unavailable, "lost");
    let (session, invocation) = ids();
    let (connection, mut peer) = Connection::to_peer(session, invocation, StreamLimits::default());
    drop(connection);
    peer.cancelled().await;
    assert_eq!(peer.next_input().await, None);
    assert_eq!(kind(peer.send(Chunk::default()).await), ErrorKind::Aborted);
}

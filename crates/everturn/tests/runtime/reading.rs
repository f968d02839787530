//! Reading what an agent keeps, as its caller may see it.

use everturn::store::{At, ListSnapshots, Orphans};
use everturn::{
    Agent, AppName, Artifact, ErrorKind, Init, Json, Message, Part, Registry, SessionState, StateDelta,
    StateManagement, Turn,
};

use crate::support::*;

fn s() -> Init {
    Init::session(sid("s"))
}

/// An agent that changes a bit of everything.
fn busy_agent(home: &Home) -> Agent<Json> {
    let agent = Agent::flow("echo", |turn: Turn<Json>| async move {
        let n = turn.index();
        let state = turn.state().await?;
        state.change(StateDelta::new().set("n", Json::from_value(&n)?).set(format!("k{n}"), Json::null()))?;
        turn.add_artifact(Artifact::new("same", vec![Part::text(n.to_string())])).await?;
        turn.add_artifact(Artifact::new(format!("a{n}"), vec![])).await?;
        turn.remove_artifact("a0")?;
        turn.add_message(Message::model("ok"))?;
        Ok(())
    });
    agent.shared_store(home.store()).build().unwrap()
}

on_every_store! {
    async fn snapshots_are_listed_page_by_page(home: Home) {
        let agent = stored(&home);
        let mut ids = Vec::new();
        for text in ["a", "b", "c"] {
            ids.push(agent.run_text(text, s()).await.unwrap().snapshot_id.unwrap());
        }
        let page = agent.snapshots(&sid("s"), |all| all.limit(2)).await.unwrap();
        assert_eq!(page.items.iter().map(|row| row.snapshot_id).collect::<Vec<_>>(), ids[..2]);
        assert!(page.items.iter().all(|row| row.state.is_none()), "without their states");
        let next = page.next.unwrap();
        let rest = agent.snapshots(&sid("s"), |all| all.limit(2).after(next)).await.unwrap();
        assert_eq!(rest.items[0].snapshot_id, ids[2]);
        let newest = agent.snapshots(&sid("s"), ListSnapshots::newest_first).await.unwrap();
        assert_eq!(newest.items[0].snapshot_id, ids[2]);
        agent.run_text("d", Init::snapshot(ids[0])).await.unwrap();
        let mut line = ListSnapshots::of(key("elsewhere"));
        line.orphans = Orphans::Exclude;
        let line = agent.snapshots(&sid("s"), |_| line).await.unwrap().items;
        assert_eq!(line.len(), 2, "whatever session the query named, it is this one's");
        assert_eq!(kind(agent.snapshots(&sid("none"), |all| all).await), ErrorKind::NotFound);
    }

    async fn a_difference_names_what_changed(home: Home) {
        let agent = busy_agent(&home);
        let a = agent.run_text("one", s()).await.unwrap().snapshot_id.unwrap();
        let b = agent.run_text("two", s()).await.unwrap().snapshot_id.unwrap();
        let c = agent.run_text("other", Init::snapshot(a)).await.unwrap().snapshot_id.unwrap();
        let forth = agent.diff(a, b).await.unwrap();
        assert_eq!((forth.messages.common, forth.messages.removed.len(), forth.messages.added.len()), (2, 0, 2));
        let state = async |id| home.store().state(At::Snapshot(id)).await.unwrap().unwrap();
        let (before, after) = (state(a).await, state(b).await);
        assert_eq!(&forth.custom.apply(before.custom().unwrap()).unwrap(), after.custom().unwrap());
        let names = |list: &[Artifact]| list.iter().map(|a| a.name.clone().unwrap()).collect::<Vec<_>>();
        assert_eq!((names(&forth.artifacts.added), names(&forth.artifacts.changed)), (vec!["a1".into()], vec!["same".into()]));
        let across = agent.diff(b, c).await.unwrap();
        assert_eq!((across.messages.common, across.messages.removed.len(), across.messages.added.len()), (2, 2, 2));
        assert!(agent.diff(a, a).await.unwrap().is_empty());
        let back = agent.diff(b, a).await.unwrap();
        assert_eq!(names(&back.artifacts.removed), ["a1"]);
        let wire = serde_json::to_value(&back).unwrap();
        assert!(wire["custom"].is_array() && wire["messages"]["common"] == 2);
        assert_eq!(kind(agent.diff(a, everturn::SnapshotId::nil()).await), ErrorKind::NotFound);
    }

    async fn transforms_know_who_reads(home: Home) {
        let agent = echo().shared_store(home.store()).transform_state(|mut state, caller| {
            assert_eq!((caller.agent.as_str(), caller.session.as_ref()), ("echo", state.session_id.as_ref()));
            state.custom = Some(Json::from_value(caller.user.as_str())?);
            Ok(state)
        });
        let agent = agent.build().unwrap().for_user(user("ann"));
        let output = agent.run_text("one", s()).await.unwrap();
        let shown = |state: SessionState| state.custom.unwrap();
        let ann = json("\"ann\"");
        assert_eq!(output.state.custom_json(), Some(&ann));
        assert_eq!(shown(agent.snapshot(output.snapshot_id.unwrap()).await.unwrap().unwrap().state.unwrap()), ann);
        assert_eq!(shown(agent.latest(&sid("s")).await.unwrap().unwrap().state.unwrap()), ann);
        assert!(agent.diff(output.snapshot_id.unwrap(), output.snapshot_id.unwrap()).await.unwrap().is_empty());
    }

    async fn a_failing_transform_shows_nothing(home: Home) {
        let agent = stored(&home);
        let id = agent.run_text("one", s()).await.unwrap().snapshot_id.unwrap();
        let refusing = echo().shared_store(home.store()).transform_state(|_, _| {
            Err(everturn::Error::new(ErrorKind::Invalid, "cannot"))
        });
        let refusing = refusing.build().unwrap();
        refused(refusing.snapshot(id).await, ErrorKind::Internal, "nothing is shown");
        refused(refusing.latest(&sid("s")).await, ErrorKind::Internal, "nothing is shown");
        assert!(refusing.snapshots(&sid("s"), |all| all).await.is_ok(), "rows carry no state");
    }

    async fn another_user_or_agent_sees_nothing(home: Home) {
        let agent = stored(&home);
        let id = agent.run_text("one", s()).await.unwrap().snapshot_id.unwrap();
        let other = Agent::flow("other", echo_turn).app(AppName::new("echo").unwrap());
        let other = other.shared_store(home.store()).build().unwrap();
        for stranger in [agent.for_user(user("ann")), other] {
            assert!(stranger.snapshot(id).await.unwrap().is_none());
            assert!(stranger.latest(&sid("s")).await.unwrap().is_none());
            assert_eq!(kind(stranger.snapshots(&sid("s"), |all| all).await), ErrorKind::NotFound);
            assert_eq!(kind(stranger.diff(id, id).await), ErrorKind::NotFound);
            assert_eq!(kind(stranger.label(id, None).await), ErrorKind::NotFound);
        }
    }

    async fn agents_are_listed_with_what_clients_need_to_know(home: Home) {
        let mut registry = Registry::new();
        let described = echo().shared_store(home.store()).description("Says it again.").schema_of_state();
        registry.register(described.transform_chunk(|chunk, _| Ok(Some(chunk))).build().unwrap()).unwrap();
        registry.register(Agent::flow("mirror", echo_turn).build().unwrap()).unwrap();
        let [echo, mirror] = &registry.list()[..] else { panic!("two agents") };
        assert_eq!((echo.state_management, echo.abortable, echo.transformed), (StateManagement::Server, true, true));
        assert_eq!(echo.description.as_deref(), Some("Says it again."));
        assert!(echo.state_schema.as_ref().unwrap().as_str().contains("turns"));
        assert_eq!((mirror.state_management, mirror.abortable), (StateManagement::Client, false));
        let by_name = registry.get("echo").unwrap();
        let mut connection = by_name.connect(s()).await.unwrap();
        connection.send_text("hi").await.unwrap();
        let output = connection.output().await.unwrap();
        assert!(by_name.snapshot(output.snapshot_id.unwrap()).await.unwrap().is_some());
        assert!(by_name.for_user(user("ann")).latest(&sid("s")).await.unwrap().is_none());
    }
}

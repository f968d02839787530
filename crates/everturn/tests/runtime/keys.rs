//! State as keys and values, over all scopes.

use everturn::{ErrorKind, Init, Input, Json, Message, StateDelta};

use crate::sessions::{doing, flow, s, turn};
use crate::support::*;

on_every_store! {
    async fn keys_have_scopes(home: Home) {
        let agent = doing(&home, |turn| async move {
            let state = turn.state().await?;
            match turn.text().as_str() {
                "write" => {
                    state.set("plain", &1)?;
                    state.set("user:tone", "dry")?;
                    state.set("app:version", &2)?;
                    state.set("temp:scratch", &3)?;
                    state.set("nothing", &Json::null())?;
                    assert_eq!(state.get::<u8>("temp:scratch")?, Some(3));
                    assert_eq!(state.get_json("nothing")?, Some(Json::null()), "null is a value");
                    assert_eq!(state.get_json("missing")?, None);
                    assert_eq!(state.get_json("user:missing")?, None);
                    let all: Vec<_> = state.all()?.into_keys().collect();
                    assert_eq!(all, ["app:version", "nothing", "plain", "temp:scratch", "user:tone"]);
                    assert_eq!(state.read_only()?.get::<String>("user:tone")?.as_deref(), Some("dry"));
                }
                "remove" => {
                    state.remove("plain")?;
                    state.remove("user:tone")?;
                    state.remove("user:never")?;
                    assert_eq!(state.get_json("user:tone")?, None);
                }
                _ => {}
            }
            for wrong in ["user:", "app:", "temp:"] {
                assert_eq!(kind(state.set(wrong, &1)), ErrorKind::Invalid);
            }
            let all: Vec<_> = state.read_only()?.all().keys().cloned().collect();
            turn.add_message(Message::model(all.join(" ")))?;
            Ok(())
        });
        turn(&agent, "write").await;
        assert_eq!(turn(&agent, "read").await.text(), "app:version nothing plain user:tone", "temp: is gone");
        let other = agent.run_text("read", Init::session(sid("other"))).await.unwrap();
        assert_eq!(other.text(), "app:version user:tone");
        let ann = agent.for_user(user("ann")).run_text("read", s()).await.unwrap();
        assert_eq!(ann.text(), "app:version");
        assert_eq!(turn(&agent, "remove").await.text(), "app:version nothing");
        let scopes = home.elsewhere().scopes(agent.app(), Some(&user("user"))).await.unwrap();
        assert_eq!(scopes.keys().collect::<Vec<_>>(), ["app:version"]);
    }

    async fn shared_keys_of_a_failed_turn_are_dropped(home: Home) {
        let agent = doing(&home, |turn| async move {
            turn.state().await?.set("user:tone", "dry")?;
            Err(everturn::Failure::new("INTERNAL", "no"))
        });
        agent.run_text("x", s()).await.unwrap();
        assert!(home.store().scopes(agent.app(), Some(&user("user"))).await.unwrap().is_empty());
    }

    async fn an_input_may_change_state_before_its_turn(home: Home) {
        let agent = doing(&home, |turn| async move {
            let state = turn.state().await?;
            assert_eq!(state.get::<u32>("turns")?, Some(4));
            assert_eq!(state.get::<bool>("user:vip")?, Some(true));
            assert_eq!(state.get::<u32>("temp:t")?, Some(1));
            turn.update_custom(|tally| tally.turns += 1)?;
            Ok(())
        });
        let delta = StateDelta::new().set("turns", json("4")).set("user:vip", json("true")).set("temp:t", json("1"));
        let input = Input::text("hi").with_state(delta);
        let output = agent.run(input, s()).await.unwrap().ok().unwrap();
        assert_eq!(output.state.custom_json().unwrap(), &json(r#"{"turns":5}"#));
        assert!(home.store().scopes(agent.app(), Some(&user("user"))).await.unwrap().contains_key("user:vip"));
    }

    async fn keys_inside_custom_state_have_no_prefixes(home: Home) {
        let agent = doing(&home, |turn| async move {
            let prefixed = json(r#"{"user:x":1}"#);
            assert_eq!(kind(turn.set_custom_json(Some(prefixed))), ErrorKind::Invalid);
            turn.set_custom_json(Some(json("[1]")))?;
            assert_eq!(kind(turn.state().await?.set("x", &1)), ErrorKind::Invalid, "a list has no keys");
            Ok(())
        });
        assert_eq!(turn(&agent, "hi").await.state.custom_json(), Some(&json("[1]")));
    }
}

#[tokio::test]
async fn without_a_store_a_session_is_all_in_memory() {
    let agent = flow(|turn| async move {
        turn.add_message(Message::model("ok"))?;
        turn.update_custom(|tally| tally.turns += 1)?;
        let state = turn.state().await?;
        state.set("plain", &1)?;
        state.set("temp:x", &1)?;
        assert_eq!(kind(state.set("user:x", &1)), ErrorKind::WrongMode, "there is nobody to share it with");
        assert_eq!(kind(turn.set_title("t").await), ErrorKind::WrongMode);
        assert_eq!(kind(turn.fork(None).await), ErrorKind::WrongMode);
        assert_eq!((turn.title().await?, turn.record().await?, turn.snapshot_id()), (None, None, None));
        assert_eq!(turn.events().await?.len(), 1);
        assert_eq!(turn.tool_iteration_end().await?, None);
        Ok(())
    });
    let agent = agent.build().unwrap();
    let output = agent.run_text("hi", Init::new()).await.unwrap().ok().unwrap();
    assert_eq!(output.state.custom_json().unwrap(), &json(r#"{"turns":1,"last":"","plain":1}"#));
    let shared = Input::text("hi").with_state(StateDelta::new().set("app:x", json("1")));
    assert_eq!(kind(agent.run(shared, Init::new()).await), ErrorKind::WrongMode);
}

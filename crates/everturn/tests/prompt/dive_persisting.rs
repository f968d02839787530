//! What questions and answers leave behind, whatever goes wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use everturn::model::Reply;
use everturn::store::{At, StoreExt as _, VerifyScope};
use everturn::tool::{Tool, ToolError};
use everturn::{Agent, Error, ErrorKind, Interrupt, Json, Prompt, Resume, SessionStatus, Usage};
use tokio::sync::Notify;

use crate::dive::*;
use crate::faulty::{Faults, Write};
use crate::support::*;
use crate::tools::*;

on_every_store! {
    async fn what_asking_and_answering_cost_adds_up(home: Home) {
        let model = script([calls(&[("ask", "a"), ("ask", "b")]).usage(Usage::tokens(10, 5)), calls(&[("ask", "c")]).usage(Usage::tokens(20, 7)), Reply::text("done").usage(Usage::tokens(40, 1)), ]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let spent = async || home.elsewhere().existing(&of_helper("s")).await.unwrap().usage;
        let mut output = agent.run_text("go", here()).await.unwrap();
        assert_eq!(spent().await, Usage::tokens(10, 5));
        for (reference, sum) in [("a", Usage::tokens(10, 5)), ("b", Usage::tokens(30, 12)), ("c", Usage::tokens(70, 13))] {
            output = agent.run(answered(&asked(&output), &[reference]), here()).await.unwrap();
            assert_eq!(spent().await, sum, "after {reference}");
        }
        let point = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        assert_eq!((output.text().as_str(), point.usage()), ("done", Usage::tokens(70, 13)));
    }

    async fn an_answer_that_is_cancelled_leaves_the_session_as_it_was(home: Home) {
        let (reached, cancelled) = (Arc::new(Notify::new()), Count::default());
        let (tell, count) = (reached.clone(), cancelled.clone());
        let slow = Tool::untyped("slow", "Waits.", json("{}"), move |_, context| {
            let (tell, count) = (tell.clone(), count.clone());
            async move {
                match context.resumed() {
                    None => Err(ToolError::interrupt("sure?")),
                    Some(said) if *said == json("true") => {
                        let session = context.session::<Json>().unwrap();
                        session.state().await?.set("half", &true)?;
                        tell.notify_one();
                        context.cancelled().await;
                        count.up();
                        Ok(json("\"late\""))
                    }
                    Some(_) => Ok(json("\"at once\"")),
                }
            }
        });
        let model = script([calls(&[("slow", "a"), ("ask", "b")]), Reply::text("done")]);
        let agent = helper(&model, [slow, ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        let seen = async || {
            let (state, record) = (home.elsewhere().head_state(&of_helper("s")).await.unwrap(), home.elsewhere().existing(&of_helper("s")).await.unwrap());
            (state.digest(), state.messages().clone(), state.custom().cloned(), record.head, record.turns, record.status)
        };
        let before = seen().await;
        let answering = async || {
            let connection = agent.connect(here()).await.unwrap();
            let both = Resume::new().restart(&questions[0], &true).unwrap().respond(&questions[1], "b!").unwrap();
            connection.send(answer(both)).await.unwrap();
            reached.notified().await;
            connection
        };
        let connection = answering().await;
        connection.abort();
        connection.done().await;
        assert_eq!((seen().await, cancelled.get()), (before, 1));
        assert_eq!(model.requests().len(), 1, "the model is not asked for nobody");
        // Nor is it answered when whoever reads the stream goes away.
        drop(answering().await);
        let again = Resume::new().restart(&questions[0], &false).unwrap().respond(&questions[1], "b!").unwrap();
        let done = agent.run(answer(again), here()).await.unwrap();
        assert_eq!(cancelled.get(), 2);
        assert_eq!((done.text().as_str(), answers(&done)), ("done", vec![r#""at once""#.into(), r#""b!""#.into()]));
    }

    async fn a_question_that_cannot_be_saved_was_not_asked(home: Home) {
        let faults = Faults::default();
        let model = script([Reply::text("hello"), calls(&[("ask", "a")]), calls(&[("ask", "a")])]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(faults.store(home.store())).build().unwrap();
        agent.run_text("hi", here()).await.unwrap();
        faults.fail(Write::End, ErrorKind::Unavailable);
        let failed = agent.run_text("go", here()).await.unwrap();
        assert_eq!((failed.error.as_ref().unwrap().status.as_str(), failed.state.messages().len()), ("UNAVAILABLE", 2));
        assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().status, SessionStatus::Idle);
        asked(&agent.run_text("go", here()).await.unwrap());
        assert_eq!(home.elsewhere().existing(&of_helper("s")).await.unwrap().status, SessionStatus::Interrupted);
    }

    async fn an_answer_that_cannot_be_saved_leaves_the_question_open(home: Home) {
        let faults = Faults::default();
        let ran = Count::default();
        let model = script([calls(&[("ask", "a")]), Reply::text("lost"), Reply::text("done")]);
        let agent = helper(&model, [ask(&ran)]).shared_store(faults.store(home.store())).build().unwrap();
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        for write in [Write::Begin, Write::Step, Write::End] {
            faults.fail(write, ErrorKind::Unavailable);
            let failed = agent.run(answer(Resume::new().restart(&questions[0], "yes").unwrap()), here()).await;
            assert!(failed.map_or(true, |output| output.error.is_some()), "{write:?}");
            let state = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
            assert_eq!(Interrupt::all_in(state.messages().last().unwrap()), questions, "{write:?}");
        }
        assert_eq!(ran.get(), 2, "a call that could not be written down did not run");
        assert_eq!(agent.run(answered(&questions, &["a"]), here()).await.unwrap().text(), "done");
    }

    async fn what_was_read_before_an_answer_stays_as_it_was(home: Home) {
        let model = script([calls(&[("ask", "a"), ("ask", "b")]), Reply::text("done")]);
        let agent = helper(&model, [ask(&Count::default())]).shared_store(home.store()).build().unwrap();
        let mut outputs = vec![agent.run_text("go", here()).await.unwrap()];
        for reference in ["a", "b"] {
            let next = agent.run(answered(&asked(outputs.last().unwrap()), &[reference]), here()).await.unwrap();
            outputs.push(next);
        }
        let lengths: Vec<_> = outputs.iter().map(|output| output.state.messages().len()).collect();
        assert_eq!(lengths, [2, 2, 4]);
        for (output, left) in outputs.iter().zip([2, 1, 0]) {
            let stored = home.elsewhere().state(At::Snapshot(output.snapshot_id.unwrap())).await.unwrap().unwrap();
            assert_eq!(stored.messages().to_vec(), kept(output), "each point shows what it showed");
            assert_eq!(Interrupt::all_in(output.state.messages().get(1).unwrap()).len(), left);
        }
        assert!(home.elsewhere().verify(VerifyScope::Session(of_helper("s"))).await.unwrap().damage.is_none());
    }

    async fn an_answer_that_cannot_be_told_leaves_the_question_open(home: Home) {
        let broken = Arc::new(AtomicBool::new(false));
        let flag = broken.clone();
        let model = script([calls(&[("ask", "a"), ("ask", "b")]), Reply::text("done")]);
        let prompt = Prompt::new(model.clone()).tool(ask(&Count::default()));
        let agent = Agent::prompt("helper", prompt).shared_store(home.store()).transform_chunk(move |chunk, _| {
            match flag.load(Ordering::SeqCst) && chunk.model_chunk.is_some() {
                true => Err(Error::new(ErrorKind::Internal, "this cannot be shown")),
                false => Ok(Some(chunk)),
            }
        });
        let agent = agent.build().unwrap();
        let questions = asked(&agent.run_text("go", here()).await.unwrap());
        let before = home.elsewhere().head_state(&of_helper("s")).await.unwrap();
        broken.store(true, Ordering::SeqCst);
        for references in [&["a"][..], &["a", "b"]] {
            let failed = agent.run(answered(&questions, references), here()).await.unwrap();
            assert!(failed.error.unwrap().message.contains("this cannot be shown"));
            assert_eq!(home.elsewhere().head_state(&of_helper("s")).await.unwrap().digest(), before.digest());
        }
        broken.store(false, Ordering::SeqCst);
        let done = agent.run(answered(&questions, &["a", "b"]), here()).await.unwrap();
        assert_eq!((done.text().as_str(), model.requests().len()), ("done", 2));
    }
}

//! No answer is endless, and none is waited for without end.

use std::time::Duration;

use everturn::ErrorKind;
use everturn::model::Model;
use futures_util::StreamExt;

use crate::loopback::{Loopback, Reply};
use crate::support::{ask, hello};
use crate::wire::{Said, Wire};

/// The frames before the first text.
fn beginning(wire: Wire) -> (Reply, usize) {
    let said = Said::text(&["one"]);
    let frames = wire.encode(&said).iter().position(|frame| frame.windows(3).any(|bytes| bytes == b"one")).unwrap();
    (Reply::answer(wire, &said), frames)
}

#[tokio::test]
async fn an_endless_answer_ends_at_the_limit() {
    for wire in Wire::ALL {
        let (reply, frames) = beginning(wire);
        let server = Loopback::start([reply.endless(frames, wire.text_frame(&"x".repeat(500)))]).await;
        let heard = ask(&server.model(wire).max_answer_bytes(10_000), hello()).await;
        let said = heard.text().len();
        assert!((9_500..=10_500).contains(&said), "{wire:?}: {said}");
        let error = heard.error();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        assert!(error.to_string().contains("max_answer_bytes"), "{error}");
    }
}

#[tokio::test]
async fn endless_keep_alives_end_at_the_limit() {
    for wire in Wire::ALL {
        let (reply, frames) = beginning(wire);
        let server = Loopback::start([reply.endless(frames, wire.keep_alive())]).await;
        let error = ask(&server.model(wire).max_answer_bytes(100), hello()).await.error();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{wire:?}: {error}");
    }
}

#[tokio::test]
async fn endless_arguments_of_a_tool_end_at_the_limit() {
    let said = Said::text(&[]).call("c", "find", &["{"]);
    let frames = Wire::OpenAi.encode(&said);
    let piece = String::from_utf8(frames[2].clone()).unwrap().replace("\"{\"", &format!("\"{}\"", "x".repeat(500)));
    let server = Loopback::start([Reply::answer(Wire::OpenAi, &said).endless(3, piece)]).await;
    let error = ask(&server.model(Wire::OpenAi).max_answer_bytes(10_000), hello()).await.error();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
}

#[tokio::test]
async fn a_line_without_an_end_ends_with_the_patience() {
    for wire in Wire::ALL {
        let server = Loopback::start([Reply::raw("data: ").endless(1, "x")]).await;
        let model = server.model(wire).idle_timeout(Duration::from_millis(100));
        let error = ask(&model, hello()).await.error();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{wire:?}: {error}");
    }
}

#[tokio::test]
async fn a_provider_that_falls_silent_is_not_waited_for_without_end() {
    for wire in Wire::ALL {
        for silent_after in [0, 1] {
            let (reply, frames) = beginning(wire);
            let server = Loopback::start([reply.stalled_after(frames + silent_after)]).await;
            let heard = ask(&server.model(wire).idle_timeout(Duration::from_millis(50)), hello()).await;
            assert_eq!(heard.text(), ["", "one"][silent_after], "{wire:?}");
            let error = heard.error();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("idle_timeout"), "{error}");
            assert_eq!(server.asked().len(), 1, "{wire:?}");
        }
    }
}

#[tokio::test]
async fn dropping_the_stream_stops_the_request() {
    for wire in Wire::ALL {
        let (reply, frames) = beginning(wire);
        let mut server = Loopback::start([reply.stalled_after(frames + 1)]).await;
        let mut stream = server.model(wire).stream(hello());
        assert_eq!(stream.next().await.unwrap().unwrap().as_text(), "one");
        drop(stream);
        server.body_dropped().await;
    }
}

#[tokio::test]
async fn nothing_is_sent_before_the_stream_is_read() {
    let server = Loopback::start([]).await;
    drop(server.model(Wire::OpenAi).stream(hello()));
    assert!(server.asked().is_empty());
}

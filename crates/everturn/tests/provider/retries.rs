//! What may pass is tried again, until something was said.

use std::time::{Duration, Instant};

use everturn::ErrorKind;

use crate::loopback::{Loopback, Reply};
use crate::support::{ask, hello};
use crate::wire::{Said, Wire};

fn fine(wire: Wire) -> Reply {
    Reply::answer(wire, &Said::text(&["Fine."]))
}

#[tokio::test]
async fn a_provider_that_is_busy_is_asked_again() {
    for wire in Wire::ALL {
        let server =
            Loopback::start([Reply::error(wire, 429, "busy"), Reply::error(wire, 529, "busy"), fine(wire)]).await;
        let heard = ask(&server.model(wire), hello()).await.whole();
        assert_eq!(heard.text(), "Fine.");
        let asked = server.asked();
        assert_eq!(asked.len(), 3, "{wire:?}");
        assert_eq!(asked[0].body, asked[2].body, "{wire:?}");
    }
}

#[tokio::test]
async fn tries_come_to_an_end() {
    for retries in 0..3 {
        let script = (0..5).map(|_| Reply::error(Wire::OpenAi, 500, "broken"));
        let server = Loopback::start(script).await;
        let error = ask(&server.model(Wire::OpenAi).retries(retries), hello()).await.error();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(server.asked().len(), retries as usize + 1);
    }
}

#[tokio::test]
async fn what_is_wrong_is_not_tried_again() {
    for status in [400, 401, 403, 404, 413, 422] {
        let server = Loopback::start([Reply::error(Wire::Anthropic, status, "no"), fine(Wire::Anthropic)]).await;
        ask(&server.model(Wire::Anthropic), hello()).await.error();
        assert_eq!(server.asked().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn an_empty_purse_is_not_tried_again() {
    let server = Loopback::start([Reply::error(Wire::OpenAi, 429, "insufficient_quota"), fine(Wire::OpenAi)]).await;
    ask(&server.model(Wire::OpenAi), hello()).await.error();
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_connection_dropped_before_the_first_word_is_tried_again() {
    for wire in Wire::ALL {
        let server = Loopback::start([fine(wire).cut_after(0), fine(wire).ended_after(0), fine(wire)]).await;
        assert_eq!(ask(&server.model(wire), hello()).await.whole().text(), "Fine.", "{wire:?}");
        assert_eq!(server.asked().len(), 3, "{wire:?}");
    }
}

#[tokio::test]
async fn an_error_event_before_the_first_word_is_tried_again() {
    for wire in Wire::ALL {
        let server = Loopback::start([Reply::raw(wire.error_frame("overloaded")), fine(wire)]).await;
        assert_eq!(ask(&server.model(wire), hello()).await.whole().text(), "Fine.", "{wire:?}");
    }
}

#[tokio::test]
async fn the_pause_the_provider_asks_for_is_kept() {
    let busy = Reply::error(Wire::OpenAi, 429, "busy").header("retry-after-ms", 60);
    let server = Loopback::start([busy, fine(Wire::OpenAi)]).await;
    let started = Instant::now();
    ask(&server.model(Wire::OpenAi), hello()).await.whole();
    assert!(started.elapsed() >= Duration::from_millis(60));
}

#[tokio::test]
async fn a_pause_that_is_too_long_is_told_and_not_waited_for() {
    let busy = Reply::error(Wire::OpenAi, 429, "come back tomorrow").header("retry-after", 86_400);
    let server = Loopback::start([busy, fine(Wire::OpenAi)]).await;
    let error = ask(&server.model(Wire::OpenAi), hello()).await.error();
    assert!(error.to_string().ends_with("retry after 86400 s"), "{error}");
    assert_eq!(server.asked().len(), 1);
}

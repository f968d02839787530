//! Errors say who failed, how, and what to do.

use std::time::Duration;

use everturn::ErrorKind;
use everturn::model::Provider;
use tokio::net::TcpListener;

use crate::loopback::{KEY, Loopback, Reply};
use crate::support::{ask, hello};
use crate::wire::{Said, Wire};

#[tokio::test]
async fn every_status_has_its_kind_and_the_provider_s_words() {
    for wire in Wire::ALL {
        for (status, kind, word) in [
            (400, ErrorKind::Invalid, "400 bad request: no such thing"),
            (401, ErrorKind::Invalid, "check the key"),
            (403, ErrorKind::Invalid, "check the key"),
            (404, ErrorKind::NotFound, "check the model's name"),
            (413, ErrorKind::TooLarge, "send less"),
            (422, ErrorKind::Invalid, "no such thing"),
            (429, ErrorKind::Unavailable, "429 too many requests"),
            (500, ErrorKind::Unavailable, "500 internal server error"),
            (529, ErrorKind::Unavailable, "529 overloaded"),
        ] {
            let server = Loopback::start([Reply::error(wire, status, "no such thing")]).await;
            let error = ask(&server.model(wire).retries(0), hello()).await.error();
            let text = error.to_string();
            assert_eq!(error.kind(), kind, "{wire:?}: {text}");
            assert!(text.starts_with(&format!("{}: {status} ", wire.model())), "{text}");
            assert!(text.contains(word) && text.contains("no such thing"), "{wire:?} {status}: {text}");
        }
    }
}

#[tokio::test]
async fn a_pause_the_provider_asks_for_is_told() {
    for wire in Wire::ALL {
        let server = Loopback::start([Reply::error(wire, 429, "slow down").header("retry-after", 7)]).await;
        let error = ask(&server.model(wire).retries(0), hello()).await.error();
        let expected = format!("{}: 429 too many requests: slow down; retry after 7 s", wire.model());
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test]
async fn a_key_is_shown_nowhere_even_if_the_provider_repeats_it() {
    let server = Loopback::start([Reply::error(Wire::OpenAi, 401, &format!("{KEY} is no good"))]).await;
    let model = server.model(Wire::OpenAi);
    let error = ask(&model, hello()).await.error();
    assert!(error.to_string().contains("*** is no good"), "{error}");
    assert!(!format!("{error:?} {model:?}").contains(KEY));
}

#[tokio::test]
async fn a_body_that_is_no_json_is_told_as_far_as_anybody_reads() {
    let page = format!("<html>\n{}</html>", "gateway ".repeat(5000));
    let server = Loopback::start([Reply::raw(page).status(502)]).await;
    let error = ask(&server.model(Wire::OpenAi).retries(0), hello()).await.error();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("502 bad gateway: <html> gateway"), "{error}");
    assert!(error.to_string().len() < 600);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = Loopback::start([]).await;
    let moved = Reply::raw("").status(307).header("location", elsewhere.url(Wire::OpenAi));
    let server = Loopback::start([moved]).await;
    let error = ask(&server.model(Wire::OpenAi), hello()).await.error();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(elsewhere.asked().is_empty());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    for wire in Wire::ALL {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let model = Provider::new(wire.model()).unwrap().endpoint(format!("http://{address}/")).unwrap();
        let error = ask(&model.backoff(Duration::ZERO), hello()).await.error();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(&format!("cannot reach http://{address}")), "{error}");
    }
}

#[tokio::test]
async fn a_connection_dropped_in_the_middle_is_told_after_what_came() {
    for wire in Wire::ALL {
        let said = Said::text(&["one ", "two ", "three"]);
        let frames = wire.encode(&said).iter().position(|frame| frame.windows(3).any(|bytes| bytes == b"two")).unwrap();
        let server = Loopback::start([Reply::answer(wire, &said).cut_after(frames + 1)]).await;
        let heard = ask(&server.model(wire), hello()).await;
        assert_eq!(heard.text(), "one two ", "{wire:?}");
        let error = heard.error();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("broke off"), "{error}");
        assert_eq!(server.asked().len(), 1, "{wire:?}");
    }
}

#[tokio::test]
async fn a_body_that_ends_without_the_provider_s_last_word_is_no_answer() {
    for wire in Wire::ALL {
        let said = Said::text(&["one ", "two"]);
        let frames = wire.encode(&said).iter().position(|frame| frame.windows(3).any(|bytes| bytes == b"two")).unwrap();
        let server = Loopback::start([Reply::answer(wire, &said).ended_after(frames + 1)]).await;
        let heard = ask(&server.model(wire), hello()).await;
        assert_eq!(heard.text(), "one two", "{wire:?}");
        assert!(heard.chunks.iter().all(|chunk| chunk.finish_reason.is_none()), "{wire:?}");
        assert_eq!(heard.error().kind(), ErrorKind::Unavailable, "{wire:?}");
    }
}

#[tokio::test]
async fn a_tool_request_cut_in_the_middle_is_not_handed_on() {
    for wire in [Wire::OpenAi, Wire::Anthropic] {
        let said = Said::text(&["Looking."]).call("c", "find", &[r#"{"q":"#, "1}"]);
        let frames =
            wire.encode(&said).iter().position(|frame| frame.windows(3).any(|bytes| bytes == b"\\\"q")).unwrap();
        let server = Loopback::start([Reply::answer(wire, &said).cut_after(frames + 1)]).await;
        let heard = ask(&server.model(wire), hello()).await;
        assert!(heard.parts().iter().all(|part| part.as_tool_request().is_none()), "{wire:?}");
        assert_eq!(heard.error().kind(), ErrorKind::Unavailable);
    }
}

#[tokio::test]
async fn an_error_in_the_middle_of_an_answer_is_told_in_the_provider_s_words() {
    for wire in Wire::ALL {
        let said = Said::text(&["one"]);
        let mut frames = wire.encode(&said);
        let place = frames.iter().position(|frame| frame.windows(3).any(|bytes| bytes == b"one")).unwrap() + 1;
        frames.truncate(place);
        frames.push(wire.error_frame("the kitchen burns"));
        let server = Loopback::start([Reply::raw(frames.concat())]).await;
        let heard = ask(&server.model(wire), hello()).await;
        assert_eq!(heard.text(), "one", "{wire:?}");
        let error = heard.error();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("the kitchen burns"), "{wire:?}: {error}");
    }
}

#[tokio::test]
async fn garbage_is_no_answer() {
    for wire in Wire::ALL {
        for garbage in ["<html>Welcome!</html>", "data: {\"half\": \n\n", "{\"a\":1", "\n\n\n", "", "\u{0}\u{1}"] {
            let server = Loopback::start([Reply::raw(garbage)]).await;
            let heard = ask(&server.model(wire).retries(0), hello()).await;
            assert_eq!(heard.text(), "", "{wire:?} {garbage:?}");
            assert_eq!(heard.error().kind(), ErrorKind::Unavailable, "{wire:?} {garbage:?}");
        }
        let server = Loopback::start([Reply::raw(b"data: \xff\xfe\n\n".as_slice())]).await;
        let error = ask(&server.model(wire).retries(0), hello()).await.error();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{wire:?}");
    }
}

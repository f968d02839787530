//! What providers say reaches the caller piece by piece.

use everturn::model::{ModelChunk, generate};
use everturn::{FinishReason, Part, PartKind};
use futures_util::StreamExt;
use serde_json::json;

use crate::loopback::{Loopback, Reply};
use crate::support::{ask, hello};
use crate::wire::{Finish, Said, Wire};

#[tokio::test]
async fn text_comes_in_the_provider_s_pieces() {
    for wire in Wire::ALL {
        let server = Loopback::start([Reply::answer(wire, &Said::text(&["Good ", "mor", "ning ☀"]))]).await;
        let heard = ask(&server.model(wire), hello()).await.whole();
        let texts: Vec<_> = heard.chunks.iter().map(ModelChunk::as_text).filter(|text| !text.is_empty()).collect();
        assert_eq!(texts, ["Good ", "mor", "ning ☀"], "{wire:?}");
    }
}

#[tokio::test]
async fn a_piece_is_handed_on_before_the_next_one_exists() {
    use everturn::model::Model;
    for wire in Wire::ALL {
        let said = Said::text(&["first"]);
        let frames = wire.encode(&said).iter().position(|frame| frame.windows(5).any(|bytes| bytes == b"first"));
        let server = Loopback::start([Reply::answer(wire, &said).stalled_after(frames.unwrap() + 1)]).await;
        let mut stream = server.model(wire).stream(hello());
        assert_eq!(stream.next().await.unwrap().unwrap().as_text(), "first", "{wire:?}");
    }
}

#[tokio::test]
async fn pieces_torn_in_characters_frames_and_words_are_put_together() {
    for wire in Wire::ALL {
        let said = Said::text(&["é☀", "𝄞 ", "日本"]).reasoning(&["hm…"], &["sig"]);
        for bytes in [1, 2, 3, 7, 64] {
            let server = Loopback::start([Reply::answer(wire, &said).torn(bytes)]).await;
            let heard = ask(&server.model(wire), hello()).await.whole();
            assert_eq!(heard.text(), "é☀𝄞 日本", "{wire:?} in pieces of {bytes}");
            assert_eq!(heard.reasoning(), "hm…", "{wire:?} in pieces of {bytes}");
        }
    }
}

#[tokio::test]
async fn reasoning_comes_as_reasoning_and_before_the_text() {
    for wire in Wire::ALL {
        let said = Said::text(&["Yes."]).reasoning(&["Let me ", "see."], &[]);
        let server = Loopback::start([Reply::answer(wire, &said)]).await;
        let parts = ask(&server.model(wire), hello()).await.whole().parts();
        let expected = [Part::reasoning("Let me "), Part::reasoning("see."), Part::text("Yes.")];
        assert_eq!(parts, expected, "{wire:?}");
    }
}

#[tokio::test]
async fn the_last_chunk_says_what_it_cost_and_why_it_ended() {
    for wire in Wire::ALL {
        let server = Loopback::start([Reply::answer(wire, &Said::text(&["ok"]))]).await;
        let heard = ask(&server.model(wire), hello()).await.whole();
        let last = heard.chunks.last().unwrap();
        assert_eq!(last.finish_reason, Some(FinishReason::Stop), "{wire:?}");
        let usage = last.usage.unwrap();
        assert_eq!((usage.input_tokens, usage.output_tokens, usage.total_tokens), (20, 5, 25), "{wire:?}");
        assert_eq!(usage.cached_content_tokens, 8, "{wire:?}");
        let reasoned = if matches!(wire, Wire::OpenAi | Wire::Gemini) { 2 } else { 0 };
        assert_eq!(usage.thoughts_tokens, reasoned, "{wire:?}");
        let earlier = &heard.chunks[..heard.chunks.len() - 1];
        assert!(earlier.iter().all(|chunk| chunk.usage.is_none() && chunk.finish_reason.is_none()), "{wire:?}");
    }
}

#[tokio::test]
async fn reasons_to_end_are_told_in_our_words() {
    for wire in Wire::ALL {
        for (finish, expected) in [
            (Finish::Stop, FinishReason::Stop),
            (Finish::Length, FinishReason::Length),
            (Finish::Blocked, FinishReason::Blocked),
            (Finish::Odd, FinishReason::Other),
        ] {
            let server = Loopback::start([Reply::answer(wire, &Said::text(&["…"]).finish(finish))]).await;
            let response = generate(&server.model(wire), hello()).await.unwrap();
            assert_eq!(response.finish_reason, expected, "{wire:?} {finish:?}");
        }
    }
}

#[tokio::test]
async fn a_prompt_that_gemini_refuses_is_blocked_and_no_error() {
    let refused = format!("data: {}\n\n", json!({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {}}));
    let server = Loopback::start([Reply::raw(refused)]).await;
    let heard = ask(&server.model(Wire::Gemini), hello()).await.whole();
    assert_eq!(heard.chunks.len(), 1);
    assert_eq!(heard.chunks[0].finish_reason, Some(FinishReason::Blocked));
}

#[tokio::test]
async fn anthropic_s_signatures_end_the_reasoning_they_sign() {
    let said = Said::text(&["Yes."]).reasoning(&["Let me ", "see."], &["sig-", "nature"]);
    let server = Loopback::start([Reply::answer(Wire::Anthropic, &said)]).await;
    let parts = ask(&server.model(Wire::Anthropic), hello()).await.whole().parts();
    assert_eq!(parts.len(), 4, "{parts:?}");
    assert_eq!(parts[2].as_reasoning().as_deref(), Some(""));
    assert_eq!(parts[2].metadata("thoughtSignature").unwrap().as_str(), "\"sig-nature\"");
    assert_eq!(parts[2].metadata("provider").unwrap().as_str(), "\"anthropic\"");
    assert_eq!(parts[3].kind(), PartKind::Text);
}

#[tokio::test]
async fn two_signed_blocks_in_a_row_and_what_is_redacted_keep_their_order() {
    let thinking = |index: u32, signature: &str| {
        let start = json!({"type": "content_block_start", "index": index,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""}});
        let delta = json!({"type": "content_block_delta", "index": index,
            "delta": {"type": "signature_delta", "signature": signature}});
        let stop = json!({"type": "content_block_stop", "index": index});
        [start, delta, stop].map(|frame| event(&frame)).concat()
    };
    let redacted = [
        json!({"type": "content_block_start", "index": 2, "content_block": {"type": "redacted_thinking", "data": "zzz"}}),
        json!({"type": "content_block_stop", "index": 2}),
    ]
    .map(|frame| event(&frame))
    .concat();
    let end = String::from_utf8(Wire::Anthropic.encode(&Said::text(&["Yes."])).concat()).unwrap();
    let (head, tail) = end.split_once("event: content_block_start").unwrap();
    let body = [head, &thinking(0, "one"), &thinking(1, "two"), &redacted, "event: content_block_start", tail].concat();
    let server = Loopback::start([Reply::raw(body)]).await;
    let parts = ask(&server.model(Wire::Anthropic), hello()).await.whole().parts();
    let signature = |part: &Part| part.metadata("thoughtSignature").map(|json| json.as_str().to_owned());
    assert_eq!(signature(&parts[0]).as_deref(), Some("\"one\""), "{parts:?}");
    assert_eq!(signature(&parts[1]).as_deref(), Some("\"two\""), "{parts:?}");
    assert_eq!(parts[2].as_str(), r#"{"custom":{"redactedThinking":"zzz"}}"#);
    assert_eq!(parts[3], Part::text("Yes."));
}

fn event(json: &serde_json::Value) -> String {
    format!("event: {}\ndata: {json}\n\n", json["type"].as_str().unwrap())
}

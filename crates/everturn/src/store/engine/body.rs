//! What a record holds, as text and as bytes.

use std::cell::RefCell;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use zstd::dict::DecoderDictionary;
use zstd::zstd_safe::CParameter;

use super::prose;
use crate::digest::Digest;
use crate::event::Event;
use crate::json::{Json, Scanner};
use crate::message::Message;
use crate::state::View;
use crate::turn::{EndStatus, Input, Outcome, ToolEntry};
use crate::{AgentName, BranchName, Error, InvocationId, Result, TurnKey, Usage};

/// A record's content. Members that say nothing are left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Body {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) begin: Option<BeginBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) splice: Option<SpliceBody>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) events: Vec<Event>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) custom: Option<CustomBody>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) artifacts: Vec<ArtifactBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) view: Option<ViewBody>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tools: Vec<ToolEntry>,
    #[serde(skip_serializing_if = "Usage::is_empty")]
    pub(crate) usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) invocation: Option<InvocationId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) end: Option<EndBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin: Option<Json>,
}

/// How a turn began.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BeginBody {
    pub(crate) invocation: InvocationId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) agent: Option<AgentName>,
    #[serde(default, skip_serializing_if = "BranchName::is_main")]
    pub(crate) branch: BranchName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<TurnKey>,
    /// The input but for what the record's event holds: its messages and state.
    #[serde(default, skip_serializing_if = "is_default_input")]
    pub(crate) input: Input,
}

fn is_default_input(input: &Input) -> bool {
    *input == Input::default()
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SpliceBody {
    pub(crate) keep: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) messages: Vec<Message>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum CustomBody {
    Set(Json),
    Patch(Json),
    Clear(bool),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ArtifactBody {
    Put(PutBody),
    Remove(String),
    Clear(bool),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PutBody {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) digest: Digest,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ViewBody {
    Set(View),
    Clear(bool),
}

/// How a turn, or an attempt at it, ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EndBody {
    pub(crate) status: EndBodyStatus,
    #[serde(default, skip_serializing_if = "is_default_outcome")]
    pub(crate) outcome: Outcome,
}

fn is_default_outcome(outcome: &Outcome) -> bool {
    *outcome == Outcome::default()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EndBodyStatus {
    Completed,
    Failed,
    Aborted,
    /// This attempt is void because its writer was gone; the turn itself goes on.
    Lost,
}

impl EndBodyStatus {
    pub(crate) fn status(self) -> Option<EndStatus> {
        match self {
            Self::Completed => Some(EndStatus::Completed),
            Self::Failed => Some(EndStatus::Failed),
            Self::Aborted => Some(EndStatus::Aborted),
            Self::Lost => None,
        }
    }
}

impl From<EndStatus> for EndBodyStatus {
    fn from(status: EndStatus) -> Self {
        match status {
            EndStatus::Completed => Self::Completed,
            EndStatus::Failed => Self::Failed,
            EndStatus::Aborted => Self::Aborted,
        }
    }
}

impl Body {
    pub(crate) fn text(&self) -> Result<String> {
        let messages = self.events.iter().flat_map(|event| &event.messages);
        // What else a plain record says takes less than this.
        let mut text = Vec::with_capacity(messages.map(|message| message.as_str().len()).sum::<usize>() + 256);
        let failed = || Error::internal("a record cannot be written as JSON");
        serde_json::to_writer(&mut text, self).map_err(|e| failed().with_source(e))?;
        String::from_utf8(text).map_err(|e| failed().with_source(e))
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        Self::parse(&decode(bytes)?)
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        parse(text)
    }
}

/// The part of a body that makes state, cut out of its text.
#[derive(Default)]
pub(crate) struct FoldBody<'a> {
    pub(crate) splice: Option<FoldSplice<'a>>,
    /// Of its events.
    pub(crate) messages: Vec<&'a str>,
    pub(crate) custom: Option<FoldCustom<'a>>,
    pub(crate) artifacts: Vec<ArtifactBody>,
    pub(crate) view: Option<ViewBody>,
}

#[derive(Default)]
pub(crate) struct FoldSplice<'a> {
    pub(crate) keep: u64,
    pub(crate) messages: Vec<&'a str>,
}

pub(crate) enum FoldCustom<'a> {
    Set(&'a str),
    Patch(&'a str),
    Clear,
}

impl<'a> FoldBody<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self> {
        let mut body = Self::default();
        let mut scanner = Scanner::new(text);
        scanner.members(|scanner, member| {
            match member {
                "splice" => body.splice = Some(FoldSplice::scan(scanner)?),
                "events" => scanner.items(|scanner| scan_event(scanner, &mut body.messages))?,
                "custom" => body.custom = FoldCustom::scan(scanner)?,
                "artifacts" => body.artifacts = parse(scanner.value()?)?,
                "view" => body.view = parse(scanner.value()?)?,
                _ => scanner.skip()?,
            }
            Ok(())
        })?;
        scanner.end()?;
        Ok(body)
    }
}

impl<'a> FoldSplice<'a> {
    fn scan(scanner: &mut Scanner<'a>) -> Result<Self> {
        let mut splice = Self::default();
        scanner.members(|scanner, member| {
            match member {
                "keep" => splice.keep = parse(scanner.value()?)?,
                "messages" => scan_messages(scanner, &mut splice.messages)?,
                _ => scanner.skip()?,
            }
            Ok(())
        })?;
        Ok(splice)
    }
}

impl<'a> FoldCustom<'a> {
    fn scan(scanner: &mut Scanner<'a>) -> Result<Option<Self>> {
        let mut custom = None;
        scanner.members(|scanner, how| {
            let text = scanner.value()?;
            custom = Some(match how {
                "set" => Self::Set(text),
                "patch" => Self::Patch(text),
                "clear" => Self::Clear,
                _ => return Err(damaged()),
            });
            Ok(())
        })?;
        Ok(custom)
    }
}

fn scan_event<'a>(scanner: &mut Scanner<'a>, messages: &mut Vec<&'a str>) -> Result<()> {
    scanner.members(|scanner, member| match member {
        "messages" => scan_messages(scanner, messages),
        _ => scanner.skip(),
    })
}

fn scan_messages<'a>(scanner: &mut Scanner<'a>, messages: &mut Vec<&'a str>) -> Result<()> {
    scanner.items(|scanner| {
        messages.push(scanner.value()?);
        Ok(())
    })
}

fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| damaged().with_source(e))
}

/// Shorter bodies are kept as they are: a compressed frame has about that much overhead.
const MIN_COMPRESS: usize = 64;
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
const PROSE: u8 = 2;
/// No record was ever written that unpacks to more; a larger claim is damage.
const MAX_UNPACKED: u64 = 1 << 31;

/// What bodies have in common, given to zstd as content it has seen already: half of a short record is names of members.
/// Part of the format: a changed dictionary would be another way of packing, with a number of its own.
const DICTIONARY: &str = include_str!("dictionary.txt");
static DECODER: LazyLock<DecoderDictionary<'static>> = LazyLock::new(|| DecoderDictionary::copy(DICTIONARY.as_bytes()));
const LEVEL: i32 = 1;
/// Beside the level: a table of 16 KiB, which stays close to the processor while other things are done between two records,
/// and matches of six bytes at least. Short records come out a little smaller and sooner than with the level's own.
const PARAMETERS: [CParameter; 3] = [CParameter::WindowLog(17), CParameter::HashLog(12), CParameter::MinMatch(6)];

thread_local! {
    static COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Packs a text: a byte that says how, then the text, or its length and what [`prose`] or zstd made of it, with a checksum.
pub(crate) fn encode(text: &str) -> Result<Vec<u8>> {
    if text.len() >= MIN_COMPRESS {
        let mut out = packed_head(PROSE, text);
        out.extend_from_slice(&crc32fast::hash(text.as_bytes()).to_le_bytes());
        if prose::pack(text, &mut out) {
            return Ok(out);
        }
        let packed = COMPRESSOR.with_borrow_mut(|slot| -> std::io::Result<Vec<u8>> {
            if slot.is_none() {
                let mut compressor = zstd::bulk::Compressor::with_dictionary(LEVEL, DICTIONARY.as_bytes())?;
                PARAMETERS.into_iter().try_for_each(|parameter| compressor.set_parameter(parameter))?;
                compressor.include_checksum(true)?;
                compressor.include_contentsize(false)?;
                compressor.include_dictid(false)?;
                *slot = Some(compressor);
            }
            slot.as_mut().map_or_else(|| Ok(Vec::new()), |compressor| compressor.compress(text.as_bytes()))
        });
        let packed = packed.map_err(|e| Error::internal("a record cannot be compressed").with_source(e))?;
        let mut out = packed_head(ZSTD, text);
        if out.len() + packed.len() < text.len() {
            out.extend_from_slice(&packed);
            return Ok(out);
        }
    }
    let mut out = Vec::with_capacity(text.len() + 1);
    out.push(PLAIN);
    out.extend_from_slice(text.as_bytes());
    Ok(out)
}

/// How a text is packed, and its length.
fn packed_head(how: u8, text: &str) -> Vec<u8> {
    // Room for all of a short text: it is on the way of every turn.
    let mut out = Vec::with_capacity(text.len().min(prose::LONGEST));
    out.push(how);
    put_varint(&mut out, text.len() as u64);
    out
}

pub(crate) fn decode(bytes: &[u8]) -> Result<String> {
    let mut text = Vec::new();
    decode_into(bytes, &mut text)?;
    String::from_utf8(text).map_err(|e| damaged().with_source(e))
}

/// Unpacks a text into a buffer, replacing what it held, and gives the text in it.
pub(crate) fn decode_into<'b>(bytes: &[u8], text: &'b mut Vec<u8>) -> Result<&'b str> {
    text.clear();
    let (how, mut rest) = bytes.split_first().ok_or_else(damaged)?;
    match *how {
        PLAIN => {
            text.extend_from_slice(rest);
            // Nothing else would tell that these bytes are not the ones that were written.
            serde_json::from_slice::<&RawValue>(text).map_err(|e| damaged().with_source(e))?;
        }
        ZSTD => {
            let len = take_len(&mut rest)?;
            text.try_reserve(len).map_err(|_| damaged())?;
            decompress(rest, text).map_err(|e| damaged().with_source(e))?;
            if text.len() != len {
                return Err(damaged());
            }
        }
        PROSE => {
            let len = take_len(&mut rest)?;
            let (checksum, packed) = rest.split_first_chunk().ok_or_else(damaged)?;
            prose::unpack(packed, len, text).ok_or_else(damaged)?;
            if crc32fast::hash(text) != u32::from_le_bytes(*checksum) {
                return Err(damaged());
            }
        }
        _ => return Err(damaged()),
    }
    std::str::from_utf8(text).map_err(|e| damaged().with_source(e))
}

/// How long the text is that was packed; nothing if it is damaged.
pub(crate) fn unpacked_len(bytes: &[u8]) -> Option<u64> {
    let (how, mut rest) = bytes.split_first()?;
    if *how == PLAIN { Some(rest.len() as u64) } else { take_varint(&mut rest) }
}

fn take_len(bytes: &mut &[u8]) -> Result<usize> {
    let len = take_varint(bytes).filter(|len| *len <= MAX_UNPACKED).ok_or_else(damaged)?;
    usize::try_from(len).map_err(|_| damaged())
}

fn decompress(frame: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
    DECOMPRESSOR.with_borrow_mut(|slot| {
        let decompressor = match slot {
            Some(decompressor) => decompressor,
            None => slot.insert(zstd::bulk::Decompressor::with_prepared_dictionary(&DECODER)?),
        };
        decompressor.decompress_to_buffer(frame, out).map(drop)
    })
}

fn damaged() -> Error {
    Error::corrupt("a record's content is damaged")
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_round_trip_and_damage_is_noticed() {
        for text in ["{}", &"ab".repeat(40), &"hello ".repeat(400), &"é".repeat(1000)] {
            let bytes = encode(text).unwrap();
            assert_eq!(decode(&bytes).unwrap(), text);
            if bytes[0] != PLAIN {
                for at in 1..bytes.len() {
                    let mut bad = bytes.clone();
                    bad[at] ^= 0x40;
                    // A hint in the frame's header may change without harm; the text never does.
                    let read = decode(&bad);
                    assert!(read.is_err() || read.unwrap() == text, "a flipped bit at {at} went unnoticed");
                }
            }
        }
        assert!(decode(&[]).is_err() && decode(&[7]).is_err() && decode(&[1, 0xff]).is_err());
        assert!(decode(b"\0{\"events\":[").is_err() && decode(&[0, b'"', 0xff, b'"']).is_err());
    }

    #[test]
    fn what_makes_state_is_found_and_damage_is_noticed() {
        let text = r#"{"begin":{"invocation":"]}","x":[{}]},"splice":{"keep":3,"messages":[{"a":"}"}]},
            "events":[{"author":"\"messages","messages":[{"b":[1.10]}, {"c":"\\"}],"usage":{}},{},{"messages":[{}]}],
            "custom":{"set":null},"artifacts":[{"remove":"r"}],"view":{"clear":true},"unknown":-1.5e+3}"#;
        let body = FoldBody::parse(text).unwrap();
        assert_eq!(
            body.splice.as_ref().map(|splice| (splice.keep, &splice.messages[..])),
            Some((3, &[r#"{"a":"}"}"#][..]))
        );
        assert_eq!(body.messages, [r#"{"b":[1.10]}"#, r#"{"c":"\\"}"#, "{}"]);
        assert!(matches!(body.custom, Some(FoldCustom::Set("null"))));
        assert!(matches!(&body.artifacts[..], [ArtifactBody::Remove(name)] if name == "r"));
        assert!(matches!(body.view, Some(ViewBody::Clear(true))));
        for end in 0..text.len() {
            let error = FoldBody::parse(&text[..end]).err().expect("a text that is cut short was taken");
            assert_eq!(error.kind(), crate::ErrorKind::Corrupt);
        }
        let garbage =
            [r#"{"custom":{"sat":1}}"#, r#"{"splice":{"keep":-1}}"#, r#"{"artifacts":[1]}"#, r#"{"events":{}}"#];
        for text in garbage {
            assert!(FoldBody::parse(text).is_err(), "{text} was taken");
        }
    }

    #[test]
    fn varints_round_trip() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(take_varint(&mut &out[..]), Some(value));
        }
    }
}

//! Short texts, packed by a table that is part of the format.
//!
//! Most of what is said is a few hundred words, and a packer that makes its tables for each text spends its time on tables:
//! zstd takes 14 µs for a kilobyte of words, nearly all of it before the first bit is written. Here each character has a code
//! that was settled once, and so have the phrases that our own JSON is made of. A text that the table does not suit, or that
//! repeats itself, is not packed here: zstd does that better.
//!
//! `docs/format.md` says how it is written down. A changed table would be another way of packing, with a number of its own.

use std::sync::LazyLock;

/// Longer texts repeat themselves, and are worth the time that tables of their own take.
const LONGEST: usize = 4096;
/// The longest code.
const WIDTH: u32 = 12;
const MASK: u64 = (1 << WIDTH) - 1;
/// The byte that follows stands for itself.
const ESCAPE: usize = 256;

/// Characters by the length of their codes. Shorter ones are those that English has more often; a third of all room is for
/// capitals, digits, punctuation and JSON.
const CHARACTERS: [(u32, &str); 10] = [
    (3, " "),
    (4, "aeinost"),
    (5, "dhlr"),
    (6, "bcfgmpuwy"),
    (7, ",.kv"),
    (8, "\"-012:\\jqxz"),
    (9, "'*/3456789ACIST_`"),
    (10, "!()=?BDEFHLMNOPRW{}"),
    (11, "#+;<>GJKUVY[]|"),
    (12, "$%&@QXZ^~"),
];
const ESCAPE_LENGTH: u32 = 11;
/// Phrases with the lengths of their codes. Where one begins another, the longer one is meant.
const PHRASES: [(u32, &str); 52] = [
    (8, r#"\n"#),
    (9, r#"\""#),
    (9, r#"\n\n"#),
    (10, r#"",""#),
    (10, r#"","messages":[{"role":"model","content":[{"text":""#),
    (10, r#"":""#),
    (10, r#"":{""#),
    (10, r#""end":{"status":"completed""#),
    (10, r#""}"#),
    (10, r#""},"#),
    (10, r#""},"events":[{"author":"user","messages":[{"role":"user","content":[{"text":""#),
    (10, r#""}]}]}]"#),
    (10, r#","outcome":{"finishReason":"stop""#),
    (10, r#"{"begin":{"invocation":""#),
    (10, r#"{"events":[{"author":""#),
    (10, r#"{"op":"replace","path":"/"#),
    (10, r#"}}"#),
    (11, r#"","agent":""#),
    (11, r#"","ref":""#),
    (11, r#"","value":"#),
    (11, r#"":"#),
    (11, r#"":["#),
    (11, r#""content":[{""#),
    (11, r#""custom":{"patch":["#),
    (11, r#""custom":{"set":{""#),
    (11, r#""input":{""#),
    (11, r#""messages":[{"#),
    (11, r#""metadata":{""#),
    (11, r#""output":"#),
    (11, r#""role":"model""#),
    (11, r#""role":"tool""#),
    (11, r#""role":"user""#),
    (11, r#""text":""#),
    (11, r#""toolRequest":{"name":""#),
    (11, r#""toolResponse":{"name":""#),
    (11, r#""usage":{"inputTokens":"#),
    (11, r#",""#),
    (11, r#","outputTokens":"#),
    (11, r#","totalTokens":"#),
    (11, r#"{"op":"add","path":"/"#),
    (11, r#"{"op":"remove","path":"/"#),
    (11, r#"},{""#),
    (11, r#"}]"#),
    (12, r#"","phase":"finished","payload":"#),
    (12, r#"","phase":"started","payload":"#),
    (12, r#""error":{"status":""#),
    (12, r#""kind":"tool"#),
    (12, r#""message":{"#),
    (12, r#""name":""#),
    (12, r#""stateDelta":{""#),
    (12, r#""status":""#),
    (12, r#""tools":[{"call":""#),
];
/// Bytes, the escape, phrases.
const SYMBOLS: usize = ESCAPE + 1 + PHRASES.len();
/// A code as it goes out: its bits, the first one lowest, and how many they are.
#[derive(Clone, Copy, Default)]
struct Code {
    bits: u32,
    length: u32,
}

/// What the next bits mean: one or two bytes of text, or something else.
#[derive(Clone, Copy, Default)]
struct Meaning {
    text: [u8; 2],
    /// How many bytes of text these are; none where it is a phrase or an escaped byte.
    count: u8,
    /// The bits of all of it, and of the first byte alone.
    length: u8,
    first: u8,
    symbol: u16,
}

struct Table {
    codes: [Code; SYMBOLS],
    /// By the next [`WIDTH`] bits.
    meanings: Vec<Meaning>,
    /// For each byte the phrases it may begin, the longest first.
    phrases: Vec<Vec<(usize, &'static [u8])>>,
}

static TABLE: LazyLock<Table> = LazyLock::new(Table::new);

/// The length of each symbol's code; none for bytes that are escaped.
fn lengths() -> [u32; SYMBOLS] {
    let mut lengths = [0; SYMBOLS];
    for (length, characters) in CHARACTERS {
        characters.bytes().for_each(|byte| lengths[usize::from(byte)] = length);
    }
    lengths[ESCAPE] = ESCAPE_LENGTH;
    for (slot, (length, _)) in lengths[ESCAPE + 1..].iter_mut().zip(PHRASES) {
        *slot = length;
    }
    lengths
}

impl Table {
    fn new() -> Self {
        let lengths = lengths();
        let mut codes = [Code::default(); SYMBOLS];
        let mut meanings = vec![Meaning::default(); 1 << WIDTH];
        // Codes count up from the shortest length to the longest, and among those of one length by symbol.
        let mut next = 0u32;
        for length in 1..=WIDTH {
            for symbol in (0..SYMBOLS).filter(|symbol| lengths[*symbol] == length) {
                let code = Code { bits: (next << (32 - length)).reverse_bits(), length };
                codes[symbol] = code;
                let (text, count, bits) = ([symbol as u8, 0], u8::from(symbol < ESCAPE), length as u8);
                let meaning = Meaning { text, count, length: bits, first: bits, symbol: symbol as u16 };
                meanings.iter_mut().skip(code.bits as usize).step_by(1 << length).for_each(|slot| *slot = meaning);
                next += 1;
            }
            next <<= 1;
        }
        let single = meanings.clone();
        for (bits, meaning) in meanings.iter_mut().enumerate().filter(|(_, meaning)| meaning.count == 1) {
            let second = single[bits >> meaning.length];
            if second.count == 1 && u32::from(meaning.length + second.length) <= WIDTH {
                meaning.text[1] = second.text[0];
                (meaning.count, meaning.length) = (2, meaning.length + second.length);
            }
        }
        let mut phrases = vec![Vec::new(); 256];
        for (i, (_, phrase)) in PHRASES.iter().enumerate() {
            phrases[usize::from(phrase.as_bytes()[0])].push((ESCAPE + 1 + i, phrase.as_bytes()));
        }
        phrases.iter_mut().for_each(|list| list.sort_by_key(|(_, phrase)| std::cmp::Reverse(phrase.len())));
        Self { codes, meanings, phrases }
    }

    /// What a text begins with, a phrase if it can be, and how long that is.
    fn symbol(&self, text: &[u8]) -> (usize, usize) {
        let phrase = self.phrases[usize::from(text[0])].iter().find(|(_, phrase)| text.starts_with(phrase));
        phrase.map_or((usize::from(text[0]), 1), |(symbol, phrase)| (*symbol, phrase.len()))
    }
}

/// Packs a text behind what is in `out` already. Says whether that is worth it; if not, `out` is as it was.
pub(super) fn pack(text: &str, out: &mut Vec<u8>) -> bool {
    let (mut text, before) = (text.as_bytes(), out.len());
    if text.len() > LONGEST || repeats(text) {
        return false;
    }
    // A text that comes out longer than this has little of what the table was made for.
    let most = before + text.len() * 5 / 8;
    out.reserve(most - before + 8);
    let table = &*TABLE;
    let (mut bits, mut count) = (0u64, 0);
    while !text.is_empty() {
        let (symbol, length) = table.symbol(text);
        let mut code = table.codes[symbol];
        if code.length == 0 {
            let escape = table.codes[ESCAPE];
            code = Code { bits: escape.bits | u32::from(text[0]) << escape.length, length: escape.length + 8 };
        }
        text = &text[length..];
        bits |= u64::from(code.bits) << count;
        count += code.length;
        if count >= 32 {
            out.extend_from_slice(&(bits as u32).to_le_bytes());
            (bits, count) = (bits >> 32, count - 32);
            if out.len() > most {
                break;
            }
        }
    }
    out.extend_from_slice(&bits.to_le_bytes()[..count.div_ceil(8) as usize]);
    let worth_it = out.len() <= most;
    if !worth_it {
        out.truncate(before);
    }
    worth_it
}

/// Whether a text says much of what it says more than once: five bytes that stood somewhere before are one repetition.
fn repeats(text: &[u8]) -> bool {
    /// Every other place is looked at, and one in so many may repeat what was said.
    const FEW: usize = 12;
    let mut seen = [0u32; 512];
    let (mut places, mut repeated) = (0, 0);
    for window in text.windows(8).step_by(2) {
        let Ok(window) = <[u8; 8]>::try_from(window) else { continue };
        let hash = (u64::from_le_bytes(window) << 24).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (slot, rest) = ((hash >> 55) as usize, (hash >> 20) as u32);
        repeated += usize::from(std::mem::replace(&mut seen[slot], rest) == rest);
        places += 1;
    }
    repeated * FEW > places
}

/// Unpacks a text of so many bytes into a buffer. Nothing if that cannot be what was packed.
pub(super) fn unpack(mut packed: &[u8], length: usize, out: &mut Vec<u8>) -> Option<()> {
    if length > LONGEST {
        return None;
    }
    let table = &*TABLE;
    let (mut at, end) = (out.len(), out.len() + length);
    // The second of two bytes is written along and counted only if it belongs to the text.
    out.resize(end + 1, 0);
    let (mut bits, mut count) = (0u64, 0u32);
    while at < end {
        if count < 32 {
            match packed.first_chunk::<4>() {
                Some(next) => {
                    bits |= u64::from(u32::from_le_bytes(*next)) << count;
                    (packed, count) = (&packed[4..], count + 32);
                }
                None => {
                    for byte in std::mem::take(&mut packed) {
                        bits |= u64::from(*byte) << count;
                        count += 8;
                    }
                }
            }
        }
        let meaning = table.meanings[(bits & MASK) as usize];
        let (mut text, mut length) = (usize::from(meaning.count), u32::from(meaning.length));
        if text == 2 && (at + 1 == end || length > count) {
            (text, length) = (1, u32::from(meaning.first));
        }
        (bits, count) = (bits >> length, count.checked_sub(length)?);
        if text > 0 {
            out[at..at + 2].copy_from_slice(&meaning.text);
            at += text;
        } else if usize::from(meaning.symbol) == ESCAPE {
            out[at] = bits as u8;
            at += 1;
            (bits, count) = (bits >> 8, count.checked_sub(8)?);
        } else {
            let phrase = PHRASES[usize::from(meaning.symbol) - ESCAPE - 1].1.as_bytes();
            out.get_mut(at..at + phrase.len())?.copy_from_slice(phrase);
            at += phrase.len();
        }
    }
    out.truncate(end);
    (at == end && packed.is_empty() && count < 8 && bits == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(text: &str) -> Option<usize> {
        let mut packed = vec![7];
        if !pack(text, &mut packed) {
            assert_eq!(packed, [7], "what was not packed left something behind");
            return None;
        }
        let mut read = b"before".to_vec();
        unpack(&packed[1..], text.len(), &mut read).expect("what was packed is not unpacked");
        assert_eq!(std::str::from_utf8(&read).unwrap(), format!("before{text}"));
        Some(packed.len() - 1)
    }

    #[test]
    fn the_table_is_one_that_any_bits_can_be_read_by() {
        let lengths = lengths();
        let room: u32 = lengths.iter().filter(|length| **length > 0).map(|length| 1 << (WIDTH - length)).sum();
        assert_eq!(room, 1 << WIDTH);
        assert!(TABLE.meanings.iter().all(|meaning| meaning.length > 0));
        let characters: usize = CHARACTERS.iter().map(|(_, characters)| characters.len()).sum();
        let known = lengths.iter().filter(|length| **length > 0).count();
        assert_eq!(known, characters + 1 + PHRASES.len(), "a character is named twice");
        // Every printable character of ASCII has a code.
        assert!((b' '..=b'~').all(|byte| lengths[usize::from(byte)] > 0));
        // A letter never begins a phrase: words are packed without looking for any.
        assert!(PHRASES.iter().all(|(_, phrase)| !phrase.as_bytes()[0].is_ascii_alphanumeric()));
    }

    const DOC: &str = include_str!("../../../../../docs/format.md");

    #[test]
    fn the_table_is_the_documented_one() {
        let (_, block) = DOC.split_once("```text\n").expect("the codes are in a block");
        let (block, _) = block.split_once("\n```").expect("the block ends");
        let documented: Vec<(u32, String)> = block
            .lines()
            .filter(|line| !line.is_empty())
            .map(|line| {
                let (length, text) = line.split_once(' ').expect("a length and a text");
                (length.parse().unwrap(), serde_json::from_str(text).unwrap())
            })
            .collect();
        let ours: Vec<_> =
            CHARACTERS.iter().chain(&PHRASES).map(|(length, text)| (*length, (*text).to_owned())).collect();
        assert_eq!(documented, ours);
    }

    #[test]
    fn texts_are_packed_as_documented() {
        let texts = [
            "a test of words that stay as they are",
            r#"{"begin":{"invocation":"é"},"events":[{"author":"user","messages":[]}]}"#,
        ];
        for text in texts {
            let mut packed = Vec::new();
            assert!(pack(text, &mut packed));
            let hex: String = packed.iter().map(|byte| format!("{byte:02x}")).collect();
            let (_, rest) = DOC.split_once(&format!("`{text}` is\n`")).expect("the text is in the document");
            assert_eq!(rest.split_once('`').unwrap().0, hex);
        }
    }

    #[test]
    fn what_is_said_in_words_is_packed_and_other_things_are_left_to_others() {
        let words =
            "It was late when the parcel came, and nobody knew who had sent it; so we put it beside the others.";
        assert!(round_trip(words).unwrap() * 100 < words.len() * 60);
        let body = format!(
            r#"{{"begin":{{"invocation":"i-1"}},"events":[{{"author":"user","messages":[{{"role":"user","content":[{{"text":"{words}"}}]}}]}}]}}"#
        );
        assert!(round_trip(&body).unwrap() < round_trip(words).unwrap() + 12, "what all bodies have costs too much");
        let repeated = words.repeat(4);
        let digits: String = (0..200u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_string()).collect();
        for other in [&*repeated, &digits[..1000], &"щ".repeat(100), &"日本語".repeat(30), &"x".repeat(LONGEST + 1)]
        {
            assert_eq!(round_trip(other), None, "{other} was packed by the table");
        }
    }

    #[test]
    fn damage_is_never_a_longer_text_or_a_panic() {
        let mut packed = Vec::new();
        assert!(pack(r#"{"events":[{"author":"a","messages":[]}],"x":"é and ü, then some more words"}"#, &mut packed));
        for at in 0..packed.len() {
            for bit in 0..8 {
                let mut bad = packed.clone();
                bad[at] ^= 1 << bit;
                for bad in [&bad[..], &bad[..at]] {
                    for length in [0, 1, 60, 80, 81, 82, LONGEST, usize::MAX] {
                        let mut out = Vec::new();
                        if unpack(bad, length, &mut out).is_some() {
                            assert_eq!(out.len(), length);
                        }
                    }
                }
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_comes_back(words in proptest::collection::vec("[a-z]{1,9}|[A-Z][a-z]{2}|[0-9]{1,4}|é|\"|\\\\n|, |\\{\"", 1..300)) {
            round_trip(&words.join(" "));
            round_trip(&words.concat());
        }

        #[test]
        fn any_bits_are_read_without_harm(bits in proptest::collection::vec(0u8.., 0..200), length in 0usize..500) {
            let mut out = Vec::new();
            if unpack(&bits, length, &mut out).is_some() {
                proptest::prop_assert_eq!(out.len(), length);
            }
        }
    }
}

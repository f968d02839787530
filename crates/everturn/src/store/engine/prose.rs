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
pub(super) const LONGEST: usize = 4096;
/// The longest code.
const WIDTH: u32 = 12;
const MASK: u64 = (1 << WIDTH) - 1;
/// The byte that follows stands for itself.
const ESCAPE: usize = 256;

/// Characters by the length of their codes. Shorter ones are those that English has more often; a seventh of all room is for
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
    /// The text; the number of the symbol where it is not text but a phrase or an escaped byte.
    text: [u8; 2],
    /// How many bytes of text these are; none where it is something else.
    count: u8,
    length: u8,
}

struct Table {
    codes: [Code; SYMBOLS],
    /// The codes of bytes that begin no phrase; the others are looked at more closely.
    plain: [Code; 256],
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
                let (text, count) = ((symbol as u16).to_le_bytes(), u8::from(symbol < ESCAPE));
                let meaning = Meaning { text, count, length: length as u8 };
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
        let mut phrases = vec![Vec::<(usize, &'static [u8])>::new(); 256];
        for (i, (_, phrase)) in PHRASES.iter().enumerate() {
            phrases[usize::from(phrase.as_bytes()[0])].push((ESCAPE + 1 + i, phrase.as_bytes()));
        }
        phrases.iter_mut().for_each(|list| list.sort_by_key(|(_, phrase)| std::cmp::Reverse(phrase.len())));
        let plain = std::array::from_fn(|byte| if phrases[byte].is_empty() { codes[byte] } else { Code::default() });
        Self { codes, plain, meanings, phrases }
    }

    /// The code of what a text begins with, a phrase if it can be, and how much of the text that is.
    fn code(&self, text: &[u8]) -> (Code, usize) {
        // Most are told apart by their second byte.
        let begins = |phrase: &[u8]| text.get(1) == phrase.get(1) && text.starts_with(phrase);
        let phrase = self.phrases[usize::from(text[0])].iter().find(|(_, phrase)| begins(phrase));
        if let Some((symbol, phrase)) = phrase {
            return (self.codes[*symbol], phrase.len());
        }
        let (code, escape) = (self.codes[usize::from(text[0])], self.codes[ESCAPE]);
        if code.length > 0 {
            return (code, 1);
        }
        (Code { bits: escape.bits | u32::from(text[0]) << escape.length, length: escape.length + 8 }, 1)
    }
}

/// Packs a text behind what is in `out` already. Says whether that is worth it; if not, `out` is as it was.
pub(super) fn pack(text: &str, out: &mut Vec<u8>) -> bool {
    let (text, before) = (text.as_bytes(), out.len());
    if text.len() > LONGEST || repeats(text) {
        return false;
    }
    // A text that comes out longer than this has little of what the table was made for.
    let most = text.len() * 5 / 8;
    out.resize(before + most + 8, 0);
    let packed = fill(text, &mut out[before..]);
    out.truncate(before + packed.unwrap_or(0));
    packed.is_some()
}

/// Writes the codes of a text, and says how many bytes they take. Nothing if there is not room for all and eight bytes more.
fn fill(mut text: &[u8], out: &mut [u8]) -> Option<usize> {
    let table = &*TABLE;
    let mut codes = Codes { out, bits: 0, count: 0, end: 0 };
    while let Some(next) = text.first() {
        // Mostly four letters follow each other, and there is room for the codes of four between two writes.
        let four = text.first_chunk::<4>().map(|four| four.map(|byte| table.plain[usize::from(byte)]));
        let length = match four {
            Some(four) if four.iter().all(|code| code.length > 0) => {
                four.into_iter().for_each(|code| codes.put(code));
                4
            }
            _ => {
                let plain = table.plain[usize::from(*next)];
                let (code, length) = if plain.length > 0 { (plain, 1) } else { table.code(text) };
                codes.put(code);
                length
            }
        };
        codes.write()?;
        text = &text[length..];
    }
    Some(codes.end + usize::from(codes.count > 0))
}

/// Codes on their way out.
struct Codes<'o> {
    out: &'o mut [u8],
    bits: u64,
    count: u32,
    /// Bytes that are complete.
    end: usize,
}

impl Codes<'_> {
    #[inline]
    fn put(&mut self, code: Code) {
        self.bits |= u64::from(code.bits) << self.count;
        self.count += code.length;
    }

    /// Writes what there is, and keeps what is not a whole byte. Writing too much costs less than asking how much.
    #[inline]
    fn write(&mut self) -> Option<()> {
        *self.out.get_mut(self.end..)?.first_chunk_mut::<8>()? = self.bits.to_le_bytes();
        self.end += (self.count / 8) as usize;
        self.bits >>= self.count & !7;
        self.count &= 7;
        Some(())
    }
}

/// Whether a text says much of what it says more than once: five bytes that stood somewhere before are one repetition.
fn repeats(text: &[u8]) -> bool {
    /// Every other place is looked at, and one in so many may repeat what was said.
    const FEW: usize = 12;
    let mut seen = [0u32; 512];
    let (mut places, mut repeated, mut rest) = (0, 0, text);
    while let Some(window) = rest.first_chunk::<8>() {
        let hash = (u64::from_le_bytes(*window) << 24).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (slot, hash) = ((hash >> 55) as usize, (hash >> 20) as u32);
        repeated += usize::from(std::mem::replace(&mut seen[slot], hash) == hash);
        (places, rest) = (places + 1, &rest[2..]);
    }
    repeated * FEW > places
}

/// Unpacks a text of so many bytes into a buffer. Nothing if that cannot be what was packed.
pub(super) fn unpack(packed: &[u8], length: usize, out: &mut Vec<u8>) -> Option<()> {
    if length > LONGEST {
        return None;
    }
    let start = out.len();
    // The second of two bytes is written along, and counts only if it belongs to the text.
    out.resize(start + length + 1, 0);
    read(packed, &mut out[start..], length)?;
    out.truncate(start + length);
    Some(())
}

/// Reads codes until a text has its length. Nothing may be left of them then.
fn read(mut packed: &[u8], out: &mut [u8], end: usize) -> Option<()> {
    let table = &*TABLE;
    let (mut bits, mut count, mut at) = (0u64, 0u32, 0);
    while at < end {
        // Bits that do not fit are read again with the next ones, and are the same then.
        if let Some(next) = packed.first_chunk::<8>() {
            bits |= u64::from_le_bytes(*next) << count;
            let taken = (63 - count) / 8;
            (packed, count) = (&packed[taken as usize..], count + 8 * taken);
        } else {
            while count < 56
                && let Some((next, rest)) = packed.split_first()
            {
                bits |= u64::from(*next) << count;
                (packed, count) = (rest, count + 8);
            }
        }
        // Mostly words go on: four times as many bits as the longest code has are there.
        let mut meaning = table.meanings[(bits & MASK) as usize];
        let mut times = 4;
        while times > 0 && meaning.count > 0 && at + 2 <= end && u32::from(meaning.length) <= count {
            *out.get_mut(at..)?.first_chunk_mut::<2>()? = meaning.text;
            at += usize::from(meaning.count);
            (bits, count) = (bits >> meaning.length, count - u32::from(meaning.length));
            meaning = table.meanings[(bits & MASK) as usize];
            times -= 1;
        }
        if times == 0 || at == end {
            continue;
        }
        // A phrase, a byte that was escaped, or the last byte.
        let symbol = if meaning.count > 0 { meaning.text[0].into() } else { u16::from_le_bytes(meaning.text) };
        let length = table.codes[usize::from(symbol)].length;
        (bits, count) = (bits >> length, count.checked_sub(length)?);
        match usize::from(symbol) {
            ESCAPE => {
                out[at] = bits as u8;
                at += 1;
                (bits, count) = (bits >> 8, count.checked_sub(8)?);
            }
            byte if byte < ESCAPE => {
                out[at] = meaning.text[0];
                at += 1;
            }
            phrase => {
                let phrase = PHRASES[phrase - ESCAPE - 1].1.as_bytes();
                out.get_mut(at..at + phrase.len())?.copy_from_slice(phrase);
                at += phrase.len();
            }
        }
    }
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

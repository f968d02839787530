//! A tree of JSON that keeps the spelling of numbers and the order of members.

use std::fmt::Write as _;

use super::members::Lookup;
use super::steps;
use crate::{Error, Result};

/// Nothing that is nested deeper is read or made: it would overflow the stack of the code that walks it.
pub(crate) const MAX_DEPTH: usize = 128;
/// How deep what callers send may be nested. It is stored, exported and answered inside of more JSON, and all of that must be
/// read again.
pub(crate) const MAX_SENT_DEPTH: usize = 100;
/// How deep what is stored may be nested: an export puts the JSON of its line around it.
pub(crate) const MAX_STORED_DEPTH: usize = MAX_DEPTH - 8;

#[derive(Clone, Debug)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    /// The number as it was spelt.
    Number(Box<str>),
    String(Box<str>),
    Array(Vec<Node>),
    Object(Vec<(Box<str>, Node)>),
}

impl PartialEq for Node {
    /// By meaning: the order of members does not count, the spelling of numbers does.
    fn eq(&self, other: &Self) -> bool {
        steps::count(1);
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Number(a), Self::Number(b)) | (Self::String(a), Self::String(b)) => a == b,
            (Self::Array(a), Self::Array(b)) => a == b,
            (Self::Object(a), Self::Object(b)) => {
                let mut other = Lookup::new(b);
                let mut twin = |i, key: &str| other.near(i, key).map(|at| &b[at].1);
                a.len() == b.len()
                    && a.iter().enumerate().all(|(i, (key, value))| twin(i, key).is_some_and(|twin| twin == value))
            }
            _ => false,
        }
    }
}

impl Node {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        Self::parse_within(text, MAX_DEPTH)
    }

    /// Reads what is nested no deeper than so many levels.
    pub(crate) fn parse_within(text: &str, deepest: usize) -> Result<Self> {
        let mut parser = Parser { bytes: text.as_bytes(), text, at: 0, deepest };
        parser.space();
        let node = parser.value(0)?;
        parser.space();
        if parser.at == text.len() { Ok(node) } else { Err(parser.error("something follows the value")) }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        match self {
            Self::Object(members) => members.iter().find(|(name, _)| **name == *key).map(|(_, value)| value),
            _ => None,
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// How many levels are below it.
    pub(crate) fn levels(&self) -> usize {
        match self {
            Self::Array(items) => items.iter().map(|item| 1 + item.levels()).max().unwrap_or(0),
            Self::Object(members) => members.iter().map(|(_, value)| 1 + value.levels()).max().unwrap_or(0),
            _ => 0,
        }
    }

    pub(crate) fn print(&self) -> String {
        let mut out = String::new();
        self.print_to(&mut out);
        out
    }

    pub(crate) fn print_to(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Number(lexeme) => out.push_str(lexeme),
            Self::String(text) => quote(text, out),
            Self::Array(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    item.print_to(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (i, (key, value)) in members.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    quote(key, out);
                    out.push(':');
                    value.print_to(out);
                }
                out.push('}');
            }
        }
    }

    /// How many bytes [`Node::print`] gives, without printing.
    pub(crate) fn printed_len(&self) -> usize {
        steps::count(1);
        match self {
            Self::Null | Self::Bool(true) => 4,
            Self::Bool(false) => 5,
            Self::Number(lexeme) => lexeme.len(),
            Self::String(text) => quoted_len(text),
            Self::Array(items) => 1 + items.iter().map(|item| item.printed_len() + 1).sum::<usize>().max(1),
            Self::Object(members) => {
                1 + members.iter().map(|(key, value)| quoted_len(key) + value.printed_len() + 2).sum::<usize>().max(1)
            }
        }
    }
}

/// Writes a string the one way Everturn writes strings: only `"`, `\` and control characters are escaped.
pub(crate) fn quote(text: &str, out: &mut String) {
    out.push('"');
    let mut plain = 0;
    for (i, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(&text[plain..i]);
        plain = i + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            0x08 => out.push_str("\\b"),
            b'\t' => out.push_str("\\t"),
            b'\n' => out.push_str("\\n"),
            0x0c => out.push_str("\\f"),
            b'\r' => out.push_str("\\r"),
            _ => {
                let _ = write!(out, "\\u{byte:04x}");
            }
        }
    }
    out.push_str(&text[plain..]);
    out.push('"');
}

/// How many bytes [`quote`] writes.
pub(crate) fn quoted_len(text: &str) -> usize {
    let escaped: usize = text
        .bytes()
        .map(|byte| match byte {
            b'"' | b'\\' | 0x08 | b'\t' | b'\n' | 0x0c | b'\r' => 1,
            0..0x20 => 5,
            _ => 0,
        })
        .sum();
    text.len() + escaped + 2
}

/// As much of a text as an error shows.
pub(crate) fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(200)]
}

struct Parser<'a> {
    bytes: &'a [u8],
    text: &'a str,
    at: usize,
    deepest: usize,
}

impl Parser<'_> {
    fn error(&self, what: &str) -> Error {
        Error::invalid(format!("not valid JSON at byte {}: {what}", self.at))
    }

    fn space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn value(&mut self, depth: usize) -> Result<Node> {
        if depth > self.deepest {
            return Err(self.error(&format!("nested deeper than {} levels, which is the limit", self.deepest)));
        }
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Node::String(self.string()?.into())),
            Some(b't') => self.word("true", Node::Bool(true)),
            Some(b'f') => self.word("false", Node::Bool(false)),
            Some(b'n') => self.word("null", Node::Null),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => Err(self.error("a value was expected")),
            None => Err(self.error("the text ends early")),
        }
    }

    fn word(&mut self, word: &str, node: Node) -> Result<Node> {
        if self.bytes[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(node)
        } else {
            Err(self.error("a value was expected"))
        }
    }

    fn digits(&mut self) -> Result<()> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.error("a digit was expected")) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<Node> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(Node::Number(self.text[start..self.at].into()))
    }

    fn array(&mut self, depth: usize) -> Result<Node> {
        self.at += 1;
        let mut items = Vec::new();
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Node::Array(items));
        }
        loop {
            self.space();
            items.push(self.value(depth + 1)?);
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Node::Array(items));
                }
                _ => return Err(self.error("`,` or `]` was expected")),
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Node> {
        self.at += 1;
        let mut members: Vec<(Box<str>, Node)> = Vec::new();
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Node::Object(members));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(self.error("a member's name was expected"));
            }
            let key = self.string()?.into_boxed_str();
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.error("`:` was expected"));
            }
            self.at += 1;
            self.space();
            let value = self.value(depth + 1)?;
            members.push((key, value));
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    self.refuse_twins(&members)?;
                    return Ok(Node::Object(members));
                }
                _ => return Err(self.error("`,` or `}` was expected")),
            }
        }
    }

    /// Two members of one name mean different things to different readers, and a digest could not tell which.
    fn refuse_twins(&self, members: &[(Box<str>, Node)]) -> Result<()> {
        let twin = if members.len() <= 16 {
            members
                .iter()
                .enumerate()
                .find(|(i, (key, _))| members[..*i].iter().any(|(k, _)| k == key))
                .map(|(_, m)| &m.0)
        } else {
            let mut seen = std::collections::HashSet::with_capacity(members.len());
            members.iter().find(|(key, _)| !seen.insert(key)).map(|m| &m.0)
        };
        match twin {
            Some(key) => Err(self.error(&format!("the member {:?} appears twice in one object", shown(key)))),
            None => Ok(()),
        }
    }

    fn string(&mut self) -> Result<String> {
        self.at += 1;
        let mut out = String::new();
        let mut plain = self.at;
        loop {
            match self.peek() {
                None => return Err(self.error("the text ends inside a string")),
                Some(b'"') => {
                    out.push_str(&self.text[plain..self.at]);
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    out.push_str(&self.text[plain..self.at]);
                    self.at += 1;
                    out.push(self.escape()?);
                    plain = self.at;
                }
                Some(0..0x20) => return Err(self.error("a control character in a string must be escaped")),
                Some(_) => self.at += 1,
            }
        }
    }

    fn escape(&mut self) -> Result<char> {
        let byte = self.peek().ok_or_else(|| self.error("the text ends inside a string"))?;
        self.at += 1;
        Ok(match byte {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode_escape(),
            _ => return Err(self.error("unknown escape")),
        })
    }

    fn unicode_escape(&mut self) -> Result<char> {
        let first = self.hex4()?;
        let code = match first {
            0xd800..0xdc00 => {
                if !self.bytes[self.at..].starts_with(b"\\u") {
                    return Err(self.error("an unpaired surrogate is not a character"));
                }
                self.at += 2;
                let second = self.hex4()?;
                if !(0xdc00..0xe000).contains(&second) {
                    return Err(self.error("an unpaired surrogate is not a character"));
                }
                0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            code => code,
        };
        char::from_u32(code).ok_or_else(|| self.error("an unpaired surrogate is not a character"))
    }

    fn hex4(&mut self) -> Result<u32> {
        let digits = self.text.get(self.at..self.at + 4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let digits = digits.ok_or_else(|| self.error("four hexadecimal digits were expected"))?;
        self.at += 4;
        u32::from_str_radix(digits, 16).map_err(|_| self.error("four hexadecimal digits were expected"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_and_order_survive() {
        let text = r#"{"b":1.10,"a":[9007199254740993,-0,1E5,1e400],"c":"\u00e9\n"}"#;
        let node = Node::parse(text).unwrap();
        assert_eq!(node.print(), "{\"b\":1.10,\"a\":[9007199254740993,-0,1E5,1e400],\"c\":\"é\\n\"}");
        assert_eq!(node.print().len(), node.printed_len());
    }

    #[test]
    fn printed_len_is_exact() {
        for text in
            ["[]", "{}", "[1]", "[1,2]", r#"{"a":{}}"#, r#""\u0001\"\\\b""#, "null", "false", r#"{"a":[],"é":""}"#]
        {
            let node = Node::parse(text).unwrap();
            assert_eq!(node.print().len(), node.printed_len(), "{text}");
        }
    }

    #[test]
    fn what_is_not_json_is_refused() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for text in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "nul",
            "truex",
            "\"\\x\"",
            "\"\n\"",
            "\"\\ud800\"",
            "\"\\udc00\"",
            "\"\\ud800\\u0041\"",
            "{\"a\":1,\"a\":2}",
            "{a:1}",
            "1 2",
            "\"abc",
            "\"\\u12g4\"",
            &deep,
        ] {
            assert!(Node::parse(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn surrogate_pairs_are_one_character() {
        assert_eq!(Node::parse(r#""\ud83d\ude00""#).unwrap().as_str(), Some("😀"));
    }
}

//! The one spelling of a JSON value that digests are made of.
//!
//! Members sorted by their names' UTF-8 bytes, no white space, strings escaped one way, numbers as written. RFC 8785
//! would send numbers through doubles and merge 9007199254740993 with 9007199254740992.
//!
//! It is written straight from the text, which was checked when it came in: every message is spelt so once, and a tree
//! of it would be most of the work.

use std::borrow::Cow;
use std::ops::Range;

use super::node::{MAX_DEPTH, quote};
use super::{Node, Scanner};
use crate::{Error, Result};

pub(crate) fn canonical_bytes(text: &str) -> Result<Vec<u8>> {
    let mut out = String::with_capacity(text.len());
    let mut scanner = Scanner::new(text);
    write(&mut scanner, &mut out, 0)?;
    scanner.end()?;
    Ok(out.into_bytes())
}

fn write(scanner: &mut Scanner<'_>, out: &mut String, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Error::corrupt("stored JSON is nested deeper than 128 levels"));
    }
    match scanner.peek()? {
        b'{' => write_object(scanner, out, depth)?,
        b'[' => {
            out.push('[');
            let mut comma = "";
            scanner.items(|scanner| {
                out.push_str(comma);
                comma = ",";
                write(scanner, out, depth + 1)
            })?;
            out.push(']');
        }
        b'"' => write_string(scanner.value()?, out)?,
        _ => out.push_str(scanner.value()?),
    }
    Ok(())
}

/// Members are written as they come, and put in order afterwards where they did not come in it.
fn write_object(scanner: &mut Scanner<'_>, out: &mut String, depth: usize) -> Result<()> {
    let mut members: Vec<(Cow<'_, str>, Range<usize>)> = Vec::new();
    out.push('{');
    let first = out.len();
    scanner.members(|scanner, name| {
        if !members.is_empty() {
            out.push(',');
        }
        let start = out.len();
        let name = unescaped(name)?;
        quote(&name, out);
        out.push(':');
        write(scanner, out, depth + 1)?;
        members.push((name, start..out.len()));
        Ok(())
    })?;
    // Strings compare by their UTF-8 bytes.
    if !members.is_sorted_by(|a, b| a.0 < b.0) {
        members.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let unsorted = out.split_off(first);
        for (i, (_, range)) in members.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            out.push_str(&unsorted[range.start - first..range.end - first]);
        }
    }
    out.push('}');
    Ok(())
}

/// A string without escapes has one spelling, which is the one it has.
fn write_string(spelt: &str, out: &mut String) -> Result<()> {
    if !spelt.contains('\\') {
        out.push_str(spelt);
        return Ok(());
    }
    Node::parse(spelt)?.print_to(out);
    Ok(())
}

/// A string as it is meant, given as it is spelt between its quotes.
pub(super) fn unescaped(spelt: &str) -> Result<Cow<'_, str>> {
    if !spelt.contains('\\') {
        return Ok(spelt.into());
    }
    let node = Node::parse(&format!("\"{spelt}\""))?;
    Ok(node.as_str().unwrap_or_default().to_owned().into())
}

#[cfg(test)]
mod tests {
    use super::canonical_bytes;

    #[test]
    fn one_value_has_one_spelling() {
        let spellings = [r#"{"b":[1.0,"\u00e9"],"a":null}"#, " { \"a\" : null ,\n\"b\":[ 1.0, \"é\" ] } "];
        for text in spellings {
            assert_eq!(canonical_bytes(text).unwrap(), "{\"a\":null,\"b\":[1.0,\"é\"]}".as_bytes());
        }
        assert_ne!(canonical_bytes("9007199254740993").unwrap(), canonical_bytes("9007199254740992").unwrap());
    }

    #[test]
    fn members_are_sorted_by_what_their_names_mean() {
        // As they are spelt, `"` follows `!` and an escape follows most letters.
        let text = r#"{"a!":1,"a":{"z":[],"\u0062":{}},"Z":"\/\u000a","\n":2,"\u0041":-0}"#;
        let canonical = r#"{"\n":2,"A":-0,"Z":"/\n","a":{"b":{},"z":[]},"a!":1}"#;
        assert_eq!(canonical_bytes(text).unwrap(), canonical.as_bytes());
        assert_eq!(canonical_bytes(canonical).unwrap(), canonical.as_bytes());
    }

    #[test]
    fn what_is_not_json_has_no_spelling() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for text in ["", "{", "[1,]", "{\"a\"}", "\"abc", "1 2", "\"\\x\"", &deep] {
            assert!(canonical_bytes(text).is_err(), "{text:?} was spelt");
        }
    }
}

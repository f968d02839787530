//! Cutting pieces out of JSON that was checked before, without checking or building it again.
//!
//! For text that a store wrote and whose bytes are known to be the ones it wrote. Other text is never misread so badly
//! that anything panics, but what is cut out of it need not be JSON.

use memchr::memchr2;

use crate::{Error, Result};

/// Whether a JSON text is nested no deeper than so many levels.
pub(crate) fn is_within(text: &str, deepest: usize) -> bool {
    // Most texts have not even so many brackets.
    if text.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count() <= deepest {
        return true;
    }
    let (mut depth, mut within, mut escaped) = (0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = within,
            b'"' => within = !within,
            b'[' | b'{' if !within => depth += 1,
            b']' | b'}' if !within => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > deepest {
            return false;
        }
    }
    true
}

pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Goes through the members of an object. The visitor is given each one's name, as it is spelt between its quotes,
    /// and has to take its value.
    pub(crate) fn members(&mut self, mut visit: impl FnMut(&mut Self, &'a str) -> Result<()>) -> Result<()> {
        self.list(b'{', b'}', &mut |scanner| {
            let name = scanner.value()?;
            let name = name.strip_prefix('"').and_then(|name| name.strip_suffix('"')).ok_or_else(garbled)?;
            scanner.expect(b':')?;
            visit(scanner, name)
        })
    }

    /// Goes through the items of an array. The visitor has to take each one.
    pub(crate) fn items(&mut self, mut visit: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.list(b'[', b']', &mut visit)
    }

    fn list(&mut self, open: u8, close: u8, visit: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.expect(open)?;
        if self.peek()? == close {
            self.at += 1;
            return Ok(());
        }
        loop {
            visit(self)?;
            match self.peek()? {
                b',' => self.at += 1,
                byte if byte == close => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(garbled()),
            }
        }
    }

    /// Takes a value as it is spelt.
    pub(crate) fn value(&mut self) -> Result<&'a str> {
        self.skip_space();
        let start = self.at;
        self.skip()?;
        self.text.get(start..self.at).ok_or_else(garbled)
    }

    /// Takes a value that is not wanted.
    pub(crate) fn skip(&mut self) -> Result<()> {
        match self.peek()? {
            b'"' => self.skip_string(),
            b'{' | b'[' => self.skip_nested(),
            _ => self.skip_word(),
        }
    }

    /// Makes sure that nothing follows.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.skip_space();
        if self.at == self.text.len() { Ok(()) } else { Err(garbled()) }
    }

    fn rest(&self) -> Result<&'a [u8]> {
        self.text.as_bytes().get(self.at..).ok_or_else(garbled)
    }

    fn skip_space(&mut self) {
        while matches!(self.text.as_bytes().get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// The next byte that is not white space.
    pub(super) fn peek(&mut self) -> Result<u8> {
        self.skip_space();
        self.text.as_bytes().get(self.at).copied().ok_or_else(garbled)
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.peek()? != byte {
            return Err(garbled());
        }
        self.at += 1;
        Ok(())
    }

    fn skip_string(&mut self) -> Result<()> {
        self.at += 1;
        loop {
            let rest = self.rest()?;
            let stop = memchr2(b'"', b'\\', rest).ok_or_else(garbled)?;
            if rest[stop] == b'"' {
                self.at += stop + 1;
                return Ok(());
            }
            self.at += stop + 2;
        }
    }

    fn skip_nested(&mut self) -> Result<()> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.skip_string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// A number, `true`, `false` or `null`.
    fn skip_word(&mut self) -> Result<()> {
        let word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
        match self.rest()?.iter().take_while(|byte| word(byte)).count() {
            0 => Err(garbled()),
            len => {
                self.at += len;
                Ok(())
            }
        }
    }
}

fn garbled() -> Error {
    Error::corrupt("stored JSON is not what was written")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Result<Vec<&str>> {
        let mut found = Vec::new();
        let mut scanner = Scanner::new(text);
        scanner.members(|scanner, name| {
            found.push(name);
            if name == "list" {
                return scanner.items(|scanner| {
                    found.push(scanner.value()?);
                    Ok(())
                });
            }
            found.push(scanner.value()?);
            Ok(())
        })?;
        scanner.end()?;
        Ok(found)
    }

    #[test]
    fn how_deep_a_text_is_nested_is_told_from_its_brackets_alone() {
        let deep =
            |levels: usize| format!("{}{{\"k\":\"]]\\\"]]\"}}{}", "[".repeat(levels - 1), "]".repeat(levels - 1));
        for levels in 1..20 {
            assert!(is_within(&deep(levels), levels) && !is_within(&deep(levels), levels - 1), "{}", deep(levels));
        }
        assert!(is_within(r#"["[[[[","\\",{"]]":"{{"},[],[],[]]"#, 2));
    }

    #[test]
    fn pieces_are_cut_out_as_they_are_spelt() {
        let text =
            r#" {"a":{"x":"}\"\\","y":[[],{}]}, "list" : [1.10 ,"é\\",[ 1, 2 ],null], "b":"","c":-1e+5, "list":[] } "#;
        let expected = [
            "a",
            r#"{"x":"}\"\\","y":[[],{}]}"#,
            "list",
            "1.10",
            r#""é\\""#,
            "[ 1, 2 ]",
            "null",
            "b",
            r#""""#,
            "c",
            "-1e+5",
            "list",
        ];
        assert_eq!(pieces(text).unwrap(), expected);
        assert!(pieces("{}").unwrap().is_empty());
    }

    #[test]
    fn what_is_cut_short_or_garbled_is_refused_and_nothing_panics() {
        let text = r#"{"list":[{"a":"\"é"},"b"],"c":[1,{"d":null}],"e":true}"#;
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
            assert!(pieces(&text[..end]).is_err(), "{:?} was taken", &text[..end]);
        }
        for at in (0..text.len()).filter(|at| text.as_bytes()[*at].is_ascii()) {
            for byte in *b"\"\\{}[],:x \0" {
                let mut bytes = text.as_bytes().to_vec();
                bytes[at] = byte;
                let _ = pieces(std::str::from_utf8(&bytes).unwrap());
            }
        }
        for text in
            ["", "[]", "}", "{]", "{\"a\"}", "{\"a\":}", "{\"a\":1 2}", "{\"a\":1,}", "{1:2}", "{} {}", "{\"a\":\"\\"]
        {
            assert_eq!(pieces(text).unwrap_err().kind(), crate::ErrorKind::Corrupt, "{text:?} was taken");
        }
    }
}

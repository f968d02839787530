//! Instructions with keys of the session's state in them.

use crate::json::Json;
use crate::state::ScopedState;
use crate::{Error, Result};

enum Piece<'a> {
    Text(&'a str),
    Key { name: &'a str, optional: bool },
}

/// Splits a template. `{{{{` is two braces.
fn pieces(template: &str) -> Result<Vec<Piece<'_>>> {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        pieces.push(Piece::Text(before));
        if let Some(after) = after.strip_prefix("{{") {
            pieces.push(Piece::Text("{{"));
            rest = after;
            continue;
        }
        let Some((key, after)) = after.split_once("}}") else {
            return Err(Error::invalid("the instructions open a `{{` that is never closed: close it, or write `{{{{`"));
        };
        let key = key.trim();
        let (name, optional) = key.strip_suffix('?').map_or((key, false), |name| (name.trim_end(), true));
        if name.is_empty() {
            return Err(Error::invalid("the instructions have a `{{}}` without a key: name one, or write `{{{{`"));
        }
        pieces.push(Piece::Key { name, optional });
        rest = after;
    }
    pieces.push(Piece::Text(rest));
    Ok(pieces)
}

pub(super) fn check(template: &str) -> Result<()> {
    pieces(template).map(drop)
}

/// Whether it needs to know the state at all.
pub(super) fn has_keys(template: &str) -> bool {
    template.contains("{{")
}

/// Fills in the keys: strings as they are, everything else as JSON.
pub(super) fn render(template: &str, state: &ScopedState) -> Result<String> {
    let mut out = String::with_capacity(template.len());
    for piece in pieces(template)? {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Key { name, optional } => match state.get(name) {
                Some(value) => out.push_str(&shown(value)),
                None if optional => {}
                None => {
                    return Err(Error::invalid(format!(
                        "the instructions need the state key {name:?}, which is not set: set it, or write {{{{{name}?}}}}"
                    )));
                }
            },
        }
    }
    Ok(out)
}

fn shown(value: &Json) -> String {
    value.to::<String>().unwrap_or_else(|_| value.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> ScopedState {
        let json = |text: &str| Json::parse(text).unwrap();
        [("name", json("\"Ann\"")), ("user:age", json("41")), ("gone", json("null"))]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }

    #[test]
    fn keys_are_filled_in_and_braces_can_be_written() {
        let filled = render("Hi {{name}}, {{ user:age }}{{nick?}} {{{{x}} {{gone}}", &state()).unwrap();
        assert_eq!(filled, "Hi Ann, 41 {{x}} null");
    }

    #[test]
    fn a_missing_key_and_a_broken_template_name_the_fix() {
        assert!(render("{{nick}}", &state()).unwrap_err().to_string().contains("{{nick?}}"));
        for broken in ["{{name", "{{}}", "{{?}}"] {
            assert!(check(broken).is_err(), "{broken}");
        }
    }
}

//! What the terminal can show.

use std::env;
use std::io::{self, IsTerminal};

/// How output looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) glyphs: &'static Glyphs,
    pub(crate) colour: bool,
}

/// The signs that drawings are made of.
#[derive(Debug)]
pub(crate) struct Glyphs {
    pub(crate) session: &'static str,
    pub(crate) turn: &'static str,
    pub(crate) void: &'static str,
    pub(crate) edit: &'static str,
    pub(crate) running: &'static str,
    /// A line that goes on below.
    pub(crate) stem: &'static str,
    /// A side line, with the trunk going on.
    pub(crate) side: &'static str,
    /// The last side line of a trunk that ends here.
    pub(crate) last_side: &'static str,
    pub(crate) head: &'static str,
    pub(crate) cut: &'static str,
}

pub(crate) static UNICODE: Glyphs = Glyphs {
    session: "◆",
    turn: "●",
    void: "✗",
    edit: "○",
    running: "◌",
    stem: "│",
    side: "├─",
    last_side: "╰─",
    head: "◀",
    cut: "…",
};

pub(crate) static ASCII: Glyphs = Glyphs {
    session: "#",
    turn: "*",
    void: "x",
    edit: "o",
    running: "?",
    stem: "|",
    side: "|-",
    last_side: "`-",
    head: "<",
    cut: "...",
};

/// What a piece of text is, and so how it is coloured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ink {
    Good,
    Bad,
    Name,
    Head,
    Faint,
    Strong,
}

impl Style {
    /// What fits standard output and the environment.
    pub(crate) fn detect(ascii: bool) -> Self {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| env::var(name).ok());
        let colour = io::stdout().is_terminal()
            && env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
            && env::var_os("TERM").is_none_or(|term| term != "dumb");
        let glyphs = if ascii || !is_utf8(locale) { &ASCII } else { &UNICODE };
        Self { glyphs, colour }
    }

    /// The text in its colour, or as it is.
    pub(crate) fn paint(self, ink: Ink, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        let code = match ink {
            Ink::Good => 32,
            Ink::Bad => 31,
            Ink::Name => 36,
            Ink::Head => 33,
            Ink::Faint => 2,
            Ink::Strong => 1,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Whether the locale, by the first of its settings that says something, is a UTF-8 one.
fn is_utf8(settings: impl IntoIterator<Item = String>) -> bool {
    let first = settings.into_iter().find(|setting| !setting.is_empty()).unwrap_or_default().to_ascii_lowercase();
    first.contains("utf-8") || first.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_locale_setting_that_says_something_decides() {
        let utf8 = |settings: &[&str]| is_utf8(settings.iter().map(ToString::to_string));
        assert!(utf8(&["", "en_GB.UTF-8"]) && utf8(&["C.utf8", "C"]));
        assert!(!utf8(&["C", "en_GB.UTF-8"]) && !utf8(&[]) && !utf8(&["", ""]));
    }

    #[test]
    fn without_colour_text_is_left_alone() {
        let style = |colour| Style { glyphs: &ASCII, colour };
        assert_eq!(style(false).paint(Ink::Bad, "x"), "x");
        assert_eq!(style(true).paint(Ink::Bad, "x"), "\x1b[31mx\x1b[0m");
    }
}

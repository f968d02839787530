//! The texts that agents' turns are measured with: how well a text packs depends on what it is.

use std::fmt::Write as _;

use crate::workload::Talk;

/// What a text is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// English sentences, as a model writes them.
    Prose,
    /// Rust source text.
    Code,
    /// The JSON answer of a tool: a list of rows.
    ToolJson,
    German,
    Chinese,
    /// Random words with English letter frequencies: nothing repeats, so nothing is gained by looking for it.
    Words,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Prose, Self::Code, Self::ToolJson, Self::German, Self::Chinese, Self::Words];

    /// A text that pieces are cut from.
    fn corpus(self) -> &'static str {
        match self {
            Self::Prose => include_str!("../texts/english.txt"),
            Self::Code => include_str!("workload.rs"),
            Self::German => include_str!("../texts/german.txt"),
            Self::Chinese => include_str!("../texts/chinese.txt"),
            Self::ToolJson | Self::Words => "",
        }
    }
}

/// A source of texts of one kind or of all in turn: the same texts for the same seed.
pub(crate) struct Texts {
    only: Option<Kind>,
    talk: Talk,
    next: usize,
}

impl Texts {
    pub(crate) fn of(kind: Kind, seed: u64) -> Self {
        Self { only: Some(kind), talk: Talk::seeded(seed), next: 0 }
    }

    pub(crate) fn mixed(seed: u64) -> Self {
        Self { only: None, talk: Talk::seeded(seed), next: usize::try_from(seed).unwrap_or(0) }
    }

    /// A text of about so many bytes.
    pub(crate) fn text(&mut self, bytes: usize) -> String {
        let kind = self.only.unwrap_or(Kind::ALL[self.next % Kind::ALL.len()]);
        self.next += 1;
        match kind {
            Kind::Words => self.talk.words(bytes),
            Kind::ToolJson => self.rows(bytes),
            _ => self.piece(kind.corpus(), bytes),
        }
    }

    /// A piece of a corpus from a random place on, beginning anew at its end.
    fn piece(&mut self, corpus: &str, bytes: usize) -> String {
        let from = (0..=self.talk.below(corpus.len())).rev().find(|at| corpus.is_char_boundary(*at)).unwrap_or(0);
        let mut text = String::with_capacity(bytes + 4);
        for character in corpus[from..].chars().chain(corpus.chars().cycle()) {
            if text.len() >= bytes {
                break;
            }
            text.push(character);
        }
        text
    }

    fn rows(&mut self, bytes: usize) -> String {
        let mut text = String::from("[");
        while text.len() < bytes {
            let (id, price, stock) = (self.talk.below(1 << 40), self.talk.below(100_000), self.talk.below(500));
            let (name, day, second) = (self.talk.words(12), 1 + self.talk.below(28), self.talk.below(60));
            let comma = if text.len() == 1 { "" } else { "," };
            let _ = write!(
                text,
                "{comma}{{\"id\":\"{id:010x}\",\"name\":\"{name}\",\"price\":{}.{:02},\"stock\":{stock},\"available\":{},\
                 \"updatedAt\":\"2026-11-{day:02}T08:30:{second:02}Z\"}}",
                price / 100,
                price % 100,
                stock > 0,
            );
        }
        text.push(']');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_repeatable_and_as_long_as_asked() {
        for kind in Kind::ALL {
            let text = Texts::of(kind, 1).text(1_000);
            assert!((1_000..1_200).contains(&text.len()), "{kind:?} has {} bytes", text.len());
            assert_eq!(text, Texts::of(kind, 1).text(1_000), "{kind:?}");
            assert_ne!(text, Texts::of(kind, 2).text(1_000), "{kind:?}");
        }
    }

    #[test]
    fn a_tools_answer_is_json() {
        serde_json::from_str::<serde_json::Value>(&Texts::of(Kind::ToolJson, 3).text(1_000)).unwrap();
    }
}

//! What a session has spent.

use serde::{Deserialize, Serialize};

/// Tokens spent, with Genkit's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens sent to models.
    #[serde(skip_serializing_if = "is_zero")]
    pub input_tokens: u64,
    /// Tokens models answered with.
    #[serde(skip_serializing_if = "is_zero")]
    pub output_tokens: u64,
    /// The total as the provider counts it.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_tokens: u64,
    /// Input tokens the provider had cached.
    #[serde(skip_serializing_if = "is_zero")]
    pub cached_content_tokens: u64,
    /// Tokens spent on reasoning.
    #[serde(skip_serializing_if = "is_zero")]
    pub thoughts_tokens: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Usage {
    /// So many tokens in and out, and their sum.
    ///
    /// ```
    /// let mut total = everturn::Usage::tokens(10, 5);
    /// total.add(&everturn::Usage::tokens(20, 15));
    /// assert_eq!(total, everturn::Usage::tokens(30, 20));
    /// ```
    #[must_use]
    pub fn tokens(input: u64, output: u64) -> Self {
        Self { input_tokens: input, output_tokens: output, total_tokens: input + output, ..Self::default() }
    }

    /// Adds another count to this one.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.counts_mut().into_iter().zip(other.counts()) {
            *mine = mine.saturating_add(theirs);
        }
    }

    /// Whether nothing was spent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn counts(&self) -> [u64; 5] {
        [self.input_tokens, self.output_tokens, self.total_tokens, self.cached_content_tokens, self.thoughts_tokens]
    }

    pub(crate) fn counts_mut(&mut self) -> [&mut u64; 5] {
        [
            &mut self.input_tokens,
            &mut self.output_tokens,
            &mut self.total_tokens,
            &mut self.cached_content_tokens,
            &mut self.thoughts_tokens,
        ]
    }
}

//! The tokens that a sequence holds, counted as the penalties need them.

use crate::ids::TokenId;
use std::collections::HashMap;

/// How often a token occurs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Within the repetition penalty's window, prompt tokens included.
    pub(super) recent: u32,
    /// Among the generated tokens of the whole sequence.
    pub(super) generated: u32,
}

/// A sequence's tokens with running counts. The counts are a function of the tokens alone, however
/// they were added and cut.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    tokens: Vec<TokenId>,
    counts: HashMap<TokenId, Counts>,
    /// The first tokens are the prompt.
    prompt_tokens: usize,
    window: Option<u32>,
}

impl History {
    /// An empty history whose `recent` counts cover the last `window` tokens, or all.
    pub(super) fn new(window: Option<u32>) -> Self {
        Self { window, ..Self::default() }
    }

    /// Says that the first `tokens` tokens are the prompt. Only an empty history may be told so.
    pub(super) fn set_prompt_tokens(&mut self, tokens: usize) {
        assert!(self.tokens.is_empty(), "the prompt's length is set before any token is accepted");
        self.prompt_tokens = tokens;
    }

    /// Appends a token.
    pub(super) fn push(&mut self, token: TokenId) {
        let index = self.tokens.len();
        self.tokens.push(token);
        self.change(token, |counts| counts.recent += 1);
        if index >= self.prompt_tokens {
            self.change(token, |counts| counts.generated += 1);
        }
        if let Some(left) = self.out_of_window(index) {
            self.change(left, |counts| counts.recent -= 1);
        }
    }

    /// Cuts the history back to its first `tokens` tokens.
    pub(super) fn truncate(&mut self, tokens: usize) {
        while self.tokens.len() > tokens {
            let index = self.tokens.len() - 1;
            if let Some(back) = self.out_of_window(index) {
                self.change(back, |counts| counts.recent += 1);
            }
            let token = self.tokens[index];
            self.tokens.truncate(index);
            self.change(token, |counts| counts.recent -= 1);
            if index >= self.prompt_tokens {
                self.change(token, |counts| counts.generated -= 1);
            }
        }
    }

    /// The tokens that occur, in no order, each once.
    pub(super) fn counts(&self) -> impl Iterator<Item = (TokenId, Counts)> {
        self.counts.iter().map(|(&token, &counts)| (token, counts))
    }

    /// The token that leaves the window when the one at `index` comes in.
    fn out_of_window(&self, index: usize) -> Option<TokenId> {
        let window = self.window? as usize;
        self.tokens.get(index.checked_sub(window)?).copied()
    }

    fn change(&mut self, token: TokenId, change: impl FnOnce(&mut Counts)) {
        let counts = self.counts.entry(token).or_default();
        change(counts);
        if *counts == Counts::default() {
            self.counts.remove(&token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Compares with counts taken from scratch.
    fn check(history: &History) {
        let mut expected: BTreeMap<TokenId, Counts> = BTreeMap::new();
        let window_start =
            history.window.map_or(0, |window| history.tokens.len().saturating_sub(window as usize));
        for (index, &token) in history.tokens.iter().enumerate() {
            let counts = expected.entry(token).or_default();
            counts.recent += u32::from(index >= window_start);
            counts.generated += u32::from(index >= history.prompt_tokens);
        }
        expected.retain(|_, counts| *counts != Counts::default());
        assert_eq!(history.counts().collect::<BTreeMap<_, _>>(), expected);
    }

    proptest! {
        #[test]
        fn counts_follow_the_tokens_however_they_come_and_go(
            steps in prop::collection::vec((0_u32..5, 0_usize..30), 0..60),
            prompt in 0_usize..10,
            window in prop::option::of(1_u32..8),
        ) {
            let mut history = History::new(window);
            history.set_prompt_tokens(prompt);
            for (token, cut) in steps {
                history.push(TokenId(token));
                if cut < 3 {
                    history.truncate(cut);
                }
                check(&history);
            }
        }
    }
}

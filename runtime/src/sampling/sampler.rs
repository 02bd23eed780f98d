//! One sequence's sampler: settings, history, and the draw that joins them.

use super::Sampled;
use super::filters::{choose, greatest};
use super::history::History;
use super::random::uniform;
use super::settings::{SamplingOptions, SamplingSettings, SignalReport};
use super::signals::signals_of;
use super::softmax::{LogSoftmax, best};
use crate::ids::{Position, TokenId};
use std::borrow::Cow;

/// Draws one sequence's tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: SamplingSettings,
    choice_index: u32,
    /// Kept only where a penalty asks for it.
    history: History,
}

impl Sampler {
    /// A sampler for choice `choice_index` of a request. The random number of a draw is a function of
    /// the settings' seed, the choice index and the position alone.
    pub fn new(settings: SamplingSettings, choice_index: u32) -> Self {
        let history = History::new(settings.options().repetition_window);
        Self { settings, choice_index, history }
    }

    /// Says that the first `tokens` tokens of the sequence are its prompt: the frequency and presence
    /// penalties count only what comes after. Without it they count every token.
    ///
    /// # Panics
    /// When tokens were accepted already.
    #[must_use]
    pub fn with_prompt_tokens(mut self, tokens: usize) -> Self {
        self.history.set_prompt_tokens(tokens);
        self
    }

    /// The settings.
    pub fn settings(&self) -> &SamplingSettings {
        &self.settings
    }

    /// Tells the sampler that the sequence now holds `tokens` too, in order. Each token is told once:
    /// the prompt's too, also those that a prefix hit spared computing.
    pub fn accept(&mut self, tokens: &[TokenId]) {
        if self.settings.uses_history() {
            tokens.iter().for_each(|&token| self.history.push(token));
        }
    }

    /// Tells the sampler that the sequence was cut back to its first `tokens` tokens.
    pub fn trim(&mut self, tokens: usize) {
        self.history.truncate(tokens);
    }

    /// Draws the token at `position` (the number of tokens before it) from `logits` (one per vocabulary
    /// entry). `None` where a logit is NaN or positive infinity, or none is finite; negative infinity
    /// is a token that the model rules out, and is never drawn unless a bias of 100 forces it.
    ///
    /// Greedy draws without bias, penalties and `top_logprobs` allocate nothing.
    pub fn draw(&self, logits: &[f32], position: Position) -> Option<Sampled> {
        let model = LogSoftmax::new(logits)?;
        let adjusted = self.adjust(logits);
        let best = match &adjusted {
            Cow::Borrowed(_) => model.best(),
            Cow::Owned(adjusted) => best(adjusted).expect("adjusting leaves a finite logit"),
        };
        let token = if self.settings.is_greedy() {
            TokenId(best.index as u32)
        } else {
            let number = uniform(self.settings.seed(), self.choice_index, position);
            choose(&adjusted, best, self.settings.options(), number)
        };
        Some(report(&model, logits, token, self.settings.options()))
    }

    /// Draws after each of `tokens`, which stand from `from` on; `logits` has one row for each of them.
    /// Every draw is what [`Sampler::draw`] gives once the tokens up to its row, and no others after
    /// `from`, are accepted: so what is drawn for a span in one pass is what would be drawn token by token.
    /// The sampler itself does not change. `None` as for [`Sampler::draw`], for any of the rows.
    pub fn draw_each(&self, from: Position, tokens: &[TokenId], logits: &[Vec<f32>]) -> Option<Vec<Sampled>> {
        let mut sampler = Cow::Borrowed(self);
        if self.settings.uses_history() {
            sampler.to_mut().trim(from.tokens());
        }
        let mut position = from;
        let draw = |(token, row): (&TokenId, &Vec<f32>)| {
            if self.settings.uses_history() {
                sampler.to_mut().accept(&[*token]);
            }
            position = position.advance(1);
            sampler.draw(row, position)
        };
        tokens.iter().zip(logits).map(draw).collect()
    }

    /// The logits with bias and penalties; borrowed where neither changes any.
    fn adjust<'a>(&self, logits: &'a [f32]) -> Cow<'a, [f32]> {
        let biases = &self.settings.options().logit_bias;
        let biases = || biases.iter().filter(|(token, _)| token.index() < logits.len()).copied();
        let mut forced = biases().filter(|&(_, bias)| bias >= SamplingSettings::BIAS_FORCES).peekable();
        if forced.peek().is_some() {
            let mut adjusted = vec![f32::NEG_INFINITY; logits.len()];
            forced.for_each(|(token, _)| adjusted[token.index()] = logits[token.index()].max(f32::MIN));
            return Cow::Owned(adjusted);
        }
        let mut adjusted = Cow::Borrowed(logits);
        for (token, bias) in biases() {
            let banned = bias <= -SamplingSettings::BIAS_FORCES;
            change(&mut adjusted, token, |logit| if banned { f32::NEG_INFINITY } else { logit + bias });
        }
        self.penalise(&mut adjusted);
        // Bans that leave nothing are not obeyed: some token must come.
        if matches!(&adjusted, Cow::Owned(adjusted) if best(adjusted).is_none()) {
            return Cow::Borrowed(logits);
        }
        adjusted
    }

    fn penalise(&self, adjusted: &mut Cow<'_, [f32]>) {
        let options = self.settings.options();
        let vocabulary = adjusted.len();
        for (token, counts) in self.history.counts().filter(|(token, _)| token.index() < vocabulary) {
            change(adjusted, token, |mut logit| {
                if counts.recent > 0 {
                    let penalty = options.repetition_penalty;
                    logit = if logit > 0.0 { logit / penalty } else { logit * penalty };
                }
                if counts.generated > 0 {
                    logit -= counts.generated as f32 * options.frequency_penalty + options.presence_penalty;
                }
                // A tiny or large penalty may overflow; only a ban rules a token out.
                logit.clamp(f32::MIN, f32::MAX)
            });
        }
    }
}

/// Changes one logit, unless the token is ruled out already.
fn change(logits: &mut Cow<'_, [f32]>, token: TokenId, change: impl FnOnce(f32) -> f32) {
    let logit = logits[token.index()];
    if logit > f32::NEG_INFINITY {
        logits.to_mut()[token.index()] = change(logit);
    }
}

fn report(model: &LogSoftmax, logits: &[f32], token: TokenId, options: &SamplingOptions) -> Sampled {
    let mut top = Vec::new();
    if options.top_logprobs > 0 {
        top = greatest(logits, usize::from(options.top_logprobs));
        top.iter_mut().for_each(|(_, value)| *value = model.logprob(*value));
    }
    let signals = match options.signals {
        SignalReport::Off => None,
        SignalReport::On => Some(signals_of(model, logits)),
    };
    Sampled { token, logprob: model.logprob(logits[token.index()]), top, signals }
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;

//! A small deterministic model over real page tables, without a device.

use super::gate::Gate;
use crate::batch::{
    BatchDone, BatchExecutor, BatchFaultCause, BatchOutcome, ExecutorLimits, IterationBatch, LaneFault,
    LaneFaultCause, LaneOutcome, LaneWork, LogitsUse, PageTransferError, PartialBatchError,
};
use crate::ids::{PageId, Position, TokenId};
use crate::sampling::{Sampled, Sampler, SamplingSettings};
use crate::snapshot::{Digest, SnapshotIdentity};
use crate::tokenizer::TokenText;

/// The scripted vocabulary's end-of-generation token.
pub const SCRIPTED_END: TokenId = TokenId(0);

/// Limits of a small scripted device: 64 rows, 8 lanes, 256 tokens of context, 64 pages of 16 tokens,
/// 64 words.
pub fn scripted_limits() -> ExecutorLimits {
    ExecutorLimits {
        batch_rows_max: 64,
        lane_rows_max: 64,
        lanes_max: 8,
        context_tokens_max: 256,
        page_tokens: 16,
        pages: 64,
        vocabulary: 64,
    }
}

/// One place of a page: the token whose keys and values it holds.
type Place = Option<TokenId>;

/// Runs batches on pages of tokens in ordinary memory.
#[derive(Debug)]
pub struct ScriptedExecutor {
    limits: ExecutorLimits,
    pages: Vec<Vec<Place>>,
    /// The length word of each slot.
    lengths: Vec<usize>,
    gate: Option<Gate>,
    model: Digest,
}

/// Bytes of a place of an exported page.
const PLACE_BYTES: usize = 4;

impl ScriptedExecutor {
    /// An executor with empty pages.
    pub fn new(limits: ExecutorLimits) -> Self {
        let pages = vec![vec![None; limits.page_tokens]; limits.pages];
        Self { limits, pages, lengths: vec![0; limits.lanes_max], gate: None, model: Digest(1) }
    }

    /// Makes every step wait before `gate`.
    #[must_use]
    pub fn with_gate(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Makes it another model, whose pages no other takes.
    #[must_use]
    pub fn with_model(mut self, model: Digest) -> Self {
        self.model = model;
        self
    }

    fn page_bytes(&self) -> usize {
        self.limits.page_tokens * PLACE_BYTES
    }

    fn place(&mut self, pages: &[PageId], position: usize) -> Option<&mut Place> {
        let page = pages.get(position / self.limits.page_tokens)?;
        self.pages.get_mut(page.index())?.get_mut(position % self.limits.page_tokens)
    }

    fn run_lane(&mut self, work: &mut LaneWork) -> Result<LaneOutcome, LaneFaultCause> {
        let from = work.from.tokens();
        let to = from + work.tokens.len();
        if work.tokens.is_empty() || work.session.length() != work.from {
            return Err(LaneFaultCause::InvalidWork("no rows, or not at the session's end"));
        }
        if to > self.limits.context_tokens_max
            || work.tokens.iter().any(|token| token.index() >= self.limits.vocabulary)
        {
            return Err(LaneFaultCause::InvalidWork("beyond the context or the vocabulary"));
        }
        for (offset, token) in work.tokens.iter().enumerate() {
            let place = self.place(work.session.pages(), from + offset);
            *place.ok_or(LaneFaultCause::InvalidWork("the page table does not cover the rows"))? =
                Some(*token);
        }
        let slot = work.session.slot().0 as usize;
        let length = self.lengths.get_mut(slot).ok_or(LaneFaultCause::InvalidWork("no such length slot"))?;
        *length = to;
        let sampled = self.draw(work)?;
        work.session.advance(work.tokens.len());
        let to = Position::START.advance(self.lengths[slot]);
        Ok(LaneOutcome { lane: work.lane, from: work.from, to, sampled })
    }

    fn draw(&mut self, work: &LaneWork) -> Result<Vec<Sampled>, LaneFaultCause> {
        let (from, to) = (work.from.tokens(), work.from.tokens() + work.tokens.len());
        let first = match work.logits {
            LogitsUse::None => return Ok(Vec::new()),
            LogitsUse::SampleLast => to,
            LogitsUse::PredictAll => from + 1,
        };
        let mut state = Prefix::default();
        let mut rows = Vec::new();
        for position in 0..to {
            state = state.after(self.place(work.session.pages(), position).copied().flatten());
            if position + 1 >= first {
                rows.push(state.logits(self.limits.vocabulary));
            }
        }
        let sampler = work.session.sampler();
        let sampled = match work.logits {
            LogitsUse::PredictAll => sampler.draw_each(work.from, &work.tokens, &rows),
            _ => rows.iter().map(|row| sampler.draw(row, Position::START.advance(to))).collect(),
        };
        sampled.ok_or(LaneFaultCause::LogitsNotFinite)
    }
}

impl BatchExecutor for ScriptedExecutor {
    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    fn run(&mut self, batch: IterationBatch) -> BatchDone {
        if let Some(gate) = &self.gate {
            gate.pass();
        }
        for copy in &batch.copies {
            self.pages[copy.to.index()] = self.pages[copy.from.index()].clone();
        }
        let lanes: Vec<_> = batch.work.iter().map(|work| work.lane).collect();
        let (mut ran, mut faulted) = (Vec::new(), Vec::new());
        let mut sessions = Vec::with_capacity(lanes.len());
        for mut work in batch.work {
            match self.run_lane(&mut work) {
                Ok(outcome) => ran.push(outcome),
                Err(cause) => faulted.push(LaneFault { lane: work.lane, cause }),
            }
            sessions.push((work.lane, work.session));
        }
        let result = if faulted.is_empty() {
            Ok(BatchOutcome { batch: batch.id, ran })
        } else {
            Err(PartialBatchError::new(batch.id, &lanes, ran, faulted, Vec::new(), BatchFaultCause::Lanes))
        };
        BatchDone { result, sessions }
    }

    fn recover(&mut self) -> Result<(), String> {
        self.pages.iter_mut().for_each(|page| page.fill(None));
        self.lengths.fill(0);
        Ok(())
    }

    fn identity(&self) -> SnapshotIdentity {
        SnapshotIdentity {
            model: self.model,
            architecture: "scripted".to_owned(),
            pack: "none".to_owned(),
            pack_version: 1,
            driver: "none".to_owned(),
            kv_type: "token".to_owned(),
            precision: "exact".to_owned(),
            rope: Digest(0),
            page_tokens: self.limits.page_tokens as u32,
            page_bytes: self.page_bytes() as u64,
        }
    }

    fn export_pages(&mut self, pages: &[PageId]) -> Result<Vec<u8>, PageTransferError> {
        let (page_bytes, bytes) = (self.page_bytes(), pages.len() * self.page_bytes());
        PageTransferError::check(pages, bytes, self.limits.pages, page_bytes as u64)?;
        let places = pages.iter().flat_map(|page| &self.pages[page.index()]);
        Ok(places.flat_map(|place| place.map_or(u32::MAX, |token| token.0).to_le_bytes()).collect())
    }

    fn import_pages(&mut self, pages: &[PageId], bytes: &[u8]) -> Result<(), PageTransferError> {
        PageTransferError::check(pages, bytes.len(), self.limits.pages, self.page_bytes() as u64)?;
        for (page, content) in pages.iter().zip(bytes.chunks_exact(self.page_bytes())) {
            let (words, _) = content.as_chunks::<PLACE_BYTES>();
            let token =
                |word: &[u8; PLACE_BYTES]| Some(u32::from_le_bytes(*word)).filter(|&word| word != u32::MAX);
            self.pages[page.index()] = words.iter().map(|word| token(word).map(TokenId)).collect();
        }
        Ok(())
    }
}

/// What the scripted model knows of the tokens before a position: a running FNV-1a hash.
#[derive(Clone, Copy, Debug)]
struct Prefix(u64);

impl Default for Prefix {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Prefix {
    fn after(self, place: Place) -> Self {
        let word = place.map_or(u64::MAX, |token| u64::from(token.0));
        Self((self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23))
    }

    fn logits(self, vocabulary: usize) -> Vec<f32> {
        let logit = |word: usize| {
            let mixed = (self.0 ^ (word as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
                .wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed >> 40) as f32 / (1_u32 << 21) as f32 - 4.0
        };
        (0..vocabulary).map(logit).collect()
    }
}

/// The tokens that the scripted model draws after `tokens`, of which the first `prompt_tokens` are the
/// prompt, computed without any page: at most `count`, and none after [`SCRIPTED_END`].
pub fn expected_reply(
    vocabulary: usize,
    tokens: &[TokenId],
    prompt_tokens: usize,
    sampling: &SamplingSettings,
    choice_index: u32,
    count: usize,
) -> Vec<TokenId> {
    let mut sampler = Sampler::new(sampling.clone(), choice_index).with_prompt_tokens(prompt_tokens);
    sampler.accept(tokens);
    let mut state = tokens.iter().fold(Prefix::default(), |state, token| state.after(Some(*token)));
    let mut reply = Vec::new();
    while reply.len() < count && reply.last() != Some(&SCRIPTED_END) {
        let position = Position::START.advance(tokens.len() + reply.len());
        let Some(sampled) = sampler.draw(&state.logits(vocabulary), position) else { break };
        sampler.accept(&[sampled.token]);
        state = state.after(Some(sampled.token));
        reply.push(sampled.token);
    }
    reply
}

/// The scripted vocabulary's text: letters, and the four single bytes of an emoji.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScriptedTokens;

const LETTERS: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";
/// U+1F600 in UTF-8.
const EMOJI: &[u8; 4] = b"\xf0\x9f\x98\x80";

impl TokenText for ScriptedTokens {
    fn token_bytes(&self, token: TokenId) -> &[u8] {
        match token {
            SCRIPTED_END => &[],
            TokenId(1..=4) => &EMOJI[token.index() - 1..token.index()],
            TokenId(_) => &LETTERS[token.index() % 26..token.index() % 26 + 1],
        }
    }

    fn is_end_of_generation(&self, token: TokenId) -> bool {
        token == SCRIPTED_END
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::IterationBatch;
    use crate::ids::{BatchId, Generation, LaneId};
    use crate::session::{LengthSlot, Session};

    /// Runs `prompt` in slices over the pages `table`; returns the token drawn at its end.
    fn check(prompt: &[u32], slices: &[usize], table: &[u32], expected_equal: bool) {
        let mut executor = ScriptedExecutor::new(scripted_limits());
        let prompt: Vec<TokenId> = prompt.iter().copied().map(TokenId).collect();
        let sampling = SamplingSettings::greedy();
        let mut session = Session::new(LengthSlot(0), Sampler::new(sampling.clone(), 0));
        session.extend_pages(table.iter().copied().map(PageId));
        let mut drawn = None;
        for rows in slices {
            let from = session.length();
            let tokens = prompt[from.tokens()..from.tokens() + rows].to_vec();
            let is_last = from.tokens() + rows == prompt.len();
            let logits = if is_last { LogitsUse::SampleLast } else { LogitsUse::None };
            let work = LaneWork {
                lane: LaneId(0),
                generation: Generation::default(),
                session,
                from,
                tokens,
                logits,
            };
            let mut done =
                executor.run(IterationBatch { id: BatchId(1), copies: Vec::new(), work: vec![work] });
            session = done.sessions.remove(0).1;
            drawn = done
                .result
                .ok()
                .and_then(|outcome| outcome.ran[0].sampled.first().map(|sampled| sampled.token));
        }
        let expected = expected_reply(64, &prompt, prompt.len(), &sampling, 0, 1)[0];
        assert_eq!(drawn == Some(expected), expected_equal, "{drawn:?} and {expected:?}");
    }

    #[test]
    fn slicing_does_not_change_what_is_drawn() {
        let prompt: Vec<u32> = (0..40).map(|index| index % 50 + 5).collect();
        for slices in [&[40][..], &[1, 39], &[16, 16, 8], &[7, 20, 13]] {
            check(&prompt, slices, &[3, 1, 2], true);
        }
    }

    #[test]
    fn a_page_table_that_names_a_page_twice_changes_what_is_drawn() {
        let prompt: Vec<u32> = (0..40).map(|index| index % 50 + 5).collect();
        check(&prompt, &[40], &[3, 3, 2], false);
    }
}

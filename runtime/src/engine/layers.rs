//! A range of a model's layers as a stage: frames of hidden states go in, and frames or logits come out.
//!
//! A stage keeps its own KV of its layers. Its sessions, with their pages of its pool, move into a batch and
//! back as those of a whole model do, and a batch of frames is accounted for in the same way.

use super::EngineError;
use super::account::{Account, Draw, cut_by, draw_all, row_logits};
use crate::batch::{BatchOutcome, LaneFault, LaneFaultCause, LaneOutcome, LogitsUse, PartialBatchError};
use crate::frame::{ElementType, Frame, Frontier, Made, SequenceId};
use crate::ids::{BatchId, LaneId, LayerRange, TokenId};
use crate::model::Model;
use crate::sampling::Sampled;
use crate::session::Session;
use crate::vulkan::{Forward, ForwardOptions, StepLane};
use lavalane_shaders::PAGE_TOKENS;
use std::collections::HashSet;
use std::sync::Arc;

/// One lane's part of a batch of frames.
#[derive(Debug)]
pub struct FrameWork {
    /// The lane.
    pub lane: LaneId,
    /// The sequence, as its frames name it.
    pub sequence: SequenceId,
    /// The lane's session in this stage. Its page table already covers the frame's tokens.
    pub session: Session,
    /// The hidden states that go in, from the session's length on.
    pub frame: Frame,
    /// The frame's tokens, which the sampler has been told where something is drawn; else unused.
    pub tokens: Vec<TokenId>,
    /// What the rows' logits are for; [`LogitsUse::None`] but in the last stage.
    pub logits: LogitsUse,
}

/// What one step of a stage runs; each lane at most once.
#[derive(Debug)]
pub struct FrameBatch {
    /// The batch's id.
    pub id: BatchId,
    /// The lanes' parts.
    pub work: Vec<FrameWork>,
}

/// The answer to a batch of frames.
#[derive(Debug)]
pub struct FrameBatchDone {
    /// What ran, and what was drawn in the last stage.
    pub result: Result<BatchOutcome, PartialBatchError>,
    /// The frames that came out, of the lanes that ran; none from the last stage.
    pub frames: Vec<(LaneId, Frame)>,
    /// Every session of the batch. Those of lanes that ran have advanced; the others are as they were.
    pub sessions: Vec<(LaneId, Session)>,
}

/// A batch of frames that names a lane twice: nothing ran, and here it is again.
#[derive(Debug, thiserror::Error)]
#[error("lane {lane} is in the batch of frames twice")]
pub struct DuplicateLane {
    /// The lane.
    pub lane: LaneId,
    /// The batch.
    pub batch: Box<FrameBatch>,
}

/// Runs one range of a model's layers on one device group.
pub struct LayerRunner {
    model: Arc<Model>,
    forward: Forward,
    options: ForwardOptions,
    range: LayerRange,
    element: ElementType,
}

impl LayerRunner {
    /// Opens the device and uploads the layers of `range`. Frames that come out hold `element`s; only
    /// [`ElementType::F32`] carries every bit.
    ///
    /// # Errors
    /// The range is not within the model ([`EngineError::NoSuchLayers`]), or as of the engine.
    pub fn new(
        model: Arc<Model>,
        range: LayerRange,
        element: ElementType,
        options: ForwardOptions,
    ) -> Result<Self, EngineError> {
        let layers = model.layers().len();
        if range.end() as usize > layers {
            return Err(EngineError::NoSuchLayers { end: range.end() as usize, layers });
        }
        let options = ForwardOptions { layers: Some(range), ..options };
        let forward = Forward::new(&model, &options)?;
        Ok(Self { model, forward, options, range, element })
    }

    /// The frame of embeddings that the first stage takes.
    ///
    /// # Panics
    /// When there is no token, or one outside of the vocabulary.
    pub fn embed(&self, tokens: &[TokenId], made: Made) -> Frame {
        let states = self.model.embed_all(tokens);
        let width = self.model.description().hidden;
        Frame::of_hidden(&states, width, ElementType::F32, made).expect("tokens were given")
    }

    /// The layers of this stage.
    pub fn range(&self) -> LayerRange {
        self.range
    }

    /// Whether logits come out of this stage.
    pub fn is_last(&self) -> bool {
        self.range.end() as usize == self.model.layers().len()
    }

    /// Runs one batch of frames and accounts for each of its lanes. A lane whose frame does not fit (other
    /// layers, another sequence or place, another width) fails alone, and is as it was.
    ///
    /// # Errors
    /// A lane is in the batch twice: nothing ran, and the batch comes back.
    pub fn run(&mut self, batch: FrameBatch) -> Result<FrameBatchDone, DuplicateLane> {
        let mut seen = HashSet::new();
        if let Some(lane) = batch.work.iter().map(|work| work.lane).find(|lane| !seen.insert(*lane)) {
            return Err(DuplicateLane { lane, batch: Box::new(batch) });
        }
        let FrameBatch { id, work } = batch;
        let lanes: Vec<LaneId> = work.iter().map(|work| work.lane).collect();
        let mut account = FrameAccount::default();
        let (mut runnable, mut states) = (Vec::new(), Vec::new());
        for work in work {
            match self.states(&work) {
                Ok(rows) => {
                    states.push(rows);
                    runnable.push(work);
                }
                Err(reason) => account.fault(work, LaneFaultCause::InvalidWork(reason)),
            }
        }
        let mut waiting = runnable.into_iter().zip(states).peekable();
        let mut submission = 0;
        while waiting.peek().is_some() && account.lanes.cut.is_none() {
            let mut rows = 0;
            let mut part = Vec::new();
            let rows_max = self.forward.rows_max();
            while let Some(next) = waiting.next_if(|(work, _)| rows + work.frame.desc().tokens <= rows_max) {
                rows += next.0.frame.desc().tokens;
                part.push(next);
            }
            self.submit(part, submission, &mut account);
            submission += 1;
        }
        waiting.for_each(|(work, _)| account.skip(work));
        Ok(account.answer(id, &lanes))
    }

    /// The hidden states of a lane's frame, or why it does not fit.
    fn states(&self, work: &FrameWork) -> Result<Vec<f32>, &'static str> {
        let desc = work.frame.desc();
        let length = work.session.length();
        let expected = (self.range.start() > 0).then_some(self.range.start());
        if desc.layers.map(LayerRange::end) != expected {
            return Err("the frame comes from other layers than those before this stage's");
        }
        if desc.frontier != (Frontier { sequence: work.sequence, position: length }) {
            return Err("the frame goes on elsewhere than the session stands");
        }
        let end = length.tokens() + desc.tokens;
        if end > self.options.context_tokens || desc.tokens > self.forward.rows_max() {
            return Err("the frame has more tokens than the context or a submission takes");
        }
        if end.div_ceil(PAGE_TOKENS) > work.session.pages().len()
            || work.session.pages().iter().any(|page| page.index() >= self.options.pages)
            || work.session.slot().0 as usize >= self.options.lanes_max
        {
            return Err("the session's pages or slot do not fit the stage");
        }
        if work.logits != LogitsUse::None && (!self.is_last() || work.tokens.len() != desc.tokens) {
            return Err("logits come from the last stage only, for tokens that are known");
        }
        match work.frame.hidden() {
            Some((states, width)) if width == self.forward.hidden() => Ok(states),
            _ => Err("the frame holds no hidden states of the model's width"),
        }
    }

    /// Runs one submission and settles its lanes.
    fn submit(&mut self, part: Vec<(FrameWork, Vec<f32>)>, submission: usize, account: &mut FrameAccount) {
        let (works, states): (Vec<FrameWork>, Vec<Vec<f32>>) = part.into_iter().unzip();
        let step = works.iter().zip(states).map(|(work, hidden)| StepLane {
            slot: work.session.slot(),
            position: work.session.length().tokens(),
            pages: work.session.pages(),
            hidden,
            logits: row_logits(work.logits),
        });
        let step: Vec<StepLane<'_>> = step.collect();
        let result = self.forward.step(&[], &step);
        drop(step);
        let mut result = match result {
            Ok(result) => result,
            Err(error) => {
                account.lanes.cut = Some(cut_by(error, submission));
                return works.into_iter().for_each(|work| account.skip(work));
            }
        };
        let draws = works.iter().map(|work| Draw {
            sampler: work.session.sampler(),
            used: work.logits,
            from: work.session.length(),
            tokens: &work.tokens,
        });
        let draws: Vec<Draw<'_>> = draws.collect();
        let drawn = draw_all(&draws, &result.logits);
        let mut hidden = std::mem::take(&mut result.hidden).into_iter();
        for ((work, drawn), device) in works.into_iter().zip(drawn).zip(&result.lengths) {
            self.settle(work, drawn, *device, hidden.next(), account);
        }
        self.forward.recycle(result);
    }

    fn settle(
        &self,
        mut work: FrameWork,
        drawn: Option<Vec<Sampled>>,
        device: usize,
        hidden: Option<Vec<f32>>,
        account: &mut FrameAccount,
    ) {
        let count = work.frame.desc().tokens;
        let from = work.session.length();
        let to = from.advance(count);
        if device != to.tokens() {
            let (tracked, session) = (to.tokens(), to.tokens());
            return account.fault(work, LaneFaultCause::PositionMismatch { tracked, session, device });
        }
        let Some(sampled) = drawn else { return account.fault(work, LaneFaultCause::LogitsNotFinite) };
        if let Some(states) = hidden.filter(|states| !states.is_empty()) {
            let made = Made {
                producer: "layers".to_owned(),
                layers: Some(self.range),
                frontier: work.frame.desc().frontier,
            };
            let frame = Frame::of_hidden(&states, self.forward.hidden(), self.element, made);
            account.frames.push((work.lane, frame.expect("a step gives each row's states")));
        }
        work.session.advance(count);
        account.lanes.ran.push(LaneOutcome { lane: work.lane, from, to, sampled });
        account.sessions.push((work.lane, work.session));
    }
}

/// The books of one batch of frames.
#[derive(Default)]
struct FrameAccount {
    lanes: Account,
    frames: Vec<(LaneId, Frame)>,
    sessions: Vec<(LaneId, Session)>,
}

impl FrameAccount {
    fn fault(&mut self, work: FrameWork, cause: LaneFaultCause) {
        self.lanes.faulted.push(LaneFault { lane: work.lane, cause });
        self.sessions.push((work.lane, work.session));
    }

    fn skip(&mut self, work: FrameWork) {
        self.lanes.not_run.push(work.lane);
        self.sessions.push((work.lane, work.session));
    }

    fn answer(self, id: BatchId, lanes: &[LaneId]) -> FrameBatchDone {
        let Self { lanes: account, frames, sessions } = self;
        FrameBatchDone { result: account.answer(id, lanes), frames, sessions }
    }
}

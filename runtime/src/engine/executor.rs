//! A model on Vulkan as a batch executor: batches are cut between lanes into submissions, and an answer
//! tells for every lane whether it ran.

use super::account::{Account, Draw, cut_by, draw_all, row_logits};
use super::{EngineError, EngineOptions, MemoryPlan};
use crate::batch::{
    BatchDone, BatchExecutor, BatchFaultCause, ExecutorLimits, IterationBatch, LaneFault, LaneFaultCause,
    LaneOutcome, LaneWork, PageCopy, PageTransferError,
};
use crate::ids::{LaneId, PageId};
use crate::model::Model;
use crate::sampling::Sampled;
use crate::snapshot::{Digest, SnapshotIdentity};
use crate::vulkan::{
    DeviceReport, Forward, ForwardOptions, GroupReport, OpenDevice, Pack, StepLane, VulkanError,
};
use lavalane_shaders::PAGE_TOKENS;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

/// Runs batches of one model on one device group.
pub struct VulkanExecutor {
    model: Arc<Model>,
    forward: Option<Forward>,
    forward_options: ForwardOptions,
    plan: MemoryPlan,
    device: DeviceReport,
    pack: Pack,
    limits: ExecutorLimits,
    /// Made when it is first asked for, since that reads the model's file.
    identity: OnceLock<SnapshotIdentity>,
}

impl VulkanExecutor {
    /// Opens the device, uploads the model and makes the KV pool.
    ///
    /// # Errors
    /// No such device, too little memory (with what would fit), or settings out of range.
    pub fn new(model: Arc<Model>, options: &EngineOptions) -> Result<Self, EngineError> {
        Self::on(OpenDevice::open(&options.choice)?, model, options)
    }

    /// As [`VulkanExecutor::new`], on a device that the options' choice opened.
    ///
    /// # Errors
    /// Too little memory (with what would fit), or settings out of range.
    pub fn on(device: OpenDevice, model: Arc<Model>, options: &EngineOptions) -> Result<Self, EngineError> {
        let plan = MemoryPlan::new(&model, options, device.report())?;
        let mut forward_options = ForwardOptions {
            choice: options.choice.clone(),
            precision: options.precision,
            kv_type: options.kv_type,
            rows_max: options.submission_rows_max,
            lanes_max: options.lanes,
            context_tokens: plan.context_tokens,
            pages: plan.pages,
            layers: None,
        };
        let forward = Forward::on(device, &model, &forward_options)?;
        // After a recovery too, sessions have the bits of the same pack.
        forward_options.choice.pack = Some(forward.pack());
        let limits = ExecutorLimits {
            batch_rows_max: options.batch_rows_max,
            lane_rows_max: options.submission_rows_max.min(options.batch_rows_max),
            lanes_max: options.lanes,
            context_tokens_max: plan.context_tokens,
            page_tokens: PAGE_TOKENS,
            pages: plan.pages,
            vocabulary: model.description().vocabulary,
        };
        Ok(Self {
            model,
            device: forward.device().clone(),
            pack: forward.pack(),
            forward: Some(forward),
            forward_options,
            plan,
            limits,
            identity: OnceLock::new(),
        })
    }

    /// The memory plan.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// The kernel pack in use.
    pub fn pack(&self) -> Pack {
        self.pack
    }

    /// How the device group computes; `None` while the device is lost.
    pub fn group_report(&self) -> Option<GroupReport> {
        self.forward.as_ref().map(Forward::group_report)
    }

    /// The device.
    pub fn device(&self) -> &DeviceReport {
        &self.device
    }

    /// Why a lane's work cannot run, if it cannot.
    fn refusal(&self, work: &LaneWork) -> Option<LaneFaultCause> {
        let session = work.session.length();
        if work.from != session {
            return Some(LaneFaultCause::PositionMismatch {
                tracked: work.from.tokens(),
                session: session.tokens(),
                device: session.tokens(),
            });
        }
        let end = work.from.tokens() + work.tokens.len();
        let invalid = |reason| Some(LaneFaultCause::InvalidWork(reason));
        if work.tokens.is_empty() {
            return invalid("a lane brings no token");
        }
        if work.tokens.len() > self.forward_options.rows_max {
            return invalid("a lane brings more rows than one submission takes");
        }
        if end > self.limits.context_tokens_max {
            return invalid("the rows go beyond the context");
        }
        if end.div_ceil(PAGE_TOKENS) > work.session.pages().len() {
            return invalid("the page table does not cover the rows");
        }
        if work.session.pages().iter().any(|page| page.index() >= self.limits.pages) {
            return invalid("the page table names a page outside of the pool");
        }
        if work.session.slot().0 as usize >= self.limits.lanes_max {
            return invalid("the session's slot is outside of the device's lengths");
        }
        if work.tokens.iter().any(|token| token.index() >= self.limits.vocabulary) {
            return invalid("a token is outside of the vocabulary");
        }
        None
    }

    /// Runs one submission's lanes.
    fn submit(
        &mut self,
        copies: &[PageCopy],
        works: &mut [LaneWork],
        account: &mut Account,
    ) -> Result<(), VulkanError> {
        let Some(forward) = self.forward.as_mut() else {
            return Err(VulkanError::DeviceLost("it was lost before and is not recovered".to_owned()));
        };
        let lanes: Vec<StepLane<'_>> = works
            .iter()
            .map(|work| StepLane {
                slot: work.session.slot(),
                position: work.from.tokens(),
                pages: work.session.pages(),
                hidden: self.model.embed_all(&work.tokens),
                logits: row_logits(work.logits),
            })
            .collect();
        let result = forward.step(copies, &lanes)?;
        drop(lanes);
        let draws = works.iter().map(|work| Draw {
            sampler: work.session.sampler(),
            used: work.logits,
            from: work.from,
            tokens: &work.tokens,
        });
        let draws: Vec<Draw<'_>> = draws.collect();
        let drawn = draw_all(&draws, &result.logits);
        for ((work, drawn), device) in works.iter_mut().zip(drawn).zip(&result.lengths) {
            match finish(work, drawn, *device) {
                Ok(outcome) => account.ran.push(outcome),
                Err(cause) => account.faulted.push(LaneFault { lane: work.lane, cause }),
            }
        }
        forward.recycle(result);
        Ok(())
    }
}

/// Checks a lane's new length and what was drawn, and advances its session.
fn finish(
    work: &mut LaneWork,
    drawn: Option<Vec<Sampled>>,
    device: usize,
) -> Result<LaneOutcome, LaneFaultCause> {
    let to = work.from.advance(work.tokens.len());
    if device != to.tokens() {
        return Err(LaneFaultCause::PositionMismatch {
            tracked: to.tokens(),
            session: work.session.length().tokens() + work.tokens.len(),
            device,
        });
    }
    let sampled = drawn.ok_or(LaneFaultCause::LogitsNotFinite)?;
    work.session.advance(work.tokens.len());
    Ok(LaneOutcome { lane: work.lane, from: work.from, to, sampled })
}

/// Takes as many lanes as one submission's rows allow from the front.
fn next_submission(works: &[LaneWork], rows_max: usize) -> usize {
    let mut rows = 0;
    let fitting = works.iter().take_while(|work| {
        rows += work.tokens.len();
        rows <= rows_max
    });
    fitting.count()
}

impl BatchExecutor for VulkanExecutor {
    fn limits(&self) -> ExecutorLimits {
        self.limits
    }

    /// # Panics
    /// When a lane is in the batch twice: the scheduler's invariant.
    fn run(&mut self, batch: IterationBatch) -> BatchDone {
        let IterationBatch { id, copies, work } = batch;
        let lanes: Vec<LaneId> = work.iter().map(|work| work.lane).collect();
        let distinct: HashSet<LaneId> = lanes.iter().copied().collect();
        assert_eq!(distinct.len(), lanes.len(), "a lane is in batch {id} twice");
        let mut account = Account::default();
        let (mut runnable, mut refused) = (Vec::new(), Vec::new());
        for work in work {
            match self.refusal(&work) {
                None => runnable.push(work),
                Some(cause) => {
                    account.faulted.push(LaneFault { lane: work.lane, cause });
                    refused.push(work);
                }
            }
        }
        let mut copies = copies.as_slice();
        let (mut done, mut submission) = (0, 0);
        while done < runnable.len() && account.cut.is_none() {
            let count = next_submission(&runnable[done..], self.forward_options.rows_max);
            if let Err(error) = self.submit(copies, &mut runnable[done..done + count], &mut account) {
                account.cut = Some(cut_by(error, submission));
                break;
            }
            copies = &[];
            done += count;
            submission += 1;
        }
        account.not_run.extend(runnable[done..].iter().map(|work| work.lane));
        if matches!(account.cut, Some(BatchFaultCause::DeviceLost(_))) {
            self.forward = None;
        }
        let sessions = runnable.into_iter().chain(refused).map(|work| (work.lane, work.session)).collect();
        let result = account.answer(id, &lanes);
        BatchDone { result, sessions }
    }

    fn recover(&mut self) -> Result<(), String> {
        self.forward = None;
        let forward = Forward::new(&self.model, &self.forward_options).map_err(|error| error.to_string())?;
        self.pack = forward.pack();
        self.forward = Some(forward);
        Ok(())
    }

    fn prepare(&mut self) -> bool {
        let prepared = self.forward.as_mut().map_or(Ok(false), Forward::prepare);
        prepared.unwrap_or_else(|error| {
            tracing::warn!("a kernel could not be made ready before it is needed: {error}");
            false
        })
    }

    fn identity(&self) -> SnapshotIdentity {
        let identity = || {
            let description = self.model.description();
            SnapshotIdentity {
                model: Digest::of_model(&self.model),
                architecture: description.architecture.clone(),
                pack: self.pack.name().to_owned(),
                pack_version: self.pack.version(),
                driver: format!("{}, {}", self.device.name, self.device.driver),
                kv_type: self.forward_options.kv_type.name().to_owned(),
                precision: self.forward_options.precision.name().to_owned(),
                rope: Digest::of_ropes(description.layers.iter().map(|layer| &layer.rope)),
                page_tokens: PAGE_TOKENS as u32,
                page_bytes: self.plan.page_bytes,
            }
        };
        self.identity.get_or_init(identity).clone()
    }

    fn export_pages(&mut self, pages: &[PageId]) -> Result<Vec<u8>, PageTransferError> {
        let page_bytes = self.plan.page_bytes;
        let bytes = pages.len() * page_bytes as usize;
        PageTransferError::check(pages, bytes, self.limits.pages, page_bytes)?;
        let forward = self.forward.as_ref().ok_or_else(lost)?;
        let mut exported = Vec::with_capacity(bytes);
        for &page in pages {
            exported.append(&mut forward.read_page(page).map_err(refused)?);
        }
        Ok(exported)
    }

    fn import_pages(&mut self, pages: &[PageId], bytes: &[u8]) -> Result<(), PageTransferError> {
        let page_bytes = self.plan.page_bytes;
        PageTransferError::check(pages, bytes.len(), self.limits.pages, page_bytes)?;
        let forward = self.forward.as_mut().ok_or_else(lost)?;
        for (&page, content) in pages.iter().zip(bytes.chunks_exact(page_bytes as usize)) {
            forward.write_page(page, content).map_err(refused)?;
        }
        Ok(())
    }
}

fn lost() -> PageTransferError {
    PageTransferError::DeviceLost("it was lost before and is not recovered".to_owned())
}

fn refused(error: VulkanError) -> PageTransferError {
    match error {
        VulkanError::DeviceLost(reason) => PageTransferError::DeviceLost(reason),
        other => PageTransferError::Device(other.to_string()),
    }
}

//! Same request, same bits: what a sequence's rows give does not depend on how its prompt was sliced or on
//! who else is in the batch, on each pack and precision.

use lavalane_integration_tests::models::{self, ModelFile};
use lavalane_integration_tests::packs;
use lavalane_integration_tests::text::tokens;
use lavalane_runtime::batch::{BatchExecutor, IterationBatch, LaneWork, LogitsUse};
use lavalane_runtime::engine::{EngineOptions, VulkanExecutor, WindowRunner};
use lavalane_runtime::ids::{BatchId, Generation, LaneId, PageId, TokenId};
use lavalane_runtime::model::Model;
use lavalane_runtime::sampling::{Sampled, Sampler, SamplingOptions, SamplingSettings};
use lavalane_runtime::session::{LengthSlot, Session};
use lavalane_runtime::vulkan::{DeviceChoice, Pack, Precision};
use std::collections::HashMap;
use std::sync::Arc;

const CONTEXT: usize = 640;
const LANES: usize = 8;

fn choice(pack: Pack) -> DeviceChoice {
    DeviceChoice { pack: Some(pack), ..DeviceChoice::default() }
}

fn model() -> Option<Arc<Model>> {
    let path = models::find(ModelFile::SmolLm2)?;
    Some(Arc::new(Model::open(path).expect("the model opens")))
}

/// The logits of the last few tokens, as bits, fed in slices.
fn sliced(
    model: &Arc<Model>,
    pack: Pack,
    precision: Precision,
    prompt: &[TokenId],
    slice: usize,
) -> Vec<Vec<u32>> {
    let mut runner =
        WindowRunner::new(model.clone(), choice(pack), precision, precision.kv_type(), CONTEXT, slice)
            .expect("the model fits the device");
    let (before, last) = prompt.split_at(prompt.len() - 3);
    runner.feed(before, 0).expect("the device runs");
    let logits = runner.logits(last, before.len()).expect("the device runs");
    logits.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

fn check_slices(pack: Pack, precision: Precision, length: u32) {
    let Some(model) = model() else { return };
    let prompt = tokens(length, 1);
    let whole = sliced(&model, pack, precision, &prompt, 512);
    for slice in [1, 7, 64] {
        let other = sliced(&model, pack, precision, &prompt, slice);
        assert!(other == whole, "slices of {slice} give other bits than slices of 512");
    }
}

/// A lane of the test: its prompt and how it is fed.
struct Lane {
    prompt: Vec<TokenId>,
    slice: usize,
    tokens_max: usize,
}

/// Runs lanes together to their ends; gives each lane's draws.
fn run_together(executor: &mut VulkanExecutor, lanes: &[Lane]) -> Vec<Vec<Sampled>> {
    let pages = CONTEXT.div_ceil(executor.limits().page_tokens) as u32;
    let options = SamplingOptions { temperature: 0.8, seed: Some(7), top_logprobs: 5, ..Default::default() };
    let settings = SamplingSettings::new(options, 0).expect("the settings are in range");
    let mut sessions: HashMap<LaneId, Session> = HashMap::new();
    let mut transcripts: Vec<Vec<TokenId>> = lanes.iter().map(|lane| lane.prompt.clone()).collect();
    let mut draws = vec![Vec::new(); lanes.len()];
    for index in 0..lanes.len() as u32 {
        let mut session = Session::new(LengthSlot(index), Sampler::new(settings.clone(), 0));
        session.extend_pages((index * pages..(index + 1) * pages).map(PageId));
        sessions.insert(LaneId(index), session);
    }
    for step in 1.. {
        let mut work = Vec::new();
        for (index, lane) in lanes.iter().enumerate() {
            if draws[index].len() == lane.tokens_max {
                continue;
            }
            let session = sessions.remove(&LaneId(index as u32)).expect("the session came back");
            let from = session.length();
            let rest = &transcripts[index][from.tokens()..];
            let slice = &rest[..rest.len().min(lane.slice)];
            let logits = if slice.len() == rest.len() { LogitsUse::SampleLast } else { LogitsUse::None };
            work.push(LaneWork {
                lane: LaneId(index as u32),
                generation: Generation::default(),
                session,
                from,
                tokens: slice.to_vec(),
                logits,
            });
        }
        if work.is_empty() {
            return draws;
        }
        let done = executor.run(IterationBatch { id: BatchId(step), copies: Vec::new(), work });
        for outcome in done.result.expect("every lane runs").ran {
            if let [sampled] = &outcome.sampled[..] {
                transcripts[outcome.lane.index()].push(sampled.token);
                draws[outcome.lane.index()].push(sampled.clone());
            }
        }
        sessions.extend(done.sessions);
    }
    unreachable!("the loop ends by returning")
}

fn check_company(pack: Pack) {
    let Some(model) = model() else { return };
    let options = EngineOptions {
        choice: choice(pack),
        lanes: LANES,
        context_tokens: Some(CONTEXT),
        batch_rows_max: 128,
        submission_rows_max: 64,
        ..Default::default()
    };
    let mut executor = VulkanExecutor::new(model, &options).expect("the model fits the device");
    let lane =
        |seed: u32| Lane { prompt: tokens(5 + 9 * seed, seed), slice: 1 + 5 * seed as usize, tokens_max: 6 };
    let lanes: Vec<Lane> = (1..=LANES as u32).map(lane).collect();
    let together = run_together(&mut executor, &lanes);
    // With the kernels that the first steps did without.
    while executor.prepare() {}
    for (index, draws) in together.iter().enumerate() {
        // Alone, and sliced otherwise.
        let alone = Lane { slice: 64, ..lane(index as u32 + 1) };
        assert_eq!(&run_together(&mut executor, &[alone])[0], draws, "lane {index} alone");
    }
}

#[test]
fn slices_of_1_7_64_and_512_give_the_same_bits_on_the_cpu_pack() {
    check_slices(Pack::Cpu, Precision::Default, 520);
}

#[test]
fn slices_give_the_same_bits_on_the_cpu_pack_in_precise_mode() {
    check_slices(Pack::Cpu, Precision::Precise, 100);
}

#[test]
fn slices_give_the_same_bits_on_the_subgroup_pack() {
    check_slices(Pack::Subgroup, Precision::Default, 70);
}

#[test]
fn eight_lanes_give_each_the_bits_it_has_alone_on_the_cpu_pack() {
    check_company(Pack::Cpu);
}

#[test]
fn eight_lanes_give_each_the_bits_it_has_alone_on_the_subgroup_pack() {
    check_company(Pack::Subgroup);
}

#[test]
fn slices_give_the_same_bits_on_the_coopmat_pack_as_on_the_subgroup_pack() {
    if !packs::runs(Pack::Coopmat) {
        return;
    }
    check_slices(Pack::Coopmat, Precision::Default, 70);
    let Some(model) = model() else { return };
    let [coopmat, subgroup] = [Pack::Coopmat, Pack::Subgroup]
        .map(|pack| sliced(&model, pack, Precision::Default, &tokens(70, 1), 512));
    assert!(coopmat == subgroup, "the packs give different bits");
}

#[test]
fn eight_lanes_give_each_the_bits_it_has_alone_on_the_coopmat_pack() {
    if packs::runs(Pack::Coopmat) {
        check_company(Pack::Coopmat);
    }
}

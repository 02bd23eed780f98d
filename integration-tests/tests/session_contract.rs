//! The session contract on the real model: what a session gives does not depend on how it came to its tokens,
//! and a model that is cut into ranges of layers gives the bits of the whole.

use lavalane_integration_tests::models::{self, ModelFile};
use lavalane_integration_tests::packs;
use lavalane_integration_tests::sampling::telling_draws;
use lavalane_integration_tests::text::tokens;
use lavalane_runtime::batch::{LaneFaultCause, LogitsUse};
use lavalane_runtime::contract::{NewSession, SessionId, Sessions, SessionsOptions};
use lavalane_runtime::engine::{EngineOptions, FrameBatch, FrameWork, LayerRunner, VulkanExecutor};
use lavalane_runtime::frame::{ElementType, Frame, Made, SequenceId};
use lavalane_runtime::ids::{BatchId, LaneId, LayerRange, PageId, TokenId};
use lavalane_runtime::model::Model;
use lavalane_runtime::sampling::{Sampled, Sampler};
use lavalane_runtime::session::{LengthSlot, Session};
use lavalane_runtime::vulkan::{DeviceChoice, ForwardOptions, Pack, Precision};
use std::sync::Arc;

const CONTEXT: usize = 128;
const REPLY: usize = 7;

fn model() -> Option<Arc<Model>> {
    let path = models::find(ModelFile::SmolLm2)?;
    Some(Arc::new(Model::open(path).expect("the model opens")))
}

fn sessions(pack: Pack, slice_rows: usize) -> Option<Sessions<VulkanExecutor>> {
    let options = EngineOptions {
        choice: DeviceChoice { pack: Some(pack), ..DeviceChoice::default() },
        lanes: 2,
        context_tokens: Some(CONTEXT),
        batch_rows_max: 64,
        submission_rows_max: 64,
        ..Default::default()
    };
    let executor = VulkanExecutor::new(model()?, &options).expect("the model fits the device");
    Some(Sessions::new(executor, SessionsOptions { slice_rows: Some(slice_rows), ..Default::default() }))
}

/// Decodes from the last of `drawn` until it holds `count` draws.
fn go_on(
    sessions: &mut Sessions<VulkanExecutor>,
    session: SessionId,
    drawn: &mut Vec<Sampled>,
    count: usize,
) {
    while drawn.len() < count {
        let last = drawn.last().expect("the prompt drew one").token;
        drawn.push(sessions.decode(session, last).expect("the device runs"));
    }
}

/// A session that ran the prompt, and its first draw.
fn started(sessions: &mut Sessions<VulkanExecutor>, prompt: &[TokenId]) -> (SessionId, Vec<Sampled>) {
    let session = sessions.admit(NewSession::new(telling_draws())).expect("a lane is idle");
    let first = sessions.prefill_sampled(session, prompt).expect("the device runs");
    (session, vec![first])
}

fn ids(drawn: &[Sampled]) -> Vec<TokenId> {
    drawn.iter().map(|drawn| drawn.token).collect()
}

#[test]
fn trim_and_regrow_give_the_same_bits() {
    let Some(mut sessions) = sessions(Pack::Cpu, 16) else { return };
    let prompt = tokens(45, 3);
    let (session, mut drawn) = started(&mut sessions, &prompt);
    go_on(&mut sessions, session, &mut drawn, REPLY);
    // Into the reply, and into the prompt: the latter is run again from there.
    sessions.trim(session, 45 + 2).expect("it is active");
    let mut again = drawn[..3].to_vec();
    go_on(&mut sessions, session, &mut again, REPLY);
    assert_eq!(again, drawn, "after a trim into the reply");
    sessions.trim(session, 33).expect("it is active");
    let mut again = vec![sessions.prefill_sampled(session, &prompt[33..]).expect("the device runs")];
    go_on(&mut sessions, session, &mut again, REPLY);
    assert_eq!(again, drawn, "after a trim into the prompt");
}

#[test]
fn a_resumed_session_gives_the_bits_of_a_new_one() {
    let Some(mut sessions) = sessions(Pack::Cpu, 16) else { return };
    let prompt = tokens(45, 3);
    let mut other = tokens(60, 3);
    other[38] = TokenId(77);
    let (session, _) = started(&mut sessions, &prompt);
    let position = sessions.resume(session, &other).expect("it is active").tokens();
    assert_eq!(position, 38, "what is common stays");
    let mut drawn = vec![sessions.prefill_sampled(session, &other[position..]).expect("the device runs")];
    go_on(&mut sessions, session, &mut drawn, REPLY);
    let Some(mut fresh) = self::sessions(Pack::Cpu, 64) else { return };
    let (session, mut expected) = started(&mut fresh, &other);
    go_on(&mut fresh, session, &mut expected, REPLY);
    assert_eq!(drawn, expected);
}

fn check_verify(pack: Pack) {
    let Some(mut sessions) = sessions(pack, 64) else { return };
    let prompt = tokens(21, 5);
    let (decoded, mut drawn) = started(&mut sessions, &prompt);
    go_on(&mut sessions, decoded, &mut drawn, REPLY);
    sessions.drop_session(decoded).expect("it is active");
    let (session, _) = started(&mut sessions, &prompt);
    let predicted = sessions.verify(session, &ids(&drawn[..REPLY - 1])).expect("the device runs");
    assert_eq!(predicted, drawn[1..], "in one pass as token by token");
    // A wrong draft: what comes before it is right, and decoding goes on from there.
    sessions.trim(session, prompt.len()).expect("it is active");
    let mut draft = ids(&drawn[..4]);
    draft[2] = TokenId(99);
    let predicted = sessions.verify(session, &draft).expect("the device runs");
    assert_eq!(predicted[..2], drawn[1..3]);
    sessions.trim(session, prompt.len() + 2).expect("it is active");
    let mut again = drawn[..3].to_vec();
    go_on(&mut sessions, session, &mut again, REPLY);
    assert_eq!(again, drawn);
}

#[test]
fn verify_gives_the_bits_of_decoding_on_the_cpu_pack() {
    check_verify(Pack::Cpu);
}

#[test]
fn verify_gives_the_bits_of_decoding_on_the_subgroup_pack() {
    check_verify(Pack::Subgroup);
}

#[test]
fn verify_gives_the_bits_of_decoding_on_the_coopmat_pack() {
    if packs::runs(Pack::Coopmat) {
        check_verify(Pack::Coopmat);
    }
}

#[test]
fn serial_verification_gives_the_bits_of_verify() {
    let Some(mut sessions) = sessions(Pack::Cpu, 64) else { return };
    let (session, _) = started(&mut sessions, &tokens(21, 5));
    let span = tokens(6, 9);
    let at_once = sessions.verify(session, &span).expect("the device runs");
    sessions.trim(session, 21).expect("it is active");
    let serially = sessions.verify_serial(session, &span).expect("the device runs");
    assert_eq!(serially, at_once);
    let position = sessions.position(session).expect("its counts agree");
    assert_eq!(position.device.tokens(), 27);
}

/// One stage with the one session that the tests run.
struct Stage {
    runner: LayerRunner,
    session: Option<Session>,
}

const SEQUENCE: SequenceId = SequenceId(1);

fn stages(model: &Arc<Model>, precision: Precision, ends: &[u32]) -> Vec<Stage> {
    let mut start = 0;
    let mut stage = |&end: &u32| {
        let options = ForwardOptions {
            choice: DeviceChoice { pack: Some(Pack::Cpu), ..DeviceChoice::default() },
            precision,
            kv_type: precision.kv_type(),
            rows_max: 64,
            lanes_max: 1,
            context_tokens: CONTEXT,
            pages: 4,
            layers: None,
        };
        let range = LayerRange::new(start, end).expect("a range holds layers");
        start = end;
        let runner = LayerRunner::new(model.clone(), range, ElementType::F32, options);
        let mut session = Session::new(LengthSlot(0), Sampler::new(telling_draws(), 0));
        session.extend_pages((0..4).map(PageId));
        Stage { runner: runner.expect("the layers fit the device"), session: Some(session) }
    };
    ends.iter().map(&mut stage).collect()
}

/// Runs tokens through all stages; gives what the last one drew.
fn run_stages(stages: &mut [Stage], run: &[TokenId], logits: LogitsUse) -> Vec<Sampled> {
    let position = stages[0].session.as_ref().expect("it came back").length();
    let mut frame = stages[0].runner.embed(run, Made::embeddings(SEQUENCE, position));
    let count = stages.len();
    for (index, stage) in stages.iter_mut().enumerate() {
        let is_last = index + 1 == count;
        assert_eq!(stage.runner.is_last(), is_last);
        let mut session = stage.session.take().expect("it came back");
        session.sampler_mut().accept(run);
        let logits = if is_last { logits } else { LogitsUse::None };
        let work =
            FrameWork { lane: LaneId(0), sequence: SEQUENCE, session, frame, tokens: run.to_vec(), logits };
        let mut done = stage.runner.run(FrameBatch { id: BatchId(1), work: vec![work] }).expect("one lane");
        stage.session = Some(done.sessions.remove(0).1);
        let mut ran = done.result.expect("the lane runs").ran;
        if is_last {
            return ran.remove(0).sampled;
        }
        // Between stages a frame may be cut and put together again.
        let whole = done.frames.remove(0).1;
        let halves = [0..run.len() / 2, run.len() / 2..run.len()];
        let halves = halves.into_iter().filter(|half| !half.is_empty()).map(|half| whole.slice(half));
        frame =
            Frame::combine(&halves.collect::<Result<Vec<_>, _>>().expect("in range")).expect("consecutive");
    }
    unreachable!("the last stage returns")
}

/// The draws of a prompt and some decode steps, through ranges of layers that end at `ends`.
fn through(model: &Arc<Model>, precision: Precision, ends: &[u32]) -> Vec<Sampled> {
    let mut stages = stages(model, precision, ends);
    let prompt = tokens(37, 2);
    run_stages(&mut stages, &prompt[..20], LogitsUse::None);
    let mut drawn = run_stages(&mut stages, &prompt[20..], LogitsUse::SampleLast);
    while drawn.len() < 4 {
        let last = drawn.last().expect("the prompt drew one").token;
        drawn.append(&mut run_stages(&mut stages, &[last], LogitsUse::SampleLast));
    }
    drawn.append(&mut run_stages(&mut stages, &tokens(5, 8), LogitsUse::PredictAll));
    drawn
}

fn check_ranges(precision: Precision) {
    let Some(model) = model() else { return };
    let layers = model.layers().len() as u32;
    let whole = through(&model, precision, &[layers]);
    assert_eq!(whole.len(), 9);
    for ends in [&[13, layers][..], &[1, 20, layers]] {
        assert_eq!(through(&model, precision, ends), whole, "cut at {ends:?}");
    }
}

#[test]
fn two_and_three_ranges_of_layers_give_the_bits_of_the_whole_model() {
    check_ranges(Precision::Default);
}

#[test]
fn ranges_of_layers_give_the_bits_of_the_whole_model_in_precise_mode() {
    check_ranges(Precision::Precise);
}

#[test]
fn the_stages_of_a_whole_model_are_the_executor() {
    let Some(model) = model() else { return };
    let Some(mut sessions) = sessions(Pack::Cpu, 64) else { return };
    let staged = through(&model, Precision::Default, &[model.layers().len() as u32]);
    let (_, drawn) = started(&mut sessions, &tokens(37, 2));
    // The stages' sampler counts the prompt as reply; what the model thinks is the same.
    assert_eq!((&staged[0].top, staged[0].signals), (&drawn[0].top, drawn[0].signals));
}

#[test]
fn a_batch_of_frames_accounts_for_every_lane() {
    let Some(model) = model() else { return };
    let mut stages = stages(&model, Precision::Default, &[2, model.layers().len() as u32]);
    let runner = &mut stages[0].runner;
    let session = |slot: u32| {
        let mut session = Session::new(LengthSlot(0), Sampler::new(telling_draws(), 0));
        session.extend_pages([PageId(slot)]);
        session
    };
    let start = session(0).length();
    let good = runner.embed(&tokens(5, 1), Made::embeddings(SEQUENCE, start));
    let elsewhere = runner.embed(&tokens(5, 1), Made::embeddings(SEQUENCE, start.advance(3)));
    let work = |lane: u32, frame: &Frame| FrameWork {
        lane: LaneId(lane),
        sequence: SEQUENCE,
        session: session(lane),
        frame: frame.clone(),
        tokens: Vec::new(),
        logits: LogitsUse::None,
    };
    let batch = FrameBatch { id: BatchId(1), work: vec![work(0, &good), work(0, &good)] };
    let refused = runner.run(batch).expect_err("a lane is there twice");
    assert_eq!((refused.lane, refused.batch.work.len()), (LaneId(0), 2));

    let batch = FrameBatch { id: BatchId(2), work: vec![work(0, &good), work(1, &elsewhere)] };
    let done = runner.run(batch).expect("two lanes");
    let partial = done.result.expect_err("one frame does not fit");
    assert_eq!(partial.ran().iter().map(|ran| ran.lane).collect::<Vec<_>>(), [LaneId(0)]);
    assert!(
        matches!(partial.faulted()[0].cause, LaneFaultCause::InvalidWork(reason) if reason.contains("elsewhere"))
    );
    let lengths: Vec<usize> = (0..2)
        .map(|lane| {
            done.sessions.iter().find(|one| one.0 == LaneId(lane)).expect("it is back").1.length().tokens()
        })
        .collect();
    assert_eq!((lengths, done.frames.len()), (vec![5, 0], 1));
    let out = done.frames[0].1.desc();
    assert_eq!((out.layers, out.tokens, out.frontier.position), (LayerRange::new(0, 2), 5, start));
}

//! Snapshots of the real model's KV: restored after a restart, on another slot and other pages, a sequence goes
//! on with the same bits; images of another kind of executor are refused.

use lavalane_integration_tests::models::{self, ModelFile};
use lavalane_integration_tests::packs;
use lavalane_integration_tests::text::tokens;
use lavalane_runtime::batch::{BatchExecutor, IterationBatch, LaneWork, LogitsUse};
use lavalane_runtime::engine::{EngineOptions, VulkanExecutor};
use lavalane_runtime::ids::{BatchId, Generation, LaneId, PageId, TokenId};
use lavalane_runtime::model::Model;
use lavalane_runtime::sampling::{Sampled, Sampler, SamplingOptions, SamplingSettings};
use lavalane_runtime::session::{LengthSlot, Session};
use lavalane_runtime::snapshot::{IdentityField, Image, ImageError, Restored, WhenIncompatible};
use lavalane_runtime::vulkan::{DeviceChoice, KvType, Pack, Precision};
use std::sync::Arc;

fn executor(pack: Pack, precision: Precision, kv_type: KvType) -> Option<VulkanExecutor> {
    let model = Arc::new(Model::open(models::find(ModelFile::SmolLm2)?).expect("the model opens"));
    let options = EngineOptions {
        choice: DeviceChoice { device: None, pack: Some(pack), members: None },
        precision,
        kv_type,
        lanes: 2,
        context_tokens: Some(256),
        ..Default::default()
    };
    Some(VulkanExecutor::new(model, &options).expect("the model fits the device"))
}

fn session(slot: u32) -> Session {
    let options = SamplingOptions { temperature: 0.8, seed: Some(5), top_logprobs: 5, ..Default::default() };
    let settings = SamplingSettings::new(options, 0).expect("the settings are in range");
    Session::new(LengthSlot(slot), Sampler::new(settings, 0))
}

/// Runs what the transcript has beyond the session, then `count` draws.
fn draw(
    executor: &mut VulkanExecutor,
    mut session: Session,
    transcript: &mut Vec<TokenId>,
    count: usize,
) -> (Session, Vec<Sampled>) {
    let mut draws = Vec::new();
    while draws.len() < count {
        let from = session.length();
        let work = LaneWork {
            lane: LaneId(0),
            generation: Generation::default(),
            session,
            from,
            tokens: transcript[from.tokens()..].to_vec(),
            logits: LogitsUse::SampleLast,
        };
        let mut done = executor.run(IterationBatch { id: BatchId(1), copies: Vec::new(), work: vec![work] });
        let ran = done.result.expect("the lane runs").ran;
        transcript.push(ran[0].sampled[0].token);
        draws.push(ran[0].sampled[0].clone());
        session = done.sessions.swap_remove(0).1;
    }
    (session, draws)
}

fn check_restart(pack: Pack, precision: Precision) {
    let Some(mut first) = executor(pack, precision, precision.kv_type()) else { return };
    let mut transcript = tokens(75, 3);
    let mut computed = session(0);
    computed.extend_pages((0..8).map(PageId));
    let (computed, _) = draw(&mut first, computed, &mut transcript, 4);
    let held = computed.length().tokens();
    let image = Image::take(&mut first, &computed, &transcript[..held]).expect("it can be kept");
    let mut without = transcript.clone();
    let (_, expected) = draw(&mut first, computed, &mut without, 6);

    // Copied to another session of the same executor, whose own content it replaces.
    let pages: Vec<PageId> = [15, 9, 12, 8, 10].map(PageId).to_vec();
    let mut copied = session(1);
    let restored = image.restore(&mut first, &mut copied, &pages, WhenIncompatible::Refuse);
    assert_eq!(restored, Ok(Restored::Imported));
    let (_, draws) = draw(&mut first, copied, &mut transcript.clone(), 6);
    assert!(draws == expected, "a copy goes on with other bits");
    drop(first);

    let image = Image::from_bytes(&image.to_bytes()).expect("it is whole");
    let Some(mut second) = executor(pack, precision, precision.kv_type()) else { return };
    let mut restored = session(1);
    image.restore(&mut second, &mut restored, &pages, WhenIncompatible::Refuse).expect("it fits");
    assert_eq!(restored.length().tokens(), held);
    let (_, draws) = draw(&mut second, restored, &mut transcript.clone(), 6);
    assert!(draws == expected, "after a restart it goes on with other bits");
}

#[test]
fn snapshot_restore_and_restart_give_the_same_bits_on_the_cpu_pack() {
    check_restart(Pack::Cpu, Precision::Default);
}

#[test]
fn snapshot_restore_and_restart_give_the_same_bits_on_the_subgroup_pack() {
    check_restart(Pack::Subgroup, Precision::Default);
}

#[test]
fn snapshot_restore_and_restart_give_the_same_bits_on_the_coopmat_pack() {
    if packs::runs(Pack::Coopmat) {
        check_restart(Pack::Coopmat, Precision::Default);
    }
}

#[test]
fn snapshot_restore_and_restart_give_the_same_bits_in_precise_mode() {
    check_restart(Pack::Cpu, Precision::Precise);
}

#[test]
fn an_image_of_another_kv_type_pack_or_precision_is_refused_or_replayed() {
    let Some(mut ours) = executor(Pack::Cpu, Precision::Default, KvType::F16) else { return };
    let mut transcript = tokens(40, 4);
    let mut computed = session(0);
    computed.extend_pages((0..8).map(PageId));
    let (computed, expected) = draw(&mut ours, computed, &mut transcript, 1);
    let image = Image::take(&mut ours, &computed, &transcript[..40]).expect("it can be kept");
    drop(ours);
    let pages: Vec<PageId> = (0..4).map(PageId).collect();
    for (pack, precision, kv_type, field) in [
        (Pack::Cpu, Precision::Default, KvType::F32, IdentityField::KvType),
        (Pack::Subgroup, Precision::Default, KvType::F16, IdentityField::Pack),
        (Pack::Cpu, Precision::Precise, KvType::F16, IdentityField::Precision),
    ] {
        let Some(mut other) = executor(pack, precision, kv_type) else { return };
        let mut restored = session(0);
        let error = image.restore(&mut other, &mut restored, &pages, WhenIncompatible::Refuse);
        let Err(ImageError::Incompatible(reason)) = error else { panic!("{error:?}") };
        assert_eq!(reason.field, field, "{reason}");
        assert_eq!((restored.length().tokens(), restored.pages().len()), (0, 0));
        let replay = image.restore(&mut other, &mut restored, &pages, WhenIncompatible::Replay);
        let Ok(Restored::ToReplay(mut replayed)) = replay else { panic!("{replay:?}") };
        assert_eq!(replayed, transcript[..40]);
        restored.extend_pages(pages.clone());
        let (_, draws) = draw(&mut other, restored, &mut replayed, 1);
        assert!(draws != expected, "another executor has bits of its own, which is why the image is refused");
    }
}

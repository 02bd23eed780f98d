//! Device groups: members that share the work give the bits that one gives alone.

use crate::engine::{EngineError, WindowRunner};
use crate::ids::TokenId;
use crate::model::Model;
use crate::quant::TensorType;
use crate::synth::{SynthSettings, write_synth};
use crate::vulkan::device::Member;
use crate::vulkan::group::grouping_obstacle;
use crate::vulkan::{DeviceChoice, KvType, Pack, Precision, SoftwareThreads, VulkanError, software_threads};
use std::sync::Arc;

const TOKENS: usize = 20;

fn choice(members: usize) -> DeviceChoice {
    DeviceChoice { members: Some(members), pack: Some(Pack::Cpu), ..DeviceChoice::of_tests() }
}

fn model(architecture: &str, tensor_type: TensorType) -> Arc<Model> {
    let settings = SynthSettings {
        architecture: architecture.to_owned(),
        layers: 7,
        hidden: 256,
        heads: 8,
        kv_heads: 4,
        head_dim: 64,
        feed_forward: 512,
        vocabulary: 600,
        context: 128,
        tensor_type,
        seed: 5,
    };
    let file = format!("lavalane-group-{architecture}-{tensor_type}-{}.gguf", std::process::id());
    let file = std::env::temp_dir().join(file);
    write_synth(&settings, &file).unwrap();
    let model = Arc::new(Model::open(&file).unwrap());
    // The map stays.
    std::fs::remove_file(&file).unwrap();
    model
}

/// The bits of the logits after each token, fed in slices of `slice` tokens.
fn bits(model: &Arc<Model>, members: usize, precision: Precision, slice: usize) -> Vec<Vec<u32>> {
    let kv_type = precision.kv_type();
    let runner = WindowRunner::new(model.clone(), choice(members), precision, kv_type, 128, slice);
    let mut runner = runner.unwrap();
    assert_eq!(runner.forward().members(), members);
    let tokens: Vec<TokenId> = (0..TOKENS as u32).map(|at| TokenId(at * 7 % 600)).collect();
    // The second pass runs what the first has recorded.
    let [first, second] = [0, 1].map(|_| runner.logits(&tokens, 0).unwrap());
    assert_eq!(first, second, "{members} members, slices of {slice}");
    first.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
}

/// Runs test `name` again in a process of its own where software devices run their work inline: the
/// driver reads that from the environment when it starts. Gives whether this process is that one.
fn runs_inline(name: &str) -> bool {
    if software_threads() == SoftwareThreads::Inline {
        return true;
    }
    let test = format!("{}::{name}", module_path!().split_once("::").expect("a crate's module").1);
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &test, "--nocapture"]).env("LP_NUM_THREADS", "0");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{test} was not found");
    false
}

/// Whether the device that `None` takes can be grouped; says so where it cannot.
fn can_be_grouped() -> bool {
    let obstacle = match Member::open(&choice(1)) {
        Ok(member) => grouping_obstacle(&member),
        Err(VulkanError::PackUnsupported { reason, .. }) => Some(reason),
        Err(error) => panic!("{error}"),
    };
    if let Some(obstacle) = &obstacle {
        println!("skipped: {obstacle}");
    }
    obstacle.is_none()
}

#[test]
fn members_that_share_a_model_give_the_bits_of_one() {
    if !runs_inline("members_that_share_a_model_give_the_bits_of_one") || !can_be_grouped() {
        return;
    }
    for (architecture, tensor_type, precision) in
        [("llama", TensorType::Q4_1, Precision::Default), ("gemma3", TensorType::Q6_K, Precision::Precise)]
    {
        let model = model(architecture, tensor_type);
        let alone = bits(&model, 1, precision, 16);
        for slice in [16, 1] {
            let together = bits(&model, 2, precision, slice);
            assert!(together == alone, "{architecture}, {precision:?}, slices of {slice} rows");
        }
    }
}

#[test]
fn a_group_that_cannot_be_is_refused() {
    let choice = DeviceChoice { members: Some(2), pack: Some(Pack::Subgroup), ..DeviceChoice::of_tests() };
    let model = model("llama", TensorType::Q8_0);
    let error = WindowRunner::new(model, choice, Precision::Default, KvType::F16, 32, 8).err();
    let Some(EngineError::Vulkan(VulkanError::Ungroupable { members: 2, reason })) = error else {
        panic!("{error:?}");
    };
    assert_eq!(reason, "only the cpu kernel pack is split over members, not subgroup");
}

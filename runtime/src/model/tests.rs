//! Tests of the descriptions against the real model files.

use std::path::PathBuf;

use super::*;

/// Opens a model of the `models` folder, or says that it is skipped.
pub(crate) fn open(file: &str) -> Option<Model> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models").join(file);
    if !path.exists() {
        eprintln!("skipped: models/{file} is missing");
        return None;
    }
    Some(Model::open(path).unwrap())
}

/// Holds the sizes of a real model to `expected`: layers, hidden, heads, KV heads, head size,
/// feed-forward, vocabulary, context.
#[track_caller]
fn check(file: &str, architecture: &str, expected: [usize; 8]) -> Option<Model> {
    let model = open(file)?;
    let description = model.description();
    assert_eq!(description.architecture, architecture);
    let found = [
        description.layers.len(),
        description.hidden,
        description.heads,
        description.kv_heads,
        description.head_dim,
        description.feed_forward,
        description.vocabulary,
        description.context,
    ];
    assert_eq!(found, expected);
    Some(model)
}

#[test]
fn smollm2_is_a_llama_with_a_tied_head() {
    let sizes = [30, 576, 9, 3, 64, 1536, 49152, 8192];
    let Some(model) = check("SmolLM2-135M-Instruct.Q4_1.gguf", "llama", sizes) else { return };
    let description = model.description();
    assert!(description.tied_head);
    assert_eq!(description.activation, Activation::Silu);
    assert_eq!(description.attention_scale, 0.125);
    let layer = &description.layers[29];
    assert_eq!((layer.window, layer.qk_norm, layer.qkv_bias, layer.post_norms), (None, false, false, false));
    assert_eq!((layer.rope.style, layer.rope.dims, layer.rope.magnitude), (RopeStyle::Interleaved, 64, 1.0));
    assert!((layer.rope.inverse_frequencies[16] - 100_000.0_f32.powf(-0.5)).abs() < 1e-9);
}

#[test]
fn gemma3_has_a_window_and_a_base_of_its_own_on_five_of_six_layers() {
    let sizes = [18, 640, 4, 1, 256, 2048, 262_144, 32_768];
    let Some(model) = check("gemma-3-270m-q4_k_m.gguf", "gemma3", sizes) else { return };
    let description = model.description();
    assert_eq!(description.activation, Activation::GeluTanh);
    assert_eq!(description.attention_scale, 0.0625);
    assert_eq!(description.embedding_scale, Some(640.0_f32.sqrt()));
    for (index, layer) in description.layers.iter().enumerate() {
        let global = [5, 11, 17].contains(&index);
        assert_eq!(layer.window, (!global).then_some(512), "layer {index}");
        let base: f32 = if global { 1_000_000.0 } else { 10_000.0 };
        assert!((layer.rope.inverse_frequencies[64] - base.powf(-0.5)).abs() < 1e-8, "layer {index}");
        assert!(layer.qk_norm && layer.post_norms && layer.rope.style == RopeStyle::Split);
    }
}

#[test]
fn qwen2_has_biases_and_a_head_of_its_own() {
    let sizes = [24, 896, 14, 2, 64, 4864, 151_936, 32_768];
    let Some(model) = check("qwen2.5-coder-0.5b-instruct.gguf", "qwen2", sizes) else { return };
    assert!(!model.description().tied_head);
    assert!(model.layers().iter().all(|layer| layer.biases.is_some()));
    assert!(model.description().layers.iter().all(|layer| layer.rope.style == RopeStyle::Split));
}

#[test]
fn an_embedding_is_its_row_of_the_table_scaled() {
    let Some(model) = open("gemma-3-270m-q4_k_m.gguf") else { return };
    let mut embedding = vec![0.0; 640];
    model.embed(TokenId(1000), &mut embedding);
    let table = model.floats(&model.tensors().embedding);
    let expected: Vec<f32> =
        table[640_000..640_640].iter().map(|element| element * 640.0_f32.sqrt()).collect();
    assert_eq!(embedding, expected);
}

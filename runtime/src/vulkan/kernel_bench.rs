//! Single kernels of the forward pass, ready to run again and again: what `benches/kernels.rs` measures.
//!
//! Matrices stand alone. All else is a layer of a random model that is as wide as SmolLM2-135M's, whose KV cache
//! is filled by one step.

use super::device::DeviceChoice;
use super::error::VulkanError;
use super::forward::{Forward, ForwardOptions, KvType, Precision};
use super::group::{Group, GroupPipelines, GroupRecorder, Meetings, Program};
use super::matrix::{Activations, Matrix};
use super::pace::Team;
use super::repack::SourceRows;
use super::step::{RowLogits, StepLane};
use crate::ids::{PageId, TokenId};
use crate::model::Model;
use crate::quant::TensorType;
use crate::session::LengthSlot;
use crate::synth::{SynthSettings, write_synth};
use crate::vulkan::buffers::Home;
use lavalane_shaders::{PAGE_TOKENS, TILE_ROWS};

/// How often a program runs its kernel, one after another: enough to make nothing of a submission's own cost.
pub const RUNS: usize = 16;

/// The most rows of a step that is looked at.
const ROWS_MAX: usize = 512;

/// A kernel of a layer beside its matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKernel {
    /// The norm before attention.
    Norm,
    /// The feed-forward's activation.
    Activation,
    /// The rotation of queries and keys, and keys and values put into the cache.
    RopeAppend,
    /// Attention.
    Attention,
}

/// A matrix with room for its inputs and outputs.
pub struct MatrixBench {
    group: Group,
    matrix: Matrix,
}

/// A layer whose cache is filled.
pub struct LayerBench {
    forward: Forward,
    rows: usize,
}

/// A kernel, recorded [`RUNS`] times.
pub struct ReadyKernel<'a> {
    group: &'a Group,
    program: Program,
}

impl ReadyKernel<'_> {
    /// Runs it to its end.
    ///
    /// # Panics
    /// The device fails.
    pub fn run(&self) {
        while self.group.run(&self.program).expect("the device computes") == Meetings::Missed {}
    }
}

fn ready(
    group: &Group,
    mut record: impl FnMut(&mut GroupRecorder<'_>),
) -> Result<ReadyKernel<'_>, VulkanError> {
    let mut recorder = group.record(Team::All)?;
    for _ in 0..RUNS {
        record(&mut recorder);
        recorder.barrier();
    }
    Ok(ReadyKernel { group, program: recorder.finish()? })
}

impl MatrixBench {
    /// A matrix of zeros, for at most `tokens_max` tokens. `columns` must be whole blocks of the type.
    ///
    /// # Errors
    /// There is no device, or it refuses.
    pub fn new(
        tensor_type: TensorType,
        columns: usize,
        rows: usize,
        tokens_max: usize,
    ) -> Result<Self, VulkanError> {
        let group = Group::open(&DeviceChoice::of_tests())?;
        let tokens = tokens_max.next_multiple_of(TILE_ROWS);
        let input = Activations::new(&group, tokens, columns, Home::Device)?;
        for region in [&input.codes, &input.scales, &input.values] {
            group.upload(region, 0, &vec![0; region.first().size() as usize])?;
        }
        let output = group.region("a matrix's output", rows * tokens * 4, Home::Device)?;
        let bytes = vec![0; columns * rows / tensor_type.block_weights() * tensor_type.block_bytes()];
        let sources = [SourceRows { tensor_type, bytes: &bytes, rows }];
        let mut pipelines = GroupPipelines::default();
        let precision = Precision::Default;
        let matrix = Matrix::new(&group, &mut pipelines, &sources, columns, precision, &input, &output)?;
        Ok(Self { group, matrix })
    }

    /// Multiplying `tokens` tokens.
    ///
    /// # Errors
    /// The device refuses.
    pub fn multiply(&self, tokens: usize) -> Result<ReadyKernel<'_>, VulkanError> {
        ready(&self.group, |recorder| self.matrix.multiply(recorder, tokens))
    }
}

impl LayerBench {
    /// A layer for steps of `rows` rows that begin at position `from`.
    ///
    /// # Errors
    /// There is no device, or it refuses.
    ///
    /// # Panics
    /// The random model cannot be written to the folder for temporary files.
    pub fn new(rows: usize, from: usize) -> Result<Self, VulkanError> {
        let model = random_model();
        let tokens = from + rows;
        let pages = tokens.div_ceil(PAGE_TOKENS);
        let options = ForwardOptions {
            choice: DeviceChoice::of_tests(),
            precision: Precision::Default,
            kv_type: KvType::F16,
            rows_max: ROWS_MAX.max(rows),
            lanes_max: 1,
            context_tokens: tokens,
            pages,
            layers: None,
        };
        let mut forward = Forward::new(&model, &options)?;
        while forward.prepare()? {}
        let pages: Vec<PageId> = (0..pages as u32).map(PageId).collect();
        let all: Vec<TokenId> = (0..tokens as u32).map(|at| TokenId(at % 256)).collect();
        // The last step's rows and page table stay in the buffers.
        let (before, last) = all.split_at(from);
        let mut position = 0;
        for slice in before.chunks(ROWS_MAX).chain([last]) {
            let hidden = model.embed_all(slice);
            let (slot, logits) = (LengthSlot(0), RowLogits::None);
            forward.step(&[], &[StepLane { slot, position, pages: &pages, hidden, logits }])?;
            position += slice.len();
        }
        Ok(Self { forward, rows })
    }

    /// One of the layer's kernels.
    ///
    /// # Errors
    /// The device refuses.
    pub fn kernel(&self, kernel: LayerKernel) -> Result<ReadyKernel<'_>, VulkanError> {
        let (forward, rows) = (&self.forward, self.rows);
        ready(&forward.group, |recorder| match kernel {
            LayerKernel::Norm => forward.record_first_norm(recorder, rows),
            LayerKernel::Activation => forward.record_gate(recorder, &forward.layers[0], rows),
            LayerKernel::RopeAppend => forward.record_rope_append(recorder, 0, rows),
            LayerKernel::Attention => {
                forward.record_attending(recorder, 0, rows, rows / forward.shape.tile_rows)
            }
        })
    }
}

/// One layer as wide as SmolLM2-135M's.
fn random_model() -> Model {
    let settings = SynthSettings {
        architecture: "llama".to_owned(),
        layers: 1,
        hidden: 576,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        feed_forward: 1536,
        vocabulary: 1024,
        context: 8192,
        tensor_type: TensorType::Q4_1,
        seed: 0,
    };
    let path = std::env::temp_dir().join(format!("lavalane-kernels-{}.gguf", std::process::id()));
    write_synth(&settings, &path).expect("the folder for temporary files takes a model");
    let model = Model::open(&path).expect("what was written is a model");
    std::fs::remove_file(&path).expect("it was there");
    model
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_runs() {
        let matrix = MatrixBench::new(TensorType::Q4_K, 256, 40, 8).expect("there is a device");
        for tokens in [1, 8] {
            matrix.multiply(tokens).expect("it is recorded").run();
        }
        let layer = LayerBench::new(3, 40).expect("there is a device");
        use LayerKernel::{Activation, Attention, Norm, RopeAppend};
        for kernel in [Norm, Activation, RopeAppend, Attention] {
            layer.kernel(kernel).expect("it is recorded").run();
        }
    }
}

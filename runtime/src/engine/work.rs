//! What a step has to do at the least, by kind of stage: bytes moved and operations computed. With the times of a
//! profile this tells how far a kernel is from what the machine can do.

use crate::gguf::TensorInfo;
use crate::model::{LayerTensors, Model};
use crate::vulkan::KvType;

/// The least that one kind of stage does in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Bytes read and written: weights as the file holds them, each once, and activations as f32.
    pub bytes: f64,
    /// Multiplications and additions.
    pub operations: f64,
}

/// A step of rows of one sequence, of which the last has its logits computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRows {
    /// How many rows.
    pub rows: usize,
    /// The first row's position.
    pub from: usize,
    /// The KV cache's element type.
    pub kv_type: KvType,
}

/// Bytes of an f32.
const FLOAT: f64 = 4.0;

impl StepRows {
    /// The work of all stages of this name, as a profile names them; `None` for one that is not known here.
    pub fn work(self, model: &Model, stage: &str) -> Option<Work> {
        let description = model.description();
        let rows = self.rows as f64;
        let layers = description.layers.len() as f64;
        let (hidden, feed_forward) = (description.hidden as f64, description.feed_forward as f64);
        let queries = (description.heads * description.head_dim) as f64;
        let keys = (description.kv_heads * description.head_dim) as f64;
        let kv_bytes = self.kv_type.bytes() as f64;
        let matrices = |of: fn(&LayerTensors) -> Vec<&TensorInfo>| {
            model.layers().iter().map(|layer| matmul(&of(layer), rows)).fold(Work::default(), Work::plus)
        };
        Some(match stage {
            "matmul: queries, keys, values" => matrices(|layer| vec![&layer.query, &layer.key, &layer.value]),
            "matmul: attention output" => matrices(|layer| vec![&layer.attention_output]),
            "matmul: gate, up" => matrices(|layer| vec![&layer.gate, &layer.up]),
            "matmul: down" => matrices(|layer| vec![&layer.down]),
            "matmul: head" => matmul(&[&model.tensors().output], 1.0),
            // Each but the first adds what comes from a matrix; the last is for the one row with logits.
            "norm" => {
                let values = hidden * (2.0 * layers * rows + 1.0);
                Work { bytes: 4.0 * FLOAT * values, operations: 5.0 * values }
            }
            "activation" => {
                let values = layers * rows;
                Work {
                    bytes: FLOAT * values * (3.0 * feed_forward + 2.0 * queries),
                    operations: values * (4.0 * feed_forward + queries),
                }
            }
            "RoPE and KV append" => {
                let moved = FLOAT * (2.0 * queries + 2.0 * keys) + 2.0 * keys * kv_bytes;
                Work { bytes: layers * rows * moved, operations: layers * rows * 3.0 * (queries + keys) }
            }
            "attention" => {
                let mut work = Work::default();
                for layer in &description.layers {
                    let window = layer.window.unwrap_or(usize::MAX);
                    let end = self.from + self.rows;
                    let seen: usize = (self.from + 1..=end).map(|tokens| tokens.min(window)).sum();
                    let read = end.min(window.saturating_add(self.rows - 1)) as f64;
                    work = work.plus(Work {
                        bytes: read * 2.0 * keys * kv_bytes + rows * 2.0 * queries * FLOAT,
                        operations: 4.0 * queries * seen as f64,
                    });
                }
                work
            }
            _ => return None,
        })
    }
}

impl Work {
    fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, operations: self.operations + other.operations }
    }
}

/// Multiplying `rows` rows of activations by matrices with the same input.
fn matmul(matrices: &[&TensorInfo], rows: f64) -> Work {
    let outputs: f64 = matrices.iter().map(|matrix| matrix.rows() as f64).sum();
    let weights: f64 = matrices.iter().map(|matrix| matrix.bytes() as f64).sum();
    let inputs = matrices.first().map_or(0.0, |matrix| matrix.row_elements() as f64);
    Work { bytes: weights + FLOAT * rows * (inputs + outputs), operations: 2.0 * rows * inputs * outputs }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::TensorType;
    use crate::synth::{SynthSettings, write_synth};

    #[test]
    fn work_is_counted_by_hand() {
        let path = std::env::temp_dir().join(format!("lavalane-work-{}.gguf", std::process::id()));
        let settings = SynthSettings {
            architecture: "llama".to_owned(),
            layers: 2,
            hidden: 64,
            heads: 2,
            kv_heads: 1,
            head_dim: 32,
            feed_forward: 96,
            vocabulary: 700,
            context: 512,
            tensor_type: TensorType::Q8_0,
            seed: 0,
        };
        write_synth(&settings, &path).expect("it is written");
        let model = Model::open(&path).expect("it is a model");
        std::fs::remove_file(&path).expect("it was there");
        let step = StepRows { rows: 3, from: 10, kv_type: KvType::F16 };
        let check = |stage: &str, bytes: usize, operations: usize| {
            let expected = Work { bytes: bytes as f64, operations: operations as f64 };
            assert_eq!(step.work(&model, stage), Some(expected), "{stage}");
        };
        // 34 bytes hold 32 weights; 2 layers, 3 rows.
        check("matmul: down", 2 * (64 * 96 / 32 * 34 + 4 * 3 * (96 + 64)), 2 * 2 * 3 * 96 * 64);
        check("matmul: gate, up", 2 * (2 * 64 * 96 / 32 * 34 + 4 * 3 * (64 + 192)), 2 * 2 * 3 * 64 * 192);
        // Rows at positions 10, 11 and 12 see 11, 12 and 13 tokens.
        check("attention", 2 * (13 * 2 * 32 * 2 + 3 * 2 * 64 * 4), 2 * 4 * 64 * (11 + 12 + 13));
        assert_eq!(step.work(&model, "another"), None);
    }
}

//! What a step has to do at the least, by kind of stage: bytes moved and operations computed. With the times of a
//! profile this tells how far a kernel is from what the machine can do, and with rates, how far whole steps are.

use crate::gguf::TensorInfo;
use crate::model::{LayerTensors, Model};
use crate::vulkan::KvType;
use crate::vulkan::roofline::Roofline;

/// The least that one kind of stage does in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Bytes read and written: weights as the file holds them, each once, and activations as f32.
    pub bytes: f64,
    /// Multiplications and additions.
    pub operations: f64,
}

/// A step of sequences that have as many rows each, of which the last has its logits computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRows {
    /// How many sequences.
    pub sequences: usize,
    /// How many rows of each sequence.
    pub rows: usize,
    /// Each sequence's first row's position.
    pub from: usize,
    /// The KV cache's element type.
    pub kv_type: KvType,
}

/// Bytes of an f32.
const FLOAT: f64 = 4.0;

/// Every kind of stage that a step has, as a profile names them.
const STAGES: [&str; 9] = [
    "matmul: queries, keys, values",
    "matmul: attention output",
    "matmul: gate, up",
    "matmul: down",
    "matmul: head",
    "norm",
    "activation",
    "RoPE and KV append",
    "attention",
];

impl StepRows {
    /// The work of all stages of this name, as a profile names them; `None` for one that is not known here.
    pub fn work(self, model: &Model, stage: &str) -> Option<Work> {
        let description = model.description();
        let sequences = self.sequences as f64;
        let rows = sequences * self.rows as f64;
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
            "matmul: head" => matmul(&[&model.tensors().output], sequences),
            // Each but the first adds what comes from a matrix; the last is for the rows with logits.
            "norm" => {
                let values = hidden * (2.0 * layers * rows + sequences);
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
                        bytes: sequences * read * 2.0 * keys * kv_bytes + rows * 2.0 * queries * FLOAT,
                        operations: sequences * 4.0 * queries * seen as f64,
                    });
                }
                work
            }
            _ => return None,
        })
    }

    /// The least seconds that the step takes, its stages one after another, on a device with these ceilings.
    pub fn seconds_min(self, model: &Model, roofline: &Roofline) -> f64 {
        let works = STAGES.iter().filter_map(|stage| self.work(model, stage));
        works.map(|work| roofline.seconds(work.bytes, work.operations)).sum()
    }
}

/// The rates that a model cannot go beyond on a device, by its roofline.
#[derive(Clone, Copy)]
pub struct RateCeilings<'a> {
    /// The model.
    pub model: &'a Model,
    /// The KV cache's element type.
    pub kv_type: KvType,
    /// The device's ceilings.
    pub roofline: Roofline,
}

impl RateCeilings<'_> {
    /// Tokens per second of feeding one prompt of `tokens` tokens in slices of `slice`.
    ///
    /// # Panics
    /// When `slice` is 0.
    pub fn prefill(&self, tokens: usize, slice: usize) -> f64 {
        let slices = (0..tokens).step_by(slice);
        let seconds = slices.map(|from| self.seconds_min(1, slice.min(tokens - from), from));
        tokens as f64 / seconds.sum::<f64>()
    }

    /// Tokens per second, over all lanes, of decoding `steps` tokens on each of `lanes` lanes after `from` tokens.
    pub fn decode(&self, lanes: usize, from: usize, steps: usize) -> f64 {
        let seconds = (from..from + steps).map(|from| self.seconds_min(lanes, 1, from));
        (lanes * steps) as f64 / seconds.sum::<f64>()
    }

    fn seconds_min(&self, sequences: usize, rows: usize, from: usize) -> f64 {
        let step = StepRows { sequences, rows, from, kv_type: self.kv_type };
        step.seconds_min(self.model, &self.roofline)
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
    use crate::engine::WindowRunner;
    use crate::ids::TokenId;
    use crate::quant::TensorType;
    use crate::synth::{SynthSettings, write_synth};
    use crate::vulkan::{DeviceChoice, Precision};
    use std::sync::Arc;

    /// A small model, whose file is gone again.
    fn model(name: &str) -> Model {
        let path = std::env::temp_dir().join(format!("lavalane-work-{name}-{}.gguf", std::process::id()));
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
        model
    }

    #[test]
    fn work_is_counted_by_hand() {
        let model = model("counted");
        let step = StepRows { sequences: 1, rows: 3, from: 10, kv_type: KvType::F16 };
        let check = |step: StepRows, stage: &str, bytes: usize, operations: usize| {
            let expected = Work { bytes: bytes as f64, operations: operations as f64 };
            assert_eq!(step.work(&model, stage), Some(expected), "{stage}");
        };
        // 34 bytes hold 32 weights; 2 layers, 3 rows.
        check(step, "matmul: down", 2 * (64 * 96 / 32 * 34 + 4 * 3 * (96 + 64)), 2 * 2 * 3 * 96 * 64);
        check(
            step,
            "matmul: gate, up",
            2 * (2 * 64 * 96 / 32 * 34 + 4 * 3 * (64 + 192)),
            2 * 2 * 3 * 64 * 192,
        );
        // Rows at positions 10, 11 and 12 see 11, 12 and 13 tokens.
        check(step, "attention", 2 * (13 * 2 * 32 * 2 + 3 * 2 * 64 * 4), 2 * 4 * 64 * (11 + 12 + 13));
        assert_eq!(step.work(&model, "another"), None);
        // Three sequences of one row each: as many rows, but each has logits and keys and values of its own.
        let apart = StepRows { sequences: 3, rows: 1, ..step };
        assert_eq!(apart.work(&model, "matmul: down"), step.work(&model, "matmul: down"));
        check(apart, "matmul: head", 64 * 700 / 32 * 34 + 4 * 3 * (64 + 700), 2 * 3 * 64 * 700);
        check(apart, "attention", 2 * 3 * (11 * 2 * 32 * 2 + 2 * 64 * 4), 2 * 3 * 4 * 64 * 11);
    }

    #[test]
    fn ceilings_of_rates_add_up_the_least_time_of_every_step() {
        let model = model("ceilings");
        // Only operations cost anything here: those of all stages, one after another.
        let roofline = Roofline { bytes_per_second: f64::INFINITY, operations_per_second: 1.0 };
        let ceilings = RateCeilings { model: &model, kv_type: KvType::F16, roofline };
        let operations = |step: StepRows| {
            let works = STAGES.iter().map(|stage| step.work(&model, stage).expect("it is known"));
            works.map(|work| work.operations).sum::<f64>()
        };
        let step = |sequences, rows, from| StepRows { sequences, rows, from, kv_type: KvType::F16 };
        let whole = operations(step(1, 8, 0)) + operations(step(1, 2, 8));
        assert_eq!(ceilings.prefill(10, 8), 10.0 / whole);
        let both = operations(step(4, 1, 20)) + operations(step(4, 1, 21));
        assert_eq!(ceilings.decode(4, 20, 2), 8.0 / both);
    }

    #[test]
    fn the_stages_of_a_profile_are_those_that_work_is_known_of() {
        let model = Arc::new(model("profiled"));
        let choice = DeviceChoice::of_tests();
        let runner = WindowRunner::new(model, choice, Precision::Default, KvType::F16, 32, 32);
        let mut runner = runner.expect("there is a device");
        let times = runner.profile(&[TokenId(1), TokenId(2)], 0).expect("it takes timestamps");
        let mut found: Vec<&str> = times.iter().map(|time| time.name).collect();
        let mut known = STAGES.to_vec();
        found.sort_unstable();
        known.sort_unstable();
        assert_eq!(found, known);
    }
}

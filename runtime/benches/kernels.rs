//! The time of each kernel by shape, on the device that is chosen where nothing is said: 16 runs one after another,
//! as in a step. The shapes are those of SmolLM2-135M.
//!
//! `make bench-kernels ARGS=attention` measures some of them.

use divan::Bencher;
use divan::counter::ItemsCount;
use lavalane_runtime::quant::TensorType;
use lavalane_runtime::vulkan::kernel_bench::{LayerBench, LayerKernel, MatrixBench, RUNS};

fn main() {
    // Before any thread starts, because it sets a variable that drivers read.
    lavalane_runtime::vulkan::set_up_software_devices();
    divan::main();
}

/// One type for each way in which matrices are stored.
const TYPES: [TensorType; 9] = [
    TensorType::Q4_1,
    TensorType::Q4_K,
    TensorType::Q2_K,
    TensorType::Q8_0,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::F16,
    TensorType::BF16,
    TensorType::F32,
];

/// A matrix by its name, columns and rows.
const QUERIES_KEYS_VALUES: (&str, usize, usize) = ("queries, keys, values", 576, 960);
const OUTPUT: (&str, usize, usize) = ("attention output", 576, 576);
const GATE_UP: (&str, usize, usize) = ("gate, up", 576, 3072);
const DOWN: (&str, usize, usize) = ("down", 1536, 576);
const HEAD: (&str, usize, usize) = ("head", 576, 49152);

/// A matrix times tokens.
#[derive(Clone, Copy)]
struct Multiplication {
    name: &'static str,
    tensor_type: TensorType,
    columns: usize,
    rows: usize,
    tokens: usize,
}

impl std::fmt::Display for Multiplication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}, {} tokens", self.name, self.tensor_type.name(), self.tokens)
    }
}

/// All shapes for the type that they have in the default model, and one for each other type.
fn multiplications() -> Vec<Multiplication> {
    let mut all = Vec::new();
    let mut add = |(name, columns, rows), tensor_type: TensorType| {
        let fitting = [1, 8].into_iter().filter(|_| columns % tensor_type.block_weights() == 0);
        all.extend(fitting.map(|tokens| Multiplication { name, tensor_type, columns, rows, tokens }));
    };
    for shape in [QUERIES_KEYS_VALUES, OUTPUT, GATE_UP, HEAD] {
        add(shape, TensorType::Q4_1);
    }
    // Its columns are whole blocks of all types.
    TYPES.into_iter().for_each(|tensor_type| add(DOWN, tensor_type));
    add(HEAD, TensorType::Q8_0);
    all
}

#[divan::bench(args = multiplications(), sample_count = 20, sample_size = 1)]
fn matmul(bencher: Bencher<'_, '_>, case: Multiplication) {
    let matrix = MatrixBench::new(case.tensor_type, case.columns, case.rows, case.tokens);
    let matrix = matrix.expect("there is a Vulkan device");
    let kernel = matrix.multiply(case.tokens).expect("the kernel is recorded");
    kernel.run();
    bencher.counter(ItemsCount::new(RUNS)).bench_local(|| kernel.run());
}

fn layer(bencher: Bencher<'_, '_>, kernel: LayerKernel, rows: usize, from: usize) {
    let layer = LayerBench::new(rows, from).expect("there is a Vulkan device");
    let kernel = layer.kernel(kernel).expect("the kernel is recorded");
    kernel.run();
    bencher.counter(ItemsCount::new(RUNS)).bench_local(|| kernel.run());
}

#[divan::bench(args = [1, 8, 128], sample_count = 20, sample_size = 1)]
fn norm(bencher: Bencher<'_, '_>, rows: usize) {
    layer(bencher, LayerKernel::Norm, rows, 0);
}

#[divan::bench(args = [1, 8, 128], sample_count = 20, sample_size = 1)]
fn activation(bencher: Bencher<'_, '_>, rows: usize) {
    layer(bencher, LayerKernel::Activation, rows, 0);
}

#[divan::bench(args = [1, 8, 128], sample_count = 20, sample_size = 1)]
fn rope_append(bencher: Bencher<'_, '_>, rows: usize) {
    layer(bencher, LayerKernel::RopeAppend, rows, 0);
}

/// By rows and the first row's position.
#[divan::bench(args = [(1, 128), (1, 1000), (1, 4000), (8, 128), (128, 0), (128, 1000)], sample_count = 20, sample_size = 1)]
fn attention(bencher: Bencher<'_, '_>, (rows, from): (usize, usize)) {
    layer(bencher, LayerKernel::Attention, rows, from);
}

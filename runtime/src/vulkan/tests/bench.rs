//! What the kernel tests share: an open device, buffers full of garbage, and activations put into and taken
//! out of their layout.

use crate::vulkan::buffers::{Home, read};
use crate::vulkan::device::{DeviceChoice, DeviceReport, Member, Pack};
use crate::vulkan::error::VulkanError;
use crate::vulkan::forward::{STORE_INT8, STORE_INT16};
use crate::vulkan::group::{Group, GroupPipelines, GroupRecorder};
use crate::vulkan::matrix::Activations;
use crate::vulkan::pace::Team;
use crate::vulkan::pipelines::{Binding, Pipelines, Specialised};
use crate::vulkan::recorder::Recorder;
use crate::vulkan::region::Region;
use lavalane_shaders::twins::store_activations::{CodeBlock, blocks_of, store_codes};
use lavalane_shaders::{BLOCK, InputKind, Kernel, Reads, TILE_ROWS};
use vulkano::buffer::{BufferContents, Subbuffer};
use vulkano::format::Format;

/// A byte that makes NaN of every float and -1 of every code.
const GARBAGE: u8 = 0xff;

/// A device with its pipelines, as a group of one.
pub(super) struct Bench {
    pub(super) group: Group,
    pub(super) pipelines: Pipelines,
    pub(super) group_pipelines: GroupPipelines,
}

impl Bench {
    /// Runs `test` for each pack that the device can run.
    pub(super) fn for_each_pack(mut test: impl FnMut(&mut Self)) {
        for pack in Pack::ALL {
            match Member::open(&DeviceChoice { pack: Some(pack), ..DeviceChoice::of_tests() }) {
                Ok(member) => {
                    let DeviceReport { name, kind, .. } = &member.report;
                    println!("tested: the {} pack on {name} ({kind})", pack.name());
                    test(&mut Self {
                        group: Group::single(member),
                        pipelines: Pipelines::default(),
                        group_pipelines: GroupPipelines::default(),
                    });
                }
                Err(error @ VulkanError::PackUnsupported { .. }) => println!("skipped: {error}"),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The device.
    pub(super) fn member(&self) -> &Member {
        self.group.first()
    }

    /// By what the pack's kernels read values.
    pub(super) fn reads(&self) -> Reads {
        self.member().pack.reads()
    }

    /// A buffer of f32 as the pack's kernels read it.
    pub(super) fn floats(&self, buffer: &Subbuffer<[u8]>) -> Binding {
        match self.reads() {
            Reads::Texels => self.texels(buffer, Format::R32G32B32A32_SFLOAT),
            Reads::Storage => Binding::Storage(buffer.clone()),
        }
    }

    /// A buffer as texels.
    pub(super) fn texels(&self, buffer: &Subbuffer<[u8]>, format: Format) -> Binding {
        Binding::Texels(self.member().view(buffer, format).unwrap())
    }

    /// The codes that the pack keeps activations in.
    pub(super) fn codes(&self) -> Codes {
        Codes::of(self.member().pack)
    }

    /// A buffer of `bytes` bytes of garbage.
    pub(super) fn garbage(&self, bytes: usize) -> Subbuffer<[u8]> {
        self.filled(&vec![GARBAGE; bytes])
    }

    /// A buffer that holds `values`.
    pub(super) fn filled<T: bytemuck::NoUninit>(&self, values: &[T]) -> Subbuffer<[u8]> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let buffer = self.member().buffer("a test's buffer", bytes.len(), Home::Readback).unwrap();
        self.member().upload(&buffer, 0, bytes).unwrap();
        buffer
    }

    /// Activation buffers for `rows` rows of `width` values, full of garbage.
    pub(super) fn activations(&self, rows: usize, width: usize) -> Activations {
        let blocks = rows.next_multiple_of(TILE_ROWS) * width.div_ceil(BLOCK);
        Activations {
            codes: Region::single(self.garbage(blocks * BLOCK * 2)),
            scales: Region::single(self.garbage(blocks * 16)),
            values: Region::single(self.garbage(blocks * BLOCK * 4)),
        }
    }

    /// Records and waits for the end.
    pub(super) fn run(&self, record: impl FnOnce(&mut Recorder)) {
        let mut recorder = self.member().record().unwrap();
        record(&mut recorder);
        self.member().submit(recorder).unwrap();
    }

    /// Records for the group and waits for the end.
    pub(super) fn run_group(&self, record: impl FnOnce(&mut GroupRecorder<'_>)) {
        let mut recorder = self.group.record(Team::All).unwrap();
        record(&mut recorder);
        self.group.run(&recorder.finish().unwrap()).unwrap();
    }

    /// Runs one kernel once.
    pub(super) fn dispatch<T: BufferContents + Copy>(
        &mut self,
        kernel: Kernel,
        constants: &[(u32, u32)],
        bindings: &[(u32, Binding)],
        push: T,
        groups: [usize; 3],
    ) {
        let what = Specialised { kernel, constants: constants.to_vec() };
        let kernel = self.pipelines.get(self.group.first(), what).unwrap();
        let set = self.member().set(&kernel, bindings).unwrap();
        self.run(|recorder| {
            recorder.dispatch(kernel.pipeline().unwrap(), &set, push, groups.map(|count| count as u32))
        });
    }
}

/// How a pack keeps activations.
#[derive(Clone, Copy)]
pub(super) struct Codes {
    /// int8 or int16.
    pub(super) kind: InputKind,
    /// The largest code.
    pub(super) most: i16,
    /// The flag of kernels that store them.
    pub(super) flag: u32,
    /// Codes of a texel.
    per_texel: usize,
}

impl Codes {
    pub(super) fn of(pack: Pack) -> Self {
        match pack {
            Pack::Cpu => Self { kind: InputKind::Int16, most: i16::MAX, flag: STORE_INT16, per_texel: 8 },
            Pack::Subgroup | Pack::Coopmat => {
                Self { kind: InputKind::Int8, most: i8::MAX.into(), flag: STORE_INT8, per_texel: 16 }
            }
        }
    }

    /// Texels of a block.
    fn parts(self) -> usize {
        BLOCK / self.per_texel
    }

    /// A texel's codes as bytes.
    fn bytes(self, codes: &[i16]) -> Vec<u8> {
        match self.kind {
            InputKind::Int16 => codes.iter().flat_map(|code| code.to_le_bytes()).collect(),
            _ => codes.iter().map(|&code| code as i8 as u8).collect(),
        }
    }

    /// A texel's codes out of its bytes.
    fn codes(self, bytes: &[u8]) -> Vec<i16> {
        match self.kind {
            InputKind::Int16 => {
                bytes.as_chunks::<2>().0.iter().map(|&bytes| i16::from_le_bytes(bytes)).collect()
            }
            _ => bytes.iter().map(|&byte| i16::from(byte as i8)).collect(),
        }
    }
}

/// Storage bindings numbered from 0.
pub(super) fn storage(buffers: &[&Subbuffer<[u8]>]) -> Vec<(u32, Binding)> {
    let numbered = (0..).zip(buffers);
    numbered.map(|(number, &buffer)| (number, Binding::Storage(buffer.clone()))).collect()
}

/// Where a block of a row lies; the layouts are those of `activations.glsl`.
struct Place {
    row: usize,
    blocks: usize,
    block: usize,
}

impl Place {
    /// The byte of a row's part of a block that is stored as `parts` texels.
    fn byte(&self, parts: usize, part: usize) -> usize {
        let block = self.row / TILE_ROWS * self.blocks + self.block;
        ((block * parts + part) * TILE_ROWS + self.row % TILE_ROWS) * 16
    }
}

/// Puts rows of `width` values into activation buffers, as codes and as f32.
pub(super) fn put_activations(activations: &Activations, kind: Codes, rows: &[Vec<f32>]) {
    let mut codes = activations.codes.first().write().unwrap();
    let mut scales = activations.scales.first().write().unwrap();
    let mut values = activations.values.first().write().unwrap();
    for (row, row_values) in rows.iter().enumerate() {
        let blocks = row_values.len().div_ceil(BLOCK);
        for (block, block_values) in blocks_of(row_values).enumerate() {
            let place = Place { row, blocks, block };
            let stored = store_codes(&block_values, kind.most);
            for (part, texel_codes) in stored.codes.chunks(kind.per_texel).enumerate() {
                let at = place.byte(kind.parts(), part);
                codes[at..at + 16].copy_from_slice(&kind.bytes(texel_codes));
            }
            let at = place.byte(1, 0);
            scales[at..at + 16].copy_from_slice(bytemuck::bytes_of(&stored.scales));
            for quad in 0..8 {
                let at = place.byte(8, quad);
                let four = &block_values[quad * 4..(quad + 1) * 4];
                values[at..at + 16].copy_from_slice(bytemuck::cast_slice(four));
            }
        }
    }
}

/// The f32 activations of a row of `width` values, padding included.
pub(super) fn take_values(activations: &Activations, row: usize, width: usize) -> Vec<f32> {
    let values = activations.values.first().read().unwrap();
    let blocks = width.div_ceil(BLOCK);
    let places = (0..blocks).flat_map(|block| (0..8).map(move |quad| (block, quad)));
    let texels = places.map(|(block, quad)| Place { row, blocks, block }.byte(8, quad));
    texels.flat_map(|at| bytemuck::pod_read_unaligned::<[f32; 4]>(&values[at..at + 16])).collect()
}

/// The codes of a row of `width` values.
pub(super) fn take_codes(activations: &Activations, kind: Codes, row: usize, width: usize) -> Vec<CodeBlock> {
    let codes = activations.codes.first().read().unwrap();
    let scales = activations.scales.first().read().unwrap();
    let blocks = width.div_ceil(BLOCK);
    let take = |block| {
        let place = Place { row, blocks, block };
        let texels = (0..kind.parts()).map(|part| place.byte(kind.parts(), part));
        let block_codes: Vec<i16> = texels.flat_map(|at| kind.codes(&codes[at..at + 16])).collect();
        let scale = place.byte(1, 0);
        let scales = bytemuck::pod_read_unaligned(&scales[scale..scale + 16]);
        CodeBlock { codes: block_codes.try_into().unwrap(), scales }
    };
    (0..blocks).map(take).collect()
}

/// Asserts that what a kernel stored as codes is what it stored as f32, rounded. A driver may divide less
/// than exactly, so a code may be the neighbour where the value lies half-way between two, as far as the
/// quotient's own rounding reaches.
pub(super) fn check_codes(activations: &Activations, kind: Codes, row: usize, width: usize, what: &str) {
    let values = take_values(activations, row, width);
    for (block, (stored, values)) in
        take_codes(activations, kind, row, width).iter().zip(values.as_chunks::<BLOCK>().0).enumerate()
    {
        let twin = store_codes(values, kind.most);
        let what = format!("{what}, row {row}, block {block}");
        for (k, (code, twin_code)) in stored.codes.into_iter().zip(twin.codes).enumerate() {
            let exact = f64::from(values[k]) / f64::from(twin.scales[0]).max(f64::MIN_POSITIVE);
            let reach = 1e-6 * f64::from(kind.most);
            let is_tie = ((exact - exact.trunc()).abs() - 0.5).abs() < reach.max(1e-4);
            assert!(
                code == twin_code || is_tie && code.abs_diff(twin_code) == 1,
                "{what}: code {k} is {code}, the twin's {twin_code} of {exact}"
            );
        }
        let sum =
            |from: usize| stored.codes[from..from + 16].iter().map(|&code| i32::from(code)).sum::<i32>();
        let scale = stored.scales[0];
        assert_near(scale, twin.scales[0], 4.0 * f32::EPSILON * twin.scales[0], &what);
        let sums = [sum(0), sum(16), sum(0) + sum(16)].map(|sum| scale * sum as f32);
        assert_eq!(stored.scales[1..], sums, "{what}: scaled sums of codes");
    }
}

/// Asserts that `found` lies within `tolerance` of `expected`.
#[track_caller]
pub(super) fn assert_near(found: f32, expected: f32, tolerance: f32, what: &str) {
    let apart = (f64::from(found) - f64::from(expected)).abs();
    assert!(apart <= f64::from(tolerance), "{what}: {found:e}, expected {expected:e} within {tolerance:e}");
}

/// The bits of f32 values at the start of a buffer.
pub(super) fn bits(buffer: &Subbuffer<[u8]>, count: usize) -> Vec<u32> {
    read(buffer, count).unwrap()
}

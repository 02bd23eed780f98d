// Writes one block of 32 activations of one row: as int8 or int16 codes with their scale, as f32, or in
// several of these ways. Needs buffers `codes` (uvec4[]), `scales` (vec4[]), `values` (vec4[]), and
// activations.glsl. A step stores codes of one kind only.
#define STORE_INT8 1u
#define STORE_FLOAT 2u
#define STORE_INT16 64u

// The quads of a block of a row that has `quads`: where the row ends within it, its last quad takes the place of those
// that do not count, so that all are read without a branch. All reads of a block come before what is computed: a read is
// a call in software drivers, and what is at work by then is put aside.
#define FOR_QUADS [[unroll]] for (uint i = 0u; i < 8u; i++)
uint place(uint quads, uint block, uint i) { return min(block * 8u + i, quads - 1u); }
bool counts(uint quads, uint block, uint i) { return block * 8u + i < quads; }

// A block's scale, alone and times the sums of its codes.
void store_scales(uint row, uint blocks, uint block, float scale, ivec2 half_sums) {
    precise vec4 sums = vec4(
        scale,
        scale * float(half_sums.x),
        scale * float(half_sums.y),
        scale * float(half_sums.x + half_sums.y));
    scales[scale_texel(row, blocks, block)] = sums;
}

ivec4 codes_of(vec4 block_values, float inverse) {
    precise vec4 scaled = block_values * inverse;
    return ivec4(roundEven(scaled));
}

int sum_of(ivec4 four) { return four.x + four.y + four.z + four.w; }

// A block's scale and what its values are multiplied by, from the largest magnitude among them. A block whose scale would
// be denormal is taken as zero: denormals slow CPUs down a lot.
void scale_by(uint kinds, float largest, out float scale, out float inverse) {
    bool empty = largest < 1.0e-30;
    float most = (kinds & STORE_INT16) != 0u ? 32767.0 : 127.0;
    precise float one_code = empty ? 0.0 : largest / most;
    precise float codes_per_one = empty ? 0.0 : most / largest;
    scale = one_code;
    inverse = codes_per_one;
}

// 8 int16 codes as they are stored.
uvec4 wide_codes(ivec4 first_codes, ivec4 last_codes) {
    uvec4 first = uvec4(first_codes), last = uvec4(last_codes);
    return uvec4(
        (first.x & 0xffffu) | (first.y << 16), (first.z & 0xffffu) | (first.w << 16),
        (last.x & 0xffffu) | (last.y << 16), (last.z & 0xffffu) | (last.w << 16));
}

float largest_of(vec4 four) { return max(max(four.x, four.y), max(four.z, four.w)); }

void store_block(uint kinds, uint row, uint blocks, uint block, vec4 block_values[8]) {
    if ((kinds & STORE_FLOAT) != 0u) {
        [[unroll]] for (uint quad = 0u; quad < 8u; quad++) values[value_texel(row, blocks, block, quad)] = block_values[quad];
    }
    if ((kinds & (STORE_INT8 | STORE_INT16)) == 0u) return;
    vec4 magnitudes = abs(block_values[0]);
    [[unroll]] for (uint quad = 1u; quad < 8u; quad++) magnitudes = max(magnitudes, abs(block_values[quad]));
    float scale, inverse;
    scale_by(kinds, largest_of(magnitudes), scale, inverse);
    ivec2 half_sums = ivec2(0);
    ivec4 block_codes[8];
    [[unroll]] for (uint quad = 0u; quad < 8u; quad++) {
        block_codes[quad] = codes_of(block_values[quad], inverse);
        half_sums[quad / 4u] += sum_of(block_codes[quad]);
    }
    if ((kinds & STORE_INT16) != 0u) {
        [[unroll]] for (uint quarter = 0u; quarter < 4u; quarter++) {
            codes[wide_code_texel(row, blocks, block, quarter)] =
                wide_codes(block_codes[quarter * 2u], block_codes[quarter * 2u + 1u]);
        }
    } else {
        [[unroll]] for (uint half_index = 0u; half_index < 2u; half_index++) {
            uvec4 packed;
            [[unroll]] for (uint word = 0u; word < 4u; word++) {
                uvec4 four = uvec4(block_codes[half_index * 4u + word]) & 255u;
                packed[word] = four.x | (four.y << 8) | (four.z << 16) | (four.w << 24);
            }
            codes[code_texel(row, blocks, block, half_index)] = packed;
        }
    }
    store_scales(row, blocks, block, scale, half_sums);
}

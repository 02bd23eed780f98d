#version 450
// Matrix times many rows of activations, by cooperative matrices of float16 that add in float32. Of weights and
// activations only the codes go in: whole numbers that float16 holds exactly, whose products over a block are below
// 2^24 and so exact in any order. What is added to a row's sum, and in which order, is what matmul_subgroup.comp
// adds (subgroup s takes the blocks s, s + SLICES, …): same row, same bits, by either kernel.
//
// A workgroup takes a group of ROWS output rows and a tile of TOKENS tokens; tokens beyond the last are zeros.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#include "activations.glsl"
#define BUNDLE_BITS 0
#include "weights.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint THREADS = 128u; // SLICES subgroups
layout(constant_id = 1) const uint SLICES = 4u;
// The device's shape: matrices of M by K times matrices of K by N.
layout(constant_id = 2) const uint M = 16u;
layout(constant_id = 3) const uint N = 16u;
layout(constant_id = 4) const uint K = 16u;
layout(constant_id = 5) const uint CODE_KIND = CODES_4BIT;
layout(constant_id = 6) const uint SCALE_KIND = SCALES_HALF;

const uint ROWS = 32u;
const uint TOKENS = 32u;
const uint BLOCK = 32u;
const uint HALF_BLOCK = BLOCK / 2u;
// From row to row of a tile of codes, in units of four: a block and some room, so that rows begin in different banks.
const uint STRIDE = BLOCK / 4u + 2u;

layout(set = 0, binding = 0) readonly buffer WeightCodes { uvec4 weight_codes[]; };
layout(set = 0, binding = 1) readonly buffer WeightScales { uint weight_scales[]; };
layout(set = 0, binding = 2) readonly buffer InputCodes { uvec4 input_codes[]; };
layout(set = 0, binding = 3) readonly buffer InputScales { vec4 input_scales[]; };
layout(set = 0, binding = 4) writeonly buffer Output { float result[]; };

layout(push_constant) uniform Push {
    uint blocks;
    uint rows;
    uint tokens;
    uint stride;
    uint offset;
    uint base_x; // the first workgroup of this member's share
    uint base_y;
} push;

// A block of each slice, as codes.
shared f16vec4 weight_tile[SLICES * ROWS * STRIDE];
shared f16vec4 input_tile[SLICES * TOKENS * STRIDE];
// Of each slice's block, four parts of all rows or tokens: see scales_of, and the scales of activations.glsl.
shared float weight_parts[SLICES * 4u * ROWS];
shared float input_parts[SLICES * 4u * TOKENS];
// The sums over the slices so far, token by token.
shared float sum_tile[TOKENS * ROWS];

#define Sum coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
#define Weights coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define Inputs coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB>

// Scale and minimum of each half of a block.
vec4 scales_of(uint group, uint block, uint row) {
    if (SCALE_KIND == SCALES_HALF) {
        uint quads = (push.blocks + 3u) / 4u;
        uint at = (ENTRY(group, block / 4u, quads) * ROWS + row) * 4u + block % 4u;
        return unpackHalf2x16(weight_scales[at]).xyxy;
    }
    if (SCALE_KIND == SCALES_FLOAT) {
        uint pairs = (push.blocks + 1u) / 2u;
        uint at = (ENTRY(group, block / 2u, pairs) * ROWS + row) * 4u + (block % 2u) * 2u;
        return uintBitsToFloat(uvec2(weight_scales[at], weight_scales[at + 1u])).xyxy;
    }
    uint at = (ENTRY(group, block, push.blocks) * ROWS + row) * 4u;
    return uintBitsToFloat(
        uvec4(weight_scales[at], weight_scales[at + 1u], weight_scales[at + 2u], weight_scales[at + 3u]));
}

f16vec4 nibbles_of(uint word) {
    return f16vec4(uvec4(word, word >> 4, word >> 8, word >> 12) & 15u);
}

f16vec4 bytes_of(uint word) {
    return f16vec4(ivec4(int(word << 24) >> 24, int(word << 16) >> 24, int(word << 8) >> 24, int(word) >> 24));
}

void load_weights(uint slice, uint lane, uint group, uint block) {
    for (uint row = lane; row < ROWS; row += gl_SubgroupSize) {
        uint to = (slice * ROWS + row) * STRIDE;
        if (CODE_KIND == CODES_4BIT) {
            uvec4 texel = weight_codes[ENTRY(group, block, push.blocks) * ROWS + row];
            [[unroll]] for (uint word = 0u; word < 4u; word++) {
                weight_tile[to + word * 2u] = nibbles_of(texel[word]);
                weight_tile[to + word * 2u + 1u] = nibbles_of(texel[word] >> 16);
            }
        } else {
            [[unroll]] for (uint half_index = 0u; half_index < 2u; half_index++) {
                uvec4 texel = weight_codes[ENTRY(group, block * 2u + half_index, push.blocks * 2u) * ROWS + row];
                [[unroll]] for (uint word = 0u; word < 4u; word++) {
                    weight_tile[to + half_index * 4u + word] = bytes_of(texel[word] ^ 0x80808080u);
                }
            }
        }
        vec4 parts = scales_of(group, block, row);
        [[unroll]] for (uint part = 0u; part < 4u; part++) {
            weight_parts[(slice * 4u + part) * ROWS + row] = parts[part];
        }
    }
}

void load_inputs(uint slice, uint lane, uint first_token, uint block) {
    for (uint index = lane; index < TOKENS * 2u; index += gl_SubgroupSize) {
        uint token = index / 2u, half_index = index % 2u;
        uvec4 texel = uvec4(0u);
        if (first_token + token < push.tokens) {
            texel = input_codes[code_texel(first_token + token, push.blocks, block, half_index)];
        }
        uint to = (slice * TOKENS + token) * STRIDE + half_index * 4u;
        [[unroll]] for (uint word = 0u; word < 4u; word++) input_tile[to + word] = bytes_of(texel[word]);
    }
    for (uint token = lane; token < TOKENS; token += gl_SubgroupSize) {
        vec4 parts = vec4(0.0);
        if (first_token + token < push.tokens) {
            parts = input_scales[scale_texel(first_token + token, push.blocks, block)];
        }
        [[unroll]] for (uint part = 0u; part < 4u; part++) {
            input_parts[(slice * 4u + part) * TOKENS + token] = parts[part];
        }
    }
}

// A part of the rows' scales: the same number along each row of the matrix.
Sum weight_part(uint slice, uint part, uint first_row) {
    Sum matrix;
    coopMatLoad(matrix, weight_parts, (slice * 4u + part) * ROWS + first_row, 0u, gl_CooperativeMatrixLayoutColumnMajor);
    return matrix;
}

// A part of the tokens' scales: the same number along each column of the matrix.
Sum input_part(uint slice, uint part, uint first_token) {
    Sum matrix;
    coopMatLoad(matrix, input_parts, (slice * 4u + part) * TOKENS + first_token, 0u, gl_CooperativeMatrixLayoutRowMajor);
    return matrix;
}

// Adds the products of half a block's codes.
Sum add_half(Sum dots, uint slice, uint first_row, uint first_token, uint half_index) {
    [[unroll]] for (uint k = 0u; k < HALF_BLOCK; k += K) {
        Weights weights;
        Inputs inputs;
        uint at = (half_index * HALF_BLOCK + k) / 4u;
        coopMatLoad(weights, weight_tile, (slice * ROWS + first_row) * STRIDE + at, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        coopMatLoad(inputs, input_tile, (slice * TOKENS + first_token) * STRIDE + at, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
        dots = coopMatMulAdd(weights, inputs, dots);
    }
    return dots;
}

// What a slice's block adds to the sums of M rows and N tokens.
Sum add_block(Sum sums, uint slice, uint first_row, uint first_token) {
    Sum first_dots = add_half(Sum(0.0), slice, first_row, first_token, 0u);
    Sum scales = weight_part(slice, 0u, first_row), minimums = weight_part(slice, 1u, first_row);
    Sum factors = input_part(slice, 0u, first_token);
    if (SCALE_KIND == SCALES_FLOAT_PER_16) {
        Sum last_dots = add_half(Sum(0.0), slice, first_row, first_token, 1u);
        Sum last_scales = weight_part(slice, 2u, first_row), last_minimums = weight_part(slice, 3u, first_row);
        Sum first_sums = input_part(slice, 1u, first_token), last_sums = input_part(slice, 2u, first_token);
        [[unroll]] for (uint at = 0u; at < sums.length(); at++) {
            precise float first = scales[at] * (factors[at] * first_dots[at]) + minimums[at] * first_sums[at];
            precise float last = last_scales[at] * (factors[at] * last_dots[at]) + last_minimums[at] * last_sums[at];
            precise float sum = sums[at] + (first + last);
            sums[at] = sum;
        }
    } else {
        Sum dots = add_half(first_dots, slice, first_row, first_token, 1u);
        Sum code_sums = input_part(slice, 3u, first_token);
        [[unroll]] for (uint at = 0u; at < sums.length(); at++) {
            precise float term = scales[at] * (factors[at] * dots[at]) + minimums[at] * code_sums[at];
            precise float sum = sums[at] + term;
            sums[at] = sum;
        }
    }
    return sums;
}

void main() {
    uint group = gl_WorkGroupID.x + push.base_x;
    uint first_token = (gl_WorkGroupID.y + push.base_y) * TOKENS;
    uint slice = gl_SubgroupID;
    uint lane = gl_SubgroupInvocationID;

    Sum sums[(ROWS / M) * (TOKENS / N)];
    [[unroll]] for (uint index = 0u; index < (ROWS / M) * (TOKENS / N); index++) sums[index] = Sum(0.0);
    for (uint first_block = 0u; first_block < push.blocks; first_block += SLICES) {
        uint block = first_block + slice;
        if (block < push.blocks) {
            load_weights(slice, lane, group, block);
            load_inputs(slice, lane, first_token, block);
        }
        barrier();
        if (block < push.blocks) {
            [[unroll]] for (uint index = 0u; index < (ROWS / M) * (TOKENS / N); index++) {
                sums[index] = add_block(sums[index], slice, index % (ROWS / M) * M, index / (ROWS / M) * N);
            }
        }
        barrier();
    }

    for (uint turn = 0u; turn < SLICES; turn++) {
        if (slice == turn) {
            [[unroll]] for (uint index = 0u; index < (ROWS / M) * (TOKENS / N); index++) {
                uint at = index / (ROWS / M) * N * ROWS + index % (ROWS / M) * M;
                if (turn > 0u) {
                    Sum before;
                    coopMatLoad(before, sum_tile, at, ROWS, gl_CooperativeMatrixLayoutColumnMajor);
                    sums[index] = before + sums[index];
                }
                coopMatStore(sums[index], sum_tile, at, ROWS, gl_CooperativeMatrixLayoutColumnMajor);
            }
        }
        barrier();
    }
    for (uint index = gl_LocalInvocationIndex; index < ROWS * TOKENS; index += THREADS) {
        uint row = group * ROWS + index % ROWS, token = first_token + index / ROWS;
        if (row < push.rows && token < push.tokens) result[token * push.stride + push.offset + row] = sum_tile[index];
    }
}

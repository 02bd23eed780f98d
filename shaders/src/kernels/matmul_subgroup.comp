#version 450
// Matrix times activations for any device: storage buffers and shared memory only, no optional feature.
// One lane is one output row of a group of LANES; SLICES lanes share a row, slice s taking the blocks
// s, s + SLICES, … along K in order, and their sums are added in the order of the slices: the order is
// fixed by the width alone, whatever TOKENS is. Same row, same bits.
#extension GL_GOOGLE_include_directive : require
#include "activations.glsl"
#define BUNDLE_BITS 0
#include "weights.glsl"
layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LANES = 32u;
layout(constant_id = 1) const uint SLICES = 4u;

layout(set = 0, binding = 0) readonly buffer WeightCodes { uvec4 weight_codes[]; };
#if CODE_KIND <= CODES_8BIT
layout(set = 0, binding = 1) readonly buffer WeightScales { uint weight_scales[]; };
#endif
#if FLOAT_INPUT
layout(set = 0, binding = 2) readonly buffer InputValues { vec4 input_values[]; };
#else
layout(set = 0, binding = 2) readonly buffer InputCodes { uvec4 input_codes[]; };
layout(set = 0, binding = 3) readonly buffer InputScales { vec4 input_scales[]; };
#endif
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

shared float slice_sums[LANES * SLICES];

#if CODE_KIND <= CODES_8BIT
// Scale and minimum of each half of a block.
vec4 scales_of(uint group, uint block, uint lane) {
#if SCALE_KIND == SCALES_HALF
    uint quads = (push.blocks + 3u) / 4u;
    vec2 scale = unpackHalf2x16(weight_scales[(ENTRY(group, block / 4u, quads) * LANES + lane) * 4u + block % 4u]);
    return scale.xyxy;
#elif SCALE_KIND == SCALES_FLOAT
    uint pairs = (push.blocks + 1u) / 2u;
    uint at = (ENTRY(group, block / 2u, pairs) * LANES + lane) * 4u + (block % 2u) * 2u;
    vec2 scale = uintBitsToFloat(uvec2(weight_scales[at], weight_scales[at + 1u]));
    return scale.xyxy;
#else
    uint at = (ENTRY(group, block, push.blocks) * LANES + lane) * 4u;
    return uintBitsToFloat(uvec4(weight_scales[at], weight_scales[at + 1u], weight_scales[at + 2u], weight_scales[at + 3u]));
#endif
}

ivec4 codes_of(uint group, uint block, uint quad, uint lane) {
#if CODE_KIND == CODES_4BIT
    uint word = weight_codes[ENTRY(group, block, push.blocks) * LANES + lane][quad >> 1] >> (16u * (quad & 1u));
    return ivec4(word & 15u, (word >> 4) & 15u, (word >> 8) & 15u, (word >> 12) & 15u);
#else
    uint word = weight_codes[ENTRY(group, block * 2u + (quad >> 2), push.blocks * 2u) * LANES + lane][quad & 3u] ^ 0x80808080u;
    return ivec4(int(word << 24) >> 24, int(word << 16) >> 24, int(word << 8) >> 24, int(word) >> 24);
#endif
}
#endif

// Four weights of a block, in f32.
vec4 weights_of(uint group, uint block, uint quad, uint lane) {
#if CODE_KIND <= CODES_8BIT
    vec4 scales = scales_of(group, block, lane);
    vec2 scale = quad < 4u ? scales.xy : scales.zw;
    precise vec4 weight = scale.x * vec4(codes_of(group, block, quad, lane)) + scale.y;
    return weight;
#elif CODE_KIND == CODES_FLOAT16
    uvec4 texel = weight_codes[ENTRY(group, block * 4u + (quad >> 1), push.blocks * 4u) * LANES + lane];
    uvec2 words = (quad & 1u) == 0u ? texel.xy : texel.zw;
    return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
#elif CODE_KIND == CODES_BFLOAT16
    uvec4 texel = weight_codes[ENTRY(group, block * 4u + (quad >> 1), push.blocks * 4u) * LANES + lane];
    uvec2 words = (quad & 1u) == 0u ? texel.xy : texel.zw;
    return uintBitsToFloat(uvec4(words.x << 16, words.x & 0xffff0000u, words.y << 16, words.y & 0xffff0000u));
#else
    return uintBitsToFloat(weight_codes[ENTRY(group, block * 8u + quad, push.blocks * 8u) * LANES + lane]);
#endif
}

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint slice = gl_LocalInvocationID.y;
    uint group = gl_WorkGroupID.x + push.base_x;
    uint first_token = (gl_WorkGroupID.y + push.base_y) * TOKENS;

    precise float sums[TOKENS];
    for (uint token = 0u; token < TOKENS; token++) sums[token] = 0.0;
    for (uint block = slice; block < push.blocks; block += SLICES) {
#if FLOAT_INPUT
        for (uint quad = 0u; quad < 8u; quad++) {
            vec4 weights = weights_of(group, block, quad, lane);
            for (uint token = 0u; token < TOKENS; token++) {
                vec4 inputs = input_values[value_texel(first_token + token, push.blocks, block, quad)];
                for (uint part = 0u; part < 4u; part++) {
                    precise float term = weights[part] * inputs[part];
                    sums[token] += term;
                }
            }
        }
#else
        vec4 scales = scales_of(group, block, lane);
        ivec4 codes[8];
        for (uint quad = 0u; quad < 8u; quad++) codes[quad] = codes_of(group, block, quad, lane);
        for (uint token = 0u; token < TOKENS; token++) {
            int dots[2] = int[2](0, 0);
            for (uint half_index = 0u; half_index < 2u; half_index++) {
                uvec4 packed = input_codes[code_texel(first_token + token, push.blocks, block, half_index)];
                for (uint quad = 0u; quad < 4u; quad++) {
                    int word = int(packed[quad]);
                    ivec4 inputs = ivec4((word << 24) >> 24, (word << 16) >> 24, (word << 8) >> 24, word >> 24);
                    ivec4 products = codes[half_index * 4u + quad] * inputs;
                    dots[half_index] += products.x + products.y + products.z + products.w;
                }
            }
            vec4 factors = input_scales[scale_texel(first_token + token, push.blocks, block)];
#if SCALE_KIND == SCALES_FLOAT_PER_16
            precise float first = scales.x * (factors.x * float(dots[0])) + scales.y * factors.y;
            precise float last = scales.z * (factors.x * float(dots[1])) + scales.w * factors.z;
            sums[token] += first + last;
#else
            precise float term = scales.x * (factors.x * float(dots[0] + dots[1])) + scales.y * factors.w;
            sums[token] += term;
#endif
        }
#endif
    }

    uint row = group * LANES + lane;
    for (uint token = 0u; token < TOKENS; token++) {
        barrier();
        slice_sums[slice * LANES + lane] = sums[token];
        barrier();
        if (slice == 0u) {
            precise float sum = slice_sums[lane];
            for (uint other = 1u; other < SLICES; other++) sum += slice_sums[other * LANES + lane];
            if (row < push.rows && first_token + token < push.tokens) {
                result[(first_token + token) * push.stride + push.offset + row] = sum;
            }
        }
    }
}

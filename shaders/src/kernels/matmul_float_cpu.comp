#version 450
// Matrix times activations for CPU devices, in f32: for --precise, and for float weights. Quantised
// weights are taken apart as scale * code + minimum, in f32. See matmul_int16_eight_cpu.comp for the shape;
// terms are added one by one in order along K, whatever TOKENS is: same row, same bits.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#define BUNDLE_BITS 2
#include "weights.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const int LANES = 8; // equals the subgroup size

layout(set = 0, binding = 0) uniform usamplerBuffer weight_codes;
#if CODE_KIND <= CODES_8BIT
layout(set = 0, binding = 1) uniform usamplerBuffer weight_scales;
#endif
layout(set = 0, binding = 2) uniform samplerBuffer input_values;
layout(set = 0, binding = 4) writeonly buffer Output { float result[]; }; // [token][stride]

layout(push_constant) uniform Push {
    uint blocks;
    uint rows;
    uint tokens;
    uint stride;
    uint offset;
    uint base_x; // the first workgroup of this member's share
    uint base_y;
} push;

#if TOKENS == 8
#define FOR_TOKENS(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7)
#define OF_TOKEN(value, token) subgroupShuffle(value, uint(token))
#else
#define FOR_TOKENS(M) M(0)
#define OF_TOKEN(value, token) (value)
#endif
#define FOR_GROUPS for (int group = 0; group < ROW_GROUPS; group++)

// Four weights k .. k + 3 of `block`, of the row that is this lane's in `group`.
vec4 weights_of(int group, int blocks, int block, int quad, int lane) {
#if CODE_KIND == CODES_4BIT || CODE_KIND == CODES_8BIT
#if CODE_KIND == CODES_4BIT
    uint word = texelFetch(weight_codes, ENTRY(group, block, blocks) * LANES + lane)[quad >> 1] >> (16 * (quad & 1));
    ivec4 code = ivec4(int(word & 15u), int((word >> 4) & 15u), int((word >> 8) & 15u), int((word >> 12) & 15u));
#else
    uint word = texelFetch(weight_codes, ENTRY(group, block * 2 + (quad >> 2), blocks * 2) * LANES + lane)[quad & 3] ^ 0x80808080u;
    ivec4 code = ivec4(int(word << 24) >> 24, int(word << 16) >> 24, int(word << 8) >> 24, int(word) >> 24);
#endif
#if SCALE_KIND == SCALES_HALF
    int quads = (blocks + 3) >> 2;
    vec2 scale = unpackHalf2x16(texelFetch(weight_scales, (ENTRY(group, block >> 2, quads) * LANES + lane) * 4 + (block & 3)).x);
#elif SCALE_KIND == SCALES_FLOAT
    int pairs = (blocks + 1) >> 1;
    vec2 scale = uintBitsToFloat(texelFetch(weight_scales, (ENTRY(group, block >> 1, pairs) * LANES + lane) * 2 + (block & 1)).xy);
#else
    vec4 both = uintBitsToFloat(texelFetch(weight_scales, ENTRY(group, block, blocks) * LANES + lane));
    vec2 scale = quad < 4 ? both.xy : both.zw;
#endif
    precise vec4 weight = scale.x * vec4(code) + scale.y;
    return weight;
#elif CODE_KIND == CODES_FLOAT16
    uvec4 texel = texelFetch(weight_codes, ENTRY(group, block * 4 + (quad >> 1), blocks * 4) * LANES + lane);
    uvec2 words = (quad & 1) == 0 ? texel.xy : texel.zw;
    return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
#elif CODE_KIND == CODES_BFLOAT16
    uvec4 texel = texelFetch(weight_codes, ENTRY(group, block * 4 + (quad >> 1), blocks * 4) * LANES + lane);
    uvec2 words = (quad & 1) == 0 ? texel.xy : texel.zw;
    return uintBitsToFloat(uvec4(words.x << 16, words.x & 0xffff0000u, words.y << 16, words.y & 0xffff0000u));
#else
    return uintBitsToFloat(texelFetch(weight_codes, ENTRY(group, block * 8 + quad, blocks * 8) * LANES + lane));
#endif
}

void main() {
    const int lane = int(gl_LocalInvocationID.x);
    const int first_group = int(gl_WorkGroupID.x + push.base_x) * ROW_GROUPS;
    const int blocks = int(push.blocks);
    const uint rows = push.rows, tokens = push.tokens, stride = push.stride, offset = push.offset;
    const int first_token = int(gl_WorkGroupID.y + push.base_y) * TOKENS;
    const int tile_row = TOKENS == 8 ? (lane & 7) : (first_token & 7);
    const int tile = first_token >> 3;

    precise float sums[ROW_GROUPS * TOKENS];
    for (int i = 0; i < ROW_GROUPS * TOKENS; i++) sums[i] = 0.0;

    // Software drivers run a loop's body once more for nothing where its test comes first.
    int block = 0;
    do {
        int quad = 0;
        do {
            vec4 inputs = texelFetch(input_values, ((tile * blocks + block) * 8 + quad) * 8 + tile_row);
            vec4 weights[ROW_GROUPS];
            FOR_GROUPS weights[group] = weights_of(min(first_group + group, (int(rows) - 1) / LANES), blocks, block, quad, lane);
#define ADD(token) { float x = OF_TOKEN(input_value, token); \
    FOR_GROUPS { precise float term = weights[group][PART] * x; sums[group * TOKENS + token] += term; } }
#define PART 0
            { float input_value = inputs.x; FOR_TOKENS(ADD) }
#undef PART
#define PART 1
            { float input_value = inputs.y; FOR_TOKENS(ADD) }
#undef PART
#define PART 2
            { float input_value = inputs.z; FOR_TOKENS(ADD) }
#undef PART
#define PART 3
            { float input_value = inputs.w; FOR_TOKENS(ADD) }
#undef PART
        } while (++quad < 8);
    } while (++block < blocks);

    FOR_GROUPS {
        uint row = uint((first_group + group) * LANES + lane);
        for (int token = 0; token < TOKENS; token++) {
            if (row < rows && uint(first_token + token) < tokens) {
                result[uint(first_token + token) * stride + offset + row] = sums[group * TOKENS + token];
            }
        }
    }
}

#version 450
// Matrix times activations for CPU devices: int8 activations, 4- or 8-bit weights.
// One lane is one output row; a workgroup takes ROW_GROUPS groups of LANES rows and TOKENS tokens.
// Texel buffers, because software drivers load them without branches. The dot product within a block
// is exact (integers), and blocks are added in order along K, whatever TOKENS is: same row, same bits.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "weights.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const int LANES = 8; // equals the subgroup size

layout(set = 0, binding = 0) uniform usamplerBuffer weight_codes;
layout(set = 0, binding = 1) uniform usamplerBuffer weight_scales;
layout(set = 0, binding = 2) uniform usamplerBuffer input_codes;
layout(set = 0, binding = 3) uniform samplerBuffer input_scales;
layout(set = 0, binding = 4) writeonly buffer Output { float result[]; }; // [token][stride]

layout(push_constant) uniform Push {
    uint blocks;
    uint rows;   // of this part of the matrix
    uint tokens;
    uint stride; // from one token's output to the next
    uint offset; // of this part's first row in a token's output
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

void main() {
    const int lane = int(gl_LocalInvocationID.x);
    const int first_group = int(gl_WorkGroupID.x + push.base_x) * ROW_GROUPS;
    const int blocks = int(push.blocks);
    const int first_token = int(gl_WorkGroupID.y + push.base_y) * TOKENS;
    // With one token, the tile's row is the token's; with 8 a lane fetches the token of its own number.
    const int tile_row = TOKENS == 8 ? (lane & 7) : (first_token & 7);
    const int tile = first_token >> 3;

    precise float sums[ROW_GROUPS * TOKENS];
    for (int i = 0; i < ROW_GROUPS * TOKENS; i++) sums[i] = 0.0;

    for (int block = 0; block < blocks; block++) {
        const int input_block = tile * blocks + block;
        uvec4 first_half = texelFetch(input_codes, input_block * 16 + tile_row);
        uvec4 last_half = texelFetch(input_codes, input_block * 16 + 8 + tile_row);
#if CODE_KIND == CODES_4BIT
        uvec4 packed[ROW_GROUPS];
        FOR_GROUPS packed[group] = texelFetch(weight_codes, ((first_group + group) * blocks + block) * LANES + lane);
#define WEIGHT(group, k) int((packed[group][(k) >> 3] >> (4 * ((k) & 7))) & 15u)
#else
        uvec4 packed_first[ROW_GROUPS], packed_last[ROW_GROUPS];
        FOR_GROUPS {
            int at = ((first_group + group) * blocks + block) * 2 * LANES + lane;
            packed_first[group] = texelFetch(weight_codes, at);
            packed_last[group] = texelFetch(weight_codes, at + LANES);
        }
#define PACKED(group, k) ((k) < 16 ? packed_first[group][((k) >> 2) & 3] : packed_last[group][((k) >> 2) & 3])
#define WEIGHT(group, k) (int(PACKED(group, k) << (24 - 8 * ((k) & 3))) >> 24)
#endif
#define INPUT(k) (int(((k) < 16 ? first_half[((k) >> 2) & 3] : last_half[((k) >> 2) & 3]) << (24 - 8 * ((k) & 3))) >> 24)
#define MULTIPLY(token) { int x = OF_TOKEN(input_code, token); FOR_GROUPS dots[group * TOKENS + token] += w[group] * x; }
#define STEP(k) { int input_code = INPUT(k); int w[ROW_GROUPS]; FOR_GROUPS w[group] = WEIGHT(group, k); FOR_TOKENS(MULTIPLY) }
#define STEPS4(k) STEP(k) STEP(k + 1) STEP(k + 2) STEP(k + 3)
        vec4 input_scale = texelFetch(input_scales, input_block * 8 + tile_row);
        int dots[ROW_GROUPS * TOKENS];
        for (int i = 0; i < ROW_GROUPS * TOKENS; i++) dots[i] = 0;
        STEPS4(0) STEPS4(4) STEPS4(8) STEPS4(12)
#if SCALE_KIND == SCALES_FLOAT_PER_16
        int first_dots[ROW_GROUPS * TOKENS];
        for (int i = 0; i < ROW_GROUPS * TOKENS; i++) { first_dots[i] = dots[i]; dots[i] = 0; }
#endif
        STEPS4(16) STEPS4(20) STEPS4(24) STEPS4(28)

        for (int group = 0; group < ROW_GROUPS; group++) {
#if SCALE_KIND == SCALES_HALF
            int quads = (blocks + 3) >> 2;
            vec2 scale = unpackHalf2x16(texelFetch(weight_scales, (((first_group + group) * quads + (block >> 2)) * LANES + lane) * 4 + (block & 3)).x);
#elif SCALE_KIND == SCALES_FLOAT
            int pairs = (blocks + 1) >> 1;
            vec2 scale = uintBitsToFloat(texelFetch(weight_scales, (((first_group + group) * pairs + (block >> 1)) * LANES + lane) * 2 + (block & 1)).xy);
#else
            vec4 scale = uintBitsToFloat(texelFetch(weight_scales, ((first_group + group) * blocks + block) * LANES + lane));
#endif
#if SCALE_KIND == SCALES_FLOAT_PER_16
#define ADD(token) { float input_factor = OF_TOKEN(input_scale.x, token); \
    precise float first = scale.x * (input_factor * float(first_dots[group * TOKENS + token])) + scale.y * OF_TOKEN(input_scale.y, token); \
    precise float last = scale.z * (input_factor * float(dots[group * TOKENS + token])) + scale.w * OF_TOKEN(input_scale.z, token); \
    sums[group * TOKENS + token] += first + last; }
#else
#define ADD(token) { precise float term = scale.x * (OF_TOKEN(input_scale.x, token) * float(dots[group * TOKENS + token])) + scale.y * OF_TOKEN(input_scale.w, token); \
    sums[group * TOKENS + token] += term; }
#endif
            FOR_TOKENS(ADD)
        }
    }

    FOR_GROUPS {
        uint row = uint((first_group + group) * LANES + lane);
        for (int token = 0; token < TOKENS; token++) {
            if (row < push.rows && uint(first_token + token) < push.tokens) {
                result[uint(first_token + token) * push.stride + push.offset + row] = sums[group * TOKENS + token];
            }
        }
    }
}

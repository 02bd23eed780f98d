#version 450
// Matrix times activations for CPU devices, 8 tokens at a time: int16 activations, 4- or 8-bit weights.
// One lane is one output row; a workgroup takes ROW_GROUPS groups of LANES rows and one tile of 8 tokens.
// Lanes fetch the activations, 8 lanes one quarter of a block for the 8 tokens, and each token's are then shuffled to all
// lanes. The terms and their order are those of matmul_int16_one_cpu.comp: same row, same bits.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#define BUNDLE_BITS 2
#include "weights.glsl"
#include "matmul_int16_cpu.glsl"

#define FOR_GROUPS [[unroll]] for (int group = 0; group < ROW_GROUPS; group++)
#define TOKENS 8
// Quarters of a block that one fetch gives, with as many fetches in all; quarter and token of a lane.
#define QUARTERS (LANES / TOKENS)
#define FETCHES (4 / QUARTERS)
#define LANE_OF(quarter, token) ((quarter) % QUARTERS * TOKENS + (token))
#define SUM_OF_TOKEN(token) (QUARTERS == 1 ? OF_LANE(input_sum, token) : OF_LANE(input_sum, token) + OF_LANE(input_sum, TOKENS + token))
#if CODE_KIND == CODES_4BIT
#define WEIGHT(group, quarter, i) int((packed[group][quarter] >> (4 * (i))) & 15u)
#define SIGNED(dot, token) (dot)
#else
#define WEIGHT(group, quarter, i) int((packed[((quarter) >> 1) * ROW_GROUPS + group][((quarter) & 1) * 2 + ((i) >> 2)] >> (8 * ((i) & 3))) & 255u)
// Codes are stored 128 too large.
#define SIGNED(dot, token) ((dot) - (SUM_OF_TOKEN(token) << 7))
#endif
#define SHARED_SCALES (SCALE_KIND == SCALES_HALF ? 4 : 2) // blocks whose scales are in one texel
#define FOR_TOKENS [[unroll]] for (int token = 0; token < TOKENS; token++)

void main() {
    const int lane = int(gl_LocalInvocationID.x);
    const int first_group = int(gl_WorkGroupID.x + push.base_x) * ROW_GROUPS;
    const int tile = int(gl_WorkGroupID.y + push.base_y);
    const int blocks = int(push.blocks);
    const uint rows = push.rows, tokens = push.tokens, stride = push.stride, offset = push.offset;
    // The last workgroup may have fewer groups of its own: it computes some twice and stores them once.
    int groups[ROW_GROUPS];
    FOR_GROUPS groups[group] = min(first_group + group, (int(rows) - 1) / LANES);

    precise float sums[ROW_GROUPS * TOKENS];
    for (int i = 0; i < ROW_GROUPS * TOKENS; i++) sums[i] = 0.0;

    // Software drivers run a loop's body once more for nothing where its test comes first.
    int block = 0;
    do {
#if SCALE_KIND != SCALES_FLOAT_PER_16
        // One texel has the scales of several blocks.
        uvec4 scale_words[ROW_GROUPS];
        FOR_GROUPS scale_words[group] = texelFetch(weight_scales,
            ENTRY(groups[group], block / SHARED_SCALES, (blocks + SHARED_SCALES - 1) / SHARED_SCALES) * LANES + lane);
        do {
#endif
        const int input_block = tile * blocks + block;
        // All fetches come before any sum: each is a call, and registers do not outlive calls.
        uvec4 words[4];
        [[unroll]] for (int fetch = 0; fetch < FETCHES; fetch++) words[fetch] = texelFetch(input_codes, input_block * 4 * TOKENS + fetch * LANES + lane);
        vec4 input_scale = texelFetch(input_scales, input_block * TOKENS + lane % TOKENS);
#if SCALE_KIND == SCALES_HALF
        vec2 scales[ROW_GROUPS];
        FOR_GROUPS {
            uvec2 pair = (block & 2) == 0 ? scale_words[group].xy : scale_words[group].zw;
            scales[group] = unpackHalf2x16((block & 1) == 0 ? pair.x : pair.y);
        }
#elif SCALE_KIND == SCALES_FLOAT
        vec2 scales[ROW_GROUPS];
        FOR_GROUPS scales[group] = uintBitsToFloat((block & 1) == 0 ? scale_words[group].xy : scale_words[group].zw);
#else
        vec4 scales[ROW_GROUPS];
        FOR_GROUPS scales[group] = uintBitsToFloat(texelFetch(weight_scales, ENTRY(groups[group], block, blocks) * LANES + lane));
#endif
        uvec4 packed[CODE_TEXELS * ROW_GROUPS];
        [[unroll]] for (int texel = 0; texel < CODE_TEXELS; texel++) {
            FOR_GROUPS packed[texel * ROW_GROUPS + group] = CODES_AT(group, block, texel);
        }

        int dots[ROW_GROUPS * TOKENS];
        for (int i = 0; i < ROW_GROUPS * TOKENS; i++) dots[i] = 0;
        // Of what the lane itself fetched.
        int input_sum = 0;
#define QUARTER(quarter) { \
    [[unroll]] for (int i = 0; i < 8; i++) { \
        uint word = words[(quarter) / QUARTERS][i >> 1]; \
        int input_code = (i & 1) == 0 ? int(word << 16) >> 16 : int(word) >> 16; \
        if ((quarter) % QUARTERS == 0) input_sum += input_code; \
        int weights[ROW_GROUPS]; \
        FOR_GROUPS weights[group] = WEIGHT(group, quarter, i); \
        FOR_TOKENS { \
            int x = OF_LANE(input_code, LANE_OF(quarter, token)); \
            FOR_GROUPS dots[group * TOKENS + token] += weights[group] * x; \
        } \
    } }
        QUARTER(0)
        QUARTER(1)
#if SCALE_KIND == SCALES_FLOAT_PER_16
        int first_dots[ROW_GROUPS * TOKENS];
        FOR_GROUPS FOR_TOKENS {
            first_dots[group * TOKENS + token] = SIGNED(dots[group * TOKENS + token], token);
            dots[group * TOKENS + token] = 0;
        }
        input_sum = 0;
#endif
        QUARTER(2)
        QUARTER(3)

        FOR_GROUPS FOR_TOKENS {
            float input_factor = OF_LANE(input_scale.x, token);
            int dot = SIGNED(dots[group * TOKENS + token], token);
#if SCALE_KIND == SCALES_FLOAT_PER_16
            precise float first = scales[group].x * (input_factor * float(first_dots[group * TOKENS + token])) + scales[group].y * OF_LANE(input_scale.y, token);
            precise float last = scales[group].z * (input_factor * float(dot)) + scales[group].w * OF_LANE(input_scale.z, token);
            precise float term = first + last;
#else
            precise float term = scales[group].x * (input_factor * float(dot)) + scales[group].y * OF_LANE(input_scale.w, token);
#endif
            sums[group * TOKENS + token] += term;
        }
        block++;
#if SCALE_KIND != SCALES_FLOAT_PER_16
        } while (block % SHARED_SCALES != 0 && block < blocks);
#endif
    } while (block < blocks);

    FOR_GROUPS {
        uint row = uint((first_group + group) * LANES + lane);
        FOR_TOKENS {
            uint at = uint(tile * TOKENS + token);
            if (row < rows && at < tokens) result[at * stride + offset + row] = sums[group * TOKENS + token];
        }
    }
}

#version 450
// Matrix times activations for CPU devices, few tokens: int16 activations, 4- or 8-bit weights.
// One lane is one output row; a workgroup takes ROW_GROUPS groups of LANES rows and one token, and two
// blocks along K at a time. Texel buffers, because software drivers load them without branches; what all
// lanes need is fetched once, spread over the lanes, and shuffled. A product of 16-bit numbers added to a
// 32-bit sum is one instruction on CPUs that have it, whatever the activations' width.
// The dot product within a block is exact (integers), and blocks are added in order along K, as in
// matmul_int16_eight_cpu.comp: same row, same bits.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#define BUNDLE_BITS 2
#include "weights.glsl"
#include "matmul_int16_cpu.glsl"

void main() {
    const int lane = int(gl_LocalInvocationID.x);
    const int first_group = int(gl_WorkGroupID.x + push.base_x) * ROW_GROUPS;
    const int token = int(gl_WorkGroupID.y + push.base_y);
    const int blocks = int(push.blocks);
    const int tile = token >> 3, tile_row = token & 7;
    // The last workgroup may have fewer groups of its own: it computes some twice and stores them once.
    int groups[ROW_GROUPS];
    FOR_GROUPS groups[group] = min(first_group + group, (int(push.rows) - 1) / LANES);

    precise float sums[ROW_GROUPS];
    FOR_GROUPS sums[group] = 0.0;

    // Software drivers run a loop's body once more for nothing where its test comes first.
    int first_block = 0;
    do {
#if SCALE_KIND == SCALES_HALF
        // One texel has the scales of four blocks, which take two turns.
        uvec4 quad_words[ROW_GROUPS];
        FOR_GROUPS quad_words[group] = texelFetch(weight_scales, ENTRY(groups[group], first_block >> 2, (blocks + 3) >> 2) * LANES + lane);
        do {
        uvec2 scale_words[ROW_GROUPS];
        FOR_GROUPS scale_words[group] = (first_block & 2) == 0 ? quad_words[group].xy : quad_words[group].zw;
#elif SCALE_KIND == SCALES_FLOAT
        uvec4 scale_words[ROW_GROUPS];
        FOR_GROUPS scale_words[group] = texelFetch(weight_scales,
            ENTRY(groups[group], first_block >> 1, (blocks + 1) >> 1) * LANES + lane);
#endif
        // Lanes 0 to 3 fetch the quarters of the first block, 4 to 7 those of the second.
        int fetched_block = min(first_block + (lane >> 2), blocks - 1);
        uvec4 input_words = texelFetch(input_codes, ((tile * blocks + fetched_block) * 4 + (lane & 3)) * 8 + tile_row);
        vec4 input_scale = texelFetch(input_scales, (tile * blocks + fetched_block) * 8 + tile_row);
#define INPUT_WORD(b, k) OF_LANE(input_words[((k) >> 1) & 3], (b) * 4 + ((k) >> 3))
#define INPUT(b, k) (((k) & 1) == 0 ? int(INPUT_WORD(b, k) << 16) >> 16 : int(INPUT_WORD(b, k)) >> 16)

#if CODE_KIND == CODES_4BIT
// Three codes of each half word are multiplied where they stand, 1, 16 and 256 times too large, and their
// sums are brought back once per block: that spares most shifts.
#define WORD(b, word) { int x[8]; [[unroll]] for (int i = 0; i < 8; i++) x[i] = INPUT(b, (word) * 8 + i); \
    FOR_GROUPS { \
        uint low = packed[group][word], middle = low >> 12, high = low >> 24; \
        dots[group] += int(low & 0xfu) * x[0] + int(middle & 0xfu) * x[3] + int(high & 0xfu) * x[6]; \
        dots16[group] += int(low & 0xf0u) * x[1] + int(middle & 0xf0u) * x[4] + int(high & 0xf0u) * x[7]; \
        dots256[group] += int(low & 0xf00u) * x[2] + int(middle & 0xf00u) * x[5]; \
    } }
#define HALF(b, first_word) WORD(b, first_word) WORD(b, first_word + 1)
#define DOT(group) (dots[group] + (dots16[group] >> 4) + (dots256[group] >> 8))
#else
#define WORD(b, half_index, word) { int x[4]; [[unroll]] for (int i = 0; i < 4; i++) x[i] = INPUT(b, (half_index) * 16 + (word) * 4 + i); \
    input_sum += (x[0] + x[1]) + (x[2] + x[3]); \
    FOR_GROUPS { \
        uint four = packed[(half_index) * ROW_GROUPS + group][word]; \
        dots[group] += int(four & 0xffu) * x[0] + int((four >> 16) & 0xffu) * x[2]; \
        dots16[group] += int((four >> 8) & 0xffu) * x[1] + int(four >> 24) * x[3]; \
    } }
#define HALF(b, first_word) WORD(b, (first_word) >> 1, 0) WORD(b, (first_word) >> 1, 1) WORD(b, (first_word) >> 1, 2) WORD(b, (first_word) >> 1, 3)
#define DOT(group) (dots[group] + dots16[group] - (input_sum << 7))
#endif
#define CLEAR input_sum = 0; FOR_GROUPS { dots[group] = 0; dots16[group] = 0; dots256[group] = 0; }

#if SCALE_KIND == SCALES_FLOAT_PER_16
#define MIDDLE FOR_GROUPS first_dots[group] = DOT(group); CLEAR
#define TERM(b) \
    vec4 scale = uintBitsToFloat(texelFetch(weight_scales, ENTRY(groups[group], block, blocks) * LANES + lane)); \
    float input_factor = OF_LANE(input_scale.x, (b) * 4); \
    precise float first = scale.x * (input_factor * float(first_dots[group])) + scale.y * OF_LANE(input_scale.y, (b) * 4); \
    precise float last = scale.z * (input_factor * float(DOT(group))) + scale.w * OF_LANE(input_scale.z, (b) * 4); \
    precise float term = first + last;
#else
#define MIDDLE
#if SCALE_KIND == SCALES_HALF
#define SCALE(b) unpackHalf2x16(scale_words[group][b])
#else
#define SCALE(b) uintBitsToFloat((b) == 0 ? scale_words[group].xy : scale_words[group].zw)
#endif
#define TERM(b) vec2 scale = SCALE(b); \
    precise float term = scale.x * (OF_LANE(input_scale.x, (b) * 4) * float(DOT(group))) + scale.y * OF_LANE(input_scale.w, (b) * 4);
#endif

// Where the number of blocks is odd, the last is fetched twice and counted once.
#define BLOCK(b) { \
    const int block = min(first_block + b, blocks - 1); \
    bool counts = first_block + b < blocks; \
    uvec4 packed[CODE_TEXELS * ROW_GROUPS]; \
    FETCH_CODES(packed, block) \
    int input_sum, dots[ROW_GROUPS], dots16[ROW_GROUPS], dots256[ROW_GROUPS], first_dots[ROW_GROUPS]; \
    CLEAR \
    HALF(b, 0) MIDDLE HALF(b, 2) \
    FOR_GROUPS { TERM(b) if (counts) sums[group] += term; } }

        BLOCK(0)
        BLOCK(1)
        first_block += 2;
#if SCALE_KIND == SCALES_HALF
        } while ((first_block & 2) != 0 && first_block < blocks);
#endif
    } while (first_block < blocks);

    FOR_GROUPS {
        uint row = uint((first_group + group) * LANES + lane);
        if (row < push.rows) result[uint(token) * push.stride + push.offset + row] = sums[group];
    }
}

#version 450
// Matrix times activations for CPU devices, few tokens: int16 activations, 4- or 8-bit weights.
// One lane is one output row; a workgroup takes ROW_GROUPS groups of LANES rows and one token, and two
// blocks along K at a time. Texel buffers, because software drivers load them without branches; what all
// lanes need is fetched once, spread over the lanes, and shuffled. A product of 16-bit numbers added to a
// 32-bit sum is one instruction on CPUs that have it, whatever the activations' width.
// The dot product within a block is exact (integers), and blocks are added in order along K, as in
// matmul_int16_eight_cpu.comp: same row, same bits.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#define BUNDLE_BITS 2
#include "weights.glsl"
#include "matmul_int16_cpu.glsl"

// Written out rather than left to the driver to unroll: its compiler takes several times as long for many small
// loops as for the same statements one after another.
#define EACH_GROUP(body) { const int group = 0; body } { const int group = 1; body } \
    { const int group = 2; body } { const int group = 3; body }
#if ROW_GROUPS != 4
#error EACH_GROUP is for 4 groups
#endif

// Texels of 16 bytes in a page of memory and in a line of caches.
#define PAGE_TEXELS 256
#define LINE_TEXELS 4

void main() {
    const int lane = int(gl_LocalInvocationID.x);
    const int first_group = int(gl_WorkGroupID.x + push.base_x) * ROW_GROUPS;
    const int token = int(gl_WorkGroupID.y + push.base_y);
    const int blocks = int(push.blocks);
    const uint rows = push.rows, stride = push.stride, offset = push.offset;
    const int tile = token >> 3, tile_row = token & 7;
    // The last workgroup may have fewer groups of its own: it computes some twice and stores them once.
    int groups[ROW_GROUPS];
    EACH_GROUP(groups[group] = min(first_group + group, (int(rows) - 1) / LANES);)

    precise float sums[ROW_GROUPS];
    EACH_GROUP(sums[group] = 0.0;)

    // Software drivers run a loop's body once more for nothing where its test comes first.
    int first_block = 0;
#if CODE_TEXELS > 1
    // CPUs fetch ahead along a run, but begin anew with each page of memory: so the first lines of a page are read while
    // the page before it is at work. What they hold is used in a way that changes nothing. Not with 16 lanes: a turn takes
    // a whole page then, and would wait for each.
    const int bundles = (int(rows) + LANES * ROW_GROUPS - 1) / (LANES * ROW_GROUPS);
    const int last_texel = bundles * blocks * CODE_TEXELS * ROW_GROUPS * LANES - 1;
    uint touched = 0u;
#endif
    do {
#if SCALE_KIND == SCALES_HALF
        // One texel has the scales of four blocks, which take two turns.
        uvec4 quad_words[ROW_GROUPS];
        EACH_GROUP(quad_words[group] = texelFetch(weight_scales, ENTRY(groups[group], first_block >> 2, (blocks + 3) >> 2) * LANES + lane);)
        do {
        uvec2 scale_words[ROW_GROUPS];
        EACH_GROUP(scale_words[group] = (first_block & 2) == 0 ? quad_words[group].xy : quad_words[group].zw;)
#elif SCALE_KIND == SCALES_FLOAT
        uvec4 scale_words[ROW_GROUPS];
        EACH_GROUP(scale_words[group] = texelFetch(weight_scales,
            ENTRY(groups[group], first_block >> 1, (blocks + 1) >> 1) * LANES + lane);)
#endif
        // Lanes 0 to 3 fetch the quarters of the first block, 4 to 7 those of the second, and further lanes the same.
        int fetched_block = min(first_block + (lane >> 2 & 1), blocks - 1);
        uvec4 input_words = texelFetch(input_codes, ((tile * blocks + fetched_block) * 4 + (lane & 3)) * 8 + tile_row);
        vec4 input_scale = texelFetch(input_scales, (tile * blocks + fetched_block) * 8 + tile_row);
#if CODE_TEXELS > 1
        if (LANES == 8) {
            int turn_texel = ENTRY(groups[0], first_block * CODE_TEXELS, blocks * CODE_TEXELS) * LANES;
            bool begins_page = turn_texel % PAGE_TEXELS < 2 * CODE_TEXELS * ROW_GROUPS * LANES;
            int next_page = (turn_texel / PAGE_TEXELS + 1) * PAGE_TEXELS + (lane & 1) * LINE_TEXELS;
            touched |= texelFetch(weight_codes, min(begins_page ? next_page : turn_texel, last_texel)).x;
        }
#endif
#define INPUT_WORD(b, k) OF_LANE(input_words[((k) >> 1) & 3], (b) * 4 + ((k) >> 3))
#define INPUT(b, k) (((k) & 1) == 0 ? int(INPUT_WORD(b, k) << 16) >> 16 : int(INPUT_WORD(b, k)) >> 16)

#if CODE_KIND == CODES_4BIT
// Three codes of each half word are multiplied where they stand, 1, 16 and 256 times too large, and their
// sums are brought back once per block: that spares most shifts.
#define X(b, word, i) INPUT(b, (word) * 8 + i)
#define WORD(b, word) { \
    int x0 = X(b, word, 0), x1 = X(b, word, 1), x2 = X(b, word, 2), x3 = X(b, word, 3); \
    int x4 = X(b, word, 4), x5 = X(b, word, 5), x6 = X(b, word, 6), x7 = X(b, word, 7); \
    EACH_GROUP( \
        uint low = packed[group][word]; uint middle = low >> 12; uint high = low >> 24; \
        dots[group] += int(low & 0xfu) * x0 + int(middle & 0xfu) * x3 + int(high & 0xfu) * x6; \
        dots16[group] += int(low & 0xf0u) * x1 + int(middle & 0xf0u) * x4 + int(high & 0xf0u) * x7; \
        dots256[group] += int(low & 0xf00u) * x2 + int(middle & 0xf00u) * x5; \
    ) }
#define HALF(b, first_word) WORD(b, first_word) WORD(b, first_word + 1)
#define DOT(group) (dots[group] + (dots16[group] >> 4) + (dots256[group] >> 8))
#else
#define X(b, half_index, word, i) INPUT(b, (half_index) * 16 + (word) * 4 + i)
#define WORD(b, half_index, word) { \
    int x0 = X(b, half_index, word, 0), x1 = X(b, half_index, word, 1); \
    int x2 = X(b, half_index, word, 2), x3 = X(b, half_index, word, 3); \
    input_sum += (x0 + x1) + (x2 + x3); \
    EACH_GROUP( \
        uint four = packed[(half_index) * ROW_GROUPS + group][word]; \
        dots[group] += int(four & 0xffu) * x0 + int((four >> 16) & 0xffu) * x2; \
        dots16[group] += int((four >> 8) & 0xffu) * x1 + int(four >> 24) * x3; \
    ) }
#define HALF(b, first_word) WORD(b, (first_word) >> 1, 0) WORD(b, (first_word) >> 1, 1) WORD(b, (first_word) >> 1, 2) WORD(b, (first_word) >> 1, 3)
#define DOT(group) (dots[group] + dots16[group] - (input_sum << 7))
#endif
#define CLEAR input_sum = 0; EACH_GROUP(dots[group] = 0; dots16[group] = 0; dots256[group] = 0;)

#if SCALE_KIND == SCALES_FLOAT_PER_16
#define MIDDLE EACH_GROUP(first_dots[group] = DOT(group);) CLEAR
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

#define FETCH(texel) EACH_GROUP(packed[(texel) * ROW_GROUPS + group] = CODES_AT(group, block, texel);)
#if CODE_TEXELS == 1
#define FETCH_CODES FETCH(0)
#else
#define FETCH_CODES FETCH(0) FETCH(1)
#endif

// Where the number of blocks is odd, the last is fetched twice and counted once.
#define BLOCK(b) { \
    const int block = min(first_block + b, blocks - 1); \
    bool counts = first_block + b < blocks; \
    uvec4 packed[CODE_TEXELS * ROW_GROUPS]; \
    FETCH_CODES \
    int input_sum, dots[ROW_GROUPS], dots16[ROW_GROUPS], dots256[ROW_GROUPS], first_dots[ROW_GROUPS]; \
    CLEAR \
    HALF(b, 0) MIDDLE HALF(b, 2) \
    EACH_GROUP(TERM(b) if (counts) sums[group] += term;) }

        BLOCK(0)
        BLOCK(1)
        first_block += 2;
#if SCALE_KIND == SCALES_HALF
        } while ((first_block & 2) != 0 && first_block < blocks);
#endif
    } while (first_block < blocks);

#if CODE_TEXELS > 1
#define NOTHING (touched & (uint(blocks) >> 31)) // nobody has 2^31 blocks, but compilers cannot know
#else
#define NOTHING 0u
#endif
    EACH_GROUP(
        uint row = uint((first_group + group) * LANES + lane);
        if (row < rows) result[uint(token) * stride + offset + row + NOTHING] = sums[group];
    )
}

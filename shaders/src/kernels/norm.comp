#version 450
// Adds a delta to the residual stream, normalises the sum (RMSNorm) and stores it as activations.
// One workgroup is one row; a lane takes whole blocks of 32 values, so the order of every sum is fixed
// by the width and the workgroup's size alone. Widths are multiples of 4.
// With TEXELS, what is read comes out of texel buffers, and lanes are those of one subgroup of 8 or 16: software
// drivers are fast at neither storage nor shared memory.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#if TEXELS
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
#include "activations.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8u;
layout(constant_id = 1) const uint FLAGS = 0u; // constant, because software drivers run both sides of what is not
#define ADD_DELTA 4u
#define NORM_DELTA 8u
#define USE_ROW_MAP 16u

layout(set = 0, binding = 0) buffer Residual { vec4 residual[]; };           // [row][width / 4]
#if TEXELS
layout(set = 0, binding = 1) uniform samplerBuffer delta_texels;             // [row][width / 4]
layout(set = 0, binding = 2) uniform samplerBuffer weight_texels;            // [width / 4]
layout(set = 0, binding = 3) uniform samplerBuffer post_weight_texels;       // [width / 4]
layout(set = 0, binding = 8) uniform samplerBuffer residual_texels;          // residual once more
#define RESIDUAL(at) texelFetch(residual_texels, int(at))
#define DELTA(at) texelFetch(delta_texels, int(at))
#define WEIGHT(at) texelFetch(weight_texels, int(at))
#define POST_WEIGHT(at) texelFetch(post_weight_texels, int(at))
#else
layout(set = 0, binding = 1) readonly buffer Delta { vec4 delta[]; };
layout(set = 0, binding = 2) readonly buffer Weight { vec4 weight[]; };
layout(set = 0, binding = 3) readonly buffer PostWeight { vec4 post_weight[]; };
#define RESIDUAL(at) residual[at]
#define DELTA(at) delta[at]
#define WEIGHT(at) weight[at]
#define POST_WEIGHT(at) post_weight[at]
#endif
layout(set = 0, binding = 4) writeonly buffer Codes { uvec4 codes[]; };
layout(set = 0, binding = 5) writeonly buffer Scales { vec4 scales[]; };
layout(set = 0, binding = 6) writeonly buffer Values { vec4 values[]; };
layout(set = 0, binding = 7) readonly buffer RowMap { uint row_map[]; };     // output row -> input row

layout(push_constant) uniform Push {
    uint width;
    float epsilon;
    uint map_offset;
    uint base_x; // the first workgroup of this member's share
    uint base_y;
} push;

#include "store_activations.glsl"

#if TEXELS
float sum_over_lanes(float partial) {
    precise float sum = partial;
    if (LANES > 8u) sum += subgroupShuffleXor(sum, 8u);
    sum += subgroupShuffleXor(sum, 4u);
    sum += subgroupShuffleXor(sum, 2u);
    sum += subgroupShuffleXor(sum, 1u);
    return sum;
}
#else
shared float partials[LANES];

float sum_over_lanes(float partial) {
    uint lane = gl_LocalInvocationID.x;
    barrier();
    partials[lane] = partial;
    for (uint step = LANES / 2u; step > 0u; step >>= 1) {
        barrier();
        if (lane < step) partials[lane] += partials[lane + step];
    }
    barrier();
    return partials[0];
}
#endif

uint quads; // of a row
uint base;  // of the row's first
float delta_scale;
// Push constants: software drivers read them anew, lane by lane, wherever they are named after a loop.
float width, epsilon;

float add_squares(float sum, vec4 value) {
    precise float squares = sum;
    squares += value.x * value.x;
    squares += value.y * value.y;
    squares += value.z * value.z;
    squares += value.w * value.w;
    return squares;
}

float add_block(float sum, uint block, vec4 values[8]) {
    FOR_QUADS sum = add_squares(sum, counts(quads, block, i) ? values[i] : vec4(0.0));
    return sum;
}

// A block of the row with the delta in.
void read_sums(uint block, out vec4 sums[8]) {
    vec4 added[8], post_weights[8];
    FOR_QUADS sums[i] = RESIDUAL(base + place(quads, block, i));
    if ((FLAGS & ADD_DELTA) == 0u) return;
    FOR_QUADS added[i] = DELTA(base + place(quads, block, i));
    if ((FLAGS & NORM_DELTA) != 0u) FOR_QUADS post_weights[i] = POST_WEIGHT(place(quads, block, i));
    FOR_QUADS {
        precise vec4 delta = added[i];
        if ((FLAGS & NORM_DELTA) != 0u) delta = delta * delta_scale * post_weights[i];
        precise vec4 sum = sums[i] + delta;
        sums[i] = sum;
    }
}

float scale_of(float squares) {
    precise float mean = sum_over_lanes(squares) / width;
    precise float scale = 1.0 / sqrt(mean + epsilon);
    return scale;
}

void main() {
    const uint lane = gl_LocalInvocationID.x;
    const uint row = gl_WorkGroupID.x + push.base_x;
    const uint source = (FLAGS & USE_ROW_MAP) != 0u ? row_map[push.map_offset + row] : row;
    width = float(push.width);
    epsilon = push.epsilon;
    quads = push.width / 4u;
    base = source * quads;
    const uint blocks = (quads + 7u) / 8u;

    // Software drivers run a loop's body once more for nothing where its test comes first; so a lane without a block
    // takes one that does not count.
    if ((FLAGS & NORM_DELTA) != 0u) {
        float squares = 0.0;
        uint block = lane;
        do {
            vec4 deltas[8];
            FOR_QUADS deltas[i] = DELTA(base + place(quads, block, i));
            squares = add_block(squares, block, deltas);
            block += LANES;
        } while (block < blocks);
        delta_scale = scale_of(squares);
    }

    float squares = 0.0;
    uint block = lane;
    do {
        vec4 sums[8];
        read_sums(block, sums);
        squares = add_block(squares, block, sums);
        block += LANES;
    } while (block < blocks);
    const float scale = scale_of(squares);

    block = lane;
    do {
        vec4 sums[8], weights[8];
        read_sums(block, sums);
        FOR_QUADS weights[i] = WEIGHT(place(quads, block, i));
        if ((FLAGS & ADD_DELTA) != 0u) FOR_QUADS if (counts(quads, block, i)) residual[base + block * 8u + i] = sums[i];
        FOR_QUADS {
            precise vec4 value = sums[i] * scale * weights[i];
            sums[i] = counts(quads, block, i) ? value : vec4(0.0);
        }
        if (block < blocks) store_block(FLAGS, row, blocks, block, sums);
        block += LANES;
    } while (block < blocks);
}

#version 450
// Adds a delta to the residual stream, normalises the sum (RMSNorm) and stores it as activations.
// One workgroup is one row; a lane takes whole blocks of 32 values, so the order of every sum is fixed
// by the width and the workgroup's size alone. Widths are multiples of 4.
// With TEXELS, what is read comes out of texel buffers, and lanes are those of one subgroup of 8: software
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
    uint flags;
    float epsilon;
    uint map_offset;
    uint base_x; // the first workgroup of this member's share
    uint base_y;
} push;
#define ADD_DELTA 4u
#define NORM_DELTA 8u
#define USE_ROW_MAP 16u

#include "store_activations.glsl"

#if TEXELS
float sum_over_lanes(float partial) {
    precise float sum = partial;
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

float delta_scale;

// Four values of the row with the delta in.
vec4 sum_at(uint base, uint quad) {
    precise vec4 value = RESIDUAL(base + quad);
    if ((push.flags & ADD_DELTA) != 0u) {
        precise vec4 added = DELTA(base + quad);
        if ((push.flags & NORM_DELTA) != 0u) added = added * delta_scale * POST_WEIGHT(quad);
        value += added;
    }
    return value;
}

float add_squares(float sum, vec4 value) {
    precise float squares = sum;
    squares += value.x * value.x;
    squares += value.y * value.y;
    squares += value.z * value.z;
    squares += value.w * value.w;
    return squares;
}

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint row = gl_WorkGroupID.x + push.base_x;
    uint source = (push.flags & USE_ROW_MAP) != 0u ? row_map[push.map_offset + row] : row;
    uint quads = push.width / 4u;
    uint base = source * quads;
    uint blocks = (quads + 7u) / 8u;

    delta_scale = 1.0;
    if ((push.flags & NORM_DELTA) != 0u) {
        precise float squares = 0.0;
        for (uint block = lane; block < blocks; block += LANES) {
            uint end = min(block * 8u + 8u, quads);
            for (uint quad = block * 8u; quad < end; quad++) squares = add_squares(squares, DELTA(base + quad));
        }
        precise float mean = sum_over_lanes(squares) / float(push.width);
        precise float its_scale = 1.0 / sqrt(mean + push.epsilon);
        delta_scale = its_scale;
    }

    precise float squares = 0.0;
    for (uint block = lane; block < blocks; block += LANES) {
        uint end = min(block * 8u + 8u, quads);
        for (uint quad = block * 8u; quad < end; quad++) squares = add_squares(squares, sum_at(base, quad));
    }
    precise float mean = sum_over_lanes(squares) / float(push.width);
    precise float scale = 1.0 / sqrt(mean + push.epsilon);

    for (uint block = lane; block < blocks; block += LANES) {
        vec4 block_values[8];
        [[unroll]] for (uint i = 0u; i < 8u; i++) {
            uint quad = block * 8u + i;
            precise vec4 value = vec4(0.0);
            if (quad < quads) {
                value = sum_at(base, quad);
                if ((push.flags & ADD_DELTA) != 0u) residual[base + quad] = value;
                value = value * scale * WEIGHT(quad);
            }
            block_values[i] = value;
        }
        store_block(push.flags, row, blocks, block, block_values);
    }
}

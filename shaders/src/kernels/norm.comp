#version 450
// Adds a delta to the residual stream, normalises the sum (RMSNorm) and stores it as activations.
// One workgroup is one row; a lane takes whole blocks of 32 values, so the order of every sum is fixed
// by the width and the workgroup's size alone.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "activations.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8u;

layout(set = 0, binding = 0) buffer Residual { float residual[]; };          // [row][width]
layout(set = 0, binding = 1) readonly buffer Delta { float delta[]; };       // [row][width]
layout(set = 0, binding = 2) readonly buffer Weight { float weight[]; };     // [width]
layout(set = 0, binding = 3) readonly buffer PostWeight { float post_weight[]; }; // [width]
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

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint row = gl_WorkGroupID.x + push.base_x;
    uint source = (push.flags & USE_ROW_MAP) != 0u ? row_map[push.map_offset + row] : row;
    uint base = source * push.width;
    uint blocks = (push.width + 31u) / 32u;

    float delta_scale = 1.0;
    if ((push.flags & NORM_DELTA) != 0u) {
        precise float squares = 0.0;
        for (uint block = lane; block < blocks; block += LANES) {
            uint end = min(32u, push.width - block * 32u);
            for (uint i = 0u; i < end; i++) {
                float value = delta[base + block * 32u + i];
                squares += value * value;
            }
        }
        precise float mean = sum_over_lanes(squares) / float(push.width);
        delta_scale = 1.0 / sqrt(mean + push.epsilon);
    }

    precise float squares = 0.0;
    for (uint block = lane; block < blocks; block += LANES) {
        uint end = min(32u, push.width - block * 32u);
        for (uint i = 0u; i < end; i++) {
            uint at = block * 32u + i;
            precise float value = residual[base + at];
            if ((push.flags & ADD_DELTA) != 0u) {
                precise float added = delta[base + at];
                if ((push.flags & NORM_DELTA) != 0u) added = added * delta_scale * post_weight[at];
                value += added;
                residual[base + at] = value;
            }
            squares += value * value;
        }
    }
    precise float mean = sum_over_lanes(squares) / float(push.width);
    precise float scale = 1.0 / sqrt(mean + push.epsilon);

    if ((push.flags & (STORE_INT8 | STORE_FLOAT)) == 0u) return;
    for (uint block = lane; block < blocks; block += LANES) {
        float block_values[32];
        [[unroll]] for (uint i = 0u; i < 32u; i++) {
            uint at = block * 32u + i;
            precise float value = 0.0;
            if (at < push.width) value = residual[base + at] * scale * weight[at];
            block_values[i] = value;
        }
        store_block(push.flags, row, blocks, block, block_values);
    }
}

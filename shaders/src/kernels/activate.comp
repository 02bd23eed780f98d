#version 450
// Stores a row of values as activations: as they are (attention's output), or gated for the
// feed-forward: activation(gate) * up. One lane is one block of 32 values; all widths are multiples of 4.
// With TEXELS, the source is a texel buffer, which software drivers are faster at.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "activations.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8u;
layout(constant_id = 1) const uint FLAGS = 0u; // constant, because software drivers run both sides of what is not
#define GATE_SILU 4u
#define GATE_GELU 8u
#define GATE (GATE_SILU | GATE_GELU)

#if TEXELS
layout(set = 0, binding = 0) uniform samplerBuffer source_texels;         // [row][stride / 4]
#define SOURCE(at) texelFetch(source_texels, int(at))
#else
layout(set = 0, binding = 0) readonly buffer Source { vec4 source[]; };
#define SOURCE(at) source[at]
#endif
layout(set = 0, binding = 1) writeonly buffer Codes { uvec4 codes[]; };
layout(set = 0, binding = 2) writeonly buffer Scales { vec4 scales[]; };
layout(set = 0, binding = 3) writeonly buffer Values { vec4 values[]; };

layout(push_constant) uniform Push {
    uint width;     // values of a row that are stored
    uint stride;    // from one row of the source to the next
    uint up_offset; // from a gate value to its up value
    uint base_x; // the first workgroup of this member's share
    uint base_y;
} push;

#include "store_activations.glsl"

// x * sigmoid(x)
vec4 silu(vec4 x) {
    precise vec4 result = x / (1.0 + exp(-x));
    return result;
}

// The tanh approximation of GELU, with tanh(u) = 1 - 2 / (exp(2u) + 1).
vec4 gelu(vec4 x) {
    precise vec4 u = 0.7978845608028654 * (x + 0.044715 * x * x * x);
    precise vec4 hyperbolic = 1.0 - 2.0 / (exp(2.0 * clamp(u, -15.0, 15.0)) + 1.0);
    precise vec4 result = 0.5 * x * (1.0 + hyperbolic);
    return result;
}

void main() {
    // Software drivers read push constants anew, lane by lane, wherever they are named after a condition.
    const uint quads = push.width / 4u, stride = push.stride / 4u, up_offset = push.up_offset / 4u;
    uint blocks = (push.width + 31u) / 32u;
    uint block = (gl_WorkGroupID.x + push.base_x) * LANES + gl_LocalInvocationID.x;
    uint row = gl_WorkGroupID.y + push.base_y;
    if (block >= blocks) return;
    const uint base = row * stride;
    vec4 values[8], ups[8];
    FOR_QUADS values[i] = SOURCE(base + place(quads, block, i));
    if ((FLAGS & GATE) != 0u) FOR_QUADS ups[i] = SOURCE(base + up_offset + place(quads, block, i));
    FOR_QUADS {
        precise vec4 value = values[i];
        if ((FLAGS & GATE_SILU) != 0u) value = silu(value) * ups[i];
        if ((FLAGS & GATE_GELU) != 0u) value = gelu(value) * ups[i];
        values[i] = counts(quads, block, i) ? value : vec4(0.0);
    }
    store_block(FLAGS, row, blocks, block, values);
}

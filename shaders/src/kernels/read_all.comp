#version 450
// Reads a whole buffer once, to measure how fast a device reads memory. One workgroup takes a run of
// LANES * texels texels, its lanes side by side; a lane keeps one word of what it read, so that no driver leaves the
// reading out.
#extension GL_EXT_control_flow_attributes : require
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 128u;
#define TOGETHER 8u // texels that a lane reads before it needs the first

layout(set = 0, binding = 0) readonly buffer Source { uvec4 source[]; }; // whole runs
layout(set = 0, binding = 1) writeonly buffer Kept { uint kept[]; };     // [workgroup][lane]

layout(push_constant) uniform Push {
    uint texels; // of each lane; a multiple of TOGETHER
    uint base_x; // the first workgroup of this member's share
    uint base_y;
} push;

void main() {
    uint group = gl_WorkGroupID.x + push.base_x;
    uint lane = gl_LocalInvocationID.x;
    uvec4 words = uvec4(0u);
    for (uint texel = 0u; texel < push.texels; texel += TOGETHER) {
        [[unroll]] for (uint i = 0u; i < TOGETHER; i++) {
            words ^= source[(group * push.texels + texel + i) * LANES + lane];
        }
    }
    kept[group * LANES + lane] = words.x ^ words.y ^ words.z ^ words.w;
}

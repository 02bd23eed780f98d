#version 450
// Chains of multiply-adds in f32, to measure how fast a device computes. A lane has SUMS chains of four values, which
// do not depend on one another and so hide the time that one multiply-add takes.
#extension GL_EXT_control_flow_attributes : require
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 128u;
#define SUMS 8
#define STEPS 8

layout(set = 0, binding = 0) writeonly buffer Result { vec4 result[]; }; // [workgroup][lane]

layout(push_constant) uniform Push {
    float factor; // both are read at run time, so that no driver computes ahead
    float addend;
    uint turns;
    uint base_x; // the first workgroup of this member's share
    uint base_y;
} push;

void main() {
    uint at = (gl_WorkGroupID.x + push.base_x) * LANES + gl_LocalInvocationID.x;
    vec4 factor = vec4(push.factor);
    vec4 addend = vec4(push.addend);
    vec4 sums[SUMS];
    [[unroll]] for (int i = 0; i < SUMS; i++) sums[i] = vec4(at % 256u) + vec4(4 * i) + vec4(0.0, 1.0, 2.0, 3.0);
    for (uint turn = 0u; turn < push.turns; turn++) {
        [[unroll]] for (int step = 0; step < STEPS; step++) {
            [[unroll]] for (int i = 0; i < SUMS; i++) sums[i] = fma(sums[i], factor, addend);
        }
    }
    precise vec4 sum = vec4(0.0);
    [[unroll]] for (int i = 0; i < SUMS; i++) sum += sums[i];
    result[at] = sum;
}

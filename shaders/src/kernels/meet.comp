#version 450
// Where the members of a device group wait for one another: each runs this kernel once between two steps
// that depend on each other, and goes on when all have come. Members share the buffer's memory.
// The wait is bounded: a member that waits too long says so in `broken`, then nobody waits any more, and
// the host computes the step otherwise. (Software drivers end a loop after 65,535 turns anyway.)
#extension GL_EXT_control_flow_attributes : require
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8u; // equals the subgroup size

layout(set = 0, binding = 0) buffer Meeting {
    uint arrived; // how many have come, over all meetings of a run
    uint broken;  // not 0 once a member has given up
    uint waited;  // turns waited, over all members and meetings of a run
};

layout(push_constant) uniform Push {
    uint expected;  // how many have come when this meeting is over
    uint turns_max; // at most 60,000
} push;
// Of a turn: so many that a member waits for what can hold up another one, such as a system that clears memory which is
// used for the first time, or gives a core to somebody else for a while.
#define LOOKS 64

void main() {
    // The other lanes must be there: software drivers run a loop on while a lane that is not has not left it.
    if (gl_LocalInvocationID.x != 0u) return;
    if (atomicAdd(arrived, 1u) + 1u >= push.expected) return;
    // Atomic reads: an ordinary one might be kept in a register.
    bool met = false;
    uint turn = 0u;
    for (; turn < push.turns_max && !met; turn++) {
        [[unroll]] for (int look = 0; look < LOOKS; look++) met = met || atomicAdd(arrived, 0u) >= push.expected;
        met = met || atomicAdd(broken, 0u) != 0u;
    }
    if (!met) atomicOr(broken, 1u);
    atomicAdd(waited, turn);
}

// What the two int16 matmul kernels of the `cpu` pack share: their buffers and push constants.
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const int LANES = 8; // equals the subgroup size

layout(set = 0, binding = 0) uniform usamplerBuffer weight_codes;
layout(set = 0, binding = 1) uniform usamplerBuffer weight_scales;
layout(set = 0, binding = 2) uniform usamplerBuffer input_codes;
layout(set = 0, binding = 3) uniform samplerBuffer input_scales;
layout(set = 0, binding = 4) writeonly buffer Output { float result[]; }; // [token][stride]

// Software drivers read push constants anew, lane by lane, wherever they are named within a loop or a condition: so all
// are read first.
layout(push_constant) uniform Push {
    uint blocks;
    uint rows;   // of this part of the matrix
    uint tokens;
    uint stride; // from one token's output to the next
    uint offset; // of this part's first row in a token's output
    uint base_x; // the first workgroup of this member's share
    uint base_y;
} push;

#define OF_LANE(value, lane) subgroupShuffle(value, uint(lane))

// Texels of codes that a row's block has, and one of them, of a block of a group of the workgroup.
#if CODE_KIND == CODES_4BIT
#define CODE_TEXELS 1
#else
#define CODE_TEXELS 2
#endif
#define CODES_AT(group, block, texel) \
    texelFetch(weight_codes, ENTRY(groups[group], (block) * CODE_TEXELS + (texel), blocks * CODE_TEXELS) * LANES + lane)

// How repacked weights lie in memory. A lane is one output row; rows are taken in groups of LANES, and groups
// in bundles of 2^BUNDLE_BITS, whose entries alternate: what a workgroup reads is one run of memory.
// ENTRY(group, index, count) is the place of entry `index` of the `count` that a group has, in units of LANES.
// Along K, blocks of 32 weights; weight = scale * code + minimum.
//   4-bit codes:  ENTRY(group, block, blocks) * LANES + lane -> 32 codes; code k in word k / 8, bits 4 * (k % 8)
//   8-bit codes:  ENTRY(group, block * 2 + half, blocks * 2) * LANES + lane -> 16 codes, 128 more each, in byte order:
//                 without signs, CPUs multiply and add them in one instruction
//   float16 and bfloat16: ENTRY(group, block * 4 + eighth of 8, blocks * 4) * LANES + lane -> 8 values
//   float32:      ENTRY(group, block * 8 + quarter of 4, blocks * 8) * LANES + lane -> 4 values
// Scales, by SCALE_KIND:
//   0  one word per block: float16 scale in the low half, float16 minimum in the high half
//      (4 blocks to a texel): (ENTRY(group, block / 4, quads) * LANES + lane) * 4 + block % 4
//   1  two words per block: float32 scale, float32 minimum
//      (2 blocks to a texel): ENTRY(group, block / 2, pairs) * LANES + lane, .xy or .zw
//   2  four words per block: float32 scale and minimum of the first 16 weights, then of the last 16
//      ENTRY(group, block, blocks) * LANES + lane
#define ENTRY(group, index, count) \
    (((((group) >> BUNDLE_BITS) * (count) + (index)) << BUNDLE_BITS) + ((group) & ((1 << BUNDLE_BITS) - 1)))
#define CODES_4BIT 0
#define CODES_8BIT 1
#define SCALES_HALF 0
#define SCALES_FLOAT 1
#define SCALES_FLOAT_PER_16 2
#define CODES_FLOAT16 2
#define CODES_BFLOAT16 3
#define CODES_FLOAT32 4

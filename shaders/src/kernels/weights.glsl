// How repacked weights lie in memory. A lane is one output row; rows are taken in groups of LANES.
// Along K, blocks of 32 weights; weight = scale * code + minimum.
//   4-bit codes:  (group * blocks + block) * LANES + lane -> 32 codes; code k in word k / 8, bits 4 * (k % 8)
//   8-bit codes:  ((group * blocks + block) * 2 + half) * LANES + lane -> 16 signed codes, in byte order
//   float16 and bfloat16: ((group * blocks + block) * 4 + eighth of 8) * LANES + lane -> 8 values
//   float32:      ((group * blocks + block) * 8 + quarter of 4) * LANES + lane -> 4 values
// Scales, by SCALE_KIND:
//   0  one word per block: float16 scale in the low half, float16 minimum in the high half
//      (4 blocks to a texel): ((group * quads + block / 4) * LANES + lane) * 4 + block % 4
//   1  two words per block: float32 scale, float32 minimum
//      (2 blocks to a texel): (group * pairs + block / 2) * LANES + lane, .xy or .zw
//   2  four words per block: float32 scale and minimum of the first 16 weights, then of the last 16
//      (group * blocks + block) * LANES + lane
#define CODES_4BIT 0
#define CODES_8BIT 1
#define SCALES_HALF 0
#define SCALES_FLOAT 1
#define SCALES_FLOAT_PER_16 2
#define CODES_FLOAT16 2
#define CODES_BFLOAT16 3
#define CODES_FLOAT32 4

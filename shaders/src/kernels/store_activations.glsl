// Writes one block of 32 activations of one row: as int8 codes with their scale, as f32, or both.
// Needs buffers `codes` (uvec4[]), `scales` (vec4[]), `values` (vec4[]), and activations.glsl.
#define STORE_INT8 1u
#define STORE_FLOAT 2u

void store_block(uint kinds, uint row, uint blocks, uint block, float block_values[32]) {
    if ((kinds & STORE_FLOAT) != 0u) {
        [[unroll]] for (uint quad = 0u; quad < 8u; quad++) {
            values[value_texel(row, blocks, block, quad)] = vec4(
                block_values[quad * 4u], block_values[quad * 4u + 1u],
                block_values[quad * 4u + 2u], block_values[quad * 4u + 3u]);
        }
    }
    if ((kinds & STORE_INT8) != 0u) {
        float largest = 0.0;
        [[unroll]] for (uint i = 0u; i < 32u; i++) largest = max(largest, abs(block_values[i]));
        // A block whose scale would be denormal is taken as zero: denormals slow CPUs down a lot.
        bool empty = largest < 1.0e-30;
        precise float scale = empty ? 0.0 : largest / 127.0;
        precise float inverse = empty ? 0.0 : 127.0 / largest;
        int half_sums[2] = int[2](0, 0);
        [[unroll]] for (uint half_index = 0u; half_index < 2u; half_index++) {
            uvec4 packed = uvec4(0u);
            [[unroll]] for (uint word = 0u; word < 4u; word++) {
                uint bits = 0u;
                [[unroll]] for (uint byte = 0u; byte < 4u; byte++) {
                    precise float scaled = block_values[half_index * 16u + word * 4u + byte] * inverse;
                    int code = int(roundEven(scaled));
                    half_sums[half_index] += code;
                    bits |= (uint(code) & 255u) << (8u * byte);
                }
                packed[word] = bits;
            }
            codes[code_texel(row, blocks, block, half_index)] = packed;
        }
        precise vec4 sums = vec4(
            scale,
            scale * float(half_sums[0]),
            scale * float(half_sums[1]),
            scale * float(half_sums[0] + half_sums[1]));
        scales[scale_texel(row, blocks, block)] = sums;
    }
}

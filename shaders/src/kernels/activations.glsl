// How activations lie in memory, shared by the kernels that write them and the ones that read them.
//
// Rows (tokens) are taken in tiles of 8, so that a row's place does not depend on how many rows a step
// has. Along K, blocks of 32 values; a width that is no multiple of 32 is padded with zeros.
//   codes  (int8): ((tile * blocks + block) * 2 + half) * 8 + row in tile -> 16 codes, 4 words
//   codes (int16): ((tile * blocks + block) * 4 + quarter) * 8 + row in tile -> 8 codes, 4 words
//   scales (f32):  (tile * blocks + block) * 8 + row in tile -> vec4(scale, scale * sum of the first 16
//                  codes, scale * sum of the last 16, scale * sum of all)
//   values (f32):  ((tile * blocks + block) * 8 + quarter of the block's 32) * 8 + row in tile -> 4 values
#define TILE 8u

uint code_texel(uint row, uint blocks, uint block, uint half_index) {
    return (((row / TILE) * blocks + block) * 2u + half_index) * TILE + row % TILE;
}

uint wide_code_texel(uint row, uint blocks, uint block, uint quarter) {
    return (((row / TILE) * blocks + block) * 4u + quarter) * TILE + row % TILE;
}

uint scale_texel(uint row, uint blocks, uint block) {
    return ((row / TILE) * blocks + block) * TILE + row % TILE;
}

uint value_texel(uint row, uint blocks, uint block, uint quad) {
    return (((row / TILE) * blocks + block) * 8u + quad) * TILE + row % TILE;
}

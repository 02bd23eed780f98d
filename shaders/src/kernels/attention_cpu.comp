#version 450
// Attention of some query heads of one or more rows over their sequence's pages, for CPU devices. One
// workgroup is a tile, ROWS rows of one sequence at positions that follow each other, and HEADS query heads
// that share a KV head, so that keys and values are read once for all of them. Softmax is kept online, in
// groups of LANES tokens from the sequence's start: the split lies at absolute positions, so a row's sums do not
// depend on other rows, on slicing, on how many rows a tile has or on how many lanes of a batch run.
// 8 lanes share a token's values; where there are 16, each half adds every other token, and at last the halves meet.
// The result is stored as activations, as the attention's output matrix reads them: a lane has a quarter of a block.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_control_flow_attributes : require
#include "cache.glsl"
#include "activations.glsl"
layout(local_size_x_id = 0) in; // one subgroup; the host checks it
layout(constant_id = 0) const int LANES = 8; // or 16; equals the subgroup size
layout(constant_id = 1) const int HEAD_WIDTH = 64; // a multiple of 64
layout(constant_id = 2) const int HEADS = 1; // a divisor of the query heads per KV head
layout(constant_id = 3) const int ROWS = 1;
layout(constant_id = 4) const uint FLAGS = 0u; // which activations are stored

#define SHARING 8                         // lanes that share a token's values
#define TOGETHER (LANES / SHARING)        // tokens whose values are added at a time
#define CHUNKS (HEAD_WIDTH / 64)          // a chunk is 64 places of the head, 8 to a lane
#define NO_SCORE (-3.0e38)
// A query is one head of one of the tile's rows.
#define QUERIES (ROWS * HEADS)
#define ROW_OF(q) ((q) / HEADS)

layout(set = 0, binding = 0) uniform samplerBuffer queries;       // [row][head][HEAD_WIDTH / 4]
layout(set = 0, binding = 1) uniform usamplerBuffer keys;
layout(set = 0, binding = 2) uniform usamplerBuffer cached_values;
layout(set = 0, binding = 3) readonly buffer Rows { RowInfo rows[]; };
layout(set = 0, binding = 4) uniform usamplerBuffer page_table;
layout(set = 0, binding = 5) readonly buffer Tiles { uint first_rows[]; }; // the first row of each tile
layout(set = 0, binding = 6) writeonly buffer Codes { uvec4 codes[]; };
layout(set = 0, binding = 7) writeonly buffer Scales { vec4 scales[]; };
layout(set = 0, binding = 8) writeonly buffer Values { vec4 values[]; };

layout(push_constant) uniform Push {
    uint heads;
    uint kv_heads;
    uint window; // 0: all tokens before; otherwise only the last `window`
    uint first_tile; // in `first_rows`
    uint base_x; // the first workgroup of this member's share
    uint base_y;
} push;

#include "store_activations.glsl"

#define OF_LANE(value, lane) subgroupShuffle(value, uint(lane))
#define FOR_QUERIES [[unroll]] for (int q = 0; q < QUERIES; q++)

// Where a query begins.
#define PLACE(q) (((first_row + ROW_OF(q)) * heads + first_head + (q) % HEADS) * HEAD_WIDTH)

// 8 values of a key or value, `eighth` of its head.
void fetch8(usamplerBuffer cache, int at, int step, out float values[8]) {
#if CACHE_FLOAT32
    vec4 first = uintBitsToFloat(texelFetch(cache, at)), last = uintBitsToFloat(texelFetch(cache, at + step));
    values = float[8](first.x, first.y, first.z, first.w, last.x, last.y, last.z, last.w);
#else
    uvec4 texel = texelFetch(cache, at);
    vec2 a = unpackHalf2x16(texel.x), b = unpackHalf2x16(texel.y), c = unpackHalf2x16(texel.z), d = unpackHalf2x16(texel.w);
    values = float[8](a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y);
#endif
}

float largest_of_lanes(float value) {
    value = max(value, subgroupShuffleXor(value, 1u));
    value = max(value, subgroupShuffleXor(value, 2u));
    value = max(value, subgroupShuffleXor(value, 4u));
    return LANES > 8 ? max(value, subgroupShuffleXor(value, 8u)) : value;
}

float sum_of_lanes(float value) {
    precise float sum = value;
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    sum += subgroupShuffleXor(sum, 4u);
    if (LANES > 8) sum += subgroupShuffleXor(sum, 8u);
    return sum;
}

// Stores 8 values of a row, a quarter of a block of 32; the lanes whose numbers differ in the two lowest bits have the
// others. `own` is false in lanes that have what another one stores.
void store_quarter(uint row, uint blocks, uint block, uint quarter, vec4 first, vec4 last, bool own) {
    if ((FLAGS & STORE_FLOAT) != 0u && own) {
        values[value_texel(row, blocks, block, quarter * 2u)] = first;
        values[value_texel(row, blocks, block, quarter * 2u + 1u)] = last;
    }
    if ((FLAGS & STORE_INT16) == 0u) return;
    float largest = largest_of(max(abs(first), abs(last)));
    largest = max(largest, subgroupShuffleXor(largest, 1u));
    largest = max(largest, subgroupShuffleXor(largest, 2u));
    float scale, inverse;
    scale_by(FLAGS, largest, scale, inverse);
    ivec4 first_codes = codes_of(first, inverse), last_codes = codes_of(last, inverse);
    int half_sum = sum_of(first_codes) + sum_of(last_codes);
    half_sum += subgroupShuffleXor(half_sum, 1u);
    int other_half_sum = subgroupShuffleXor(half_sum, 2u);
    if (own) codes[wide_code_texel(row, blocks, block, quarter)] = wide_codes(first_codes, last_codes);
    if (own && quarter == 0u) store_scales(row, blocks, block, scale, ivec2(half_sum, other_half_sum));
}

void main() {
    // Constants to software drivers, unlike the place in the workgroup; both are the same.
    const int lane = int(gl_SubgroupInvocationID), sharer = lane % SHARING;
    // Software drivers read push constants anew, lane by lane, wherever they are named within a loop or a condition.
    const int heads = int(push.heads), kv_heads = int(push.kv_heads);
    const int first_row = int(first_rows[gl_WorkGroupID.x + push.base_x + push.first_tile]);
    const int first_head = int(gl_WorkGroupID.y + push.base_y) * HEADS;
    const int kv_head = first_head / (heads / kv_heads);
    const int texels = HEAD_WIDTH / PER_TEXEL;
    const int per_eight = 8 / PER_TEXEL; // texels that hold 8 values
    const int table = int(rows[first_row].table);
    // What each row sees, and what all rows together do.
    int ends[ROWS], starts[ROWS];
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        ends[r] = int(rows[first_row].position) + r;
        starts[r] = push.window == 0u ? 0 : max(0, ends[r] + 1 - int(push.window));
    }
    const int start = starts[0], end = ends[ROWS - 1];

    float query[QUERIES * CHUNKS * 8]; // sharer s holds places 8 * s .. 8 * s + 7 of each chunk
    FOR_QUERIES [[unroll]] for (int chunk = 0; chunk < CHUNKS; chunk++) {
        int at = (PLACE(q) + chunk * 64 + sharer * 8) / 4;
        vec4 first = texelFetch(queries, at), last = texelFetch(queries, at + 1);
        [[unroll]] for (int i = 0; i < 4; i++) {
            query[(q * CHUNKS + chunk) * 8 + i] = first[i];
            query[(q * CHUNKS + chunk) * 8 + 4 + i] = last[i];
        }
    }

    precise float output_sum[QUERIES * CHUNKS * 8];
    float largest[QUERIES];
    precise float total[QUERIES];
    [[unroll]] for (int i = 0; i < QUERIES * CHUNKS * 8; i++) output_sum[i] = 0.0;
    FOR_QUERIES { largest[q] = NO_SCORE; total[q] = 0.0; }

    // Software drivers run a loop's body once more for nothing where its test comes first.
    int first_token = start / LANES * LANES;
    do {
        const int page_head = int(texelFetch(page_table, table + first_token / PAGE_TOKENS).x) * kv_heads + kv_head;
        const int in_page = first_token % PAGE_TOKENS;
        const int token = first_token + lane;
        precise float score[QUERIES];
        FOR_QUERIES score[q] = 0.0;
        [[unroll]] for (int eighth = 0; eighth < HEAD_WIDTH / 8; eighth++) {
            float key[8];
            fetch8(keys, (page_head * texels + eighth * per_eight) * PAGE_TOKENS + in_page + lane, PAGE_TOKENS, key);
            [[unroll]] for (int i = 0; i < 8; i++) FOR_QUERIES {
                precise float term = key[i] * OF_LANE(query[(q * CHUNKS + eighth / 8) * 8 + i], eighth % 8);
                score[q] += term;
            }
        }
        FOR_QUERIES {
            bool visible = token <= ends[ROW_OF(q)] && token >= starts[ROW_OF(q)];
            float value = visible ? score[q] : NO_SCORE;
            float new_largest = max(largest[q], largest_of_lanes(value));
            precise float fade = largest[q] == NO_SCORE ? 0.0 : exp(largest[q] - new_largest);
            // A row ends before the tile's last row may: then this group is none of its own.
            if (first_token > ends[ROW_OF(q)]) fade = 1.0;
            precise float weight = value == NO_SCORE ? 0.0 : exp(value - new_largest);
            largest[q] = new_largest;
            score[q] = weight;
            total[q] = total[q] * fade + sum_of_lanes(weight);
            [[unroll]] for (int i = 0; i < CHUNKS * 8; i++) output_sum[q * CHUNKS * 8 + i] *= fade;
        }
        [[unroll]] for (int first = 0; first < LANES; first += TOGETHER) {
            const int of_lane = first + lane / SHARING;
            // What lies in the page beyond the last row's position is garbage: read a visible place instead.
            const int place = clamp(first_token + of_lane, start, end) % PAGE_TOKENS;
            [[unroll]] for (int chunk = 0; chunk < CHUNKS; chunk++) {
                float value[8];
                fetch8(cached_values, (page_head * PAGE_TOKENS + place) * texels + (chunk * 8 + sharer) * per_eight, 1, value);
                FOR_QUERIES {
                    float weight = OF_LANE(score[q], of_lane);
                    [[unroll]] for (int i = 0; i < 8; i++) {
                        precise float term = weight * value[i];
                        output_sum[(q * CHUNKS + chunk) * 8 + i] += term;
                    }
                }
            }
        }
        first_token += LANES;
    } while (first_token <= end);

    FOR_QUERIES [[unroll]] for (int chunk = 0; chunk < CHUNKS; chunk++) {
        vec4 halves[2];
        [[unroll]] for (int i = 0; i < 8; i++) {
            precise float sum = output_sum[(q * CHUNKS + chunk) * 8 + i];
            if (TOGETHER == 2) sum += subgroupShuffleXor(sum, uint(SHARING));
            precise float value = sum / total[q];
            halves[i / 4][i % 4] = value;
        }
        const int row = first_row + ROW_OF(q), place = (first_head + q % HEADS) * HEAD_WIDTH + chunk * 64 + sharer * 8;
        store_quarter(row, heads * HEAD_WIDTH / 32, place / 32, sharer % 4, halves[0], halves[1], lane < SHARING);
    }
}

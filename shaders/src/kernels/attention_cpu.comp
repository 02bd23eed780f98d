#version 450
// Attention of some of one row's query heads over its sequence's pages, for CPU devices. One workgroup is
// one row and QUERIES query heads that share a KV head, so that keys and values are read once for them.
// Softmax is kept online, in groups of 8 tokens from the sequence's start: the split lies at absolute
// positions, so a row's sums do not depend on other rows, on slicing or on how many lanes run.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_control_flow_attributes : require
#include "cache.glsl"
layout(local_size_x = 8) in; // one subgroup of 8; the host checks it
layout(constant_id = 1) const int HEAD_WIDTH = 64; // a multiple of 64
layout(constant_id = 2) const int QUERIES = 1; // a divisor of the query heads per KV head

#define LANES 8
#define CHUNKS (HEAD_WIDTH / 64)          // a chunk is 64 places of the head, 8 to a lane
#define NO_SCORE (-3.0e38)

layout(set = 0, binding = 0) uniform samplerBuffer queries;       // [row][head][HEAD_WIDTH / 4]
layout(set = 0, binding = 1) uniform usamplerBuffer keys;
layout(set = 0, binding = 2) uniform usamplerBuffer cached_values;
layout(set = 0, binding = 3) readonly buffer Rows { RowInfo rows[]; };
layout(set = 0, binding = 4) readonly buffer Tables { uint page_table[]; };
layout(set = 0, binding = 5) writeonly buffer Output { float result[]; }; // [row][head][HEAD_WIDTH]

layout(push_constant) uniform Push {
    uint heads;
    uint kv_heads;
    uint window; // 0: all tokens before; otherwise only the last `window`
    uint base_x; // the first workgroup of this member's share
    uint base_y;
} push;

#define OF_LANE(value, lane) subgroupShuffle(value, uint(lane))
#define FOR_HEADS [[unroll]] for (int h = 0; h < QUERIES; h++)

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
    return max(value, subgroupShuffleXor(value, 4u));
}

float sum_of_lanes(float value) {
    precise float sum = value;
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    sum += subgroupShuffleXor(sum, 4u);
    return sum;
}

void main() {
    const int lane = int(gl_LocalInvocationID.x);
    const int row = int(gl_WorkGroupID.x + push.base_x);
    const int first_head = int(gl_WorkGroupID.y + push.base_y) * QUERIES;
    const int kv_head = first_head / (int(push.heads) / int(push.kv_heads));
    const int texels = HEAD_WIDTH / PER_TEXEL;
    const int per_eight = 8 / PER_TEXEL; // texels that hold 8 values
    const int position = int(rows[row].position);
    const int table = int(rows[row].table);
    const int start = push.window == 0u ? 0 : max(0, position + 1 - int(push.window));

    float query[QUERIES * CHUNKS * 8]; // lane l holds places 8 * l .. 8 * l + 7 of each chunk
    FOR_HEADS [[unroll]] for (int chunk = 0; chunk < CHUNKS; chunk++) {
        int at = ((row * int(push.heads) + first_head + h) * HEAD_WIDTH + chunk * 64 + lane * 8) / 4;
        vec4 first = texelFetch(queries, at), last = texelFetch(queries, at + 1);
        [[unroll]] for (int i = 0; i < 4; i++) {
            query[(h * CHUNKS + chunk) * 8 + i] = first[i];
            query[(h * CHUNKS + chunk) * 8 + 4 + i] = last[i];
        }
    }

    precise float output_sum[QUERIES * CHUNKS * 8];
    float largest[QUERIES];
    precise float total[QUERIES];
    for (int i = 0; i < QUERIES * CHUNKS * 8; i++) output_sum[i] = 0.0;
    FOR_HEADS { largest[h] = NO_SCORE; total[h] = 0.0; }

    for (int first_token = start / LANES * LANES; first_token <= position; first_token += LANES) {
        const int page_head = int(page_table[table + first_token / PAGE_TOKENS]) * int(push.kv_heads) + kv_head;
        const int in_page = first_token % PAGE_TOKENS;
        const int token = first_token + lane;
        precise float score[QUERIES];
        FOR_HEADS score[h] = 0.0;
        [[unroll]] for (int eighth = 0; eighth < HEAD_WIDTH / 8; eighth++) {
            float key[8];
            fetch8(keys, (page_head * texels + eighth * per_eight) * PAGE_TOKENS + in_page + lane, PAGE_TOKENS, key);
            [[unroll]] for (int i = 0; i < 8; i++) FOR_HEADS {
                precise float term = key[i] * OF_LANE(query[(h * CHUNKS + eighth / 8) * 8 + i], eighth % 8);
                score[h] += term;
            }
        }
        bool visible = token <= position && token >= start;
        FOR_HEADS {
            float value = visible ? score[h] : NO_SCORE;
            float new_largest = max(largest[h], largest_of_lanes(value));
            precise float fade = largest[h] == NO_SCORE ? 0.0 : exp(largest[h] - new_largest);
            precise float weight = value == NO_SCORE ? 0.0 : exp(value - new_largest);
            largest[h] = new_largest;
            score[h] = weight;
            total[h] = total[h] * fade + sum_of_lanes(weight);
            [[unroll]] for (int i = 0; i < CHUNKS * 8; i++) output_sum[h * CHUNKS * 8 + i] *= fade;
        }
        [[unroll]] for (int of_lane = 0; of_lane < LANES; of_lane++) {
            // What lies in the page beyond the row's position is garbage: read a visible place instead.
            const int place = clamp(first_token + of_lane, start, position) % PAGE_TOKENS;
            [[unroll]] for (int chunk = 0; chunk < CHUNKS; chunk++) {
                float value[8];
                fetch8(cached_values, (page_head * PAGE_TOKENS + place) * texels + (chunk * 8 + lane) * per_eight, 1, value);
                FOR_HEADS {
                    float weight = OF_LANE(score[h], of_lane);
                    [[unroll]] for (int i = 0; i < 8; i++) {
                        precise float term = weight * value[i];
                        output_sum[(h * CHUNKS + chunk) * 8 + i] += term;
                    }
                }
            }
        }
    }

    FOR_HEADS [[unroll]] for (int chunk = 0; chunk < CHUNKS; chunk++) {
        int at = (row * int(push.heads) + first_head + h) * HEAD_WIDTH + chunk * 64 + lane * 8;
        [[unroll]] for (int i = 0; i < 8; i++) {
            precise float value = output_sum[(h * CHUNKS + chunk) * 8 + i] / total[h];
            result[at + i] = value;
        }
    }
}

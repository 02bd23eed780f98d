#version 450
// Attention of one query head of one row over its sequence's pages, for any device: storage buffers and
// shared memory only. One workgroup of 32 lanes is one row and one head; a lane is a token of the page
// for the scores and a place of the head for the weighted sum. Online softmax page by page from the
// sequence's start, as in attention_cpu.comp.
#extension GL_GOOGLE_include_directive : require
#include "cache.glsl"
layout(local_size_x = PAGE_TOKENS) in;
layout(constant_id = 1) const uint HEAD_WIDTH = 64u;

layout(set = 0, binding = 0) readonly buffer Queries { float queries[]; };
layout(set = 0, binding = 1) readonly buffer Keys { uvec4 keys[]; };
layout(set = 0, binding = 2) readonly buffer CachedValues { uint cached_values[]; };
layout(set = 0, binding = 3) readonly buffer Rows { RowInfo rows[]; };
layout(set = 0, binding = 4) readonly buffer Tables { uint page_table[]; };
layout(set = 0, binding = 5) writeonly buffer Output { float result[]; };

layout(push_constant) uniform Push {
    uint heads;
    uint kv_heads;
    uint window;
    uint base_x; // the first workgroup of this member's share
    uint base_y;
} push;
#define NO_SCORE (-3.0e38)

shared float query[HEAD_WIDTH];
shared float weights[PAGE_TOKENS];
shared float output_sum[HEAD_WIDTH];
shared float partials[PAGE_TOKENS];

float reduce(float value, bool take_largest) {
    uint lane = gl_LocalInvocationID.x;
    barrier();
    partials[lane] = value;
    for (uint step = PAGE_TOKENS / 2u; step > 0u; step >>= 1) {
        barrier();
        if (lane < step) {
            precise float sum = partials[lane] + partials[lane + step];
            partials[lane] = take_largest ? max(partials[lane], partials[lane + step]) : sum;
        }
    }
    barrier();
    return partials[0];
}

float cached_value(uint page_head, uint token, uint place) {
#if CACHE_FLOAT32
    return uintBitsToFloat(cached_values[(page_head * PAGE_TOKENS + token) * HEAD_WIDTH + place]);
#else
    vec2 both = unpackHalf2x16(cached_values[((page_head * PAGE_TOKENS + token) * HEAD_WIDTH + place) / 2u]);
    return (place & 1u) == 0u ? both.x : both.y;
#endif
}

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint row = gl_WorkGroupID.x + push.base_x;
    uint head = gl_WorkGroupID.y + push.base_y;
    uint kv_head = head / (push.heads / push.kv_heads);
    uint texels = HEAD_WIDTH / PER_TEXEL;
    uint position = rows[row].position;
    uint table = rows[row].table;
    uint start = push.window == 0u || position + 1u <= push.window ? 0u : position + 1u - push.window;

    for (uint i = lane; i < HEAD_WIDTH; i += PAGE_TOKENS) {
        query[i] = queries[(row * push.heads + head) * HEAD_WIDTH + i];
        output_sum[i] = 0.0;
    }
    barrier();
    float largest = NO_SCORE;
    precise float total = 0.0;
    for (uint page_index = start / PAGE_TOKENS; page_index <= position / PAGE_TOKENS; page_index++) {
        uint page_head = page_table[table + page_index] * push.kv_heads + kv_head;
        uint token = page_index * PAGE_TOKENS + lane;
        float score = NO_SCORE;
        if (token <= position && token >= start) {
            precise float dot_product = 0.0;
            for (uint texel = 0u; texel < texels; texel++) {
                uvec4 packed = keys[(page_head * texels + texel) * PAGE_TOKENS + lane];
                for (uint word = 0u; word < 4u; word++) {
#if CACHE_FLOAT32
                    dot_product += uintBitsToFloat(packed[word]) * query[texel * 4u + word];
#else
                    vec2 both = unpackHalf2x16(packed[word]);
                    dot_product += both.x * query[texel * 8u + word * 2u];
                    dot_product += both.y * query[texel * 8u + word * 2u + 1u];
#endif
                }
            }
            score = dot_product;
        }
        float new_largest = max(largest, reduce(score, true));
        precise float fade = largest == NO_SCORE ? 0.0 : exp(largest - new_largest);
        largest = new_largest;
        precise float weight = score == NO_SCORE ? 0.0 : exp(score - new_largest);
        weights[lane] = weight;
        total = total * fade + reduce(weight, false);
        uint first = max(start, page_index * PAGE_TOKENS) % PAGE_TOKENS;
        uint last = min(position, page_index * PAGE_TOKENS + PAGE_TOKENS - 1u) % PAGE_TOKENS;
        for (uint i = lane; i < HEAD_WIDTH; i += PAGE_TOKENS) {
            precise float sum = output_sum[i] * fade;
            for (uint of_token = first; of_token <= last; of_token++) {
                sum += weights[of_token] * cached_value(page_head, of_token, i);
            }
            output_sum[i] = sum;
        }
        barrier();
    }
    for (uint i = lane; i < HEAD_WIDTH; i += PAGE_TOKENS) {
        precise float value = output_sum[i] / total;
        result[(row * push.heads + head) * HEAD_WIDTH + i] = value;
    }
}

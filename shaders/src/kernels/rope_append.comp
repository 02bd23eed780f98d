#version 450
// Takes one step's queries, keys and values to where attention reads them: adds biases, normalises
// heads (QK norm), rotates (RoPE), stores queries in f32 and appends keys and values to the pages.
// One workgroup is one head of one row. It also writes the sequence's new length, which the host reads
// back and compares with its own.
#extension GL_GOOGLE_include_directive : require
#include "cache.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 8u;
layout(constant_id = 1) const uint HEAD_WIDTH = 64u;

layout(set = 0, binding = 0) readonly buffer Source { float source[]; };  // [row][queries, keys, values]
layout(set = 0, binding = 1) readonly buffer Bias { float bias[]; };      // same order as a row of source
layout(set = 0, binding = 2) readonly buffer HeadNorm { float head_norm[]; }; // queries' weight, keys' weight
layout(set = 0, binding = 3) readonly buffer Angles { vec2 angles[]; };   // [row][rotated width / 2]: cos, sin
layout(set = 0, binding = 4) readonly buffer Rows { RowInfo rows[]; };
layout(set = 0, binding = 5) readonly buffer Tables { uint page_table[]; };
layout(set = 0, binding = 6) writeonly buffer Queries { float queries[]; }; // [row][head][HEAD_WIDTH]
layout(set = 0, binding = 7) writeonly buffer Keys { uint keys[]; };
layout(set = 0, binding = 8) writeonly buffer CachedValues { uint cached_values[]; };
layout(set = 0, binding = 9) writeonly buffer Lengths { uint lengths[]; };

layout(push_constant) uniform Push {
    uint heads;
    uint kv_heads;
    uint rotated;        // how many of a head's values are rotated
    uint flags;
    float epsilon;
    float query_scale;   // queries are scaled by it, after the rotation
    uint angles_offset;  // this layer's angles in the buffer, in vec2
    uint base_x; // the first workgroup of this member's share
    uint base_y;
} push;
#define ADD_BIAS 1u
#define NORM_HEADS 2u
#define ROTATE_PAIRS 4u  // pairs are (2i, 2i + 1); otherwise (i, i + rotated / 2)

shared float head[HEAD_WIDTH];
shared float partials[LANES];

void rotate(uint row, uint pair) {
    uint half_rotated = push.rotated / 2u;
    uint first = (push.flags & ROTATE_PAIRS) != 0u ? 2u * pair : pair;
    uint second = (push.flags & ROTATE_PAIRS) != 0u ? 2u * pair + 1u : pair + half_rotated;
    vec2 angle = angles[push.angles_offset + row * half_rotated + pair];
    precise float a = head[first] * angle.x - head[second] * angle.y;
    precise float b = head[first] * angle.y + head[second] * angle.x;
    head[first] = a;
    head[second] = b;
}

// The word that holds values 2 * pair and 2 * pair + 1 (float16), or value pair (float32).
uint packed_word(uint word) {
#if CACHE_FLOAT32
    return floatBitsToUint(head[word]);
#else
    return packHalf2x16(vec2(head[2u * word], head[2u * word + 1u]));
#endif
}

void main() {
    uint lane = gl_LocalInvocationID.x;
    uint row = gl_WorkGroupID.x + push.base_x;
    uint index = gl_WorkGroupID.y + push.base_y; // queries, then keys, then values
    bool is_query = index < push.heads;
    bool is_value = index >= push.heads + push.kv_heads;
    uint row_width = (push.heads + 2u * push.kv_heads) * HEAD_WIDTH;

    precise float squares = 0.0;
    for (uint i = lane; i < HEAD_WIDTH; i += LANES) {
        precise float value = source[row * row_width + index * HEAD_WIDTH + i];
        if ((push.flags & ADD_BIAS) != 0u) value += bias[index * HEAD_WIDTH + i];
        head[i] = value;
        squares += value * value;
    }
    partials[lane] = squares;
    for (uint step = LANES / 2u; step > 0u; step >>= 1) {
        barrier();
        if (lane < step) partials[lane] += partials[lane + step];
    }
    barrier();
    if ((push.flags & NORM_HEADS) != 0u && !is_value) {
        precise float scale = 1.0 / sqrt(partials[0] / float(HEAD_WIDTH) + push.epsilon);
        for (uint i = lane; i < HEAD_WIDTH; i += LANES) {
            precise float value = head[i] * scale * head_norm[(is_query ? 0u : HEAD_WIDTH) + i];
            head[i] = value;
        }
        barrier();
    }
    if (!is_value) {
        for (uint pair = lane; pair < push.rotated / 2u; pair += LANES) rotate(row, pair);
    }
    barrier();

    if (is_query) {
        for (uint i = lane; i < HEAD_WIDTH; i += LANES) {
            precise float value = head[i] * push.query_scale;
            queries[(row * push.heads + index) * HEAD_WIDTH + i] = value;
        }
        return;
    }
    RowInfo info = rows[row];
    uint page = page_table[info.table + info.position / PAGE_TOKENS];
    uint token = info.position % PAGE_TOKENS;
    uint texels = HEAD_WIDTH / PER_TEXEL;
    uint words = texels * 4u;
    uint kv_head = is_value ? index - push.heads - push.kv_heads : index - push.heads;
    for (uint word = lane; word < words; word += LANES) {
        uint texel = word / 4u;
        if (is_value) {
            uint at = ((page * push.kv_heads + kv_head) * PAGE_TOKENS + token) * texels + texel;
            cached_values[at * 4u + word % 4u] = packed_word(word);
        } else {
            uint at = ((page * push.kv_heads + kv_head) * texels + texel) * PAGE_TOKENS + token;
            keys[at * 4u + word % 4u] = packed_word(word);
        }
    }
    if (lane == 0u && is_value && kv_head == push.kv_heads - 1u && info.last_row != 0u) {
        lengths[info.length_slot] = info.position + 1u;
    }
}

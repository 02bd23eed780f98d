#version 450
// Takes one step's queries, keys and values to where attention reads them, for CPU devices: what
// rope_append.comp does, four values at a time out of texel buffers, and without a branch on what a head
// is: queries, keys and values are three specialisations, each dispatched by itself.
// One workgroup is one head of one row. The values' heads also write the sequence's new length.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "cache.glsl"
layout(local_size_x_id = 0) in; // one subgroup; the host checks it
layout(constant_id = 0) const int LANES = 8; // or 16; equals the subgroup size
layout(constant_id = 1) const int HEAD_WIDTH = 64; // a multiple of 8
layout(constant_id = 2) const int PART = 0;        // 0 queries, 1 keys, 2 values
layout(constant_id = 3) const int FLAGS = 0;
layout(constant_id = 4) const int ROTATED = 64;    // how many of a query's or key's values are rotated; a multiple of 8
#define QUERIES 0
#define KEYS 1
#define VALUES 2
#define ADD_BIAS 1
#define NORM_HEADS 2
#define ROTATE_PAIRS 4 // pairs are (2i, 2i + 1); otherwise (i, i + rotated / 2)

layout(set = 0, binding = 0) uniform samplerBuffer source;    // [row][queries, keys, values]
layout(set = 0, binding = 1) uniform samplerBuffer bias;      // same order as a row of source
layout(set = 0, binding = 2) uniform samplerBuffer head_norm; // queries' weight, keys' weight
layout(set = 0, binding = 3) uniform samplerBuffer angles;    // [row][rotated width / 2]: cos, sin
layout(set = 0, binding = 4) uniform usamplerBuffer rows;     // RowInfo
layout(set = 0, binding = 5) uniform usamplerBuffer page_table;
layout(set = 0, binding = 6) writeonly buffer Queries { vec4 queries[]; }; // [row][head][HEAD_WIDTH / 4]
#if CACHE_FLOAT32
layout(set = 0, binding = 7) writeonly buffer Cache { vec4 cache[]; };     // keys or values
#else
layout(set = 0, binding = 7) writeonly buffer Cache { uvec2 cache[]; };
#endif
layout(set = 0, binding = 9) writeonly buffer Lengths { uint lengths[]; };

layout(push_constant) uniform Push {
    uint heads;
    uint kv_heads;
    float epsilon;
    float query_scale;   // queries are scaled by it, after the rotation
    uint angles_offset;  // this layer's angles in the buffer, in vec2; even
    uint base_x;         // the first workgroup of this member's share
    uint base_y;
} push;

const int QUADS = HEAD_WIDTH / 4;

// A lane's share of quads `from` to `to`. The number of turns is known when the kernel is compiled, because software
// drivers run the body of other loops once more for nothing.
#define FOR_QUADS(quad, from, to) for (int quad = (from) + lane, turn = 0; turn < ((to) - (from) + LANES - 1) / LANES; turn++, quad += LANES) \
    if (quad < (to))

int source_at;   // of the head, in texels
int bias_at;
float norm_scale;

vec4 biased(int quad) {
    precise vec4 value = texelFetch(source, source_at + quad);
    if ((FLAGS & ADD_BIAS) != 0) value += texelFetch(bias, bias_at + quad);
    return value;
}

vec4 normalised(int quad) {
    precise vec4 value = biased(quad);
    if ((FLAGS & NORM_HEADS) != 0 && PART != VALUES) {
        value = value * norm_scale * texelFetch(head_norm, (PART == KEYS ? QUADS : 0) + quad);
    }
    return value;
}

int row, head;
// Push constants: software drivers read them anew, lane by lane, wherever they are named within a condition.
int heads, kv_heads, angles_offset;
float query_scale, epsilon;
int place;       // of the token in the cache, for its head

void store(int quad, vec4 value) {
    if (PART == QUERIES) {
        precise vec4 scaled = value * query_scale;
        queries[(row * heads + head) * QUADS + quad] = scaled;
        return;
    }
    const int texels = HEAD_WIDTH / PER_TEXEL;
#if CACHE_FLOAT32
    cache[PART == KEYS ? place + quad * PAGE_TOKENS : place * texels + quad] = value;
#else
    int texel = PART == KEYS ? place + (quad >> 1) * PAGE_TOKENS : place * texels + (quad >> 1);
    cache[texel * 2 + (quad & 1)] = uvec2(packHalf2x16(value.xy), packHalf2x16(value.zw));
#endif
}

// Cosines in x and z, sines in y and w, of pairs 2 * at and 2 * at + 1.
vec4 angle(int at) {
    return texelFetch(angles, (angles_offset + row * (ROTATED / 2)) / 2 + at);
}

void main() {
    const int lane = int(gl_LocalInvocationID.x);
    heads = int(push.heads);
    kv_heads = int(push.kv_heads);
    angles_offset = int(push.angles_offset);
    query_scale = push.query_scale;
    epsilon = push.epsilon;
    row = int(gl_WorkGroupID.x + push.base_x);
    head = int(gl_WorkGroupID.y + push.base_y);
    const int before = PART == QUERIES ? 0 : PART == KEYS ? heads : heads + kv_heads;
    bias_at = (before + head) * QUADS;
    source_at = row * (heads + 2 * kv_heads) * QUADS + bias_at;

    if ((FLAGS & NORM_HEADS) != 0 && PART != VALUES) {
        precise float squares = 0.0;
        FOR_QUADS(quad, 0, QUADS) {
            vec4 value = biased(quad);
            squares += value.x * value.x;
            squares += value.y * value.y;
            squares += value.z * value.z;
            squares += value.w * value.w;
        }
        if (LANES > 8) squares += subgroupShuffleXor(squares, 8u);
        squares += subgroupShuffleXor(squares, 4u);
        squares += subgroupShuffleXor(squares, 2u);
        squares += subgroupShuffleXor(squares, 1u);
        precise float scale = 1.0 / sqrt(squares / float(HEAD_WIDTH) + epsilon);
        norm_scale = scale;
    }

    if (PART != QUERIES) {
        uvec4 info = texelFetch(rows, row);
        int position = int(info.x);
        int page = int(texelFetch(page_table, int(info.y) + position / PAGE_TOKENS).x);
        int token = position % PAGE_TOKENS;
        int page_head = page * kv_heads + head;
        place = PART == KEYS ? page_head * (HEAD_WIDTH / PER_TEXEL) * PAGE_TOKENS + token : page_head * PAGE_TOKENS + token;
        if (PART == VALUES && lane == 0 && head == kv_heads - 1 && info.w != 0u) {
            lengths[info.z] = uint(position) + 1u;
        }
    }

    const int rotated_quads = PART == VALUES ? 0 : ROTATED / 4;
    if ((FLAGS & ROTATE_PAIRS) != 0) {
        FOR_QUADS(quad, 0, rotated_quads) {
            vec4 value = normalised(quad), turn = angle(quad);
            precise vec4 result = vec4(
                value.x * turn.x - value.y * turn.y, value.x * turn.y + value.y * turn.x,
                value.z * turn.z - value.w * turn.w, value.z * turn.w + value.w * turn.z);
            store(quad, result);
        }
    } else if (PART != VALUES) {
        FOR_QUADS(quad, 0, rotated_quads / 2) {
            vec4 first = normalised(quad), second = normalised(quad + rotated_quads / 2);
            vec4 low = angle(quad * 2), high = angle(quad * 2 + 1);
            vec4 cosine = vec4(low.xz, high.xz), sine = vec4(low.yw, high.yw);
            precise vec4 turned_first = first * cosine - second * sine;
            precise vec4 turned_second = first * sine + second * cosine;
            store(quad, turned_first);
            store(quad + rotated_quads / 2, turned_second);
        }
    }
    FOR_QUADS(quad, rotated_quads, QUADS) store(quad, normalised(quad));
}

// How keys and values lie in the KV cache, per layer. A page holds PAGE_TOKENS tokens of one sequence.
// A texel is 16 bytes: PER_TEXEL values, 8 of float16 or 4 of float32.
//   keys:   ((page * kv_heads + head) * texels + texel) * PAGE_TOKENS + token in page
//   values: ((page * kv_heads + head) * PAGE_TOKENS + token in page) * texels + texel
// where texels = head_width / PER_TEXEL. Keys lie token-innermost because a lane is a token in the
// scores; values lie width-innermost because a lane is a place of the output in the weighted sum.
#define PAGE_TOKENS 32
#if CACHE_FLOAT32
#define PER_TEXEL 4
#else
#define PER_TEXEL 8
#endif

// What a step knows of one of its rows.
struct RowInfo {
    uint position;   // of the row's token in its sequence
    uint table;      // where its sequence's page table begins, in entries
    uint length_slot; // its sequence's word in the buffer of KV lengths
    uint last_row;   // 1 where it is its sequence's last row in this step
};

//! A KV cache of one layer on the host, laid out as in `cache.glsl`.

use half::f16;
use lavalane_shaders::{CacheKind, PAGE_TOKENS};

/// Keys and values of `pages` pages, as bytes; all NaN at first.
pub(super) struct Cache {
    pub(super) kind: CacheKind,
    pub(super) kv_heads: usize,
    pub(super) width: usize,
    pub(super) keys: Vec<u8>,
    pub(super) values: Vec<u8>,
}

/// One token's place for one KV head.
#[derive(Clone, Copy)]
pub(super) struct TokenPlace {
    pub(super) page: usize,
    pub(super) kv_head: usize,
    /// Within the page.
    pub(super) token: usize,
}

impl Cache {
    pub(super) fn new(kind: CacheKind, kv_heads: usize, width: usize, pages: usize) -> Self {
        let bytes = pages * kv_heads * PAGE_TOKENS * width * element_bytes(kind);
        Self { kind, kv_heads, width, keys: vec![0xff; bytes], values: vec![0xff; bytes] }
    }

    /// The number as the cache keeps it.
    pub(super) fn rounded(&self, value: f32) -> f32 {
        match self.kind {
            CacheKind::Float16 => f16::from_f32(value).to_f32(),
            CacheKind::Float32 => value,
        }
    }

    pub(super) fn put(&mut self, place: TokenPlace, key: &[f32], value: &[f32]) {
        for at in 0..self.width {
            let (key_byte, value_byte) = (self.key_byte(place, at), self.value_byte(place, at));
            put_element(self.kind, &mut self.keys[key_byte..], key[at]);
            put_element(self.kind, &mut self.values[value_byte..], value[at]);
        }
    }

    /// Takes a token's key and value out and leaves NaN in their place.
    pub(super) fn take(&mut self, place: TokenPlace) -> (Vec<f32>, Vec<f32>) {
        let bytes: Vec<(usize, usize)> =
            (0..self.width).map(|at| (self.key_byte(place, at), self.value_byte(place, at))).collect();
        let kind = self.kind;
        let key = bytes.iter().map(|&(key, _)| take_element(kind, &mut self.keys[key..])).collect();
        let value = bytes.iter().map(|&(_, value)| take_element(kind, &mut self.values[value..])).collect();
        (key, value)
    }

    /// Whether nothing but garbage is in it.
    pub(super) fn is_garbage(&self) -> bool {
        self.keys.iter().chain(&self.values).all(|&byte| byte == 0xff)
    }

    fn key_byte(&self, place: TokenPlace, at: usize) -> usize {
        let per_texel = 16 / element_bytes(self.kind);
        let texels = self.width / per_texel;
        let texel = ((place.page * self.kv_heads + place.kv_head) * texels + at / per_texel) * PAGE_TOKENS
            + place.token;
        texel * 16 + at % per_texel * element_bytes(self.kind)
    }

    fn value_byte(&self, place: TokenPlace, at: usize) -> usize {
        let token = (place.page * self.kv_heads + place.kv_head) * PAGE_TOKENS + place.token;
        (token * self.width + at) * element_bytes(self.kind)
    }
}

fn element_bytes(kind: CacheKind) -> usize {
    match kind {
        CacheKind::Float16 => 2,
        CacheKind::Float32 => 4,
    }
}

fn put_element(kind: CacheKind, bytes: &mut [u8], value: f32) {
    match kind {
        CacheKind::Float16 => bytes[..2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        CacheKind::Float32 => bytes[..4].copy_from_slice(&value.to_le_bytes()),
    }
}

fn take_element(kind: CacheKind, bytes: &mut [u8]) -> f32 {
    let taken = &mut bytes[..element_bytes(kind)];
    let value = match kind {
        CacheKind::Float16 => f16::from_le_bytes([taken[0], taken[1]]).to_f32(),
        CacheKind::Float32 => f32::from_le_bytes([taken[0], taken[1], taken[2], taken[3]]),
    };
    taken.fill(0xff);
    value
}

//! Tokenizers read from a model file's metadata, and the streaming detokenizer.

use crate::ids::TokenId;

/// What lanes need of a tokenizer: the bytes of a token, and which tokens end a reply.
pub trait TokenText: Send + Sync {
    /// The bytes that a token adds to the reply's text; empty for control tokens. Joined, the bytes of
    /// a reply's tokens are its text, but may break inside a character.
    fn token_bytes(&self, token: TokenId) -> &[u8];

    /// Whether the token ends a reply (there may be several).
    fn is_end_of_generation(&self, token: TokenId) -> bool;
}

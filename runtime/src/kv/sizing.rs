//! How much memory KV pages take, and how many fit.

/// What decides a page's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Transformer layers that keep keys and values.
    pub layers: usize,
    /// Key-value heads of each layer.
    pub kv_heads: usize,
    /// Elements of one head's key, and of its value.
    pub head_dim: usize,
    /// Bytes of one stored element: 2 for f16, 4 for f32.
    pub element_bytes: usize,
    /// Tokens of one page.
    pub page_tokens: usize,
}

/// Why no pool can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvSizeError {
    /// A dimension is 0.
    #[error("the KV cache's {field} is 0")]
    Zero {
        /// The field of [`KvShape`].
        field: &'static str,
    },
    /// The size does not fit 64 bits.
    #[error("the size of a KV cache of {tokens} tokens does not fit 64 bits")]
    TooLarge {
        /// The tokens that it was to hold.
        tokens: usize,
    },
    /// The budget is too small for the tokens that must fit.
    #[error(
        "a KV cache of {tokens} tokens needs {needed_bytes} bytes, and {budget_bytes} are there, enough for {fitting_tokens} tokens"
    )]
    BudgetTooSmall {
        /// The tokens that must fit.
        tokens: usize,
        /// The bytes that they need.
        needed_bytes: u64,
        /// The bytes that there are.
        budget_bytes: u64,
        /// The tokens that would fit.
        fitting_tokens: u64,
    },
}

impl KvShape {
    /// Bytes of one page, keys and values of all layers together.
    ///
    /// # Errors
    /// A dimension is 0, or the size does not fit 64 bits.
    pub fn page_bytes(&self) -> Result<u64, KvSizeError> {
        let factors = [
            ("layers", self.layers),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("element_bytes", self.element_bytes),
            ("page_tokens", self.page_tokens),
        ];
        // Keys and values.
        let mut bytes = 2_u64;
        for (field, factor) in factors {
            if factor == 0 {
                return Err(KvSizeError::Zero { field });
            }
            let product = bytes.checked_mul(factor as u64);
            bytes = product.ok_or(KvSizeError::TooLarge { tokens: self.page_tokens })?;
        }
        Ok(bytes)
    }

    /// How many pages hold `tokens` tokens of one sequence.
    ///
    /// # Panics
    /// When `page_tokens` is 0.
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_tokens)
    }

    /// How many pages fit `budget_bytes`; page ids cap it at 2^32 - 1.
    ///
    /// # Errors
    /// As [`KvShape::page_bytes`]; or fewer fit than one sequence of `tokens_min` tokens needs, with what
    /// is needed and what would fit.
    pub fn pages_that_fit(&self, budget_bytes: u64, tokens_min: usize) -> Result<usize, KvSizeError> {
        let page_bytes = self.page_bytes()?;
        let needed_pages = self.pages_for(tokens_min).max(1) as u64;
        let needed_bytes = needed_pages.checked_mul(page_bytes);
        let needed_bytes = needed_bytes.ok_or(KvSizeError::TooLarge { tokens: tokens_min })?;
        let pages = (budget_bytes / page_bytes).min(u64::from(u32::MAX));
        if pages < needed_pages {
            return Err(KvSizeError::BudgetTooSmall {
                tokens: tokens_min,
                needed_bytes,
                budget_bytes,
                fitting_tokens: pages.saturating_mul(self.page_tokens as u64),
            });
        }
        Ok(usize::try_from(pages).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SmolLM2-135M in f16 with pages of 16: 30 layers, 3 KV heads of 64, so 360 KiB a page.
    const SMALL: KvShape =
        KvShape { layers: 30, kv_heads: 3, head_dim: 64, element_bytes: 2, page_tokens: 16 };

    fn check(shape: KvShape, budget_bytes: u64, tokens_min: usize, expected: Result<usize, KvSizeError>) {
        assert_eq!(shape.pages_that_fit(budget_bytes, tokens_min), expected);
    }

    #[test]
    fn as_many_whole_pages_fit_as_the_budget_holds() {
        assert_eq!(SMALL.page_bytes(), Ok(360 << 10));
        check(SMALL, 10 * (360 << 10), 160, Ok(10));
        check(SMALL, 11 * (360 << 10) - 1, 160, Ok(10));
        check(SMALL, u64::MAX, 1, Ok(u32::MAX as usize));
    }

    #[test]
    fn a_small_budget_is_refused_with_what_is_needed_and_what_would_fit() {
        let error = KvSizeError::BudgetTooSmall {
            tokens: 161,
            needed_bytes: 11 * (360 << 10),
            budget_bytes: 10 * (360 << 10),
            fitting_tokens: 160,
        };
        check(SMALL, 10 * (360 << 10), 161, Err(error));
        let text =
            "a KV cache of 161 tokens needs 4055040 bytes, and 3686400 are there, enough for 160 tokens";
        assert_eq!(error.to_string(), text);
        assert!(SMALL.pages_that_fit(0, 0).is_err());
    }

    #[test]
    fn sizes_that_are_zero_or_overflow_are_refused() {
        check(KvShape { kv_heads: 0, ..SMALL }, 1 << 40, 1, Err(KvSizeError::Zero { field: "kv_heads" }));
        check(KvShape { page_tokens: 0, ..SMALL }, 1, 1, Err(KvSizeError::Zero { field: "page_tokens" }));
        let huge = KvShape { layers: usize::MAX, ..SMALL };
        check(huge, 1, 1, Err(KvSizeError::TooLarge { tokens: 16 }));
        check(SMALL, 1, usize::MAX, Err(KvSizeError::TooLarge { tokens: usize::MAX }));
    }
}

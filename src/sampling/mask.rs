//! A mask over a row: which of its tokens may be emitted, one bit for each.
//!
//! The format is that of grammar engines (XGrammar's token bitmask, llguidance's `SimpleVob`): words of 32 bits, bit
//! `i % 32` of word `i / 32` for token `i`. In little endian that is bit `i % 8` of byte `i / 8`, so masks are read by
//! bytes and need no alignment.

/// Tokens whose bits are read together.
pub const TOKENS: usize = 128;
const BYTES: usize = TOKENS / 8;

/// Which tokens of one row may be emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenMask<'a> {
    words: &'a [u8],
    vocab_size: usize,
}

impl<'a> TokenMask<'a> {
    /// A mask over a row of `vocab_size` tokens; bits beyond these mean nothing.
    #[must_use]
    pub fn new(words: &'a [u8], vocab_size: usize) -> Self {
        Self { words, vocab_size }
    }

    /// Bytes of a mask over `vocab_size` tokens.
    #[must_use]
    pub const fn bytes_for(vocab_size: usize) -> usize {
        vocab_size.div_ceil(32) * 4
    }

    /// Whether a token of the row may be emitted.
    #[must_use]
    #[inline]
    pub fn allows(self, token: u32) -> bool {
        self.words.get(token as usize / 8).is_some_and(|byte| byte >> (token % 8) & 1 == 1)
    }

    /// How many tokens may be emitted.
    #[must_use]
    pub fn count(self) -> usize {
        self.blocks().map(|(_, bits)| bits.count_ones() as usize).sum()
    }

    /// The tokens that may be emitted, ascending.
    pub fn tokens(self) -> impl Iterator<Item = u32> + use<'a> {
        self.blocks().flat_map(|(block, mut bits)| {
            std::iter::from_fn(move || {
                let lane = (bits != 0).then(|| bits.trailing_zeros())?;
                bits &= bits - 1;
                Some((block * TOKENS) as u32 + lane)
            })
        })
    }

    /// The bits of each block, with 0 for tokens beyond the row.
    fn blocks(self) -> impl Iterator<Item = (usize, u128)> + use<'a> {
        (0..self.vocab_size.div_ceil(TOKENS)).map(move |block| {
            let rest = self.vocab_size - block * TOKENS;
            let there = if rest < TOKENS { (1 << rest) - 1 } else { u128::MAX };
            (block, self.block(block) & there)
        })
    }

    /// The bits of [`TOKENS`] tokens from `TOKENS * block` on, bit i for the i-th; the bits of tokens beyond the row
    /// are arbitrary.
    #[must_use]
    #[inline]
    pub fn block(self, block: usize) -> u128 {
        let rest = self.words.get(block * BYTES..).unwrap_or_default();
        match rest.first_chunk::<BYTES>() {
            Some(whole) => u128::from_le_bytes(*whole),
            None => {
                let mut bytes = [0; BYTES];
                bytes[..rest.len()].copy_from_slice(rest);
                u128::from_le_bytes(bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_little_endian_words() {
        let words = [0x8000_0001u32, 0, 0, 0, 0b101];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mask = |vocab_size| TokenMask::new(&bytes, vocab_size);
        let allowed: Vec<u32> = (0..160).filter(|&token| mask(160).allows(token)).collect();
        assert_eq!(allowed, [0, 31, 128, 130]);
        assert_eq!([0, 1, 2].map(|block| mask(160).block(block)), [0x8000_0001, 0b101, 0]);
        for (vocab_size, count) in [(1, 1), (31, 1), (32, 2), (128, 2), (129, 3), (130, 3), (131, 4), (160, 4)] {
            assert_eq!(mask(vocab_size).count(), count, "{vocab_size}");
            assert!(mask(vocab_size).tokens().eq(allowed[..count].iter().copied()));
        }
    }

    #[test]
    fn a_mask_is_whole_words() {
        assert_eq!([1, 32, 33, 128_256].map(TokenMask::bytes_for), [4, 4, 8, 16_032]);
    }
}

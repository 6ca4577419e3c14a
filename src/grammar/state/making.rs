//! Turns the masks that the library computes into those of rows.

use crate::sampling::mask::TokenMask;

/// A mask under construction.
pub(super) struct Making {
    pub(super) bytes: Vec<u8>,
    /// Whether the text may end here.
    pub(super) may_end: bool,
}

impl Making {
    pub(super) fn none(vocab_size: usize) -> Self {
        Self { bytes: vec![0; TokenMask::bytes_for(vocab_size)], may_end: false }
    }

    /// From a vocabulary's mask, which may be shorter or longer than the row. In it, `end` stands for all tokens that
    /// end a text.
    pub(super) fn of(mask: &[u32], end: u32, vocab_size: usize, may_end: bool) -> Self {
        let mut made = Self { may_end, ..Self::none(vocab_size) };
        for (bytes, word) in made.bytes.chunks_exact_mut(size_of::<u32>()).zip(mask) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        // The row may have another token with the id of `end`.
        made.set(end, false);
        made
    }

    pub(super) fn set(&mut self, token: u32, may_come: bool) {
        let bit = 1 << (token % 8);
        if let Some(byte) = self.bytes.get_mut(token as usize / 8) {
            *byte = if may_come { *byte | bit } else { *byte & !bit };
        }
    }
}

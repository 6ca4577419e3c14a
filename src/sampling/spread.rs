//! Rows of a draft model that knows only some of the target's tokens, as the heads of EAGLE-3 do.

use super::logits::{Dtype, Foreign, Logits};

/// Bytes of a row in shared memory that are read at once: they stay in the nearest cache.
const AT_ONCE: usize = 4096;

/// A row of the vocabulary that is made from a shorter one: a token that has no logit there has the logit −∞.
#[derive(Debug, Clone, Copy)]
pub struct Spread<'a> {
    /// The shorter row as it came.
    pub sent: Logits<'a>,
    /// The token of each of its columns. They are all different, in any order.
    pub token_ids: &'a [u32],
}

impl Spread<'_> {
    /// Writes each logit to the place of its token, and −∞ to all other places. Each is read once.
    ///
    /// # Panics
    /// If `to` is too short for a token.
    pub fn write(&self, to: &mut [u8]) {
        match self.sent.dtype() {
            Dtype::F32 => self.write_as(to, f32::NEG_INFINITY.to_le_bytes()),
            Dtype::F16 => self.write_as(to, half::f16::NEG_INFINITY.to_le_bytes()),
            Dtype::Bf16 => self.write_as(to, half::bf16::NEG_INFINITY.to_le_bytes()),
        }
    }

    /// The same for values of N bytes; all other places get `unknown`.
    fn write_as<const N: usize>(&self, to: &mut [u8], unknown: [u8; N]) {
        let to = to.as_chunks_mut::<N>().0;
        to.fill(unknown);
        let mut put = |token_ids: &[u32], values: &[u8]| {
            for (&token, value) in token_ids.iter().zip(values.as_chunks::<N>().0) {
                to[token as usize] = *value;
            }
        };
        if self.sent.in_parts() {
            let mut piece = [0; AT_ONCE];
            for (tokens, from) in self.token_ids.chunks(AT_ONCE / N).zip((0..).step_by(AT_ONCE)) {
                let piece = &mut piece[..tokens.len() * N];
                self.sent.copy_from(from, piece);
                put(tokens, piece);
            }
        } else {
            let mut own = vec![0; if self.sent.is_foreign() { self.sent.byte_len() } else { 0 }];
            put(self.token_ids, self.sent.taken(&mut own).bytes());
        }
    }
}

/// Shorter rows, one after the other in some memory, as rows of the vocabulary.
#[derive(Debug)]
pub struct SpreadRows<'a> {
    /// The memory, from the first row on.
    pub sent: &'a dyn Foreign,
    /// Their number format.
    pub dtype: Dtype,
    /// The token of each column.
    pub token_ids: &'a [u32],
    /// The number of tokens of the vocabulary.
    pub vocab_size: usize,
}

impl SpreadRows<'_> {
    fn row_bytes(&self) -> usize {
        self.vocab_size * self.dtype.size()
    }

    /// One of the rows.
    #[must_use]
    pub fn row(&self, at: usize) -> Logits<'_> {
        Logits::foreign(self.dtype, self, at * self.row_bytes(), self.vocab_size)
    }

    fn at(&self, offset: usize) -> Spread<'_> {
        let (columns, row) = (self.token_ids.len(), offset / self.row_bytes());
        let sent = Logits::foreign(self.dtype, self.sent, row * columns * self.dtype.size(), columns);
        Spread { sent, token_ids: self.token_ids }
    }
}

// SAFETY: it gives no place, only copies.
unsafe impl Foreign for SpreadRows<'_> {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        self.at(offset).write(to);
    }

    fn spread(&self, offset: usize) -> Option<Spread<'_>> {
        Some(self.at(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row that is copied: piece by piece, as one in shared memory, or only whole, as one in the memory of a device.
    #[derive(Debug)]
    struct Copied {
        bytes: Vec<u8>,
        in_parts: bool,
    }

    // SAFETY: it gives no place, only copies.
    unsafe impl Foreign for Copied {
        fn copy(&self, offset: usize, to: &mut [u8]) {
            to.copy_from_slice(&self.bytes[offset..][..to.len()]);
        }

        fn in_parts(&self) -> bool {
            self.in_parts
        }
    }

    fn written(sent: Logits<'_>, token_ids: &[u32], vocab_size: usize) -> Vec<u8> {
        let mut row = vec![0xaa; vocab_size * sent.dtype().size()];
        Spread { sent, token_ids }.write(&mut row);
        row
    }

    #[test]
    fn each_value_goes_to_its_token_and_all_other_tokens_are_masked() {
        for dtype in Dtype::ALL {
            let sent = dtype.encode(&[1.0, 2.0, f32::NAN]);
            // Not in the order of ids, as some tables are.
            let row = written(Logits::new(dtype, &sent), &[5, 0, 3], 6);
            let row = Logits::new(dtype, &row).widen();
            let none = f32::NEG_INFINITY;
            assert_eq!((&row[..3], &row[4..]), (&[2.0, none, none][..], &[none, 1.0][..]), "{dtype:?}");
            assert!(row[3].is_nan());
        }
    }

    #[test]
    fn rows_that_are_copied_are_spread_alike() {
        // Several pieces, the last of them short.
        let columns = 5 * AT_ONCE as u32 / 4 + 1;
        let tokens: Vec<u32> = (0..columns).rev().map(|column| 2 * column).collect();
        let values: Vec<f32> = (0..columns).map(|column| (column % 251) as f32).collect();
        let vocab_size = 2 * columns as usize;
        for dtype in Dtype::ALL {
            let bytes = dtype.encode(&values);
            let expected = written(Logits::new(dtype, &bytes), &tokens, vocab_size);
            for in_parts in [false, true] {
                let row = Copied { bytes: bytes.clone(), in_parts };
                let spread = written(Logits::foreign(dtype, &row, 0, values.len()), &tokens, vocab_size);
                assert!(spread == expected, "{dtype:?}, in parts: {in_parts}");
            }
        }
    }
}

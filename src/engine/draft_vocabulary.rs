//! Rows of a draft model that knows only some of the target's tokens, as the heads of EAGLE-3 do.

use super::listed::ListedRows;
use super::logits::{Data, LogitsBlock, called};
use crate::params::{FieldError, check_tokens};
use crate::permits::Permit;
use crate::sampling::logits::{Foreign, Logits};
use crate::sampling::spread::Spread;
use std::sync::Arc;

/// The tokens that a stream's draft model knows: column `i` of its rows is the logit of token `i` of this list.
#[derive(Debug)]
pub struct DraftVocabulary {
    token_ids: Box<[u32]>,
    vocab_size: u32,
    _room: Permit,
}

impl DraftVocabulary {
    /// The name of the list, for errors.
    pub const FIELD: &'static str = "draft_vocabulary";

    /// Checks how many tokens there are, before room is taken for them.
    ///
    /// # Errors
    /// When there are none, or more than in the vocabulary.
    pub fn check_len(len: usize, vocab_size: u32) -> Result<(), FieldError> {
        if len == 0 || len > vocab_size as usize {
            let message = format!("has {len} entries, must have 1 ..= vocab_size {vocab_size}");
            return Err(FieldError::new(Self::FIELD, message));
        }
        Ok(())
    }

    /// A list of different tokens of a vocabulary, with the room that it takes: 4 bytes for each.
    ///
    /// # Errors
    /// When it is empty, has a token that is not in the vocabulary, or one twice.
    pub fn new(token_ids: Vec<u32>, vocab_size: u32, room: Permit) -> Result<Self, FieldError> {
        Self::check_len(token_ids.len(), vocab_size)?;
        check_tokens(Self::FIELD, &token_ids, vocab_size)?;
        let mut seen = vec![0u64; (vocab_size as usize).div_ceil(64)];
        let is_again = |token: &u32| {
            let (word, bit) = (&mut seen[*token as usize / 64], 1 << (token % 64));
            std::mem::replace(word, *word | bit) & bit != 0
        };
        if let Some(column) = token_ids.iter().position(is_again) {
            let token = token_ids[column];
            let earlier = token_ids.iter().position(|&earlier| earlier == token).unwrap_or_default();
            return Err(FieldError::new(
                format!("{}[{column}]", Self::FIELD),
                format!(
                    "is {token}, as {}[{earlier}] is; each token has one column. Of a table of offsets (d2t), send the sum \
                     of each entry and its index",
                    Self::FIELD
                ),
            ));
        }
        Ok(Self { token_ids: token_ids.into(), vocab_size, _room: room })
    }

    /// How many columns the draft model's rows have.
    #[must_use]
    pub fn columns(&self) -> u32 {
        self.token_ids.len() as u32
    }

    /// An error about rows that have this many columns. It speaks of a vocabulary's size.
    #[must_use]
    pub fn told(error: FieldError) -> FieldError {
        called(error, "the size of draft_vocabulary")
    }
}

/// Rows of a draft model. The backend gets them as rows of the whole vocabulary: a token that the draft model does not
/// know has the logit −∞.
#[derive(Debug)]
pub(super) struct DraftRows {
    /// The rows as they came.
    pub(super) sent: LogitsBlock,
    vocabulary: Arc<DraftVocabulary>,
}

impl DraftRows {
    fn row_bytes(&self) -> usize {
        self.vocabulary.vocab_size as usize * self.sent.dtype.size()
    }

    /// The row that begins at this byte.
    fn at(&self, offset: usize) -> Spread<'_> {
        let row_bytes = self.row_bytes();
        assert!(offset.is_multiple_of(row_bytes), "a row of a draft model begins where one ends; this is a bug");
        let sent = self.sent.row((offset / row_bytes) as u64).expect("the row is there; this is a bug");
        Spread { sent, token_ids: &self.vocabulary.token_ids }
    }

    /// A row; `None` if there is none with this index.
    pub(super) fn row(&self, row: u64) -> Option<Logits<'_>> {
        let vocab_size = self.vocabulary.vocab_size as usize;
        let offset = row as usize * self.row_bytes();
        (row < self.sent.rows).then(|| Logits::foreign(self.sent.dtype, self, offset, vocab_size))
    }
}

impl LogitsBlock {
    /// The rows as those of the whole vocabulary. They count towards limits as such, since that is what is sampled.
    #[must_use]
    pub fn of_draft_model(self, vocabulary: &Arc<DraftVocabulary>) -> Self {
        let (dtype, rows) = (self.dtype, self.rows);
        let draft = DraftRows { sent: self, vocabulary: Arc::clone(vocabulary) };
        let row_bytes = draft.row_bytes();
        let data = Data::OfDraftModel(Box::new(draft));
        Self { data, dtype, row_bytes, stride_bytes: row_bytes, rows, listed: ListedRows::default() }
    }
}

// SAFETY: it gives no place, only copies.
unsafe impl Foreign for DraftRows {
    fn copy(&self, offset: usize, to: &mut [u8]) {
        assert_eq!(to.len(), self.row_bytes(), "rows of a draft model are copied whole; this is a bug");
        self.at(offset).write(to);
    }

    fn spread(&self, offset: usize) -> Option<Spread<'_>> {
        Some(self.at(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permits::Counter;
    use crate::sampling::logits::Dtype;

    fn listed(token_ids: &[u32], vocab_size: u32) -> Result<DraftVocabulary, FieldError> {
        let room = Counter::new(usize::MAX, metrics::Gauge::noop()).take_anyway(0);
        DraftVocabulary::new(token_ids.to_vec(), vocab_size, room)
    }

    fn block(dtype: Dtype, rows: &[&[f32]]) -> LogitsBlock {
        let columns = rows[0].len() as u32;
        let bytes: Vec<u8> = rows.iter().flat_map(|row| dtype.encode(row)).collect();
        LogitsBlock::new(bytes.into(), dtype, columns, 0).expect("whole rows")
    }

    #[test]
    fn each_value_goes_to_its_token_and_all_other_tokens_are_masked() {
        for dtype in Dtype::ALL {
            // Not in the order of ids, as some tables are.
            let vocabulary = Arc::new(listed(&[5, 0, 3], 6).expect("a list"));
            let rows = block(dtype, &[&[1.0, 2.0, 3.0], &[-1.0, f32::NEG_INFINITY, 0.5]]).of_draft_model(&vocabulary);
            assert_eq!((rows.rows(), rows.vocab_size()), (2, 6));
            assert_eq!(rows.bytes_of(0, 2), 2 * 6 * dtype.size(), "they count as what is sampled");
            let widened = |row: u64| {
                let row = rows.row(row).expect("a row");
                row.taken(&mut vec![0xaa; row.byte_len()]).widen()
            };
            let none = f32::NEG_INFINITY;
            assert_eq!(widened(0), [2.0, none, none, 3.0, none, 1.0], "{dtype:?}");
            assert_eq!(widened(1), [none, none, none, 0.5, none, -1.0], "{dtype:?}");
            assert!(rows.row(2).is_none());
        }
    }

    #[test]
    fn a_list_that_is_none_is_refused() {
        let refused = |token_ids: &[u32]| {
            let FieldError { field, message } = listed(token_ids, 4).expect_err("a mistake");
            format!("{field}: {message}")
        };
        assert_eq!(refused(&[]), "draft_vocabulary: has 0 entries, must have 1 ..= vocab_size 4");
        assert_eq!(refused(&[0, 1, 2, 3, 0]), "draft_vocabulary: has 5 entries, must have 1 ..= vocab_size 4");
        assert_eq!(refused(&[1, 4]), "draft_vocabulary[1]: token id 4 is outside the vocabulary of 4");
        let twice = refused(&[1, 2, 1]);
        assert!(twice.starts_with("draft_vocabulary[2]: is 1, as draft_vocabulary[0] is;"), "{twice}");
        assert!(twice.contains("d2t"), "{twice}");
        assert_eq!(listed(&[3, 1, 0, 2], 4).map(|all| all.columns()), Ok(4), "all tokens, in another order");
    }
}

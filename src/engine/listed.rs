//! Rows of a step of which only the largest logits were sent. In their block they come after the whole rows.

use super::step::{LogitsBlock, RowFailure, RowStatus};
use crate::params::FieldError;
use crate::sampling::listed::Listed;
use crate::sampling::logits::Logits;
use std::ops::Range;

/// These rows; or for each one what is wrong with it.
#[derive(Debug, Clone, Default)]
pub struct ListedRows(Vec<Result<Listed, FieldError>>);

impl ListedRows {
    /// How many bytes a token of such a row counts towards limits on bytes of rows.
    pub const TOKEN_BYTES: usize = 64;

    /// Rows that are each checked.
    #[must_use]
    pub fn new(rows: Vec<Result<Listed, FieldError>>) -> Self {
        Self(rows)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The memory that the rows take.
    pub(super) fn held_bytes(&self) -> usize {
        let tokens: usize = self.0.iter().flatten().map(Listed::held_bytes).sum();
        tokens + size_of_val(self.0.as_slice())
    }

    pub(super) fn row(&self, row: u64) -> Option<Logits<'_>> {
        self.0.get(usize::try_from(row).ok()?)?.as_ref().ok().map(Logits::of_list)
    }

    /// Bytes that some of the rows count towards limits.
    pub(super) fn bytes(&self, rows: Range<usize>) -> usize {
        let tokens = self.0.get(rows).into_iter().flatten().flatten().map(|row| row.entries().len());
        tokens.sum::<usize>().saturating_mul(Self::TOKEN_BYTES)
    }

    /// Bytes of whole rows that take as long as some of the rows.
    fn time_bytes(&self, rows: Range<usize>) -> usize {
        let rows = self.0.get(rows).into_iter().flatten().flatten();
        rows.map(|row| Logits::of_list(row).time_bytes()).fold(0, usize::saturating_add)
    }

    /// How many of the rows have tokens beside the listed ones.
    fn rests(&self, rows: Range<usize>) -> usize {
        self.0.get(rows).into_iter().flatten().flatten().filter(|row| row.has_rest()).count()
    }

    /// How many tokens the longest of some of the rows has.
    pub(super) fn most_tokens(&self, rows: Range<usize>) -> usize {
        let tokens = self.0.get(rows).into_iter().flatten().flatten().map(|row| row.entries().len());
        tokens.max().unwrap_or(0)
    }

    /// Checks that some of the rows are valid.
    ///
    /// # Errors
    /// The first row that is not.
    pub(super) fn check(&self, rows: Range<usize>) -> Result<(), RowFailure> {
        let wrong = self.0.get(rows).into_iter().flatten().find_map(|row| row.as_ref().err());
        wrong.map_or(Ok(()), |error| Err(RowFailure::new(RowStatus::InvalidWork, error.to_string())))
    }
}

impl LogitsBlock {
    /// The same rows, followed by listed ones.
    #[must_use]
    pub fn with_listed(mut self, listed: ListedRows) -> Self {
        self.listed = listed;
        self
    }

    /// The indices of the listed rows among these rows.
    fn listed_among(&self, first_row: u64, count: usize) -> Range<usize> {
        let place = |row: u64| row.saturating_sub(self.rows).min(self.listed.len() as u64) as usize;
        place(first_row)..place(first_row.saturating_add(count as u64))
    }

    /// Bytes that these rows, whole or listed, count towards limits.
    #[must_use]
    pub fn bytes_of(&self, first_row: u64, count: usize) -> usize {
        self.bytes_by(ListedRows::bytes, first_row, count)
    }

    /// Bytes of whole rows that take as long as these rows do.
    pub(super) fn time_bytes_of(&self, first_row: u64, count: usize) -> usize {
        self.bytes_by(ListedRows::time_bytes, first_row, count)
    }

    /// Bytes of the whole rows among these, plus what `of_listed` says about the listed ones.
    fn bytes_by(&self, of_listed: fn(&ListedRows, Range<usize>) -> usize, first_row: u64, count: usize) -> usize {
        let listed = self.listed_among(first_row, count);
        let whole = count - listed.len();
        whole.saturating_mul(self.row_bytes).saturating_add(of_listed(&self.listed, listed))
    }

    /// The most tokens that a distribution over one of these listed rows may have.
    pub(super) fn most_listed(&self, first_row: u64, count: usize) -> usize {
        self.listed.most_tokens(self.listed_among(first_row, count))
    }

    /// How many of these rows have tokens beside the listed ones.
    pub(super) fn rests_among(&self, first_row: u64, count: usize) -> usize {
        self.listed.rests(self.listed_among(first_row, count))
    }

    /// Checks that the listed rows among these are valid. Rows that are worked on `together` must also be all whole or
    /// all listed.
    ///
    /// # Errors
    /// [`RowStatus::InvalidWork`].
    pub(super) fn check(&self, first_row: u64, count: usize, together: bool) -> Result<(), RowFailure> {
        let listed = self.listed_among(first_row, count);
        if together && !listed.is_empty() && listed.len() < count {
            let message = "top_n: a verification's rows must be all whole or all listed";
            return Err(RowFailure::new(RowStatus::InvalidWork, message));
        }
        self.listed.check(listed)
    }

    /// The memory of listed rows, which is not part of the message that carried them.
    #[must_use]
    pub fn listed_bytes(&self) -> usize {
        self.listed.held_bytes()
    }
}

//! Finds the plain row that a row is most similar to, if that is not the one with the same number.

use super::reshaped::correlation;
use crate::row_files::Rows;

/// Number of columns that are compared first.
const COLUMNS: usize = 512;
/// Least correlation of two rows that are then compared as a whole.
const ALIKE: f64 = 0.9;

/// Some columns of each plain row.
pub(super) struct Places {
    step: usize,
    rows: Vec<Vec<f32>>,
}

impl Places {
    /// Prepares comparisons with rows of `columns` columns.
    pub(super) fn of(plain: &Rows, columns: usize) -> Self {
        let step = columns.div_ceil(COLUMNS).max(1);
        let some = |row| {
            let logits = super::widened(plain, row, columns);
            logits.into_iter().step_by(step).collect()
        };
        Self { step, rows: (0..plain.count()).map(some).collect() }
    }

    /// The most similar plain row other than row `own`. Of equally similar rows, it is the nearest.
    pub(super) fn most_like(&self, sent: &[f32], own: usize) -> Option<usize> {
        let sent: Vec<f32> = sent.iter().copied().step_by(self.step).collect();
        let others = (0..self.rows.len()).filter(|&row| row != own);
        let alike = others.map(|row| (row, correlation(&sent, &self.rows[row]))).filter(|(_, alike)| *alike > ALIKE);
        let nearer = |row: usize| std::cmp::Reverse(row.abs_diff(own));
        alike.max_by(|a, b| a.1.total_cmp(&b.1).then(nearer(a.0).cmp(&nearer(b.0)))).map(|(row, _)| row)
    }
}

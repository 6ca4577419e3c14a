//! Foreign rows, copied into this thread's own memory before anything looks at them.
//!
//! The passes look at a row several times and rely on seeing the same values each time. A worker may write its region
//! meanwhile, so its rows are read once. Why not in place: `docs/decisions/0011-foreign-rows-are-copied-once.md`.

use crate::backend::{RowJob, VerifyJob};
use bytemuck::{Pod, Zeroable};

/// What a thread keeps from job to job: the longest f32 row there may be. A verification's rows may be more.
const KEPT_LINES: usize = (4 << 20) / size_of::<Line>();

/// A cache line, so that rows start at one.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// One thread's memory for foreign rows.
#[derive(Debug, Default)]
pub(super) struct OwnRows(Vec<Line>);

impl OwnRows {
    /// Does `work` with the job, its row copied if it is foreign.
    pub(super) fn with_row<R>(&mut self, job: &RowJob<'_>, work: impl FnOnce(&RowJob<'_>) -> R) -> R {
        if !job.logits.is_foreign() {
            return work(job);
        }
        let logits = job.logits.taken(self.room(job.logits.byte_len()));
        work(&RowJob { logits, spec: job.spec })
    }

    /// Does `work` with the job, its foreign rows copied.
    pub(super) fn with_rows<R>(&mut self, job: &VerifyJob<'_>, work: impl FnOnce(&VerifyJob<'_>) -> R) -> R {
        if !job.rows.iter().any(|row| row.logits.is_foreign()) {
            return work(job);
        }
        let whole = |row: &RowJob<'_>| row.logits.byte_len().next_multiple_of(size_of::<Line>());
        let mut room = self.room(job.rows.iter().map(whole).sum());
        let mut rows = Vec::with_capacity(job.rows.len());
        for row in job.rows {
            let (own, rest) = room.split_at_mut(whole(row));
            room = rest;
            rows.push(RowJob { logits: row.logits.taken(&mut own[..row.logits.byte_len()]), spec: row.spec });
        }
        let result = work(&VerifyJob { rows: &rows, ..*job });
        self.0.truncate(KEPT_LINES);
        self.0.shrink_to(KEPT_LINES);
        result
    }

    /// So many bytes, of any value.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let lines = bytes.div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0.resize(lines, Line::zeroed());
        }
        &mut bytemuck::cast_slice_mut(&mut self.0)[..bytes]
    }
}

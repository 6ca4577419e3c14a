//! Copies foreign rows, which a worker may write while they are read, into this thread's own memory.
//!
//! The passes read a row several times and rely on seeing the same values each time, so whatever is read again is
//! copied first. Why, and which rows are copied whole: `docs/decisions/0011-foreign-rows-are-copied-once.md`.

use super::ReadFrom;
use super::distribution;
use super::level::{Level, Passes};
use super::passes::{BLOCK, Scan, blocks};
use super::select;
use super::view;
use crate::backend::{RowJob, VerifyJob};
use crate::params::MAX_VOCAB_SIZE;
use crate::sampling::logits::{Logits, PIECE};
use crate::sampling::row::{Action, LogprobsMode, RowSpec};
use bytemuck::{Pod, Zeroable};

/// How many lines a thread keeps from job to job: the longest f32 row there may be. A verification's rows may take
/// more.
const KEPT_LINES: usize = MAX_VOCAB_SIZE as usize * size_of::<f32>() / size_of::<Line>();

/// A cache line, so that rows start at one.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

const _: () = assert!(PIECE.is_multiple_of(BLOCK * 4), "a piece is whole blocks of any number format");

/// One thread's memory for copies of foreign rows.
#[derive(Debug, Default)]
pub(super) struct RowCopies(Vec<Line>);

impl RowCopies {
    /// Scans a job's row. Returns the row as it may be read from now on, and writes its block maxima to `maxima`. A
    /// foreign row is copied, perhaps without blocks that cannot matter: their maxima are −∞, and their values are not
    /// in the copy.
    pub(super) fn scan<'a>(
        &'a mut self,
        level: Level,
        job: &RowJob<'a>,
        read_from: ReadFrom,
        maxima: &mut Vec<f32>,
    ) -> (Logits<'a>, Scan) {
        let (row, passes) = (job.logits, level.passes(job.logits.dtype()));
        if !row.is_foreign() {
            return (row, view::scan(passes, &row, read_from, maxima));
        }
        view::room_for_maxima(&row, maxima);
        let own = self.room(row.byte_len());
        if !row.in_parts() {
            row.copy_to(own);
            let row = Logits::new(row.dtype(), own);
            return (row, passes.scan(own, maxima));
        }
        let scan = top_asked_for(&job.spec, row.vocab_size())
            .and_then(|top| copy_blocks_of_top(passes, &row, own, top, maxima))
            .unwrap_or_else(|| copy_whole(passes, &row, own, maxima));
        (Logits::new(row.dtype(), own), scan)
    }

    /// Calls `work` with the job, whose foreign rows are copied first.
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

    /// Room for `bytes` bytes, of any content.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let lines = bytes.div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0.resize(lines, Line::zeroed());
        }
        &mut bytemuck::cast_slice_mut(&mut self.0)[..bytes]
    }
}

/// How many of the first tokens the result depends on; `None` where it depends on more, or where logits are adjusted.
fn top_asked_for(spec: &RowSpec<'_>, vocab_size: usize) -> Option<usize> {
    let is_all = spec.mark.is_none() && spec.logprobs.is_none() && spec.is_untouched();
    if is_all { top_drawn_from(spec, vocab_size) } else { None }
}

/// How many of the first tokens, in the order of adjusted logits, are all that the result needs of adjusted logits;
/// `None` where it needs more. Raw logprobs need the logits as sent, and processed logprobs of later tokens are −∞;
/// tempered logprobs need all tokens.
pub(super) fn top_drawn_from(spec: &RowSpec<'_>, vocab_size: usize) -> Option<usize> {
    let draws = matches!(spec.action, Action::Draw { .. } | Action::Propose { .. }) && spec.report.is_none();
    let asks_of_all = spec.logprobs.is_some_and(|wanted| wanted.mode == LogprobsMode::Tempered);
    let plain = spec.chain.is_none() && !spec.has_state() && !asks_of_all;
    if draws && plain { distribution::top_kept(&spec.filters, vocab_size) } else { None }
}

/// Copies the whole row, and scans each block on the way.
fn copy_whole(passes: Passes, row: &Logits<'_>, own: &mut [u8], maxima: &mut [f32]) -> Scan {
    let whole_blocks = row.mapped().map(|mapped| passes.fetch(mapped, own, maxima));
    scan_pieces(row, whole_blocks, |Piece { first_block, from, len }| {
        let piece = &mut own[from..from + len];
        row.copy_from(from, piece);
        passes.scan(piece, &mut maxima[first_block..])
    })
}

/// Scans the row where it is, and copies only the blocks that hold its first `top` tokens. `None` if the copy differs
/// from what was scanned, because somebody writes to the row: then nothing that was found holds.
fn copy_blocks_of_top(
    passes: Passes,
    row: &Logits<'_>,
    own: &mut [u8],
    top: usize,
    maxima: &mut [f32],
) -> Option<Scan> {
    let mut piece = [Line::zeroed(); PIECE / size_of::<Line>()];
    let piece: &mut [u8] = bytemuck::cast_slice_mut(&mut piece);
    let whole_blocks = row.mapped().map(|mapped| passes.look(mapped, maxima));
    let scan = scan_pieces(row, whole_blocks, |Piece { first_block, from, len }| {
        row.copy_from(from, &mut piece[..len]);
        passes.scan(&piece[..len], &mut maxima[first_block..])
    });
    if scan.nan || !scan.max.is_finite() {
        return Some(scan);
    }
    let bound = select::bound_of_top(passes, maxima, scan.max, top);
    let size = BLOCK * row.dtype().size();
    for block in 0..blocks(row.vocab_size()) {
        if maxima[block] < bound {
            maxima[block] = f32::NEG_INFINITY;
            continue;
        }
        let end = own.len().min((block + 1) * size);
        let values = &mut own[block * size..end];
        row.copy_from(block * size, values);
        let mut again = [f32::NEG_INFINITY];
        let seen = passes.scan(values, &mut again);
        if seen.nan || again[0].to_bits() != maxima[block].to_bits() {
            return None;
        }
    }
    Some(scan)
}

/// A part of a row that is copied at once, in bytes.
struct Piece {
    first_block: usize,
    from: usize,
    len: usize,
}

/// Scans a row in memory piece by piece. If its whole blocks were scanned before, scans only what comes after them.
fn scan_pieces(row: &Logits<'_>, whole_blocks: Option<Scan>, mut scan_piece: impl FnMut(Piece) -> Scan) -> Scan {
    let (bytes, block) = (row.byte_len(), BLOCK * row.dtype().size());
    let first = if whole_blocks.is_some() { bytes / block * block } else { 0 };
    let mut all = whole_blocks.unwrap_or(Scan { max: f32::NEG_INFINITY, nan: false });
    for from in (first..bytes).step_by(PIECE) {
        let scan = scan_piece(Piece { first_block: from / block, from, len: PIECE.min(bytes - from) });
        all = Scan { max: if scan.max > all.max { scan.max } else { all.max }, nan: all.nan | scan.nan };
    }
    all
}

#[cfg(test)]
mod tests;

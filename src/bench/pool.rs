//! Rows of logits made once, so that a step costs the client only its sending.

use super::BenchArgs;
use crate::sampling::philox::philox4x32_10;
use bytes::Bytes;

/// What rows look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// A few likely tokens above a bell of unlikely ones, as language models give.
    Peaked,
    /// Nothing is likely: the hard case for top-p.
    Flat,
}

impl Distribution {
    /// Names and values, for the command line.
    pub const NAMES: [(&str, Distribution); 2] = [("peaked", Distribution::Peaked), ("flat", Distribution::Flat)];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|&&(_, distribution)| distribution == self).map_or("", |&(name, _)| name)
    }
}

/// Distinct rows beyond those of one message: more than a core's caches hold at usual vocabularies.
const ROWS: usize = 64;
/// What the pool may take; fewer distinct rows where a row is very long.
const MOST_BYTES: usize = 256 << 20;

/// Rows one after another; a message is a slice of them.
#[derive(Debug, Clone)]
pub(super) struct RowPool {
    bytes: Bytes,
    row_bytes: usize,
    rows_per_message: usize,
    starts: usize,
}

impl RowPool {
    pub(super) fn new(args: &BenchArgs) -> Self {
        let (row_bytes, rows_per_message) = (args.row_bytes(), args.rows_per_message());
        let extra = ROWS.min((MOST_BYTES / row_bytes).saturating_sub(rows_per_message)).max(1);
        let mut bytes = Vec::with_capacity((rows_per_message + extra) * row_bytes);
        for row in 0..rows_per_message + extra {
            bytes.extend(args.dtype.encode(&row_of(args.distribution, args.vocab, args.seed, row as u32)));
        }
        Self { bytes: bytes.into(), row_bytes, rows_per_message, starts: extra + 1 }
    }

    /// The logits of a group's next message: no copy.
    pub(super) fn slice(&self, rows: usize, turn: u64) -> Bytes {
        debug_assert!(rows <= self.rows_per_message);
        let first = self.offset(turn);
        self.bytes.slice(first..first + rows * self.row_bytes)
    }

    /// Where that message's logits begin.
    pub(super) fn offset(&self, turn: u64) -> usize {
        (turn % self.starts as u64) as usize * self.row_bytes
    }

    /// All rows.
    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

fn row_of(distribution: Distribution, vocab: u32, seed: u64, row: u32) -> Vec<f32> {
    let key = [seed as u32, (seed >> 32) as u32];
    let mut values = Vec::with_capacity(vocab as usize);
    for token in 0..vocab {
        let random = philox4x32_10([token, row, 0, 0], key).map(|bits| (bits >> 8) as f32 / (1u32 << 24) as f32);
        // The sum of uniforms is a bell wide enough for logits, without a logarithm.
        let bell = (random[0] + random[1] + random[2] - 1.5) * 2.0;
        values.push(match distribution {
            Distribution::Flat => bell * 0.25,
            Distribution::Peaked => bell * 2.0 + peak(random[3]),
        });
    }
    values
}

/// One token in 2048 stands out, by 4 to 16.
fn peak(random: f32) -> f32 {
    let above = random * 2048.0;
    if above < 1.0 { 4.0 + 12.0 * above } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_lie_inside_and_rows_differ() {
        let args = BenchArgs { vocab: 64, message_bytes: 3 * 256, batch: 8, ..Default::default() };
        let pool = RowPool::new(&args);
        let seen: std::collections::HashSet<_> = (0..200).map(|turn| pool.slice(3, turn)).collect();
        assert_eq!(seen.len(), pool.starts);
        assert!(seen.iter().all(|bytes| bytes.len() == 3 * 256));
    }

    #[test]
    fn peaked_rows_have_likely_tokens_and_flat_ones_have_none() {
        let spread = |distribution| {
            let row = row_of(distribution, 32_000, 7, 0);
            row.iter().fold(f32::MIN, |a, &b| a.max(b)) - row.iter().sum::<f32>() / row.len() as f32
        };
        assert!(spread(Distribution::Peaked) > 10.0);
        assert!(spread(Distribution::Flat) < 1.0);
    }
}

//! Rows of a draft vocabulary in a launch: their jobs, and their lists of tokens, each of which goes up once.

use super::abi::SpreadJob;
use super::ask::table_bytes;
use super::machine::DeviceRow;
use crate::sampling::logits::Logits;
use crate::sampling::spread::Spread;
use bytemuck::bytes_of;

/// The rows of a launch that are spread on the device.
#[derive(Debug, Default)]
pub(super) struct Tables {
    jobs: Vec<SpreadJob>,
    /// The tokens of these rows: the address of each list, its length and its place among the launch's words.
    lists: Vec<(usize, usize, usize)>,
}

impl Tables {
    pub(super) fn clear(&mut self) {
        self.jobs.clear();
        self.lists.clear();
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        self.jobs.len()
    }

    /// The place of a list that an earlier row has brought.
    fn known(&self, token_ids: &[u32]) -> Option<usize> {
        let list = (token_ids.as_ptr().addr(), token_ids.len());
        self.lists.iter().find(|(at, len, _)| (*at, *len) == list).map(|(.., place)| *place)
    }

    /// Adds a row whose place is `to`, if what it is made from is on the device. Adds its tokens to `words` unless they are
    /// there. Returns what is spread.
    pub(super) fn push(&mut self, row: &Logits<'_>, to: usize, words: &mut Vec<u32>) -> Option<DeviceRow> {
        let (there, Spread { token_ids, .. }) = (DeviceRow::of_spread(row, to)?, row.spread()?);
        let place = self.known(token_ids).unwrap_or_else(|| {
            let place = words.len();
            words.extend_from_slice(token_ids);
            self.lists.push((token_ids.as_ptr().addr(), token_ids.len(), place));
            place
        });
        self.jobs.push(SpreadJob {
            from: there.from,
            to: to as u64,
            tokens: (place * size_of::<u32>()) as u64,
            columns: token_ids.len() as u32,
            vocab_size: row.vocab_size() as u32,
        });
        Some(there)
    }

    /// How many bytes are counted for a row's list of tokens that an earlier row has brought.
    pub(super) fn spared(&self, row: &Logits<'_>) -> usize {
        let known = row.spread().and_then(|spread| self.known(spread.token_ids));
        known.map_or(0, |_| table_bytes(row))
    }

    /// Bytes of the jobs.
    pub(super) fn bytes(&self) -> usize {
        self.jobs.len() * size_of::<SpreadJob>()
    }

    /// Writes the jobs of rows and words that begin at these places.
    pub(super) fn write(&self, logits_at: usize, words_at: usize, to: &mut [u8]) {
        for (job, place) in self.jobs.iter().zip(to.chunks_exact_mut(size_of::<SpreadJob>())) {
            let (to, tokens) = (job.to + logits_at as u64, job.tokens + words_at as u64);
            place.copy_from_slice(bytes_of(&SpreadJob { to, tokens, ..*job }));
        }
    }
}

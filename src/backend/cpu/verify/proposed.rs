//! Draft tokens and their distributions, as verification reads them.

use super::passes::{Block, Passes, Reals, Weighing};
use crate::backend::VerifyJob;
use crate::backend::cpu::ReadFrom;
use crate::backend::cpu::level::Level;
use crate::backend::cpu::passes::{BLOCK, Weigh, blocks};
use crate::sampling::kept::{Form, KeptRow};
use crate::sampling::logits::Logits;
use crate::sampling::order::Candidate;
use crate::speculative::draft::{DraftError, sent_mass, sums_to_one, tolerance};
use crate::speculative::job::{DraftSource, DraftToken, VerifyFailure};
use crate::speculative::weights::{OwnProbability, cubed, per_weight, squared};
use std::borrow::Cow;

/// A draft token that has been checked.
#[derive(Debug)]
pub(in crate::backend) struct Proposed<'a> {
    pub(in crate::backend) token: u32,
    /// Its mass; above 0.
    pub(in crate::backend) mass: u64,
    /// The mass of all tokens.
    pub(in crate::backend) total: u64,
    pub(in crate::backend) source: Source<'a>,
    passes: Passes,
}

/// Where the masses of all tokens are.
#[derive(Debug)]
pub(in crate::backend) enum Source<'a> {
    /// Tokens of nonzero mass, ascending ids.
    List(Cow<'a, [(u32, u64)]>),
    Row(&'a KeptRow),
    /// Probabilities.
    Sent(Logits<'a>),
}

/// Where a job's rows, and the distributions that were sent with its draft, are read from.
pub(super) fn read_from(job: &VerifyJob<'_>) -> ReadFrom {
    let sent = |draft: &DraftToken<'_>| match draft.source {
        DraftSource::Dense(probs) => probs.bytes().len(),
        _ => 0,
    };
    let rows = job.rows.iter().map(|row| row.logits.bytes().len()).sum::<usize>();
    ReadFrom::of_bytes(rows + job.drafts.iter().map(sent).sum::<usize>())
}

impl<'a> Proposed<'a> {
    /// Checks a draft token, given the size of the target's vocabulary.
    fn new(draft: &DraftToken<'a>, vocab_size: usize, passes: Passes) -> Result<Self, DraftError> {
        let (source, total) = match draft.source {
            DraftSource::Kept(kept) => match kept.form() {
                Form::List(entries) => (Source::List(Cow::Borrowed(entries)), kept.total()),
                Form::Row(row) => (Source::Row(row), kept.total()),
            },
            DraftSource::Dense(probs) if probs.vocab_size() == vocab_size => {
                let sent = passes.check(probs.dtype(), probs.bytes());
                if !sent.fine || !sums_to_one(sent.total, tolerance(probs.dtype(), vocab_size)) {
                    return Self::plainly(draft, vocab_size, passes);
                }
                (Source::Sent(probs), sent.total)
            }
            _ => return Self::plainly(draft, vocab_size, passes),
        };
        let proposed = Self { token: draft.token, mass: 0, total, source, passes };
        match proposed.mass_of(draft.token) {
            0 => Err(DraftError::Impossible { token: draft.token }),
            mass => Ok(Self { mass, ..proposed }),
        }
    }

    /// Checks it as the specification does: for distributions that are short or wrong (or have a −0).
    fn plainly(draft: &DraftToken<'a>, vocab_size: usize, passes: Passes) -> Result<Self, DraftError> {
        let plain = draft.materialise(vocab_size as u32)?;
        let weights = plain.weights();
        let source = Source::List(Cow::Owned(weights.entries().to_vec()));
        Ok(Self { token: draft.token, mass: weights.weight(draft.token), total: weights.total(), source, passes })
    }

    /// Checks all draft tokens of a job. The first invalid one fails the job.
    pub(in crate::backend) fn all(level: Level, job: &VerifyJob<'a>) -> Result<Vec<Self>, VerifyFailure> {
        let vocab_size = job.rows.first().map_or(0, |row| row.logits.vocab_size());
        let passes = Passes::of(level);
        let checked = |(index, draft)| {
            Self::new(draft, vocab_size, passes).map_err(|error| VerifyFailure::Draft { index, error })
        };
        job.drafts.iter().enumerate().map(checked).collect()
    }

    /// Whether no other token could have been proposed.
    pub(in crate::backend) fn is_certain(&self) -> bool {
        self.mass == self.total
    }

    /// How likely a token that is drawn from this draft distribution is, by the distribution itself.
    pub(in crate::backend) fn own_probability(&self) -> OwnProbability {
        let per = per_weight(self.total);
        let of_list = |entries: &[(u32, u64)]| {
            let sum = |of: fn(u64, f64) -> u64| entries.iter().map(|&(_, mass)| of(mass, per)).sum::<u64>();
            [sum(squared), sum(cubed)]
        };
        let of_blocks = |vocab_size: usize| {
            let (mut masses, mut sums) = ([0.0; BLOCK], [0; 2]);
            for at in 0..blocks(vocab_size) {
                self.reals(at, self.passes, &mut masses);
                let block = self.passes.powers(&masses, per);
                sums = [sums[0] + block[0], sums[1] + block[1]];
            }
            sums
        };
        let [squares, cubes] = match &self.source {
            Source::List(entries) => of_list(entries),
            Source::Row(row) => of_blocks(row.logits().vocab_size()),
            Source::Sent(probs) => of_blocks(probs.vocab_size()),
        };
        OwnProbability::of(squares, cubes)
    }

    /// The tokens that could have been proposed, with their masses, if they are a list.
    pub(super) fn list(&self) -> Option<&[(u32, u64)]> {
        match &self.source {
            Source::List(entries) => Some(entries),
            _ => None,
        }
    }

    /// The mass of a token.
    pub(in crate::backend) fn mass_of(&self, token: u32) -> u64 {
        match &self.source {
            Source::List(entries) => entries.binary_search_by_key(&token, |e| e.0).map_or(0, |at| entries[at].1),
            Source::Row(row) => row.mass(token),
            Source::Sent(probs) => sent_mass(probs.get(token)),
        }
    }

    /// The values of a block, if no token is cut off and no other value replaces one of them.
    pub(super) fn whole(&self, at: usize) -> Option<Block<'_>> {
        match &self.source {
            Source::List(_) => None,
            Source::Row(row) => {
                let whole = cut_of(row).is_none() && row.patches.is_empty() && at < blocks(row.logits().vocab_size());
                whole.then(|| cut_of(row).block(row.logits(), at, at))
            }
            Source::Sent(probs) => Some(sent(probs, at)),
        }
    }

    /// The masses of a block.
    pub(super) fn reals(&self, at: usize, passes: Passes, out: &mut Reals) {
        match &self.source {
            Source::List(entries) => {
                *out = [0.0; BLOCK];
                within(entries, at).iter().for_each(|&(token, mass)| out[token as usize % BLOCK] = mass as f64);
            }
            Source::Row(row) => row_reals(row, at, passes, out),
            Source::Sent(probs) => passes.reals(&sent(probs, at), out),
        }
    }
}

/// The entries that lie in a block, from a list in token order.
fn within<T>(entries: &[(u32, T)], at: usize) -> &[(u32, T)] {
    let place = |block: usize| entries.partition_point(|entry| (entry.0 as usize) < block * BLOCK);
    &entries[place(at)..place(at + 1)]
}

fn sent<'a>(probs: &Logits<'a>, at: usize) -> Block<'a> {
    Block { dtype: probs.dtype(), row: probs.bytes(), at, weigh: Weighing::Sent }
}

fn cut_of(row: &KeptRow) -> Cut {
    Cut { last: row.last, weigh: Weigh { max: row.max, scale: row.scale }, need: row.need }
}

fn row_reals(row: &KeptRow, at: usize, passes: Passes, out: &mut Reals) {
    if at >= blocks(row.logits().vocab_size()) {
        *out = [0.0; BLOCK];
        return;
    }
    cut_of(row).reals(row.logits(), at, at, passes, out);
    for &(token, logit) in within(&row.patches, at) {
        out[token as usize % BLOCK] = row.weigh(token, logit) as f64;
    }
}

/// Which tokens of a row are kept, apart from single tokens with values of their own.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// The last token of the order that is kept.
    pub(super) last: Option<Candidate>,
    pub(super) weigh: Weigh,
    /// The least mass that is kept.
    pub(super) need: u64,
}

impl Cut {
    /// Whether every token is kept.
    pub(super) fn is_none(&self) -> bool {
        self.last.is_none() && self.need == 0
    }

    /// The block at `place` of a row, whose tokens are those of block `at`.
    pub(super) fn block<'a>(&self, row: Logits<'a>, place: usize, at: usize) -> Block<'a> {
        let above = match self.last {
            None => f32::NEG_INFINITY,
            // Equal logits are kept up to the last token.
            Some(last) if (at * BLOCK) as u32 <= last.token => last.logit.next_down(),
            Some(last) => last.logit,
        };
        let weigh = Weighing::Logits { weigh: self.weigh, above, need: self.need };
        Block { dtype: row.dtype(), row: row.bytes(), at: place, weigh }
    }

    /// The masses of that block.
    pub(super) fn reals(&self, row: Logits<'_>, place: usize, at: usize, passes: Passes, out: &mut Reals) {
        passes.reals(&self.block(row, place, at), out);
        self.behind(row, place, at, |i| out[i] = 0.0);
    }

    /// Calls `each` for tokens after the last one, in its own block, that have the same logit: by place in the block.
    pub(super) fn behind(&self, row: Logits<'_>, place: usize, at: usize, mut each: impl FnMut(usize)) {
        let Some(last) = self.last.filter(|last| last.token as usize / BLOCK == at) else { return };
        let count = BLOCK.min(row.vocab_size() - place * BLOCK);
        for i in last.token as usize % BLOCK + 1..count {
            if row.get((place * BLOCK + i) as u32) == last.logit {
                each(i);
            }
        }
    }
}

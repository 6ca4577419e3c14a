//! The masks of rows whose texts have to match a grammar, and the drafts that grammars force or allow.

use super::batch::BatchedStep;
use super::draft::Branch;
use super::finished::Finished;
use super::step::{Done, RowFailure, RowStatus, Work, WorkKind};
use crate::grammar::fill::{Pending, Wanted};
use crate::grammar::propose::PendingDrafts;
use crate::grammar::{Ahead, MaskError};
use crate::sequence::Sequence;
use crate::sequence::table::Table;
use std::thread::Thread;
use std::time::Duration;

/// The grammar masks of a step's rows, under way.
#[derive(Debug)]
pub(super) struct StepMasks {
    /// For each work that has masks, its index in the step, and how many tokens its rows have.
    places: Vec<(usize, usize)>,
    pending: Pending,
}

impl StepMasks {
    /// Asks for the masks of a step's works that are going to run; `None` if they have none.
    pub(super) fn ask(batched: &BatchedStep, table: &Table) -> Option<Self> {
        let (mut places, mut wanted) = (Vec::new(), Vec::new());
        for (work, asked) in batched.step.work.iter().enumerate().filter(|(work, _)| batched.plan[*work].is_ok()) {
            let sequence = asked.sequence_id.and_then(|id| table.get(id));
            let Some((sequence, text)) = sequence.and_then(|sequence| Some((sequence, sequence.text()?))) else {
                continue;
            };
            let Some(ahead) = ahead(asked, sequence) else { continue };
            places.push((work, text.vocab_size()));
            wanted.push(Wanted::new(text, ahead));
        }
        (!places.is_empty()).then(|| Self { places, pending: Pending::begin(wanted) })
    }

    /// See [`Pending::wait`].
    pub(super) fn wait(&mut self, at_most: Duration) -> bool {
        self.pending.wait(at_most)
    }

    /// See [`Pending::wakes`].
    pub(super) fn wakes(&self, thread: Thread) {
        self.pending.wakes(thread);
    }

    /// See [`Pending::give_up`].
    pub(super) fn give_up(&mut self) {
        self.pending.give_up();
    }

    /// Adds the masks to the step's rows, on top of those that its worker sent. A work whose masks cannot be computed is
    /// not done.
    pub(super) fn fill(self, batched: &mut BatchedStep) {
        for ((work, vocab_size), masks) in self.places.into_iter().zip(self.pending.masks()) {
            match masks {
                Ok(masks) => batched.step.work[work].masks = batched.step.work[work].masks.and(&masks, vocab_size),
                Err(mask_error) => {
                    let status = match mask_error {
                        MaskError::TooComplex(_) => RowStatus::GrammarTooComplex,
                        MaskError::NotYet | MaskError::NoRoom => RowStatus::DeadlineExceeded,
                        MaskError::Fault(_) => RowStatus::Internal,
                    };
                    batched.plan[work] = Err(RowFailure::new(status, format!("params.grammar: {mask_error}")));
                }
            }
        }
    }
}

/// The drafts of a stream's texts that have a grammar, under way: what the grammar forces, or the proposers' drafts as far
/// as the grammar allows them.
#[derive(Debug)]
pub(super) struct StreamDrafts {
    /// For each draft, the index of its step, and of its work there.
    places: Vec<(usize, usize)>,
    pending: PendingDrafts,
}

impl StreamDrafts {
    /// Asks for the drafts that finished steps of one stream want.
    pub(super) fn ask(finished: &[Finished], table: &Table) -> Self {
        let (mut places, mut texts) = (Vec::new(), Vec::new());
        for (at, finished) in finished.iter().enumerate() {
            for (work, worked) in finished.work.iter().enumerate() {
                if let Some(draft) = worked.draft_by_grammar(table) {
                    places.push((at, work));
                    texts.push(draft);
                }
            }
        }
        Self { places, pending: PendingDrafts::begin(texts) }
    }

    /// See [`PendingDrafts::wait`].
    pub(super) fn wait(&mut self, at_most: Duration) -> bool {
        self.pending.wait(at_most)
    }

    /// See [`PendingDrafts::wakes`].
    pub(super) fn wakes(&self, thread: Thread) {
        self.pending.wakes(thread);
    }

    /// Adds the drafts to their steps and sequences.
    pub(super) fn add(self, finished: &mut [Finished], table: &mut Table) {
        for ((at, work), proposed) in self.places.into_iter().zip(self.pending.drafts()) {
            let worked = &mut finished[at].work[work];
            let sequence = worked.sequence.and_then(|id| table.get_mut(id));
            if let Some((next, sequence)) = worked.done.as_mut().ok().and_then(Done::next_mut).zip(sequence) {
                *next = sequence.drafts_by_grammar(proposed);
            }
        }
    }
}

/// The places of a work's rows in its text; `None` if masks do not matter there.
fn ahead(work: &Work, sequence: &Sequence) -> Option<Ahead> {
    match work.kind.as_ref().ok()? {
        WorkKind::Sample => Some(Ahead::default()),
        WorkKind::Draft(draft) => {
            let branch = Branch::of(*draft, sequence.drafts()).ok()?;
            Some(Ahead { is_last_only: true, ..Ahead::chain(branch.path(sequence.drafts())) })
        }
        WorkKind::Score(score) if score.is_raw() => None,
        WorkKind::Score(score) => Some(Ahead::chain(score.tokens.split_last()?.1.to_vec())),
        WorkKind::Verify(verify) => {
            let parents = verify.parents_among(sequence.drafts());
            Some(Ahead { tokens: verify.tokens.clone(), parents, is_last_only: false })
        }
    }
}

//! A step on its way into a batch.

use super::RUN_HERE_BYTES;
use super::admission::StepPermits;
use super::plan::ENTRY_TIME_BYTES;
use super::step::{Open, Step, Work};
use crate::sequence::Sequence;
use crate::sequence::table::Table;
use std::cell::LazyCell;

/// A waiting step, and the room it takes.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) step: Step,
    pub(super) permits: StepPermits,
    /// The time that the step takes, in bytes of whole rows that take as long. It decides which thread may run the step
    /// ([`RUN_HERE_BYTES`]).
    pub(super) weight: usize,
}

impl Queued {
    /// Puts a step together with the sequences it opens.
    pub(super) fn new(step: Step, open: Vec<Open>, mut permits: StepPermits) -> Self {
        permits.opened(&open);
        // Two kinds of step take longer than their rows tell. A score penalises each of its rows for the text so far,
        // and there may be many rows. An explanation goes through its row once for each filter.
        let is_long = step.work.iter().any(Work::is_score) || open.iter().any(Open::takes_long);
        let step = Step { open, ..step };
        let queued = Self { weight: step.time_bytes(), step, permits };
        if is_long { queued.for_engine_thread() } else { queued }
    }

    /// The same step, left to the engine's thread because it takes longer than its rows tell.
    pub(super) fn for_engine_thread(self) -> Self {
        Self { weight: self.weight.max(RUN_HERE_BYTES + 1), ..self }
    }

    /// Adds the time for what sequences know of tokens: every top-n row goes through these entries as a whole row does,
    /// however short it is.
    pub(super) fn weigh_entries(&mut self, table: &Table) {
        let Step { open, work, logits, .. } = &self.step;
        let opened = LazyCell::new(|| open.iter().flat_map(|open| &open.sequence).map(|open| open.entries()).max());
        for work in work {
            let rows = logits.rests_among(work.first_row, work.rows());
            let Some(id) = work.sequence_id.filter(|_| rows > 0) else { continue };
            // Sequences that this step opens count as the largest of them. One that an earlier step opens is not known
            // yet and may be of any size, so the step is left to the engine's thread. The weight stays a number that can
            // be subtracted again.
            let known = table.get(id).map(Sequence::entries).max(*opened).unwrap_or(RUN_HERE_BYTES);
            let weight = rows.saturating_mul(known).saturating_mul(ENTRY_TIME_BYTES);
            self.weight = self.weight.saturating_add(weight);
        }
    }
}

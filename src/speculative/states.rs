//! What samplers remember along a draft. After a draft token, they have learnt from it, and from the target row that it
//! was tested in, as if it had been emitted. So a row's target is known only after its parent row was visited, and
//! rules visit rows in this order.

use super::job::VerifyJob;
use crate::params::state::SamplerState;
use crate::sampling::observed::{Observed, learned};
use crate::sampling::row::RowSpec;

/// What samplers remember before each row of a job, as far as it is known. Empty if they have no state.
#[derive(Debug, Clone)]
pub struct States {
    before: Vec<Option<SamplerState>>,
}

impl States {
    /// The states before any row was visited: only that of the first row is known.
    #[must_use]
    pub fn new(job: &VerifyJob<'_>) -> Self {
        let first = job.rows.first().filter(|row| row.spec.has_state()).and_then(|row| row.spec.chain);
        let mut before = vec![None; if first.is_some() { job.rows.len() } else { 0 }];
        if let (Some(chain), Some(place)) = (first, before.first_mut()) {
            *place = Some(chain.state);
        }
        Self { before }
    }

    /// The state before a row.
    #[must_use]
    pub fn before(&self, row: usize) -> Option<SamplerState> {
        self.before.get(row).copied().flatten()
    }

    /// The row's spec, with the state before it.
    #[must_use]
    pub fn spec<'a>(&self, job: &VerifyJob<'a>, row: usize) -> RowSpec<'a> {
        job.rows[row].spec.remembering(self.before(row))
    }

    /// The state after a token at a row.
    pub fn after(&self, job: &VerifyJob<'_>, row: usize, observed: impl FnOnce() -> Observed) -> Option<SamplerState> {
        let (state, chain) = (self.before(row)?, job.rows[row].spec.chain?);
        Some(learned(state, chain.steps, observed()))
    }

    /// Learns from the draft tokens that were proposed at a row, once the row was visited.
    pub fn learn(&mut self, job: &VerifyJob<'_>, row: usize, observed: impl Fn(u32) -> Observed) {
        for &node in job.tree.children(row.checked_sub(1)) {
            let state = self.after(job, row, || observed(job.drafts[node].token));
            if let Some(place) = self.before.get_mut(node + 1) {
                *place = state;
            }
        }
    }
}

//! What samplers remember along a draft. After a draft token that is what they learn from it in the target of the row before, as if it had
//! been emitted. So a row's target is known once its parent's is, and rules come to rows in this order.

use super::job::VerifyJob;
use crate::params::state::SamplerState;
use crate::sampling::observed::{Observed, learned};
use crate::sampling::row::RowSpec;

/// What samplers remember before each row of a job, as far as it is known; nothing where they have no state.
#[derive(Debug, Clone)]
pub struct States {
    before: Vec<Option<SamplerState>>,
}

impl States {
    /// Before anything was looked at: known for the first row.
    #[must_use]
    pub fn new(job: &VerifyJob<'_>) -> Self {
        let first = job.rows.first().filter(|row| row.spec.has_state()).and_then(|row| row.spec.chain);
        let mut before = vec![None; if first.is_some() { job.rows.len() } else { 0 }];
        if let (Some(chain), Some(place)) = (first, before.first_mut()) {
            *place = Some(chain.state);
        }
        Self { before }
    }

    /// Before a row.
    #[must_use]
    pub fn before(&self, row: usize) -> Option<SamplerState> {
        self.before.get(row).copied().flatten()
    }

    /// What is asked of a row.
    #[must_use]
    pub fn spec<'a>(&self, job: &VerifyJob<'a>, row: usize) -> RowSpec<'a> {
        job.rows[row].spec.remembering(self.before(row))
    }

    /// After a token at a row.
    pub fn after(&self, job: &VerifyJob<'_>, row: usize, observed: impl FnOnce() -> Observed) -> Option<SamplerState> {
        let (state, chain) = (self.before(row)?, job.rows[row].spec.chain?);
        Some(learned(state, chain.steps, observed()))
    }

    /// Learns from the draft tokens of a row that was come to.
    pub fn learn(&mut self, job: &VerifyJob<'_>, row: usize, observed: impl Fn(u32) -> Observed) {
        for &node in job.tree.children(row.checked_sub(1)) {
            let state = self.after(job, row, || observed(job.drafts[node].token));
            if let Some(place) = self.before.get_mut(node + 1) {
                *place = state;
            }
        }
    }
}

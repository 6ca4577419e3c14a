//! Verification on the CPU backend: [`verify`](crate::speculative::verify), fast.
//!
//! Reading order: this file (one job), [`walk`] (answers what the acceptance rules ask), [`current_row`] (the current
//! row), [`residual`] (the weights that are left to draw from), [`proposed`] (draft distributions), [`passes`] (every
//! loop over masses).
//!
//! A position costs as much as a plain row: its scan, its distribution, the mass of one token. Only where a draft token
//! is rejected are target and draft weighed together, block by block, and the token is drawn inside one block.
//! Distributions that are lists stay lists.

mod current_row;
mod passes;
mod proposed;
mod residual;
mod walk;

pub(in crate::backend) use proposed::{Proposed, Source};
pub(super) use residual::ResidualStore;

use super::level::Level;
use super::row::Scratch;
use crate::backend::{VerifyJob, VerifyResult};
use walk::Walk;

/// Verifies one draft.
pub(super) fn verify(level: Level, job: &VerifyJob<'_>, scratch: &mut Scratch) -> VerifyResult {
    let drafts = Proposed::all(level, job)?;
    Ok(job.plan().verify(&mut Walk::new(level, job, &drafts, scratch))?)
}

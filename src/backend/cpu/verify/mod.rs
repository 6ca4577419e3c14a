//! Verification on the CPU backend: [`verify`](crate::speculative::verify), fast.
//!
//! Reading order: this file (one job), [`walk`] (what the rules ask), [`here`] (a row come to), [`left`] (what is left to
//! draw from), [`proposed`] (draft distributions), [`passes`] (every loop over masses).
//!
//! A position costs what a plain row costs: its scan, its distribution, the mass of one token. Only where a draft
//! token is rejected are target and draft weighed together, block by block, and the token is drawn inside one block.
//! Distributions that are lists stay lists.

mod here;
mod left;
mod passes;
mod proposed;
mod walk;

pub(super) use left::LeftStore;
pub(in crate::backend) use proposed::{Proposed, Source};

use super::level::Level;
use super::row::Scratch;
use crate::backend::cpu::passes::Weigh;
use crate::backend::cpu::view::View;
use crate::backend::{VerifyJob, VerifyResult};
use crate::sampling::mass::{Y_FLOOR, exponent};
use passes::{Block, Passes, Weighing};
use walk::Walk;

/// Verifies one draft.
pub(super) fn verify(level: Level, job: &VerifyJob<'_>, scratch: &mut Scratch) -> VerifyResult {
    let drafts = Proposed::all(level, job)?;
    Ok(job.plan().verify(&mut Walk::new(level, job, &drafts, scratch))?)
}

/// The sum of the [entropy terms](crate::sampling::entropy::entropy_term) of a row.
pub(super) fn entropy_terms(view: &View<'_>, weigh: Weigh) -> u64 {
    let passes = Passes::of(view.level);
    let has_mass = |&block: &usize| exponent(view.maxima[block], weigh.max, weigh.scale) >= Y_FLOOR;
    let terms = (0..view.blocks()).filter(has_mass).map(|block| {
        let (row, at) = view.place(block);
        let weigh = Weighing::Logits { weigh, above: f32::NEG_INFINITY, need: 0 };
        passes.entropy(&Block { dtype: row.dtype(), row: row.bytes(), at, weigh })
    });
    terms.sum()
}

//! Speculative verification: which draft tokens a sequence emits, sequential and obvious.
//!
//! [`verify`] is the contract that every backend is compared with, bit for bit. Read [`weights`] (distributions as
//! they are compared), [`draft`] (what was proposed), [`numbers`] (random numbers), [`positions`] (what a rule may ask),
//! then the rules: [`rejection`], [`block`], [`rule::AcceptanceRule::Greedy`], [`typical`], [`relaxed`], [`synthetic`],
//! and [`tree`]; [`shifts`] is measured beside them. [`plan`] leads from a draft to its rule, [`plain`] answers what the rules ask.
//! Around them stand [`propose`], draft tokens without a draft model, and [`advice`], how many of them pay.
//!
//! Rejection and block verification are lossless with every parameter, penalty and mask, because the two
//! distributions that they compare are the ones that tokens are really drawn from, after everything: the target
//! of a position is what a plain row at that position would be drawn from, the draft what the draft token was.
//! Drafts without chance change not one token of a text; see [`rejection`].

// Tokens may not depend on functions that differ from platform to platform: clippy.toml lists them.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod advice;
pub mod block;
pub mod draft;
pub mod job;
mod judge;
pub mod numbers;
pub mod plain;
pub mod plan;
pub mod positions;
pub mod propose;
pub mod rejection;
pub mod relaxed;
pub mod rule;
pub mod shifts;
pub mod siblings;
pub mod states;
pub mod synthetic;
pub mod tree;
pub mod typical;
pub mod verified;
pub mod weights;

use crate::sampling::row::RowError;
pub use job::verify;
use positions::Positions;

/// A row of the target had no distribution; nothing is emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("target row {row}: {error}")]
pub struct VerifyError {
    /// The row.
    pub row: usize,
    /// Why.
    pub error: RowError,
}

/// [`Positions::come_to`], its error with the row.
fn come_to(positions: &mut impl Positions, row: usize) -> Result<(), VerifyError> {
    positions.come_to(row).map_err(|error| VerifyError { row, error })
}

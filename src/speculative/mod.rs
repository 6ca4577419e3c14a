//! Speculative verification: decides which draft tokens a sequence emits. The code is sequential and favours clarity
//! over speed.
//!
//! [`verify`] is the specification that every backend is compared with, bit for bit. Read [`weights`] (distributions in
//! the form that verification compares), [`draft`] (what was proposed), [`numbers`] (random numbers) and [`positions`]
//! (what a rule may ask), then the rules: [`rejection`], [`block`], [`rule::AcceptanceRule::Greedy`], [`typical`],
//! [`relaxed`], [`synthetic`], and [`tree`]. [`shifts`] measures mistakes of workers and decides nothing. [`plan`]
//! chooses the rule for a draft, and [`plain`] answers what the rules ask. Two modules stand beside verification:
//! [`propose`] finds draft tokens without a draft model, and [`advice`] says how many of them pay.
//!
//! Rejection and block verification are lossless with every parameter, penalty and mask, because they compare the
//! distributions that tokens are really drawn from, after all processing: the target of a position is what a plain row
//! at that position would be drawn from, and the draft distribution is what the draft token was drawn from. Draft
//! tokens from a proposer without chance do not change a single token of a text; see [`rejection`].

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

/// A row of the target had no distribution, so nothing is emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("target row {row}: {error}")]
pub struct VerifyError {
    /// The row.
    pub row: usize,
    /// Why.
    pub error: RowError,
}

/// Calls [`Positions::come_to`] and adds the row to its error.
fn come_to(positions: &mut impl Positions, row: usize) -> Result<(), VerifyError> {
    positions.come_to(row).map_err(|error| VerifyError { row, error })
}

//! The specification: what a row's result is. Sequential and written to be read.
//!
//! [`sample_row`] is the contract: every backend must give the same result, bit for bit. Read it top to bottom, then
//! the module with the rule that you need:
//!
//! - [`adjust`] (masks, bias, penalties), [`mask`] (the format of masks)
//! - [`order`] (ties), [`mass`] (integer weights and their arithmetic), [`philox`] (random numbers)
//! - [`filters`] (top-k, top-p, min-p), [`chain`] (all other samplers, and any order of samplers)
//! - [`distribution`] (the draw), [`watermark`]
//! - [`report`] (why a token was not drawn), [`stages`] (what each step left)
//! - [`listed`] (rows of which the worker sends only the largest logits), [`spread`] (rows of a draft model that knows
//!   only some tokens)

// Some functions of the standard library give different results on different platforms, and no token may depend on
// them. clippy.toml lists them.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod adjust;
pub mod candidates;
pub mod chain;
pub mod distribution;
pub mod entropy;
pub mod fault;
pub mod filters;
pub mod fingerprint;
pub mod kept;
pub mod listed;
pub mod logits;
pub mod mask;
pub mod mass;
pub mod observed;
pub mod order;
pub mod philox;
pub mod report;
pub mod row;
pub mod samplers;
pub(crate) mod sort;
pub mod spread;
pub mod stages;
pub(crate) mod steps;
pub mod watermark;

use distribution::Distribution;
use kept::Kept;
use listed::Approximation;
use logits::Logits;
use row::{Action, LogprobsMode, RowOutput, RowResult, RowSpec, TokenLogprobs};

/// Samples or scores one row.
///
/// # Errors
/// [`RowError`](row::RowError) when the row has no distribution; see its variants.
pub fn sample_row(logits: &Logits<'_>, spec: &RowSpec<'_>) -> RowResult {
    if let Some(row) = logits.listed() {
        return listed::sample_row(row, spec);
    }
    let raw = distribution::widened(logits)?;
    let adjusted = distribution::adjusted(&raw, spec)?;

    let processed = Distribution::processed(&adjusted, spec);
    let token = match spec.action {
        Action::Draw { uniform } | Action::Propose { uniform } => processed.draw_by(spec.race(), uniform),
        Action::Score { token } => token,
    };
    let logprobs = spec.logprobs.map(|wanted| {
        let (distribution, row) = match wanted.mode {
            LogprobsMode::Raw => (&Distribution::raw(&raw), &raw),
            LogprobsMode::Processed => (&processed, &adjusted.logits),
            LogprobsMode::Tempered => {
                (&Distribution::tempered(&adjusted.logits, spec.filters.temperature), &adjusted.logits)
            }
        };
        TokenLogprobs {
            logprob: distribution.logprob(token),
            rank: order::rank(row, token),
            top: distribution.top(wanted.top_n),
            requested: wanted.tokens.iter().map(|&t| distribution.logprob(t)).collect(),
        }
    });
    let observed = (spec.has_state() && !spec.is_scored_raw()).then(|| processed.observed(token));
    let kept = matches!(spec.action, Action::Propose { .. }).then(|| Box::new(Kept::from(&processed)));
    let report = spec.report.map(|wanted| Box::new(report::report(&raw, &adjusted, &processed, spec, &wanted)));
    Ok(RowOutput { token, logprobs, kept, observed, report, approximation: Approximation::default() })
}

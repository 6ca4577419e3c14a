//! Block verification (Sun et al., ICLR 2025, arXiv 2403.10444, algorithm 2): the draft tokens are tested
//! together, so that a token may be accepted for the sake of those behind it. Lossless, and no valid rule accepts
//! more tokens in expectation (theorem 2).
//!
//! With `t_i`, `d_i` the target and draft distribution of draft token `x_i` (from 1 to k):
//!
//! | | |
//! |---|---|
//! | `p_0 = 1`, `p_i = min(p_(i-1) * t_i(x_i) / d_i(x_i), 1)` | the probability that at least `i` are accepted, given `x_1 .. x_i` |
//! | `z_i = sum of max(p_i * t_(i+1) - d_(i+1), 0)` | what is left to draw from after `i` |
//! | `h_i = z_i / (z_i + 1 - p_i)`, `h_k = p_k` | the test: `u_i < h_i` |
//!
//! The last `i` that passes its test is accepted with all before it. If it is not the last of the draft, the
//! recovered token has the weights `max(p_i * t_(i+1) - d_(i+1), 0)`.
//!
//! A draft token that ends the sequence ends the block. That is exact: it is as if behind it target and draft
//! had agreed, where `z` is 0 and `p` does not change.

use super::draft::Draft;
use super::numbers::{Numbers, unit};
use super::tree::tokens_of;
use super::verified::{Trial, Verified};
use super::weights::Weights;
use super::{Target, VerifyError, distribution};
use crate::sampling::distribution::Distribution;

/// Verifies a chain.
pub(super) fn verify(drafts: &[Draft], numbers: &Numbers, target: &mut impl Target) -> Result<Verified, VerifyError> {
    let all: Vec<usize> = (0..drafts.len()).collect();
    let mut emitted = tokens_of(drafts, &all);
    let end = (1..=emitted.len()).find(|&len| target.ends(&emitted[..len]));
    emitted.truncate(end.unwrap_or(drafts.len()));
    let drafts = &drafts[..emitted.len()];

    let mut block = Block::default();
    block.test(drafts, &emitted, numbers, target)?;
    let accepted = block.accepted;
    if accepted < drafts.len() {
        emitted.truncate(accepted);
        emitted.push(block.recovered(&drafts[accepted], numbers));
    } else if end.is_none() {
        let bonus = distribution(target, accepted, &emitted)?;
        emitted.push(bonus.draw(numbers.sample(accepted)));
    }
    let trials = block.trials(drafts);
    Ok(Verified { accepted_path: (0..accepted).collect(), emitted, lossless: true, trials })
}

/// What the tests of a block say.
#[derive(Default)]
struct Block {
    /// The targets of the draft tokens, as far as they can be accepted.
    targets: Vec<Distribution>,
    /// `p_i`, from `p_0` on.
    factors: Vec<f64>,
    /// How many tokens are accepted.
    accepted: usize,
}

impl Block {
    /// Makes the tests. Behind a token that the target rules out nothing can be accepted, so the rows there,
    /// which may well have no distribution, are not asked for.
    fn test(
        &mut self,
        drafts: &[Draft],
        tokens: &[u32],
        numbers: &Numbers,
        target: &mut impl Target,
    ) -> Result<(), VerifyError> {
        let mut factor = 1.0;
        let mut here = self.next(tokens, factor, target)?;
        for (i, draft) in drafts.iter().enumerate() {
            factor = f64::min(factor * here.share(draft.token()) / draft.weights().share(draft.token()), 1.0);
            if factor == 0.0 {
                break;
            }
            let threshold = match drafts.get(i + 1) {
                Some(next) => {
                    here = self.next(tokens, factor, target)?;
                    threshold(factor, here.residual(factor, next.weights()).sum())
                }
                None => factor,
            };
            if unit(numbers.accept(i, i)) < threshold {
                self.accepted = i + 1;
            }
        }
        Ok(())
    }

    /// Asks for the next target, which is come to with this factor.
    fn next(&mut self, tokens: &[u32], factor: f64, target: &mut impl Target) -> Result<Weights, VerifyError> {
        let row = self.targets.len();
        let here = distribution(target, row, &tokens[..row])?;
        let weights = Weights::from(&here);
        self.targets.push(here);
        self.factors.push(factor);
        Ok(weights)
    }

    /// The token after the accepted ones, in place of `draft`.
    fn recovered(&self, draft: &Draft, numbers: &Numbers) -> u32 {
        let target = Weights::from(&self.targets[self.accepted]);
        let left = target.residual(self.factors[self.accepted], draft.weights());
        // Nothing is left only if the two are equal up to rounding: then the target will do.
        let left = if left.total() > 0 { left } else { target };
        left.draw(numbers.residual(self.accepted))
    }

    fn trials(&self, drafts: &[Draft]) -> Vec<Trial> {
        let tested = drafts.iter().zip(&self.targets).zip(&self.factors).enumerate();
        let trial = |(i, ((draft, target), &factor)): (usize, ((&Draft, &Distribution), &f64))| {
            let weights = Weights::from(target);
            let expected = weights.overlap(factor, draft.weights());
            let variation = weights.residual(1.0, draft.weights()).sum();
            let trial = Trial::new(i, i, i < self.accepted, expected, variation);
            if i == self.accepted { trial.ranked(target, draft.token()) } else { trial }
        };
        tested.map(trial).collect()
    }
}

/// `h_i`. Where `p_i` is 1 it is 1, also if nothing is left: then target and draft agree at the next position,
/// and the target is drawn from.
fn threshold(factor: f64, left: f64) -> f64 {
    if factor == 1.0 { 1.0 } else { left / (left + 1.0 - factor) }
}

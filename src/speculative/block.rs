//! Block verification (Sun et al., ICLR 2025, arXiv 2403.10444, algorithm 2): the draft tokens are tested together, so
//! that a token may be accepted for the sake of those behind it. Lossless, and no valid rule accepts more tokens in
//! expectation (theorem 2).
//!
//! `t_i` and `d_i` are the target and the draft distribution of draft token `x_i`, for `i` from 1 to k:
//!
//! | | |
//! |---|---|
//! | `p_0 = 1`, `p_i = min(p_(i-1) * t_i(x_i) / d_i(x_i), 1)` | the probability that at least `i` are accepted, given `x_1 .. x_i` |
//! | `z_i = sum of max(p_i * t_(i+1) - d_(i+1), 0)` | what is left to draw from after `i` |
//! | `h_i = z_i / (z_i + 1 - p_i)`, `h_k = p_k` | the test: `u_i < h_i` |
//!
//! The last `i` that passes its test is accepted, with all before it. If it is not the last of the draft, the recovered
//! token is drawn with the weights `max(p_i * t_(i+1) - d_(i+1), 0)`.
//!
//! **Where a block ends.** A draft token that ends the sequence ends the block. A target row without a distribution (a
//! NaN, a mask that leaves nothing) also ends it: the block then consists of the draft tokens before that row. If all
//! of them are accepted, nothing else is emitted, and the row is the sequence's next. This is exact as long as tokens
//! and rows decide where a block ends, and accept numbers do not: at the end `h = p`, so that over all drafts a text is
//! accepted up to there with the target's probability, whatever comes next. In other words, the block ends as if target
//! and draft agreed from there on, where `z` is 0 and `p` does not change. So a bad row fails a sequence as often as it
//! would without speculation, and not because a draft strayed to it.
//!
//! The block must really end there. If the verification failed instead and were repeated with a better row, only those
//! accept numbers that led to the row would be used again, so the longer block would be tested with a biased selection
//! of numbers. Rows that may have more tokens than they [list](crate::sampling::listed) are treated differently: the
//! verification fails whatever the accept numbers are, and a worker that then sends the whole row gets the block that
//! it would have got at once.
//!
//! The tests are made from the last to the first. Since `z_i <= p_i` implies `h_i <= p_i`, `z` is summed only where a
//! test needs it.

use super::numbers::unit;
use super::plan::Plan;
use super::positions::Positions;
use super::verified::{Trial, Verified};
use super::{VerifyError, come_to};
use crate::sampling::row::RowError;

/// Verifies a chain.
pub(super) fn verify(plan: &Plan<'_>, positions: &mut impl Positions) -> Result<Verified, VerifyError> {
    let end = (0..plan.tree.len()).find(|&node| positions.ends(node));
    let len = end.map_or(plan.tree.len(), |node| node + 1);
    let block = Block::test(plan, len, positions)?;
    let accepted = block.accepted;
    let mut emitted: Vec<u32> = (0..accepted).map(|node| positions.token(node)).collect();
    if accepted < block.len {
        come_to(positions, accepted)?;
        positions.take(block.factors[accepted], accepted);
        emitted.push(positions.draw(plan.numbers.residual(accepted)));
    } else if end.is_none() && block.len == len {
        come_to(positions, accepted)?;
        emitted.push(positions.draw(plan.numbers.sample(accepted)));
    }
    let trials = block.trials(plan, positions)?;
    Ok(Verified {
        accepted_path: (0..accepted).collect(),
        emitted,
        lossless: true,
        trials,
        states: Vec::new(),
        is_block: true,
        truncated: false,
    })
}

/// The results of a block's tests.
struct Block {
    /// `p_i`, from `p_0` on, for the rows that were visited.
    factors: Vec<f64>,
    /// The number of draft tokens in the block.
    len: usize,
    /// How many of them are accepted.
    accepted: usize,
}

impl Block {
    /// Tests the first `len` draft tokens, or those before the first row without a distribution. Behind a token that
    /// the target rules out nothing can be accepted, so rows there are not visited.
    fn test(plan: &Plan<'_>, mut len: usize, positions: &mut impl Positions) -> Result<Self, VerifyError> {
        let mut factors = vec![1.0];
        for node in 0..len {
            match come_to(positions, node) {
                Ok(()) => {}
                Err(failure) if node == 0 || matches!(failure.error, RowError::Beyond(_)) => return Err(failure),
                Err(_) => {
                    len = node;
                    break;
                }
            }
            let ratio = positions.share(positions.token(node)) / positions.proposed(node);
            let factor = f64::min(factors[node] * ratio, 1.0);
            factors.push(factor);
            if factor == 0.0 {
                break;
            }
        }
        let last = factors.len() - 1;
        let mut accepted = last;
        while accepted > 0 {
            let number = unit(plan.numbers.accept(plan.tree.spot(accepted - 1)));
            let left = if accepted == len { Left::Nothing } else { Left::Beyond(accepted) };
            // No `h` is larger than its `p`.
            if number < factors[accepted] && number < left.test(factors[accepted], positions)? {
                break;
            }
            accepted -= 1;
        }
        factors.truncate(last);
        Ok(Self { factors, len, accepted })
    }

    fn trials(&self, plan: &Plan<'_>, positions: &mut impl Positions) -> Result<Vec<Trial>, VerifyError> {
        let mut trials = Vec::with_capacity(self.factors.len());
        for (node, &factor) in self.factors.iter().enumerate() {
            if plan.measure {
                come_to(positions, node)?;
            }
            let mut trial = plan.trial(positions, node, node, factor, node < self.accepted);
            // Tokens behind the one at which acceptance stopped were not rejected on their own account.
            trial.rejected_rank = trial.rejected_rank.filter(|_| node == self.accepted);
            trials.push(trial);
        }
        Ok(trials)
    }
}

/// What would be left to draw from after a draft token.
enum Left {
    /// The token is the block's last, so the next row is drawn from unchanged.
    Nothing,
    /// The part of this row's target beyond the distribution of its draft token.
    Beyond(usize),
}

impl Left {
    /// `h_i`. Where `p_i` is 1, `h_i` is 1 too, even if nothing is left: target and draft then agree at the next
    /// position, and the next token is drawn from the target.
    fn test(&self, factor: f64, positions: &mut impl Positions) -> Result<f64, VerifyError> {
        match *self {
            Self::Beyond(row) if factor < 1.0 => {
                come_to(positions, row)?;
                let left = positions.beyond(factor, row);
                Ok(left / (left + 1.0 - factor))
            }
            _ => Ok(factor),
        }
    }
}

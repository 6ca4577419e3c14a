//! The random numbers of a draft and its verification.
//!
//! Every number is addressed by three things: the position that its token has or would have in the output, a purpose,
//! and an index. For accept numbers and for the draws of draft tokens, the index says where the draft token stands in
//! its draft: its depth, and how many tokens of that depth come before it ([`Spot`]).
//!
//! So a position that is proposed again in a later round has fresh numbers, whatever the shapes of the two drafts: the
//! later round starts further on, which gives the position another depth. Standard rejection does not need fresh
//! numbers, since it looks at nothing behind the first rejected token. Block verification does: which tokens it accepts
//! depends on all draft tokens and accept numbers, so numbers that led to one rejection would, if they were used again,
//! lead to rejections too often. Fresh numbers for blocks alone would not be enough, because a tree, which is verified
//! by rejection, may come after a chain.
//!
//! | number | position | purpose, index |
//! |---|---|---|
//! | draw of a draft token at depth `d`, after `n` others of that depth | `start + d` | `Draft`, `d + n * 2^16` |
//! | its accept test | `start + d` | `Accept`, `d + n * 2^16` |
//! | recovered token after `d` accepted ones | `start + d` | `Residual`, 0 |
//! | bonus token, and any token drawn from the target itself | `start + d` | `Sample`, 0 |
//!
//! A recovered token and one that is drawn from the target are emitted at their position, so no later round proposes
//! that position again. The last line is a plain row's number: a bonus token is the token that a plain row would have
//! drawn.

use crate::params::MAX_TREE_TOKENS;
use crate::sampling::philox::{Purpose, uniform_at};

/// How many bits of an index hold the depth.
const DEPTH_BITS: u32 = 16;
const _: () = assert!(MAX_TREE_TOKENS <= 1 << DEPTH_BITS, "depths, and places among tokens of a depth, fit 16 bits");

/// Where a draft token stands in its draft. This is known when the token is drawn, since it does not depend on later
/// tokens of the draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// How many draft tokens stand before it on its path.
    pub depth: usize,
    /// How many draft tokens with a lower index have the same depth; always 0 in a chain.
    pub nth: usize,
}

impl Spot {
    /// The spot in a chain after `depth` draft tokens.
    #[must_use]
    pub fn in_chain(depth: usize) -> Self {
        Self { depth, nth: 0 }
    }

    /// The spot of a draft's next token, which follows the one at `parent`. `before` are the spots of all tokens that
    /// the draft already has.
    #[must_use]
    pub fn next(parent: Option<Self>, before: impl Iterator<Item = Self>) -> Self {
        let depth = parent.map_or(0, |parent| parent.depth + 1);
        Self { depth, nth: before.filter(|other| other.depth == depth).count() }
    }

    fn index(self) -> u32 {
        self.depth as u32 | (self.nth as u32) << DEPTH_BITS
    }
}

/// The random numbers of one sequence, from one position on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// The sequence's seed.
    pub seed: u64,
    /// The position: how many tokens the sequence has emitted.
    pub start: u64,
}

impl Numbers {
    /// The number for the draw of a draft token.
    #[must_use]
    pub fn draft(&self, spot: Spot) -> u64 {
        self.at(spot.depth, Purpose::Draft, spot.index())
    }

    /// The number for a draft token's accept test.
    pub(super) fn accept(&self, spot: Spot) -> u64 {
        self.at(spot.depth, Purpose::Accept, spot.index())
    }

    /// The number for the recovered token after `depth` accepted ones.
    #[must_use]
    pub fn residual(&self, depth: usize) -> u64 {
        self.at(depth, Purpose::Residual, 0)
    }

    /// The number for the bonus token after `depth` accepted ones, and for any token drawn from the target itself.
    #[must_use]
    pub fn sample(&self, depth: usize) -> u64 {
        self.at(depth, Purpose::Sample, 0)
    }

    fn at(&self, depth: usize, purpose: Purpose, index: u32) -> u64 {
        uniform_at(self.seed, self.start + depth as u64, purpose, index)
    }
}

/// Turns a number into a uniform real in 0 .. 1. It has 53 bits, so it is exact in f64.
#[must_use]
pub fn unit(uniform: u64) -> f64 {
    (uniform >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::philox::uniform;
    use crate::speculative::tree::Tree;
    use std::collections::HashSet;

    #[test]
    fn unit_is_below_one() {
        assert_eq!((unit(0), unit(1 << 63)), (0.0, 0.5));
        assert!(unit(u64::MAX) < 1.0);
        // As fine as reals near 1 are, so that a probability of 1e-9 is just that, and no more.
        let ulp = 2f64.powi(-53);
        assert_eq!([unit(1 << 11), unit((1 << 11) - 1), unit(u64::MAX)], [ulp, 0.0, 1.0 - ulp]);
    }

    #[test]
    fn numbers_are_addressed_as_documented() {
        let numbers = Numbers { seed: 3, start: 70 };
        let spot = Spot { depth: 4, nth: 6 };
        assert_eq!(numbers.draft(spot), uniform_at(3, 74, Purpose::Draft, 4 + 6 * 65_536));
        assert_eq!(numbers.accept(spot), uniform_at(3, 74, Purpose::Accept, 4 + 6 * 65_536));
        assert_eq!(numbers.residual(4), uniform(3, 74, Purpose::Residual));
        assert_eq!(numbers.sample(4), uniform(3, 74, Purpose::Sample));
    }

    #[test]
    fn a_position_proposed_again_has_fresh_numbers() {
        let mut seen = HashSet::new();
        for start in 0..200 {
            let numbers = Numbers { seed: 5, start };
            // A chain, siblings, or any tree.
            let parent = |node: u64| match start % 3 {
                0 => node as i32 - 1,
                1 => -1,
                _ => (uniform(start, node, Purpose::Sample) % (node + 1)) as i32 - 1,
            };
            let tree = Tree::new(&(0..40).map(parent).collect::<Vec<_>>(), 40).expect("a tree");
            for spot in (0..40).map(|node| tree.spot(node)) {
                assert!(seen.insert(numbers.draft(spot)) && seen.insert(numbers.accept(spot)), "{start}, {spot:?}");
            }
        }
    }
}

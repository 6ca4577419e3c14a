//! The random numbers of a draft and its verification.
//!
//! Every number is addressed by the position that its token has or would have in the output, its purpose, and
//! an index. For accept numbers and for the draws of draft tokens the index is the draft token's own in the
//! draft. So a position that is proposed again in a later round, where it stands earlier in the draft, has
//! fresh numbers. Standard rejection does not need that, since it looks at nothing behind the first rejected
//! token. Block verification does: which tokens it accepts depends on all draft tokens and accept numbers, and
//! numbers that led to a rejection would, seen again, lead to one too often.
//!
//! | number | position | purpose, index |
//! |---|---|---|
//! | draw of draft token `i` at depth `d` | `start + d` | `Draft`, `i` |
//! | accept test of draft token `i` at depth `d` | `start + d` | `Accept`, `i` |
//! | recovered token after `d` accepted ones | `start + d` | `Residual`, 0 |
//! | bonus token, and any token drawn from the target itself | `start + d` | `Sample`, 0 |
//!
//! The last line is a plain row's number: a bonus token is the token that a plain row would have drawn.

use crate::sampling::philox::{Purpose, uniform_at};

/// The numbers of one sequence, from one position on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbers {
    /// The sequence's seed.
    pub seed: u64,
    /// Its position: the number of tokens it has emitted.
    pub start: u64,
}

impl Numbers {
    /// For the draw of draft token `index`, which would follow `depth` others.
    #[must_use]
    pub fn draft(&self, depth: usize, index: usize) -> u64 {
        self.at(depth, Purpose::Draft, index)
    }

    pub(super) fn accept(&self, depth: usize, index: usize) -> u64 {
        self.at(depth, Purpose::Accept, index)
    }

    /// For the recovered token after `depth` accepted ones.
    #[must_use]
    pub fn residual(&self, depth: usize) -> u64 {
        self.at(depth, Purpose::Residual, 0)
    }

    /// For the bonus token after `depth` accepted ones, and any token drawn from the target itself.
    #[must_use]
    pub fn sample(&self, depth: usize) -> u64 {
        self.at(depth, Purpose::Sample, 0)
    }

    fn at(&self, depth: usize, purpose: Purpose, index: usize) -> u64 {
        uniform_at(self.seed, self.start + depth as u64, purpose, index as u32)
    }
}

/// A uniform real number in 0 .. 1, of 53 bits: exact in f64.
#[must_use]
pub fn unit(uniform: u64) -> f64 {
    (uniform >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::philox::uniform;

    #[test]
    fn unit_is_below_one() {
        assert_eq!((unit(0), unit(1 << 63)), (0.0, 0.5));
        assert!(unit(u64::MAX) < 1.0);
    }

    #[test]
    fn a_position_proposed_again_has_fresh_numbers() {
        let (first, later) = (Numbers { seed: 5, start: 10 }, Numbers { seed: 5, start: 12 });
        assert_ne!(first.draft(3, 3), later.draft(1, 1));
        assert_ne!(first.accept(3, 3), later.accept(1, 1));
        assert_eq!(first.sample(3), later.sample(1));
        assert_eq!(first.draft(0, 0), uniform(5, 10, Purpose::Draft));
    }
}

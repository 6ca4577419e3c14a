//! Draft tokens and the distributions they were drawn from.

use super::weights::Weights;
use crate::sampling::kept::Kept;
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::mass::MASS_ONE;

/// Why a draft is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// The row's length is not that of the vocabulary, or there are not as many probabilities as token ids.
    #[error("the draft distribution has {found} entries, must have {expected}")]
    Length {
        /// How many entries were sent.
        found: usize,
        /// How many entries are needed.
        expected: usize,
    },
    /// A probability is NaN, infinite or negative.
    #[error("the draft probability of token {token} is not a finite number of at least 0")]
    NotAProbability {
        /// Its token.
        token: u32,
    },
    /// The probabilities do not sum to 1.
    #[error("the draft probabilities sum to {:.6}, not to 1", *total as f64 / MASS_ONE as f64)]
    Sum {
        /// Their sum, as masses.
        total: u64,
    },
    /// A probability is so large that the sum cannot be 1.
    #[error("the draft probabilities cannot sum to 1: that of token {token} is {}", f32::from_bits(*bits))]
    TooLarge {
        /// Its token.
        token: u32,
        /// The bits of the probability, an f32.
        bits: u32,
    },
    /// A token of a sparse row is not in the vocabulary.
    #[error("token {token} of the draft distribution is not in the vocabulary")]
    OutOfVocabulary {
        /// The token.
        token: u32,
    },
    /// A token appears twice in a sparse row.
    #[error("token {token} appears twice in the draft distribution")]
    Twice {
        /// The token.
        token: u32,
    },
    /// The draft token cannot have been drawn from its distribution.
    #[error("the draft token {token} has draft probability 0")]
    Impossible {
        /// The token.
        token: u32,
    },
    /// A parent is neither -1 nor the index of an earlier draft token, or there is not one parent for each draft token.
    #[error(
        "the parents do not form a tree: give each draft token one, either -1 or the index of an earlier draft token"
    )]
    Parents,
}

/// The distribution that a draft token was drawn from. For a token with siblings in a tree: its distribution given its
/// earlier siblings.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftDistribution(Weights);

impl DraftDistribution {
    /// The distribution that draft work drew a token from.
    #[must_use]
    pub fn kept(kept: &Kept) -> Self {
        Self(Weights::new(kept.entries().into_iter()))
    }

    /// The distribution of a proposer without chance (n-gram, suffix, greedy draft, the most likely candidates): its
    /// token has probability 1.
    #[must_use]
    pub fn deterministic(token: u32) -> Self {
        Self(Weights::certain(token))
    }

    /// Probabilities of all tokens, in any of the number formats.
    ///
    /// # Errors
    /// [`DraftError`] unless there are `vocab_size` numbers of at least 0 that sum to 1.
    pub fn dense(probs: &Logits<'_>, vocab_size: u32) -> Result<Self, DraftError> {
        check_len(probs.vocab_size(), vocab_size as usize)?;
        let entries = (0..vocab_size).map(|token| (token, probs.get(token))).collect();
        Self::sent(entries, tolerance(probs.dtype(), probs.vocab_size()))
    }

    /// The probabilities of some tokens, in any order; all others have probability 0.
    ///
    /// # Errors
    /// [`DraftError`] unless the tokens are in the vocabulary, each once, with numbers of at least 0 that sum
    /// to 1.
    pub fn sparse(tokens: &[u32], probs: &[f32], vocab_size: u32) -> Result<Self, DraftError> {
        check_len(probs.len(), tokens.len())?;
        if let Some(&token) = tokens.iter().find(|&&token| token >= vocab_size) {
            return Err(DraftError::OutOfVocabulary { token });
        }
        let mut entries: Vec<_> = tokens.iter().copied().zip(probs.iter().copied()).collect();
        entries.sort_unstable_by_key(|&(token, _)| token);
        if let Some(twice) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(DraftError::Twice { token: twice[0].0 });
        }
        Self::sent(entries, tolerance(Dtype::F32, tokens.len()))
    }

    /// Checks entries that are in token order.
    fn sent(entries: Vec<(u32, f32)>, tolerance: f64) -> Result<Self, DraftError> {
        if let Some(&(token, _)) = entries.iter().find(|(_, prob)| !prob.is_finite() || *prob < 0.0) {
            return Err(DraftError::NotAProbability { token });
        }
        // A row with such a probability cannot sum to 1. Without one, the sum of the integers does not overflow.
        if let Some(&(token, prob)) = entries.iter().find(|(_, prob)| *prob > MAX_SENT) {
            return Err(DraftError::TooLarge { token, bits: prob.to_bits() });
        }
        let weights = Weights::new(entries.into_iter().map(|(token, prob)| (token, sent_mass(prob))));
        let total = weights.total();
        if sums_to_one(total, tolerance) { Ok(Self(weights)) } else { Err(DraftError::Sum { total }) }
    }

    /// The weights.
    #[must_use]
    pub fn weights(&self) -> &Weights {
        &self.0
    }
}

/// No probability of a row that sums to 1, within any tolerance, is larger than this.
pub const MAX_SENT: f32 = 2.0;

/// Whether sent masses sum to 1.
#[must_use]
pub fn sums_to_one(total: u64, tolerance: f64) -> bool {
    (total as f64 / MASS_ONE as f64 - 1.0).abs() <= tolerance
}

/// How far from 1 a row of so many numbers may sum. A bf16 has 8 significant bits: rounding every number to bf16 may
/// move the sum of a peaked row by 2^-9, and that of a row of equal numbers by 2^-8. An f16 has 11 significant bits,
/// but small numbers are multiples of 2^-24.
#[must_use]
pub fn tolerance(dtype: Dtype, numbers: usize) -> f64 {
    match dtype {
        Dtype::F32 => 1e-3,
        Dtype::F16 => 1e-3 + numbers as f64 / (1u64 << 25) as f64,
        Dtype::Bf16 => 1e-3 + 1.0 / 256.0,
    }
}

/// A probability as an integer: `ceil(prob * 2^40)`. Rounding up keeps every token that can be proposed above 0, so
/// that it can be verified.
#[must_use]
#[inline]
pub fn sent_mass(prob: f32) -> u64 {
    // The product is exact.
    (prob * MASS_ONE as f32).ceil() as u64
}

fn check_len(found: usize, expected: usize) -> Result<(), DraftError> {
    if found == expected { Ok(()) } else { Err(DraftError::Length { found, expected }) }
}

/// A proposed token.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    token: u32,
    distribution: DraftDistribution,
}

impl Draft {
    /// A token of the vocabulary that was drawn from `distribution`.
    ///
    /// # Errors
    /// [`DraftError::Impossible`] if it has no probability there.
    pub fn new(token: u32, distribution: DraftDistribution) -> Result<Self, DraftError> {
        if distribution.weights().share(token) > 0.0 {
            Ok(Self { token, distribution })
        } else {
            Err(DraftError::Impossible { token })
        }
    }

    /// A token of the vocabulary from a proposer without chance.
    #[must_use]
    pub fn deterministic(token: u32) -> Self {
        Self { token, distribution: DraftDistribution::deterministic(token) }
    }

    /// The token.
    #[must_use]
    pub fn token(&self) -> u32 {
        self.token
    }

    /// The distribution that the token was drawn from.
    #[must_use]
    pub fn weights(&self) -> &Weights {
        self.distribution.weights()
    }

    /// Whether no other token could have been proposed. This holds for every proposer without chance, whether it says
    /// so or sends a distribution of one token.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.weights().is_certain()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(probs: &[f32], vocab_size: u32) -> Result<DraftDistribution, DraftError> {
        DraftDistribution::dense(&Logits::new(Dtype::F32, &Dtype::F32.encode(probs)), vocab_size)
    }

    #[test]
    fn dense_rows_are_checked() {
        use DraftError::*;
        let cases: [(&[f32], _); 9] = [
            (&[0.5, 0.5], Err(Length { found: 2, expected: 3 })),
            (&[0.5, f32::NAN, 0.5], Err(NotAProbability { token: 1 })),
            (&[f32::INFINITY, 0.0, 0.0], Err(NotAProbability { token: 0 })),
            (&[1.5, 0.0, -0.5], Err(NotAProbability { token: 2 })),
            (&[0.0, 0.0, 0.0], Err(Sum { total: 0 })),
            (&[0.5, 0.5, 0.002], Err(Sum { total: MASS_ONE + sent_mass(0.002) })),
            (&[0.5, f32::MAX, f32::MAX], Err(TooLarge { token: 1, bits: f32::MAX.to_bits() })),
            (&[0.5, 0.5, 0.0009], Ok(())),
            (&[-0.0, 1.0, 1e-40], Ok(())),
        ];
        for (probs, expected) in cases {
            assert_eq!(dense(probs, 3).map(|_| ()), expected, "{probs:?}");
        }
    }

    #[test]
    fn sparse_rows_are_checked() {
        use DraftError::*;
        let cases: [(&[u32], &[f32], _); 6] = [
            (&[1, 2], &[1.0], Err(Length { found: 1, expected: 2 })),
            (&[1, 9], &[0.5, 0.5], Err(OutOfVocabulary { token: 9 })),
            (&[4, 2, 4], &[0.4, 0.2, 0.4], Err(Twice { token: 4 })),
            (&[4, 2], &[0.4, f32::NEG_INFINITY], Err(NotAProbability { token: 2 })),
            (&[], &[], Err(Sum { total: 0 })),
            (&[4, 2], &[0.25, 0.75], Ok(())),
        ];
        for (tokens, probs, expected) in cases {
            assert_eq!(DraftDistribution::sparse(tokens, probs, 9).map(|_| ()), expected, "{tokens:?} {probs:?}");
        }
    }

    #[test]
    fn dense_and_sparse_are_the_same_numbers() {
        let sparse = DraftDistribution::sparse(&[2, 0], &[0.3, 0.7], 4).unwrap();
        assert_eq!(dense(&[0.7, 0.0, 0.3, 0.0], 4).unwrap(), sparse);
    }

    #[test]
    fn a_peaked_row_in_bf16_passes() {
        for peak in 0..1000 {
            let peak = 0.9 + peak as f32 * 1e-4;
            let bytes = Dtype::Bf16.encode(&[peak, 1.0 - peak]);
            assert!(DraftDistribution::dense(&Logits::new(Dtype::Bf16, &bytes), 2).is_ok(), "{peak}");
        }
    }

    /// The sum of a row of equal numbers, which passes.
    fn sum_of_equal(dtype: Dtype, tokens: usize) -> f64 {
        let bytes = dtype.encode(&vec![1.0 / tokens as f32; tokens]);
        let row = DraftDistribution::dense(&Logits::new(dtype, &bytes), tokens as u32).expect("it passes");
        row.weights().total() as f64 / MASS_ONE as f64
    }

    #[test]
    fn a_flat_row_in_bf16_passes() {
        let furthest = (1..3000).map(|tokens| (sum_of_equal(Dtype::Bf16, tokens) - 1.0).abs()).fold(0.0, f64::max);
        assert!(furthest > 1.0 / 300.0, "{furthest}: some are far from 1");
    }

    #[test]
    fn a_flat_row_over_a_large_vocabulary_in_f16_passes() {
        let sums = [32_000, 128_256, 151_936, 262_144, 1_000_000].map(|tokens| sum_of_equal(Dtype::F16, tokens));
        assert!(sums.iter().any(|sum| (sum - 1.0).abs() > 3e-3), "{sums:?}: some are far from 1");
    }

    #[test]
    fn a_token_must_be_possible() {
        let row = dense(&[1.0, 0.0, 1e-40], 3).unwrap();
        assert!(Draft::new(0, row.clone()).is_ok());
        assert_eq!(Draft::new(1, row.clone()), Err(DraftError::Impossible { token: 1 }));
        assert!(Draft::new(2, row).is_ok(), "unlikely is not impossible");
    }
}

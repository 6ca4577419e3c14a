//! How draft tokens are accepted. What each rule does and where it is from stands at its file in
//! [`speculative`](crate::speculative).

use super::FieldError;
use super::check::in_range;

/// The acceptance rules by name.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum AcceptanceRule {
    /// Standard rejection sampling.
    #[default]
    Rejection,
    /// Greedy match: the draft token must be the target's most likely one (ties: smallest id). Whatever comes after
    /// the accepted tokens is the most likely token too, so verified text is that of greedy decoding at any
    /// temperature: lossless for temperature 0 only.
    Greedy,
    /// Block verification. In a tree that is not a chain: [`AcceptanceRule::Rejection`].
    Block,
    /// Typical acceptance.
    Typical(Typical),
    /// Relaxed acceptance.
    Relaxed(Relaxed),
    /// A fixed rate.
    Synthetic(Synthetic),
}

/// Most first tokens that relaxed acceptance takes.
pub const MAX_RELAXED_TOP_N: u32 = 1024;

/// Parameters of typical acceptance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Typical {
    /// The threshold for a target that is certain. 0 ..= 1.
    pub epsilon: f32,
    /// How the threshold falls with entropy. 1e-6 ..= 1e6.
    pub alpha: f32,
}

impl Default for Typical {
    /// Medusa's.
    fn default() -> Self {
        Self { epsilon: 0.09, alpha: 0.3 }
    }
}

/// Parameters of relaxed acceptance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Relaxed {
    /// How many of the first tokens may be accepted. 1 ..= 1024.
    pub top_n: u32,
    /// How much less likely than the first a token may be. 0 ..= 1.
    pub delta: f32,
}

impl Default for Relaxed {
    /// TensorRT-LLM's example for thinking phases.
    fn default() -> Self {
        Self { top_n: 10, delta: 0.6 }
    }
}

/// Parameters of synthetic acceptance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Synthetic {
    /// The probability. 0 ..= 1.
    pub rate: f32,
}

impl AcceptanceRule {
    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field at fault, with its path relative to the acceptance parameters.
    pub fn validate(&self) -> Result<(), FieldError> {
        match *self {
            Self::Rejection | Self::Greedy | Self::Block => Ok(()),
            Self::Typical(Typical { epsilon, alpha }) => {
                in_range("typical_epsilon", epsilon, 0.0, 1.0, "")?;
                in_range("typical_alpha", alpha, 1e-6, 1e6, "")
            }
            Self::Relaxed(Relaxed { top_n, delta }) => {
                in_range("relaxed_delta", delta, 0.0, 1.0, "")?;
                in_range("relaxed_top_n", top_n, 1, MAX_RELAXED_TOP_N, "")
            }
            Self::Synthetic(Synthetic { rate }) => in_range("synthetic_rate", rate, 0.0, 1.0, ""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AcceptanceRule as Rule;
    use super::*;

    #[test]
    fn each_range_is_checked_and_named() {
        let fine = [
            Rule::Rejection,
            Rule::Greedy,
            Rule::Block,
            Rule::Typical(Default::default()),
            Rule::Relaxed(Default::default()),
            Rule::Synthetic(Synthetic { rate: 1.0 }),
        ];
        for rule in fine {
            assert_eq!(rule.validate(), Ok(()), "{rule:?}");
        }
        let bad = [
            ("typical_epsilon", Rule::Typical(Typical { epsilon: 1.1, alpha: 0.3 })),
            ("typical_alpha", Rule::Typical(Typical { epsilon: 0.1, alpha: 0.0 })),
            ("typical_alpha", Rule::Typical(Typical { epsilon: 0.1, alpha: f32::NAN })),
            ("relaxed_top_n", Rule::Relaxed(Relaxed { top_n: 0, delta: 0.5 })),
            ("relaxed_top_n", Rule::Relaxed(Relaxed { top_n: 1025, delta: 0.5 })),
            ("relaxed_delta", Rule::Relaxed(Relaxed { top_n: 1, delta: -0.5 })),
            ("synthetic_rate", Rule::Synthetic(Synthetic { rate: 2.0 })),
        ];
        for (field, rule) in bad {
            assert_eq!(rule.validate().expect_err("a mistake").field, field);
        }
    }
}

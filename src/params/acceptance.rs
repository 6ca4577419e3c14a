//! How draft tokens are accepted. What each rule does and where it comes from is documented at its file in
//! [`speculative`](crate::speculative).

use super::FieldError;
use super::check::in_range;

/// The acceptance rules.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum AcceptanceRule {
    /// Standard rejection sampling.
    #[default]
    Rejection,
    /// Greedy match: the draft token must be the target's most likely one (ties: smallest id). Whatever comes after the
    /// accepted tokens is the most likely token too. So at any temperature, verified text is that of greedy decoding:
    /// the rule is lossless for temperature 0 only.
    Greedy,
    /// Block verification. In a tree that is not a chain it is [`AcceptanceRule::Rejection`].
    Block,
    /// Typical acceptance.
    Typical(Typical),
    /// Relaxed acceptance.
    Relaxed(Relaxed),
    /// Synthetic acceptance: a fixed rate.
    Synthetic(Synthetic),
}

/// Largest `top_n` of relaxed acceptance.
pub const MAX_RELAXED_TOP_N: u32 = 1024;

/// Parameters of typical acceptance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Typical {
    /// The acceptance threshold where the target is certain of one token. 0 ..= 1.
    pub epsilon: f32,
    /// How the threshold falls with entropy. 1e-6 ..= 1e6.
    pub alpha: f32,
}

impl Typical {
    const MEDUSA: Self = Self { epsilon: 0.09, alpha: 0.3 };
}

impl Default for Typical {
    /// Medusa's values.
    fn default() -> Self {
        Self::MEDUSA
    }
}

/// Parameters of relaxed acceptance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Relaxed {
    /// How many of the target's most likely tokens may be accepted. 1 ..= 1024.
    pub top_n: u32,
    /// How much less likely than the most likely token a token may be. 0 ..= 1.
    pub delta: f32,
    /// Whether the rule applies only while the text thinks.
    pub in_thinking_only: bool,
}

impl Relaxed {
    const EXAMPLE: Self = Self { top_n: 10, delta: 0.6, in_thinking_only: false };
}

impl Default for Relaxed {
    /// The values of TensorRT-LLM's example.
    fn default() -> Self {
        Self::EXAMPLE
    }
}

/// Parameters of synthetic acceptance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Synthetic {
    /// The probability of acceptance. 0 ..= 1.
    pub rate: f32,
}

/// Settings of acceptance rules as they were given, before it is known which rule they are for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct AcceptanceSettings {
    /// For [`Typical`].
    pub typical_epsilon: Option<f32>,
    /// For [`Typical`].
    pub typical_alpha: Option<f32>,
    /// For [`Relaxed`].
    pub relaxed_top_n: Option<u32>,
    /// For [`Relaxed`].
    pub relaxed_delta: Option<f32>,
    /// For [`Relaxed`].
    pub relaxed_in_thinking_only: Option<bool>,
    /// For [`Synthetic`], which has no default rate.
    pub synthetic_rate: Option<f32>,
}

impl AcceptanceRule {
    /// A synthetic rule whose rate has not been given yet.
    pub const WITHOUT_RATE: Self = Self::Synthetic(Synthetic { rate: 0.0 });

    /// The rules by name, with their default settings.
    pub const NAMED: [(&'static str, Self); 6] = [
        ("rejection", Self::Rejection),
        ("greedy", Self::Greedy),
        ("block", Self::Block),
        ("typical", Self::Typical(Typical::MEDUSA)),
        ("relaxed", Self::Relaxed(Relaxed::EXAMPLE)),
        ("synthetic", Self::WITHOUT_RATE),
    ];

    /// The rule with these settings, not yet checked against ranges. Settings of another rule are an error, because
    /// they would be silently ignored.
    ///
    /// # Errors
    /// The field at fault, relative to the acceptance parameters.
    pub fn with(self, given: AcceptanceSettings) -> Result<Self, FieldError> {
        let (is_typical, is_relaxed) = (matches!(self, Self::Typical(_)), matches!(self, Self::Relaxed(_)));
        let settings = [
            ("TYPICAL", is_typical, "typical_epsilon", given.typical_epsilon.is_some()),
            ("TYPICAL", is_typical, "typical_alpha", given.typical_alpha.is_some()),
            ("RELAXED", is_relaxed, "relaxed_top_n", given.relaxed_top_n.is_some()),
            ("RELAXED", is_relaxed, "relaxed_delta", given.relaxed_delta.is_some()),
            ("RELAXED", is_relaxed, "relaxed_in_thinking_only", given.relaxed_in_thinking_only.is_some()),
            ("SYNTHETIC", matches!(self, Self::Synthetic(_)), "synthetic_rate", given.synthetic_rate.is_some()),
        ];
        if let Some((rule, _, field, _)) = settings.iter().find(|(_, is_chosen, _, present)| *present && !is_chosen) {
            return Err(FieldError::new(
                *field,
                format!("applies only to the rule {rule}; choose that rule or leave this out"),
            ));
        }
        Ok(match self {
            Self::Rejection | Self::Greedy | Self::Block => self,
            Self::Typical(Typical { epsilon, alpha }) => Self::Typical(Typical {
                epsilon: given.typical_epsilon.unwrap_or(epsilon),
                alpha: given.typical_alpha.unwrap_or(alpha),
            }),
            Self::Relaxed(Relaxed { top_n, delta, in_thinking_only }) => Self::Relaxed(Relaxed {
                top_n: given.relaxed_top_n.unwrap_or(top_n),
                delta: given.relaxed_delta.unwrap_or(delta),
                in_thinking_only: given.relaxed_in_thinking_only.unwrap_or(in_thinking_only),
            }),
            Self::Synthetic(_) => {
                let missing = || FieldError::new("synthetic_rate", "is required for the rule SYNTHETIC");
                Self::Synthetic(Synthetic { rate: given.synthetic_rate.ok_or_else(missing)? })
            }
        })
    }

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
            Self::Relaxed(Relaxed { top_n, delta, .. }) => {
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
    fn settings_are_those_of_the_rule() {
        let none = AcceptanceSettings::default();
        for (name, rule) in Rule::NAMED {
            let missing = (name == "synthetic").then_some("synthetic_rate".to_owned());
            assert_eq!(rule.with(none).map_err(|e| e.field), missing.map_or(Ok(rule), Err), "{name}");
        }
        let given = AcceptanceSettings { typical_alpha: Some(0.5), ..none };
        let typical = Typical { alpha: 0.5, ..Typical::default() };
        assert_eq!(Rule::Typical(Typical::default()).with(given), Ok(Rule::Typical(typical)));
        for rule in [Rule::Block, Rule::Relaxed(Relaxed::default()), Rule::WITHOUT_RATE] {
            assert_eq!(rule.with(given).map_err(|e| e.field), Err("typical_alpha".to_owned()), "{rule:?}");
        }
    }

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
            ("relaxed_top_n", Rule::Relaxed(Relaxed { top_n: 0, ..Default::default() })),
            ("relaxed_top_n", Rule::Relaxed(Relaxed { top_n: 1025, ..Default::default() })),
            ("relaxed_delta", Rule::Relaxed(Relaxed { delta: -0.5, ..Default::default() })),
            ("synthetic_rate", Rule::Synthetic(Synthetic { rate: 2.0 })),
        ];
        for (field, rule) in bad {
            assert_eq!(rule.validate().expect_err("a mistake").field, field);
        }
    }
}

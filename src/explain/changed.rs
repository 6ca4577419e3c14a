//! Parameters whose value in a row is not the one that was given.

use crate::params::{Filters, Sampler, SamplingParams};
use crate::sampling::stages::StageKind;
use serde::Serialize;
use std::fmt;

/// The value of a stage's parameter, where an engine's rules, the position in the text, or its thinking changed it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Changed {
    /// The value that the row was drawn with.
    pub(super) used: Value,
    /// The value of the parameter.
    pub(super) given: Value,
}

/// A parameter's value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Value {
    Count(u32),
    Real(f32),
}

impl Changed {
    /// What became of the parameter of a stage of a row with these filters. `None`: the given value was used.
    pub(super) fn of(kind: StageKind, filters: &Filters, params: &SamplingParams) -> Option<Self> {
        use Value::{Count, Real};
        let (used, given) = match kind {
            StageKind::Greedy | StageKind::Sampler(Sampler::Temperature) => {
                (Real(filters.temperature), Real(params.temperature))
            }
            StageKind::AtMost(most) => (Count(most), Count(params.top_k)),
            StageKind::Sampler(Sampler::TopK) => (Count(filters.top_k), Count(params.top_k)),
            StageKind::Sampler(Sampler::TopP) => (Real(filters.top_p), Real(params.top_p)),
            StageKind::Sampler(Sampler::MinP) => (Real(filters.min_p), Real(params.min_p)),
            _ => return None,
        };
        (used != given).then_some(Self { used, given })
    }
}

impl fmt::Display for Value {
    /// Six digits: a value that was multiplied has more, which say nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Real(real) => write!(f, "{}", format!("{real:.5e}").parse().unwrap_or(*real)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_six_digits_at_most() {
        let shown = [0.0, 0.01, 0.9 * 0.9 * 0.9, 1.0 / 3.0, 1e-5, 250.0].map(|real| Value::Real(real).to_string());
        assert_eq!(shown, ["0", "0.01", "0.729", "0.333333", "0.00001", "250"]);
        assert_eq!(Value::Count(u32::MAX).to_string(), "4294967295");
    }
}

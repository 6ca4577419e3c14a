//! What samplers remember from token to token, in addition to the text. This state cannot be computed again from the
//! tokens alone. So it is reported with them, and a worker can give it back when it opens a sequence again.

use super::check::in_range;
use super::{FieldError, SamplingParams};

/// Largest absolute value of mirostat's limit.
pub const MAX_MU: f64 = 1e9;
/// Largest sum of adaptive-p's average: ten times what the sum can reach with the largest decay.
pub const MAX_AVERAGE: f64 = 1e3;

/// What the samplers of one sequence remember. Samplers that are off remember nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SamplerState {
    /// Mirostat's limit: the largest surprise that it keeps, in bits.
    pub mirostat_mu: Option<f64>,
    /// Adaptive-p's average of the probabilities that tokens had.
    pub adaptive: Option<Average>,
}

/// A weighted average.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Average {
    /// Weighted sum.
    pub sum: f64,
    /// Sum of the weights.
    pub weight: f64,
}

impl SamplerState {
    /// Whether no sampler remembers anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The state before the first token: mirostat allows twice the surprise that it aims at, and adaptive-p's average
    /// is its target. Greedy sequences have no samplers, and so no state.
    #[must_use]
    pub fn new(params: &SamplingParams) -> Self {
        let on = !params.is_greedy();
        let samplers = &params.samplers;
        let weight = 1.0 / (1.0 - f64::from(samplers.adaptive_decay));
        let adaptive = Average { sum: f64::from(samplers.adaptive_target) * weight, weight };
        Self {
            mirostat_mu: (on && samplers.mirostat > 0).then(|| 2.0 * f64::from(samplers.mirostat_tau)),
            adaptive: (on && samplers.adaptive_target >= 0.0).then_some(adaptive),
        }
    }

    /// This state where it has values, and otherwise the state before the first token.
    ///
    /// # Errors
    /// The field at fault, of the wire's `SamplerState`: a value is out of range, or belongs to a sampler that is off.
    pub fn over_new(self, params: &SamplingParams) -> Result<Self, FieldError> {
        let new = Self::new(params);
        if let Some(mu) = self.mirostat_mu {
            needs("mirostat_mu", "mirostat", new.mirostat_mu.is_some())?;
            in_range("mirostat_mu", mu, -MAX_MU, MAX_MU, "")?;
        }
        if let Some(Average { sum, weight }) = self.adaptive {
            needs("adaptive_sum", "adaptive_target", new.adaptive.is_some())?;
            in_range("adaptive_weight", weight, 0.0, MAX_AVERAGE, "")?;
            in_range("adaptive_sum", sum, 0.0, MAX_AVERAGE, "")?;
        }
        Ok(Self { mirostat_mu: self.mirostat_mu.or(new.mirostat_mu), adaptive: self.adaptive.or(new.adaptive) })
    }
}

fn needs(field: &str, sampler: &str, is_on: bool) -> Result<(), FieldError> {
    let message =
        || format!("belongs to {sampler}, which is off (also at temperature 0); turn it on or leave this out");
    if is_on { Ok(()) } else { Err(FieldError::new(field, message())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(change: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
        let mut params = SamplingParams::default();
        change(&mut params);
        params
    }

    #[test]
    fn it_begins_where_it_aims() {
        assert!(SamplerState::new(&SamplingParams::default()).is_empty());
        let on =
            params(|p| (p.samplers.mirostat, p.samplers.adaptive_target, p.samplers.adaptive_decay) = (2, 0.5, 0.5));
        let expected = SamplerState { mirostat_mu: Some(10.0), adaptive: Some(Average { sum: 1.0, weight: 2.0 }) };
        assert_eq!(SamplerState::new(&on), expected);
        assert!(SamplerState::new(&SamplingParams { temperature: 0.0, ..on }).is_empty(), "greedy");
    }

    #[test]
    fn a_state_is_checked() {
        let on = params(|p| (p.samplers.mirostat, p.samplers.adaptive_target) = (1, 0.5));
        let mu = |mu| SamplerState { mirostat_mu: Some(mu), adaptive: None };
        let average = |sum, weight| SamplerState { mirostat_mu: None, adaptive: Some(Average { sum, weight }) };
        let at_fault = |state: SamplerState, params: &SamplingParams| state.over_new(params).err().map(|e| e.field);
        assert_eq!(mu(-3.0).over_new(&on).unwrap().mirostat_mu, Some(-3.0));
        assert_eq!(mu(-3.0).over_new(&on).unwrap().adaptive, SamplerState::new(&on).adaptive, "the rest is new");
        for bad in [f64::NAN, f64::INFINITY, 2e9] {
            assert_eq!(at_fault(mu(bad), &on).as_deref(), Some("mirostat_mu"));
            assert_eq!(at_fault(average(bad, 1.0), &on).as_deref(), Some("adaptive_sum"));
            assert_eq!(at_fault(average(0.0, bad), &on).as_deref(), Some("adaptive_weight"));
        }
        assert_eq!(at_fault(mu(1.0), &SamplingParams::default()).as_deref(), Some("mirostat_mu"));
        assert_eq!(at_fault(average(1.0, 1.0), &SamplingParams::default()).as_deref(), Some("adaptive_sum"));
    }
}

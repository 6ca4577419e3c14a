//! Parameters of the samplers beside temperature, top-k, top-p and min-p. What each does, by formula, stands at its file in
//! [`samplers`](crate::sampling::samplers); ranges are checked here.

use super::check::{check_len, check_tokens, in_range};
use super::rare::Off;
use super::{EngineOrder, FieldError, MAX_TEMPERATURE, MAX_VOCAB_SIZE, MIN_TEMPERATURE, SamplerOrder};

/// Largest smoothing factor.
pub const MAX_SMOOTHING_FACTOR: f32 = 100.0;
/// Largest smoothing curve.
pub const MAX_SMOOTHING_CURVE: f32 = 10.0;
/// Largest exponent of dynamic temperature.
pub const MAX_DYNATEMP_EXPONENT: f32 = 100.0;
/// Largest top-a factor and number of standard deviations of top-n-sigma.
pub const MAX_CUTOFF: f32 = 1e4;
/// Most tokens that XTC is told never to exclude.
pub const MAX_XTC_IGNORE_TOKEN_IDS: usize = 1024;

/// Fields of the wire's `SamplingParams` with the same names; `sampler_order` also stands for `engine_order`. [`Default`]
/// is everything off, in this project's order.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerParams {
    /// Dynamic temperature where one token has all probability. 0 ..= 1e5.
    pub dynatemp_low: f32,
    /// Dynamic temperature where all tokens are as likely. 0: off, or 1e-5 ..= 1e5.
    pub dynatemp_high: f32,
    /// Of the share of the largest entropy, in dynamic temperature. 0 ..= 100.
    pub dynatemp_exponent: f32,
    /// What the temperature comes to by `temperature_tokens`. 1e-5 ..= 1e5.
    pub temperature_end: f32,
    /// After so many tokens of output. 0: off.
    pub temperature_tokens: u32,
    /// Quadratic smoothing. 0 ..= 100; 0: off.
    pub smoothing_factor: f32,
    /// Its cubic part. 1 ..= 10; 1: none.
    pub smoothing_curve: f32,
    /// Locally typical sampling. 0 ..= 1; 1: off.
    pub typical_p: f32,
    /// Tail-free sampling, z. 0 ..= 1; 1: off.
    pub tfs: f32,
    /// Keep at least this times the square of the largest probability. 0 ..= 1e4; 0: off.
    pub top_a: f32,
    /// Keep logits so many standard deviations below the largest. 0 ..= 1e4; 0: off.
    pub top_n_sigma: f32,
    /// Keep tokens with this probability. 0 ..= 1; 0: off.
    pub epsilon_cutoff: f32,
    /// The same, less where entropy is high. 0 ..= 1; 0: off.
    pub eta_cutoff: f32,
    /// Keep this share of the entropy. 0 ..= 1; 0: off.
    pub top_h: f32,
    /// Exclude top choices at a position with this probability. 0 ..= 1; 0: off.
    pub xtc_probability: f32,
    /// What has this probability is a top choice. 0 ..= 1.
    pub xtc_threshold: f32,
    /// Tokens that XTC never excludes.
    pub xtc_ignore_token_ids: Vec<u32>,
    /// No filter leaves fewer tokens, where there are as many. 1 ..= 2^20.
    pub min_keep: u32,
    /// In what order the samplers come.
    pub sampler_order: SamplerOrder,
}

impl Default for SamplerParams {
    fn default() -> Self {
        Self::OFF.clone()
    }
}

impl Off for SamplerParams {
    const OFF: &'static Self = &Self {
        dynatemp_low: 0.0,
        dynatemp_high: 0.0,
        dynatemp_exponent: 1.0,
        temperature_end: 1.0,
        temperature_tokens: 0,
        smoothing_factor: 0.0,
        smoothing_curve: 1.0,
        typical_p: 1.0,
        tfs: 1.0,
        top_a: 0.0,
        top_n_sigma: 0.0,
        epsilon_cutoff: 0.0,
        eta_cutoff: 0.0,
        top_h: 0.0,
        xtc_probability: 0.0,
        xtc_threshold: 0.1,
        xtc_ignore_token_ids: Vec::new(),
        min_keep: 1,
        sampler_order: SamplerOrder::Engine(EngineOrder::Croupier),
    };
}

impl SamplerParams {
    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field at fault, with its path relative to the parameters.
    pub fn validate(&self, vocab_size: u32) -> Result<(), FieldError> {
        self.validate_temperatures()?;
        in_range("smoothing_factor", self.smoothing_factor, 0.0, MAX_SMOOTHING_FACTOR, "")?;
        in_range("smoothing_curve", self.smoothing_curve, 1.0, MAX_SMOOTHING_CURVE, "")?;
        in_range("typical_p", self.typical_p, 0.0, 1.0, "")?;
        in_range("tfs", self.tfs, 0.0, 1.0, "")?;
        in_range("top_a", self.top_a, 0.0, MAX_CUTOFF, "")?;
        in_range("top_n_sigma", self.top_n_sigma, 0.0, MAX_CUTOFF, "")?;
        in_range("epsilon_cutoff", self.epsilon_cutoff, 0.0, 1.0, "")?;
        in_range("eta_cutoff", self.eta_cutoff, 0.0, 1.0, "")?;
        in_range("top_h", self.top_h, 0.0, 1.0, "")?;
        in_range("xtc_probability", self.xtc_probability, 0.0, 1.0, "")?;
        in_range("xtc_threshold", self.xtc_threshold, 0.0, 1.0, "")?;
        check_tokens("xtc_ignore_token_ids", &self.xtc_ignore_token_ids, vocab_size)?;
        check_len("xtc_ignore_token_ids", self.xtc_ignore_token_ids.len(), MAX_XTC_IGNORE_TOKEN_IDS)?;
        in_range("min_keep", self.min_keep, 1, MAX_VOCAB_SIZE, "")
    }

    fn validate_temperatures(&self) -> Result<(), FieldError> {
        if self.dynatemp_high != 0.0 {
            in_range("dynatemp_high", self.dynatemp_high, MIN_TEMPERATURE, MAX_TEMPERATURE, " (or 0 for off)")?;
        }
        in_range("dynatemp_low", self.dynatemp_low, 0.0, MAX_TEMPERATURE, "")?;
        if self.dynatemp_high > 0.0 && self.dynatemp_low > self.dynatemp_high {
            let message = format!("is {}, above dynatemp_high {}; lower it", self.dynatemp_low, self.dynatemp_high);
            return Err(FieldError::new("dynatemp_low", message));
        }
        in_range("dynatemp_exponent", self.dynatemp_exponent, 0.0, MAX_DYNATEMP_EXPONENT, "")?;
        in_range("temperature_end", self.temperature_end, MIN_TEMPERATURE, MAX_TEMPERATURE, "")?;
        if self.temperature_tokens > 0 && self.dynatemp_high > 0.0 {
            let message = "cannot be combined with dynatemp_high; both choose the temperature";
            return Err(FieldError::new("temperature_tokens", message));
        }
        Ok(())
    }

    /// Bytes that the lists take, `xtc_ignore_token_ids` not counted.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.sampler_order.bytes()
    }

    /// Names of the fields, for tests that none is forgotten.
    #[cfg(test)]
    pub(crate) fn field_names() -> Vec<&'static str> {
        // Adding a field stops the compiler here.
        macro_rules! names {
            ($($field:ident),* $(,)?) => {{
                let SamplerParams { $($field: _),* } = Self::default();
                vec![$(stringify!($field)),*]
            }};
        }
        names!(
            dynatemp_low,
            dynatemp_high,
            dynatemp_exponent,
            temperature_end,
            temperature_tokens,
            smoothing_factor,
            smoothing_curve,
            typical_p,
            tfs,
            top_a,
            top_n_sigma,
            epsilon_cutoff,
            eta_cutoff,
            top_h,
            xtc_probability,
            xtc_threshold,
            xtc_ignore_token_ids,
            min_keep,
            sampler_order,
        )
    }
}

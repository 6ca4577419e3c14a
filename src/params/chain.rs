//! Parameters of the samplers other than temperature, top-k, top-p and min-p. The formulas of each sampler are
//! documented at its file in [`samplers`](crate::sampling::samplers). The ranges are checked here.

use super::check::{check_len, check_tokens, in_range};
use super::rare::Off;
use super::report::ReportParams;
use super::{EngineOrder, FieldError, MAX_TEMPERATURE, MAX_VOCAB_SIZE, MIN_TEMPERATURE, SamplerOrder};

/// Largest smoothing factor.
pub const MAX_SMOOTHING_FACTOR: f32 = 100.0;
/// Largest smoothing curve.
pub const MAX_SMOOTHING_CURVE: f32 = 10.0;
/// Largest exponent of dynamic temperature.
pub const MAX_DYNATEMP_EXPONENT: f32 = 100.0;
/// Largest factor of top-a, and largest number of standard deviations of top-n-sigma.
pub const MAX_CUTOFF: f32 = 1e4;
/// Most tokens that XTC may be told never to exclude.
pub const MAX_XTC_IGNORE_TOKEN_IDS: usize = 1024;
/// Most tokens that reset a decaying top-p to its initial value.
pub const MAX_TOP_P_RESET_TOKEN_IDS: usize = 64;
/// Largest target and learning rate of mirostat. A surprise has at most 60 bits.
pub const MAX_MIROSTAT: f32 = 100.0;
/// Largest absolute skew.
pub const MAX_SKEW: f32 = 10.0;
/// Largest decay of adaptive-p's average.
pub const MAX_ADAPTIVE_DECAY: f32 = 0.99;
/// The target of adaptive-p that turns it off.
pub const ADAPTIVE_OFF: f32 = -1.0;

/// The fields of the wire's `SamplingParams` with the same names. `sampler_order` also stands for `engine_order`.
/// [`Default`] is everything off, in this project's order.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerParams {
    /// Dynamic temperature: the temperature where one token has all probability. 0 ..= 1e5.
    pub dynatemp_low: f32,
    /// Dynamic temperature: the temperature where all tokens are equally likely. 0: off, or 1e-5 ..= 1e5.
    pub dynatemp_high: f32,
    /// Dynamic temperature: the exponent of the entropy's share of the largest possible entropy. 0 ..= 100.
    pub dynatemp_exponent: f32,
    /// The temperature that is reached after `temperature_tokens` tokens. 1e-5 ..= 1e5.
    pub temperature_end: f32,
    /// The number of output tokens after which `temperature_end` is reached. 0: off.
    pub temperature_tokens: u32,
    /// Factor of quadratic smoothing. 0 ..= 100; 0: off.
    pub smoothing_factor: f32,
    /// The weight of smoothing's cubic part. 1 ..= 10; 1: no cubic part.
    pub smoothing_curve: f32,
    /// Locally typical sampling: the probability to keep. 0 ..= 1; 1: off.
    pub typical_p: f32,
    /// Tail-free sampling: z. 0 ..= 1; 1: off.
    pub tfs: f32,
    /// Keep probabilities of at least this factor times the square of the largest probability. 0 ..= 1e4; 0: off.
    pub top_a: f32,
    /// Keep logits at most this many standard deviations below the largest. −1e4 ..= 1e4; 0 and less: off.
    pub top_n_sigma: f32,
    /// Min-k: keep the tokens before the cliff of the sorted logits ...
    pub min_k: bool,
    /// ... and at least this many, divided by the distance between the largest and the least logit. 0 ..= the largest
    /// f32.
    pub min_k_tau: f32,
    /// Keep tokens with at least this probability. 0 ..= 1; 0: off.
    pub epsilon_cutoff: f32,
    /// As `epsilon_cutoff`, with a lower threshold where the entropy is high. 0 ..= 1; 0: off.
    pub eta_cutoff: f32,
    /// Keep at most this share of the entropy. 0 ..= 1; 0: off.
    pub top_h: f32,
    /// XTC: exclude the top choices at a position with this probability. 0 ..= 1; 0: off.
    pub xtc_probability: f32,
    /// XTC: a token with at least this probability is a top choice. 0 ..= 1.
    pub xtc_threshold: f32,
    /// Apply XTC's average effect at every position, instead of the whole effect at random positions. `None`: as the
    /// engine's rules say.
    pub xtc_expected: Option<bool>,
    /// Tokens that XTC never excludes.
    pub xtc_ignore_token_ids: Vec<u32>,
    /// No filter leaves fewer tokens than this, if there are that many. 1 ..= 2^20.
    pub min_keep: u32,
    /// The version of mirostat. 1 or 2; 0: off.
    pub mirostat: u32,
    /// The surprise that mirostat aims at, in bits. 0 ..= 100.
    pub mirostat_tau: f32,
    /// Mirostat's learning rate. 0 ..= 100.
    pub mirostat_eta: f32,
    /// Adaptive-p: the probability that tokens should have. 0 ..= 1; below 0, down to −1: off.
    pub adaptive_target: f32,
    /// Adaptive-p: the share of its average that is left after a token. 0 ..= 0.99.
    pub adaptive_decay: f32,
    /// Top-p is multiplied by this factor with each token ... 0 ..= 1; 1: off.
    pub top_p_decay: f32,
    /// ... but does not fall below this ... 0 ..= 1.
    pub top_p_min: f32,
    /// ... and starts again after one of these tokens.
    pub top_p_reset_token_ids: Vec<u32>,
    /// P-less: keep probabilities of at least the sum of the squares of all probabilities ...
    pub p_less: bool,
    /// ... or of at least that sum in its normalized form, which keeps more.
    pub p_less_norm: bool,
    /// Fill in the middle: end a text where its continuation is not certain.
    pub infill: bool,
    /// If an EOS token is more likely than this, only such EOS tokens are kept. 0 ..= 1; 0: off.
    pub min_eos_p: f32,
    /// Skewed sampling: above 0, less likely tokens are drawn more often; below 0, more likely ones. −10 ..= 10; 0:
    /// off.
    pub skew: f32,
    /// Report what the samplers remember with each token.
    pub return_sampler_state: bool,
    /// What to report about how a token was chosen. `None`: nothing.
    pub report: Option<Box<ReportParams>>,
    /// The order in which the samplers are applied.
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
        min_k: false,
        min_k_tau: 3.0,
        epsilon_cutoff: 0.0,
        eta_cutoff: 0.0,
        top_h: 0.0,
        xtc_probability: 0.0,
        xtc_threshold: 0.1,
        xtc_expected: None,
        xtc_ignore_token_ids: Vec::new(),
        min_keep: 1,
        mirostat: 0,
        mirostat_tau: 5.0,
        mirostat_eta: 0.1,
        adaptive_target: ADAPTIVE_OFF,
        adaptive_decay: 0.9,
        top_p_decay: 1.0,
        top_p_min: 1e-6,
        top_p_reset_token_ids: Vec::new(),
        p_less: false,
        p_less_norm: false,
        infill: false,
        min_eos_p: 0.0,
        skew: 0.0,
        return_sampler_state: false,
        report: None,
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
        // Negative values are valid and mean off: llama.cpp's default is -1, and its server reports that with each
        // request.
        in_range("top_n_sigma", self.top_n_sigma, -MAX_CUTOFF, MAX_CUTOFF, " (0 or less: off)")?;
        in_range("min_k_tau", self.min_k_tau, 0.0, f32::MAX, " (any finite number of at least 0)")?;
        in_range("epsilon_cutoff", self.epsilon_cutoff, 0.0, 1.0, "")?;
        in_range("eta_cutoff", self.eta_cutoff, 0.0, 1.0, "")?;
        in_range("top_h", self.top_h, 0.0, 1.0, "")?;
        in_range("xtc_probability", self.xtc_probability, 0.0, 1.0, "")?;
        in_range("xtc_threshold", self.xtc_threshold, 0.0, 1.0, "")?;
        check_tokens("xtc_ignore_token_ids", &self.xtc_ignore_token_ids, vocab_size)?;
        check_len("xtc_ignore_token_ids", self.xtc_ignore_token_ids.len(), MAX_XTC_IGNORE_TOKEN_IDS)?;
        in_range("min_eos_p", self.min_eos_p, 0.0, 1.0, "")?;
        in_range("skew", self.skew, -MAX_SKEW, MAX_SKEW, "")?;
        in_range("min_keep", self.min_keep, 1, MAX_VOCAB_SIZE, "")?;
        if let Some(report) = &self.report {
            report.validate(vocab_size).map_err(|e| e.within("report"))?;
        }
        self.validate_with_a_state(vocab_size)
    }

    fn validate_with_a_state(&self, vocab_size: u32) -> Result<(), FieldError> {
        in_range("mirostat", self.mirostat, 0, 2, "")?;
        in_range("mirostat_tau", self.mirostat_tau, 0.0, MAX_MIROSTAT, "")?;
        in_range("mirostat_eta", self.mirostat_eta, 0.0, MAX_MIROSTAT, "")?;
        in_range("adaptive_target", self.adaptive_target, ADAPTIVE_OFF, 1.0, " (below 0: off)")?;
        in_range("adaptive_decay", self.adaptive_decay, 0.0, MAX_ADAPTIVE_DECAY, "")?;
        in_range("top_p_decay", self.top_p_decay, 0.0, 1.0, "")?;
        in_range("top_p_min", self.top_p_min, 0.0, 1.0, "")?;
        check_tokens("top_p_reset_token_ids", &self.top_p_reset_token_ids, vocab_size)?;
        check_len("top_p_reset_token_ids", self.top_p_reset_token_ids.len(), MAX_TOP_P_RESET_TOKEN_IDS)
    }

    fn validate_temperatures(&self) -> Result<(), FieldError> {
        if self.dynatemp_high != 0.0 {
            in_range("dynatemp_high", self.dynatemp_high, MIN_TEMPERATURE, MAX_TEMPERATURE, " (or 0: off)")?;
        }
        in_range("dynatemp_low", self.dynatemp_low, 0.0, MAX_TEMPERATURE, "")?;
        if self.dynatemp_high > 0.0 && self.dynatemp_low > self.dynatemp_high {
            let message = format!("is {}, above dynatemp_high {}; lower it", self.dynatemp_low, self.dynatemp_high);
            return Err(FieldError::new("dynatemp_low", message));
        }
        in_range("dynatemp_exponent", self.dynatemp_exponent, 0.0, MAX_DYNATEMP_EXPONENT, "")?;
        in_range("temperature_end", self.temperature_end, MIN_TEMPERATURE, MAX_TEMPERATURE, "")?;
        if self.temperature_tokens > 0 && self.dynatemp_high > 0.0 {
            let message = "cannot be combined with dynatemp_high, as both set the temperature; turn one of them off";
            return Err(FieldError::new("temperature_tokens", message));
        }
        Ok(())
    }

    /// Bytes that the lists take, without `xtc_ignore_token_ids`.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let report = self.report.as_ref().map_or(0, |report| report.bytes());
        self.sampler_order.bytes() + self.top_p_reset_token_ids.capacity() * size_of::<u32>() + report
    }

    /// Names of all fields, so that tests can check that they cover each one.
    #[cfg(test)]
    pub(crate) fn field_names() -> Vec<&'static str> {
        // The pattern below does not compile if a field is missing.
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
            min_k,
            min_k_tau,
            epsilon_cutoff,
            eta_cutoff,
            top_h,
            xtc_probability,
            xtc_threshold,
            xtc_expected,
            xtc_ignore_token_ids,
            min_keep,
            mirostat,
            mirostat_tau,
            mirostat_eta,
            adaptive_target,
            adaptive_decay,
            top_p_decay,
            top_p_min,
            top_p_reset_token_ids,
            p_less,
            p_less_norm,
            infill,
            min_eos_p,
            skew,
            return_sampler_state,
            report,
            sampler_order,
        )
    }
}

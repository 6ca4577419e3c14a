//! The samplers of a row, and the steps that parameters turn them into.

use super::chain::SamplerParams;
use super::{SamplingParams, TfsRule, TypicalRule, XtcRule};

/// A sampler that has a place in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sampler {
    /// `min_eos_p`.
    MinEosP,
    /// Temperature, or dynamic temperature if that is on and has no place of its own.
    Temperature,
    /// Dynamic temperature in an order that also has a place for temperature.
    DynamicTemperature,
    /// Quadratic or cubic smoothing.
    Smoothing,
    /// `top_n_sigma`.
    TopNSigma,
    /// `min_k`.
    MinK,
    /// `top_h`.
    TopH,
    /// `top_k`.
    TopK,
    /// `top_p`.
    TopP,
    /// `min_p`.
    MinP,
    /// `typical_p`.
    TypicalP,
    /// `tfs`.
    Tfs,
    /// `top_a`.
    TopA,
    /// `epsilon_cutoff`.
    EpsilonCutoff,
    /// `eta_cutoff`.
    EtaCutoff,
    /// `xtc_probability`.
    Xtc,
    /// `p_less`.
    PLess,
    /// `mirostat`.
    Mirostat,
    /// `infill`.
    Infill,
    /// `adaptive_target`.
    AdaptiveP,
    /// `skew`.
    Skew,
}

/// The versions of mirostat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirostatVersion {
    /// Keeps a number of tokens.
    One,
    /// Keeps probabilities from one on.
    Two,
}

/// One step in the processing of a row: an active sampler with the values that it needs. Values that may differ from
/// row to row are in [`Filters`](super::Filters).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ChainStep {
    /// Uses the EOS tokens of the chain. See [`min_eos_p`](crate::sampling::samplers::min_eos_p).
    MinEosP(f32),
    /// Uses the temperature of the filters.
    Temperature,
    /// See [`dynamic_temperature`](crate::sampling::samplers::temperature).
    DynamicTemperature {
        /// The temperature where all probability is on one token.
        low: f32,
        /// The temperature where all tokens are equally likely.
        high: f32,
        /// The exponent of the entropy's share of the largest possible entropy.
        exponent: f32,
    },
    /// See [`smoothing`](crate::sampling::samplers::smoothing).
    Smoothing {
        /// Above 0.
        factor: f32,
        /// 1: quadratic.
        curve: f32,
    },
    /// Keeps this many of the most likely tokens, whatever top-k is.
    AtMost(u32),
    /// Uses the top-k of the filters.
    TopK,
    /// As `TopK`, but also keeps tokens that are equal to the last one kept.
    TopKTies,
    /// Uses the top-p of the filters.
    TopP,
    /// Uses the min-p of the filters.
    MinP,
    /// As `MinP`, but without tokens that are equal to the threshold.
    MinPAbove,
    /// See [`typical`](crate::sampling::samplers::typical).
    TypicalP(TypicalRule, f32),
    /// See [`tail_free`](crate::sampling::samplers::tail_free).
    Tfs(TfsRule, f32),
    /// See [`cutoffs`](crate::sampling::samplers::cutoffs).
    TopA(f32),
    /// See [`top_n_sigma`](crate::sampling::samplers::top_n_sigma).
    TopNSigma(f32),
    /// The value is tau. See [`min_k`](crate::sampling::samplers::min_k).
    MinK(f32),
    /// See [`cutoffs`](crate::sampling::samplers::cutoffs).
    EpsilonCutoff(f32),
    /// See [`cutoffs`](crate::sampling::samplers::cutoffs).
    EtaCutoff(f32),
    /// See [`top_h`](crate::sampling::samplers::top_h).
    TopH(f32),
    /// See [`xtc`](crate::sampling::samplers::xtc).
    Xtc {
        /// What it does to top choices.
        rule: XtcRule,
        /// The probability that XTC is applied at a position or, in the expected form, whose effect is averaged.
        probability: f32,
        /// Least probability of a top choice.
        threshold: f32,
    },
    /// See [`cutoffs`](crate::sampling::samplers::cutoffs).
    PLess {
        /// Whether the normalized form is taken.
        norm: bool,
    },
    /// See [`mirostat`](crate::sampling::samplers::mirostat).
    Mirostat {
        /// Which tokens it keeps.
        version: MirostatVersion,
        /// The surprise to aim at, in bits.
        tau: f32,
        /// Learning rate.
        eta: f32,
    },
    /// Uses what the chain knows about the texts of tokens. See [`infill`](crate::sampling::samplers::infill).
    Infill,
    /// See [`adaptive_p`](crate::sampling::samplers::adaptive_p).
    AdaptiveP {
        /// The probability to aim at.
        target: f32,
        /// The share of the average that is left after a token.
        decay: f32,
    },
    /// See [`skew`](crate::sampling::samplers::skew).
    Skew(f32),
    /// SynthID's tournament, always the last step. See [`tournament`](crate::sampling::watermark::tournament).
    Tournament,
}

impl Sampler {
    /// All samplers: those of this project's order, then the one that has no place in that order.
    pub const ALL: [Self; 21] = [
        Self::MinEosP,
        Self::Temperature,
        Self::Smoothing,
        Self::TopNSigma,
        Self::MinK,
        Self::TopH,
        Self::TopK,
        Self::TopP,
        Self::MinP,
        Self::TypicalP,
        Self::Tfs,
        Self::TopA,
        Self::EpsilonCutoff,
        Self::EtaCutoff,
        Self::PLess,
        Self::Xtc,
        Self::Mirostat,
        Self::Infill,
        Self::AdaptiveP,
        Self::Skew,
        Self::DynamicTemperature,
    ];

    /// This project's order.
    pub const OWN: &[Self] = Self::ALL.split_last().expect("there are some").1;

    /// The name of the parameter that turns the sampler on.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MinEosP => "min_eos_p",
            Self::Temperature => "temperature",
            Self::DynamicTemperature => "dynatemp_high",
            Self::Smoothing => "smoothing_factor",
            Self::TopNSigma => "top_n_sigma",
            Self::MinK => "min_k",
            Self::TopH => "top_h",
            Self::TopK => "top_k",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::TypicalP => "typical_p",
            Self::Tfs => "tfs",
            Self::TopA => "top_a",
            Self::EpsilonCutoff => "epsilon_cutoff",
            Self::EtaCutoff => "eta_cutoff",
            Self::Xtc => "xtc_probability",
            Self::PLess => "p_less",
            Self::Mirostat => "mirostat",
            Self::Infill => "infill",
            Self::AdaptiveP => "adaptive_target",
            Self::Skew => "skew",
        }
    }

    /// The end of its name on the wire, in lower case. Files use this name in an order.
    #[must_use]
    pub fn kind_name(self) -> &'static str {
        match self {
            Self::DynamicTemperature => "dynamic_temperature",
            Self::Smoothing => "smoothing",
            Self::Xtc => "xtc",
            Self::AdaptiveP => "adaptive_p",
            other => other.name(),
        }
    }

    /// The step that the parameters turn this sampler into. `None`: the sampler is off.
    #[must_use]
    pub fn step(self, params: &SamplingParams) -> Option<ChainStep> {
        let on = |is_on: bool, step: ChainStep| is_on.then_some(step);
        let s: &SamplerParams = &params.samplers;
        let rules = s.sampler_order.rules();
        match self {
            Self::MinEosP => on(s.min_eos_p > 0.0, ChainStep::MinEosP(s.min_eos_p)),
            Self::Temperature => temperature(params),
            Self::DynamicTemperature => dynamic_temperature(s),
            Self::Smoothing => {
                let (factor, curve) = (s.smoothing_factor, s.smoothing_curve);
                on(factor > 0.0, ChainStep::Smoothing { factor, curve })
            }
            Self::TopNSigma => on(s.top_n_sigma > 0.0, ChainStep::TopNSigma(s.top_n_sigma)),
            Self::MinK => on(s.min_k, ChainStep::MinK(s.min_k_tau)),
            Self::TopH => on(s.top_h > 0.0, ChainStep::TopH(s.top_h)),
            Self::TopK => on(params.top_k > 0, rules.top_k(params.top_k)),
            Self::TopP => on(params.top_p < 1.0 || s.top_p_decay < 1.0, ChainStep::TopP),
            Self::MinP => rules.min_p(params.min_p),
            Self::TypicalP => on(s.typical_p < 1.0, ChainStep::TypicalP(rules.typical, s.typical_p)),
            Self::Tfs => on(s.tfs < 1.0, ChainStep::Tfs(rules.tfs, s.tfs)),
            Self::TopA => on(s.top_a > 0.0, ChainStep::TopA(s.top_a)),
            Self::EpsilonCutoff => on(s.epsilon_cutoff > 0.0, ChainStep::EpsilonCutoff(s.epsilon_cutoff)),
            Self::EtaCutoff => on(s.eta_cutoff > 0.0, ChainStep::EtaCutoff(s.eta_cutoff)),
            Self::Xtc => {
                let (probability, threshold) = (s.xtc_probability, s.xtc_threshold);
                let rule = XtcRule { expected: s.xtc_expected.unwrap_or(rules.xtc.expected), ..rules.xtc };
                on(probability > 0.0, ChainStep::Xtc { rule, probability, threshold })
            }
            Self::PLess => on(s.p_less, ChainStep::PLess { norm: s.p_less_norm }),
            Self::Mirostat => {
                let version = if s.mirostat == 1 { MirostatVersion::One } else { MirostatVersion::Two };
                let (tau, eta) = (s.mirostat_tau, s.mirostat_eta);
                on(s.mirostat > 0, ChainStep::Mirostat { version, tau, eta })
            }
            Self::Infill => on(s.infill, ChainStep::Infill),
            Self::AdaptiveP => {
                let (target, decay) = (s.adaptive_target, s.adaptive_decay);
                on(target >= 0.0, ChainStep::AdaptiveP { target, decay })
            }
            Self::Skew => on(s.skew != 0.0, ChainStep::Skew(s.skew)),
        }
    }
}

/// The step of temperature. If the order has no place for both, dynamic temperature replaces it, even if its own place is
/// not reached.
fn temperature(params: &SamplingParams) -> Option<ChainStep> {
    let s = &params.samplers;
    let dynamic = dynamic_temperature(s);
    if dynamic.is_some() && !s.sampler_order.samplers().contains(&Sampler::DynamicTemperature) {
        return dynamic;
    }
    (params.temperature != 1.0 || s.temperature_tokens > 0).then_some(ChainStep::Temperature)
}

/// The step of dynamic temperature.
fn dynamic_temperature(s: &SamplerParams) -> Option<ChainStep> {
    let (low, high, exponent) = (s.dynatemp_low, s.dynatemp_high, s.dynatemp_exponent);
    (high > 0.0).then_some(ChainStep::DynamicTemperature { low, high, exponent })
}

impl ChainStep {
    /// The sampler that this step belongs to. `None` for the tournament, which belongs to a watermark.
    #[must_use]
    pub fn sampler(&self) -> Option<Sampler> {
        Some(match self {
            Self::MinEosP(_) => Sampler::MinEosP,
            Self::Temperature => Sampler::Temperature,
            Self::DynamicTemperature { .. } => Sampler::DynamicTemperature,
            Self::Smoothing { .. } => Sampler::Smoothing,
            Self::AtMost(_) | Self::TopK | Self::TopKTies => Sampler::TopK,
            Self::TopP => Sampler::TopP,
            Self::MinP | Self::MinPAbove => Sampler::MinP,
            Self::TypicalP(..) => Sampler::TypicalP,
            Self::Tfs(..) => Sampler::Tfs,
            Self::TopA(_) => Sampler::TopA,
            Self::TopNSigma(_) => Sampler::TopNSigma,
            Self::MinK(_) => Sampler::MinK,
            Self::EpsilonCutoff(_) => Sampler::EpsilonCutoff,
            Self::EtaCutoff(_) => Sampler::EtaCutoff,
            Self::TopH(_) => Sampler::TopH,
            Self::Xtc { .. } => Sampler::Xtc,
            Self::PLess { .. } => Sampler::PLess,
            Self::Mirostat { .. } => Sampler::Mirostat,
            Self::Infill => Sampler::Infill,
            Self::AdaptiveP { .. } => Sampler::AdaptiveP,
            Self::Skew(_) => Sampler::Skew,
            Self::Tournament => return None,
        })
    }
}

//! The samplers of a row, and the steps that parameters ask of them.

use super::SamplingParams;
use super::chain::SamplerParams;

/// A sampler that has a place in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sampler {
    /// `min_eos_p`.
    MinEosP,
    /// Temperature; or dynamic temperature where that is on and has no place of its own.
    Temperature,
    /// Dynamic temperature beside temperature.
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

/// One step of a row's way: an active sampler with what it needs to know. What may differ from row to row is in
/// [`Filters`](super::Filters).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// With the EOS tokens of the chain. See [`min_eos_p`](crate::sampling::samplers::min_eos_p).
    MinEosP(f32),
    /// With the temperature of the filters.
    Temperature,
    /// See [`dynamic_temperature`](crate::sampling::samplers::temperature).
    DynamicTemperature {
        /// Where all probability is on one token.
        low: f32,
        /// Where all tokens are as likely.
        high: f32,
        /// Of the share of the largest entropy.
        exponent: f32,
    },
    /// See [`smoothing`](crate::sampling::samplers::smoothing).
    Smoothing {
        /// Above 0.
        factor: f32,
        /// 1: quadratic.
        curve: f32,
    },
    /// The first so many, whatever top-k is.
    AtMost(u32),
    /// With the top-k of the filters.
    TopK,
    /// The same, and what is equal to the last one.
    TopKTies,
    /// With the top-p of the filters.
    TopP,
    /// With the min-p of the filters.
    MinP,
    /// The same, without what is equal to its threshold.
    MinPAbove,
    /// See [`typical`](crate::sampling::samplers::typical).
    TypicalP(f32),
    /// The same, until what is kept has more than that.
    TypicalAbove(f32),
    /// The same, and what is as far from the entropy as the last one.
    TypicalTies(f32),
    /// See [`tail_free`](crate::sampling::samplers::tail_free).
    Tfs(f32),
    /// The same, where tokens that are not left are masses of 0.
    TfsWithRemoved(f32),
    /// One fewer.
    TfsOneFewer(f32),
    /// See [`cutoffs`](crate::sampling::samplers::cutoffs).
    TopA(f32),
    /// See [`top_n_sigma`](crate::sampling::samplers::top_n_sigma).
    TopNSigma(f32),
    /// With tau. See [`min_k`](crate::sampling::samplers::min_k).
    MinK(f32),
    /// See [`cutoffs`](crate::sampling::samplers::cutoffs).
    EpsilonCutoff(f32),
    /// See [`cutoffs`](crate::sampling::samplers::cutoffs).
    EtaCutoff(f32),
    /// See [`top_h`](crate::sampling::samplers::top_h).
    TopH(f32),
    /// See [`xtc`](crate::sampling::samplers::xtc).
    Xtc {
        /// That it happens at a position.
        probability: f32,
        /// Least probability of a choice.
        threshold: f32,
    },
    /// The same, but not where a token would go that is to stay.
    XtcUnlessIgnored {
        /// That it happens at a position.
        probability: f32,
        /// Least probability of a choice.
        threshold: f32,
    },
    /// What it makes of probabilities on average.
    XtcExpected {
        /// That it happens at a position.
        probability: f32,
        /// Least probability of a choice.
        threshold: f32,
    },
    /// The same, but not where a token would go that is to stay.
    XtcExpectedUnlessIgnored {
        /// That it happens at a position.
        probability: f32,
        /// Least probability of a choice.
        threshold: f32,
    },
    /// See [`cutoffs`](crate::sampling::samplers::cutoffs).
    PLess,
    /// Its normalized form.
    PLessNorm,
    /// The first. See [`mirostat`](crate::sampling::samplers::mirostat).
    MirostatV1 {
        /// Wanted surprise, in bits.
        tau: f32,
        /// Learning rate.
        eta: f32,
    },
    /// The second.
    MirostatV2 {
        /// Wanted surprise, in bits.
        tau: f32,
        /// Learning rate.
        eta: f32,
    },
    /// With what the chain knows of texts. See [`infill`](crate::sampling::samplers::infill).
    Infill,
    /// See [`adaptive_p`](crate::sampling::samplers::adaptive_p).
    AdaptiveP {
        /// Wanted probability.
        target: f32,
        /// What is left of the average after a token.
        decay: f32,
    },
    /// See [`skew`](crate::sampling::samplers::skew).
    Skew(f32),
    /// SynthID's, always the last. See [`tournament`](crate::sampling::mark::tournament).
    Tournament,
}

impl Sampler {
    /// All of them: those of this project's order, and then the one that has no place in it.
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

    /// The parameter that turns it on.
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

    /// The end of its name on the wire, in small letters: as files name its place in an order.
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

    /// The step that parameters ask of it; `None`: it is off.
    #[must_use]
    pub fn step(self, params: &SamplingParams) -> Option<Step> {
        let on = |is_on: bool, step: Step| is_on.then_some(step);
        let rules = params.samplers.sampler_order.rules();
        let SamplerParams { dynatemp_low: low, dynatemp_high: high, dynatemp_exponent: exponent, .. } =
            *params.samplers;
        let listed = params.samplers.sampler_order.samplers();
        let dynamic = on(high > 0.0, Step::DynamicTemperature { low, high, exponent });
        match self {
            Self::MinEosP => on(params.samplers.min_eos_p > 0.0, Step::MinEosP(params.samplers.min_eos_p)),
            // Where the order has no place for both, whether or not that is come to.
            Self::Temperature if !listed.contains(&Self::DynamicTemperature) && dynamic.is_some() => dynamic,
            Self::DynamicTemperature => dynamic,
            Self::Temperature => {
                on(params.temperature != 1.0 || params.samplers.temperature_tokens > 0, Step::Temperature)
            }
            Self::Smoothing => {
                let (factor, curve) = (params.samplers.smoothing_factor, params.samplers.smoothing_curve);
                on(factor > 0.0, Step::Smoothing { factor, curve })
            }
            Self::TopNSigma => on(params.samplers.top_n_sigma > 0.0, Step::TopNSigma(params.samplers.top_n_sigma)),
            Self::MinK => on(params.samplers.min_k, Step::MinK(params.samplers.min_k_tau)),
            Self::TopH => on(params.samplers.top_h > 0.0, Step::TopH(params.samplers.top_h)),
            Self::TopK => on(params.top_k > 0, rules.top_k(params.top_k)),
            Self::TopP => on(params.top_p < 1.0 || params.samplers.top_p_decay < 1.0, Step::TopP),
            Self::MinP => rules.min_p(params.min_p),
            Self::TypicalP => on(params.samplers.typical_p < 1.0, rules.typical(params.samplers.typical_p)),
            Self::Tfs => on(params.samplers.tfs < 1.0, rules.tfs(params.samplers.tfs)),
            Self::TopA => on(params.samplers.top_a > 0.0, Step::TopA(params.samplers.top_a)),
            Self::EpsilonCutoff => {
                on(params.samplers.epsilon_cutoff > 0.0, Step::EpsilonCutoff(params.samplers.epsilon_cutoff))
            }
            Self::EtaCutoff => on(params.samplers.eta_cutoff > 0.0, Step::EtaCutoff(params.samplers.eta_cutoff)),
            Self::Xtc => {
                let (probability, threshold) = (params.samplers.xtc_probability, params.samplers.xtc_threshold);
                let expected = params.samplers.xtc_expected.unwrap_or(rules.xtc_expected);
                let step = match (expected, rules.xtc_unless_ignored) {
                    (false, false) => Step::Xtc { probability, threshold },
                    (false, true) => Step::XtcUnlessIgnored { probability, threshold },
                    (true, false) => Step::XtcExpected { probability, threshold },
                    (true, true) => Step::XtcExpectedUnlessIgnored { probability, threshold },
                };
                on(probability > 0.0, step)
            }
            Self::PLess => {
                let step = if params.samplers.p_less_norm { Step::PLessNorm } else { Step::PLess };
                on(params.samplers.p_less, step)
            }
            Self::Mirostat => {
                let (tau, eta) = (params.samplers.mirostat_tau, params.samplers.mirostat_eta);
                let first = params.samplers.mirostat == 1;
                let step = if first { Step::MirostatV1 { tau, eta } } else { Step::MirostatV2 { tau, eta } };
                on(params.samplers.mirostat > 0, step)
            }
            Self::Infill => on(params.samplers.infill, Step::Infill),
            Self::AdaptiveP => {
                let (target, decay) = (params.samplers.adaptive_target, params.samplers.adaptive_decay);
                on(target >= 0.0, Step::AdaptiveP { target, decay })
            }
            Self::Skew => on(params.samplers.skew != 0.0, Step::Skew(params.samplers.skew)),
        }
    }
}

impl Step {
    /// Whose it is; that of a mark is no sampler's.
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
            Self::TypicalP(_) | Self::TypicalAbove(_) | Self::TypicalTies(_) => Sampler::TypicalP,
            Self::Tfs(_) | Self::TfsWithRemoved(_) | Self::TfsOneFewer(_) => Sampler::Tfs,
            Self::TopA(_) => Sampler::TopA,
            Self::TopNSigma(_) => Sampler::TopNSigma,
            Self::MinK(_) => Sampler::MinK,
            Self::EpsilonCutoff(_) => Sampler::EpsilonCutoff,
            Self::EtaCutoff(_) => Sampler::EtaCutoff,
            Self::TopH(_) => Sampler::TopH,
            Self::Xtc { .. } | Self::XtcUnlessIgnored { .. } => Sampler::Xtc,
            Self::XtcExpected { .. } | Self::XtcExpectedUnlessIgnored { .. } => Sampler::Xtc,
            Self::PLess | Self::PLessNorm => Sampler::PLess,
            Self::MirostatV1 { .. } | Self::MirostatV2 { .. } => Sampler::Mirostat,
            Self::Infill => Sampler::Infill,
            Self::AdaptiveP { .. } => Sampler::AdaptiveP,
            Self::Skew(_) => Sampler::Skew,
            Self::Tournament => return None,
        })
    }
}

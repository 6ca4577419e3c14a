//! The order in which a row goes through its samplers, and the steps that follow from it.

use super::{FieldError, SamplingParams};

/// A sampler that has a place in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sampler {
    /// Temperature, or dynamic temperature where that is on.
    Temperature,
    /// Quadratic or cubic smoothing.
    Smoothing,
    /// `top_n_sigma`.
    TopNSigma,
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
}

/// The order of an engine: its samplers, in the order in which it applies them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineOrder {
    /// This project's.
    #[default]
    Croupier,
    /// llama.cpp, `common/sampling.cpp`: temperature last.
    LlamaCpp,
    /// vLLM V1 and V2: min-p before top-k and top-p.
    Vllm,
    /// Hugging Face Transformers, `generation/utils.py`.
    Transformers,
    /// text-generation-webui, `modules/sampler_hijack.py`.
    TextGenerationWebui,
    /// ExLlamaV2, `exllamav2/generator/sampler.py`.
    Exllama,
}

/// The order in which a sequence's rows go through its samplers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SamplerOrder {
    /// That of an engine.
    Engine(EngineOrder),
    /// A list of its own; none twice.
    Custom(Vec<Sampler>),
}

impl Default for SamplerOrder {
    fn default() -> Self {
        Self::Engine(EngineOrder::Croupier)
    }
}

/// One step of a row's way: an active sampler with what it needs to know. What may differ from row to row is in
/// [`Filters`](super::Filters).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
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
    /// With the top-k of the filters.
    TopK,
    /// With the top-p of the filters.
    TopP,
    /// With the min-p of the filters.
    MinP,
    /// See [`typical`](crate::sampling::samplers::typical).
    TypicalP(f32),
    /// See [`tail_free`](crate::sampling::samplers::tail_free).
    Tfs(f32),
    /// See [`cutoffs`](crate::sampling::samplers::cutoffs).
    TopA(f32),
    /// See [`top_n_sigma`](crate::sampling::samplers::top_n_sigma).
    TopNSigma(f32),
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
}

impl Sampler {
    /// All of them, in this project's order.
    pub const ALL: [Self; 13] = [
        Self::Temperature,
        Self::Smoothing,
        Self::TopNSigma,
        Self::TopH,
        Self::TopK,
        Self::TopP,
        Self::MinP,
        Self::TypicalP,
        Self::Tfs,
        Self::TopA,
        Self::EpsilonCutoff,
        Self::EtaCutoff,
        Self::Xtc,
    ];

    /// The parameter that turns it on.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Temperature => "temperature",
            Self::Smoothing => "smoothing_factor",
            Self::TopNSigma => "top_n_sigma",
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
        }
    }

    /// The step that parameters ask of it; `None`: it is off.
    #[must_use]
    pub fn step(self, params: &SamplingParams) -> Option<Step> {
        let on = |is_on: bool, step: Step| is_on.then_some(step);
        match self {
            Self::Temperature if params.samplers.dynatemp_high > 0.0 => Some(Step::DynamicTemperature {
                low: params.samplers.dynatemp_low,
                high: params.samplers.dynatemp_high,
                exponent: params.samplers.dynatemp_exponent,
            }),
            Self::Temperature => {
                on(params.temperature != 1.0 || params.samplers.temperature_tokens > 0, Step::Temperature)
            }
            Self::Smoothing => {
                let (factor, curve) = (params.samplers.smoothing_factor, params.samplers.smoothing_curve);
                on(factor > 0.0, Step::Smoothing { factor, curve })
            }
            Self::TopNSigma => on(params.samplers.top_n_sigma > 0.0, Step::TopNSigma(params.samplers.top_n_sigma)),
            Self::TopH => on(params.samplers.top_h > 0.0, Step::TopH(params.samplers.top_h)),
            Self::TopK => on(params.top_k > 0, Step::TopK),
            Self::TopP => on(params.top_p < 1.0, Step::TopP),
            Self::MinP => on(params.min_p > 0.0, Step::MinP),
            Self::TypicalP => on(params.samplers.typical_p < 1.0, Step::TypicalP(params.samplers.typical_p)),
            Self::Tfs => on(params.samplers.tfs < 1.0, Step::Tfs(params.samplers.tfs)),
            Self::TopA => on(params.samplers.top_a > 0.0, Step::TopA(params.samplers.top_a)),
            Self::EpsilonCutoff => {
                on(params.samplers.epsilon_cutoff > 0.0, Step::EpsilonCutoff(params.samplers.epsilon_cutoff))
            }
            Self::EtaCutoff => on(params.samplers.eta_cutoff > 0.0, Step::EtaCutoff(params.samplers.eta_cutoff)),
            Self::Xtc => {
                let (probability, threshold) = (params.samplers.xtc_probability, params.samplers.xtc_threshold);
                on(probability > 0.0, Step::Xtc { probability, threshold })
            }
        }
    }
}

impl EngineOrder {
    /// Its samplers.
    #[must_use]
    pub fn samplers(self) -> &'static [Sampler] {
        use Sampler::*;
        match self {
            Self::Croupier => &Sampler::ALL,
            Self::LlamaCpp => &[TopNSigma, TopK, TypicalP, TopP, MinP, Xtc, Temperature],
            Self::Vllm => &[Temperature, MinP, TopK, TopP],
            Self::Transformers => &[Temperature, TopH, TopK, TopP, MinP, TypicalP, EpsilonCutoff, EtaCutoff],
            Self::TextGenerationWebui => &[
                TopNSigma,
                Temperature,
                Smoothing,
                TopK,
                TopP,
                TypicalP,
                EpsilonCutoff,
                EtaCutoff,
                Tfs,
                TopA,
                MinP,
                Xtc,
            ],
            Self::Exllama => &[Temperature, Smoothing, TopK, TopP, TopA, MinP, Tfs, TypicalP, Xtc],
        }
    }
}

impl SamplerOrder {
    /// Its samplers.
    #[must_use]
    pub fn samplers(&self) -> &[Sampler] {
        match self {
            Self::Engine(engine) => engine.samplers(),
            Self::Custom(samplers) => samplers,
        }
    }

    /// Bytes that the list takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Engine(_) => 0,
            Self::Custom(samplers) => samplers.capacity() * size_of::<Sampler>(),
        }
    }
}

impl SamplingParams {
    /// The steps of a row in order, where [`Filters`](super::Filters) in their own order would not do: temperature,
    /// top-k, top-p, min-p. Greedy has no steps: the first token is taken whatever the samplers.
    #[must_use]
    pub fn steps(&self) -> Option<Vec<Step>> {
        if self.temperature == 0.0 {
            return None;
        }
        let steps: Vec<Step> = self.samplers.sampler_order.samplers().iter().filter_map(|s| s.step(self)).collect();
        let place = |step: &Step| match step {
            Step::Temperature => Some(0),
            Step::TopK => Some(1),
            Step::TopP => Some(2),
            Step::MinP => Some(3),
            _ => None,
        };
        let usual = steps.iter().map(place).is_sorted() && steps.iter().all(|step| place(step).is_some());
        let cuts =
            |step: &Step| !matches!(step, Step::Temperature | Step::DynamicTemperature { .. } | Step::Smoothing { .. });
        (!usual || self.samplers.min_keep > 1 && steps.iter().any(cuts)).then_some(steps)
    }

    /// Whether what decides about the temperature goes together.
    pub(super) fn validate_temperatures(&self) -> Result<(), FieldError> {
        if self.samplers.temperature_tokens > 0 && self.temperature == 0.0 {
            let message = "needs a temperature above 0 to start from; set temperature";
            return Err(FieldError::new("temperature_tokens", message));
        }
        Ok(())
    }

    /// A sampler that is on has a place in the order: none is left out without a word.
    pub(super) fn validate_order(&self) -> Result<(), FieldError> {
        let order = self.samplers.sampler_order.samplers();
        for (i, sampler) in order.iter().enumerate() {
            if order[..i].contains(sampler) {
                let message = format!("{} is given twice; give it once", sampler.name());
                return Err(FieldError::new(format!("sampler_order[{i}]"), message));
            }
        }
        let missing = Sampler::ALL.into_iter().find(|s| s.step(self).is_some() && !order.contains(s));
        match missing.filter(|_| self.temperature != 0.0) {
            None => Ok(()),
            Some(sampler) => {
                let field = match self.samplers.sampler_order {
                    SamplerOrder::Engine(_) => "engine_order",
                    SamplerOrder::Custom(_) => "sampler_order",
                };
                let message = format!("has no place for {}, which is on; add it or turn it off", sampler.name());
                Err(FieldError::new(field, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(change: impl FnOnce(&mut SamplingParams)) -> Option<Vec<Step>> {
        let mut params = SamplingParams::default();
        change(&mut params);
        assert_eq!(params.validate(9, 9), Ok(()));
        params.steps()
    }

    #[test]
    fn the_usual_filters_in_the_usual_order_need_no_steps() {
        assert_eq!(steps(|_| ()), None);
        assert_eq!(steps(|p| (p.temperature, p.top_k, p.top_p, p.min_p) = (0.5, 9, 0.5, 0.1)), None);
        assert_eq!(steps(|p| (p.temperature, p.samplers.typical_p) = (0.0, 0.5)), None, "greedy");
        let order = SamplerOrder::Engine(EngineOrder::LlamaCpp);
        assert_eq!(steps(|p| (p.top_k, p.top_p, p.samplers.sampler_order) = (9, 0.5, order.clone())), None);
        let last = vec![Step::TopK, Step::Temperature];
        assert_eq!(steps(|p| (p.top_k, p.temperature, p.samplers.sampler_order) = (9, 0.5, order)), Some(last));
        assert_eq!(steps(|p| (p.top_k, p.samplers.min_keep) = (1, 2)), Some(vec![Step::TopK]));
        assert_eq!(steps(|p| (p.temperature, p.samplers.min_keep) = (2.0, 5)), None, "nothing is cut");
        assert_eq!(steps(|p| p.samplers.typical_p = 0.5), Some(vec![Step::TypicalP(0.5)]));
    }

    #[test]
    fn a_sampler_that_is_on_needs_a_place() {
        let at_fault = |change: fn(&mut SamplingParams)| {
            let mut params = SamplingParams::default();
            change(&mut params);
            params.validate(9, 9).map_err(|e| e.to_string())
        };
        let of = SamplerOrder::Engine;
        assert_eq!(
            at_fault(|p| (p.samplers.tfs, p.samplers.sampler_order) = (0.5, SamplerOrder::Engine(EngineOrder::Vllm))),
            Err("engine_order: has no place for tfs, which is on; add it or turn it off".to_owned())
        );
        assert_eq!(
            at_fault(|p| (p.top_k, p.samplers.sampler_order) = (5, SamplerOrder::Custom(vec![Sampler::Temperature]))),
            Err("sampler_order: has no place for top_k, which is on; add it or turn it off".to_owned())
        );
        assert_eq!(
            at_fault(|p| p.samplers.sampler_order = SamplerOrder::Custom(vec![Sampler::TopK, Sampler::TopK])),
            Err("sampler_order[1]: top_k is given twice; give it once".to_owned())
        );
        assert_eq!(at_fault(|p| p.samplers.sampler_order = SamplerOrder::Custom(vec![])), Ok(()), "nothing is on");
        for engine in [EngineOrder::LlamaCpp, EngineOrder::Transformers, EngineOrder::TextGenerationWebui] {
            assert!(of(engine).samplers().contains(&Sampler::TypicalP));
        }
    }
}

//! The order in which a row goes through its samplers.

use super::{FieldError, Sampler, SamplingParams, Step};

/// The order of an engine: its samplers, in the order in which it applies them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineOrder {
    /// This project's.
    #[default]
    Croupier,
    /// llama.cpp, `common/sampling.cpp`: temperature last. Infill has no place of its own there: it is before it here.
    LlamaCpp,
    /// vLLM V1 and V2: min-p before top-k and top-p.
    Vllm,
    /// Hugging Face Transformers, `generation/utils.py`.
    Transformers,
    /// text-generation-webui, `modules/sampler_hijack.py`.
    TextGenerationWebui,
    /// ExLlamaV2, `exllamav2/generator/sampler.py`.
    Exllama,
    /// SGLang on FlashInfer, `srt/layers/sampler.py`: top-k and top-p of one distribution, or with min-p one after the other.
    Sglang,
}

/// The order in which a sequence's rows go through its samplers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SamplerOrder {
    /// That of an engine.
    Engine(EngineOrder),
    /// A list of its own, none twice, with the rules of an engine.
    Custom(Vec<Sampler>, EngineOrder),
}

/// What an engine does otherwise than this project, beside its order. docs/sampling.md says what of each engine is here and
/// what is not.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineRules {
    /// Top-k keeps what is equal to the last token that it keeps.
    pub top_k_ties: bool,
    /// When typical-p has enough.
    pub typical: TypicalRule,
    /// Tail-free sees tokens that are not left as masses of 0.
    pub tfs_with_removed: bool,
    /// XTC does nothing where a token of `xtc_ignore_token_ids` would go.
    pub xtc_unless_ignored: bool,
    /// XTC lowers top choices by what it does on average.
    pub xtc_expected: bool,
    /// Lower temperatures become this one; 0 stays.
    pub least_temperature: f32,
    /// Lower temperatures are greedy. In f64, as the engine compares: the f32 that is nearest to 0.01 is below it.
    pub greedy_below: f64,
    /// What DRY takes off comes behind the penalties.
    pub dry_is_late: bool,
    /// Frequency and presence penalties count the prompt too, unless `penalties_count_prompt` says otherwise.
    pub penalties_count_prompt: bool,
}

/// When typical-p has enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TypicalRule {
    /// When its share is reached.
    #[default]
    Reached,
    /// When there is more than its share.
    Above,
    /// When its share is reached, and what is as far from the entropy as the last one stays too.
    Ties,
}

impl EngineRules {
    /// The step of typical-p.
    #[must_use]
    pub fn typical(&self, p: f32) -> Step {
        match self.typical {
            TypicalRule::Reached => Step::TypicalP(p),
            TypicalRule::Above => Step::TypicalAbove(p),
            TypicalRule::Ties => Step::TypicalTies(p),
        }
    }

    /// The step of tail-free sampling.
    #[must_use]
    pub fn tfs(&self, z: f32) -> Step {
        if self.tfs_with_removed { Step::TfsWithRemoved(z) } else { Step::Tfs(z) }
    }

    /// What is made of a temperature.
    #[must_use]
    pub fn temperature(&self, temperature: f32) -> f32 {
        if f64::from(temperature) < self.greedy_below { 0.0 } else { self.raised(temperature) }
    }

    /// What is made of a temperature on its way from one to another.
    #[must_use]
    pub fn raised(&self, temperature: f32) -> f32 {
        if temperature > 0.0 { temperature.max(self.least_temperature) } else { temperature }
    }
}

impl Default for SamplerOrder {
    fn default() -> Self {
        Self::Engine(EngineOrder::Croupier)
    }
}

impl EngineOrder {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Croupier,
        Self::LlamaCpp,
        Self::Vllm,
        Self::Transformers,
        Self::TextGenerationWebui,
        Self::Exllama,
        Self::Sglang,
    ];

    /// The end of its name on the wire, in small letters: as files name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Croupier => "croupier",
            Self::LlamaCpp => "llama_cpp",
            Self::Vllm => "vllm",
            Self::Transformers => "transformers",
            Self::TextGenerationWebui => "text_generation_webui",
            Self::Exllama => "exllama",
            Self::Sglang => "sglang",
        }
    }

    /// Its samplers.
    #[must_use]
    pub fn samplers(self) -> &'static [Sampler] {
        use Sampler::*;
        match self {
            Self::Croupier => Sampler::OWN,
            Self::LlamaCpp => &[TopNSigma, TopK, TypicalP, TopP, MinP, Xtc, Infill, Temperature, Mirostat, AdaptiveP],
            Self::Vllm => &[Temperature, MinP, TopK, TopP],
            Self::Transformers => &[MinEosP, Temperature, TopH, TopK, TopP, MinP, TypicalP, EpsilonCutoff, EtaCutoff],
            Self::TextGenerationWebui => &[
                TopNSigma,
                Temperature,
                DynamicTemperature,
                Smoothing,
                TopK,
                TopP,
                TypicalP,
                EpsilonCutoff,
                EtaCutoff,
                Tfs,
                TopA,
                MinP,
                AdaptiveP,
                Mirostat,
                Xtc,
            ],
            Self::Exllama => &[
                Smoothing,
                Temperature,
                TopK,
                TopP,
                TopA,
                MinP,
                Tfs,
                TypicalP,
                Mirostat,
                DynamicTemperature,
                Xtc,
                Skew,
            ],
            // Of one distribution, a token stays where both keep it, and top-p has to come first to see all of it.
            Self::Sglang => &[Temperature, TopP, TopK, MinP],
        }
    }

    /// Its rules.
    #[must_use]
    pub fn rules(self) -> EngineRules {
        let rules = EngineRules::default();
        // Those of its kin: DRY behind penalties, all of which count the prompt.
        let with_prompt = EngineRules { dry_is_late: true, penalties_count_prompt: true, ..rules };
        match self {
            Self::Croupier | Self::Sglang => rules,
            Self::LlamaCpp => EngineRules { typical: TypicalRule::Above, ..with_prompt },
            Self::Vllm => EngineRules { least_temperature: 0.01, ..rules },
            Self::Transformers => EngineRules { top_k_ties: true, typical: TypicalRule::Ties, ..rules },
            // Its top-k and typical-p are those of Transformers.
            Self::TextGenerationWebui => {
                let typical = TypicalRule::Ties;
                EngineRules {
                    top_k_ties: true,
                    typical,
                    tfs_with_removed: true,
                    xtc_unless_ignored: true,
                    ..with_prompt
                }
            }
            Self::Exllama => EngineRules { xtc_expected: true, greedy_below: 0.01, ..with_prompt },
        }
    }
}

impl SamplerOrder {
    /// Its samplers.
    #[must_use]
    pub fn samplers(&self) -> &[Sampler] {
        match self {
            Self::Engine(engine) => engine.samplers(),
            Self::Custom(samplers, _) => samplers,
        }
    }

    /// Whose rules it has.
    #[must_use]
    pub fn engine(&self) -> EngineOrder {
        match self {
            Self::Engine(engine) | Self::Custom(_, engine) => *engine,
        }
    }

    /// Its rules.
    #[must_use]
    pub fn rules(&self) -> EngineRules {
        self.engine().rules()
    }

    /// Bytes that the list takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Engine(_) => 0,
            Self::Custom(samplers, _) => samplers.capacity() * size_of::<Sampler>(),
        }
    }
}

/// A parameter that [`EngineOrder`]s may lack, by name.
const XTC_IGNORED: &str = "xtc_ignore_token_ids";

impl SamplingParams {
    /// The samplers, in order. llama.cpp has a chain of its own for mirostat, without the other filters; SGLang has top-k before
    /// top-p where there is a min-p; in text-generation-webui adaptive-p and mirostat draw the token, so that nothing comes behind
    /// them, in whatever order.
    pub(super) fn order(&self) -> &[Sampler] {
        let order = self.samplers.sampler_order.samplers();
        let until = |last| order.iter().position(|&s| s == last).map_or(order, |at| &order[..=at]);
        let engine = self.samplers.sampler_order.engine();
        match self.samplers.sampler_order {
            SamplerOrder::Engine(EngineOrder::LlamaCpp) if self.samplers.mirostat > 0 => {
                &[Sampler::Temperature, Sampler::Mirostat]
            }
            SamplerOrder::Engine(EngineOrder::Sglang) if self.min_p > 0.0 => {
                &[Sampler::Temperature, Sampler::TopK, Sampler::TopP, Sampler::MinP]
            }
            _ if engine == EngineOrder::TextGenerationWebui && self.samplers.adaptive_target >= 0.0 => {
                until(Sampler::AdaptiveP)
            }
            _ if engine == EngineOrder::TextGenerationWebui && self.samplers.mirostat > 0 => until(Sampler::Mirostat),
            _ => order,
        }
    }

    /// A sampler that is on has a place in the order: none is left out without a word.
    pub(super) fn validate_order(&self) -> Result<(), FieldError> {
        self.validate_order_ignoring(&self.samplers.xtc_ignore_token_ids)
    }

    /// The same where XTC ignores these tokens, of these parameters or of others that they are over.
    ///
    /// # Errors
    /// The field at fault.
    pub fn validate_order_ignoring(&self, xtc_ignored: &[u32]) -> Result<(), FieldError> {
        let order = self.order();
        for (i, sampler) in order.iter().enumerate() {
            if order[..i].contains(sampler) {
                let message = format!("{} is given twice; give it once", sampler.name());
                return Err(FieldError::new(format!("sampler_order[{i}]"), message));
            }
        }
        // Dynamic temperature takes the place of temperature where it has none of its own.
        let has = |sampler: &Sampler| {
            order.contains(sampler) || *sampler == Sampler::DynamicTemperature && order.contains(&Sampler::Temperature)
        };
        let missing = Sampler::ALL.into_iter().filter(|s| s.step(self).is_some() && !has(s)).map(Sampler::name);
        let mut names: Vec<&str> = missing.collect();
        let unknown = self.unknown_to_its_engine(xtc_ignored);
        unknown.for_each(|name| {
            if !names.contains(&name) {
                names.push(name)
            }
        });
        if names.is_empty() || self.temperature == 0.0 {
            return Ok(());
        }
        let (are, them) = if names.len() == 1 { ("is", "it") } else { ("are", "them") };
        let lacks = format!("has no place for {}, which {are} on", names.join(", "));
        Err(match self.samplers.sampler_order {
            SamplerOrder::Engine(_) => {
                // A sequence that names none has its stream's.
                let off = if names == [XTC_IGNORED] {
                    "leave it out, of default_params too".to_owned()
                } else {
                    format!("turn {them} off")
                };
                let fix = "or list an order of your own in sampler_order, which keeps the engine's rules";
                FieldError::new("engine_order", format!("{lacks}; {off}, {fix}"))
            }
            SamplerOrder::Custom(..) => {
                FieldError::new("sampler_order", format!("{lacks}; add {them} or turn {them} off"))
            }
        })
    }

    /// Parameters that are on and that the engine does not have, though it has the sampler.
    fn unknown_to_its_engine(&self, xtc_ignored: &[u32]) -> impl Iterator<Item = &'static str> {
        use EngineOrder::*;
        let s = &self.samplers;
        let engine = match s.sampler_order {
            SamplerOrder::Engine(engine) => engine,
            SamplerOrder::Custom(..) => Croupier,
        };
        // The engines that have it stand behind it.
        let parameters: [(_, _, &[EngineOrder]); 8] = [
            ("dynatemp_high", s.dynatemp_high > 0.0, &[LlamaCpp, TextGenerationWebui, Exllama]),
            ("temperature_tokens", s.temperature_tokens > 0, &[]),
            ("smoothing_curve", s.smoothing_factor > 0.0 && s.smoothing_curve != 1.0, &[TextGenerationWebui]),
            ("top_p_decay", s.top_p_decay < 1.0, &[]),
            ("xtc_expected", s.xtc_probability > 0.0 && s.xtc_expected == Some(true), &[Exllama]),
            (XTC_IGNORED, s.xtc_probability > 0.0 && !xtc_ignored.is_empty(), &[TextGenerationWebui, Exllama]),
            ("mirostat 1", s.mirostat == 1, &[LlamaCpp]),
            ("min_keep", s.min_keep > 1, &[LlamaCpp, Transformers]),
        ];
        let unknown = move |(_, is_on, engines): &(_, bool, &[EngineOrder])| {
            *is_on && engine != Croupier && !engines.contains(&engine)
        };
        parameters.into_iter().filter(unknown).map(|(name, ..)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sampler_that_is_on_needs_a_place() {
        let at_fault = |change: fn(&mut SamplingParams)| {
            let mut params = SamplingParams::default();
            change(&mut params);
            params.validate(9, 9).map_err(|e| e.to_string())
        };
        let of = SamplerOrder::Engine;
        let lacks = |name| {
            let fix = "turn it off, or list an order of your own in sampler_order, which keeps the engine's rules";
            format!("engine_order: has no place for {name}, which is on; {fix}")
        };
        assert_eq!(
            at_fault(|p| (p.samplers.tfs, p.samplers.sampler_order) = (0.5, SamplerOrder::Engine(EngineOrder::Vllm))),
            Err(lacks("tfs"))
        );
        assert_eq!(
            at_fault(|p| {
                (p.samplers.tfs, p.samplers.top_a, p.samplers.min_keep) = (0.5, 0.5, 2);
                p.samplers.sampler_order = SamplerOrder::Engine(EngineOrder::Vllm);
            }),
            Err(lacks("tfs, top_a, min_keep").replace("is on; turn it", "are on; turn them")),
            "all of them"
        );
        assert_eq!(
            at_fault(|p| (p.top_k, p.samplers.sampler_order) =
                (5, SamplerOrder::Custom(vec![Sampler::Temperature], EngineOrder::Croupier))),
            Err("sampler_order: has no place for top_k, which is on; add it or turn it off".to_owned())
        );
        assert_eq!(
            at_fault(|p| p.samplers.sampler_order =
                SamplerOrder::Custom(vec![Sampler::TopK, Sampler::TopK], EngineOrder::Croupier)),
            Err("sampler_order[1]: top_k is given twice; give it once".to_owned())
        );
        assert_eq!(
            at_fault(|p| p.samplers.sampler_order = SamplerOrder::Custom(vec![], EngineOrder::Croupier)),
            Ok(()),
            "nothing is on"
        );
        assert_eq!(
            at_fault(|p| {
                (p.top_k, p.samplers.mirostat) = (40, 2);
                p.samplers.sampler_order = SamplerOrder::Engine(EngineOrder::LlamaCpp);
            }),
            Err(lacks("top_k")),
            "llama.cpp's mirostat takes the place of its filters"
        );
        for engine in [EngineOrder::LlamaCpp, EngineOrder::Transformers, EngineOrder::TextGenerationWebui] {
            assert!(of(engine).samplers().contains(&Sampler::TypicalP));
        }
    }
}

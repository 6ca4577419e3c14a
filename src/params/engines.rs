//! The engines whose order and rules a sequence may use. Both are defined here and nowhere else. docs/engines.md says
//! which parts of each engine are implemented here and which are not. Each rule has a test in
//! `sampling/samplers/tests/engines`.

use super::{ChainStep, Sampler};

/// The order of an engine: its samplers, in the order in which it applies them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineOrder {
    /// The order of this project.
    #[default]
    Croupier,
    /// llama.cpp, `common/sampling.cpp`: temperature last. Infill has no fixed place there; here it comes before
    /// temperature.
    LlamaCpp,
    /// vLLM V1 and V2: min-p before top-k and top-p.
    Vllm,
    /// Hugging Face Transformers, `generation/utils.py`.
    Transformers,
    /// text-generation-webui, `modules/sampler_hijack.py`.
    TextGenerationWebui,
    /// ExLlamaV2, `exllamav2/generator/sampler.py`.
    Exllama,
    /// SGLang on FlashInfer, `srt/layers/sampler.py`: top-k and top-p of the same distribution, or with min-p one after
    /// the other.
    Sglang,
    /// KoboldCpp, `gpttype_adapter.cpp`: its default `sampler_order`, and the samplers that it applies outside of that.
    KoboldCpp,
    /// ExLlamaV3, `ComboSampler` of `generator/sampler/presets.py`. XTC has no place there; here it is where TabbyAPI
    /// has it.
    ExllamaV3,
    /// MLX, `mlx_lm/sample_utils.py`: temperature last.
    Mlx,
    /// TensorRT-LLM, `pyexecutor/sampler/ops`: min-p first.
    TensorrtLlm,
    /// mistral.rs, `mistralrs-core/src/sampler.rs`.
    MistralRs,
}

/// What an engine does differently from this project, apart from its order.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineRules {
    /// The samplers see only this many of the most likely tokens. 0: all.
    pub at_most: u32,
    /// Top-k also keeps tokens that are equal to the last token that it keeps ...
    pub top_k_ties: bool,
    /// ... except with a top-k of 1, which is greedy.
    pub top_1_is_greedy: bool,
    /// Min-p keeps only tokens above its threshold, and is off at 1.
    pub min_p_above: bool,
    /// When typical-p has kept enough tokens.
    pub typical: TypicalRule,
    /// Which tokens tail-free sampling looks at and keeps.
    pub tfs: TfsRule,
    /// XTC does nothing if it would remove a token of `xtc_ignore_token_ids`.
    pub xtc_unless_ignored: bool,
    /// XTC lowers top choices by its average effect.
    pub xtc_expected: bool,
    /// Lower temperatures are raised to this one, except for 0.
    pub least_temperature: f32,
    /// Lower temperatures are greedy. The bound is an f64, because the engine compares in f64: the f32 nearest to 0.01
    /// is below 0.01.
    pub greedy_below: f64,
    /// DRY's penalty is subtracted after the penalties are applied.
    pub dry_is_late: bool,
    /// DRY also penalises breakers, and does nothing until more than its allowed length of tokens follows the last of
    /// them.
    pub dry_of_koboldcpp: bool,
    /// Frequency and presence penalties also count the prompt, unless `penalties_count_prompt` says otherwise.
    pub penalties_count_prompt: bool,
}

/// When typical-p has kept enough tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TypicalRule {
    /// When they reach its share.
    #[default]
    Reached,
    /// When they have more than its share.
    Above,
    /// When they reach its share; tokens that are as far from the entropy as the last one are kept too.
    Ties,
}

/// Which tokens tail-free sampling looks at, and how many of them it keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TfsRule {
    /// It looks at the tokens that are left.
    #[default]
    Left,
    /// It looks at the whole vocabulary. Tokens that are not left count as masses of 0.
    WithRemoved,
    /// It looks at the tokens that are left, and keeps one fewer.
    OneFewer,
}

impl EngineRules {
    /// The step before all samplers. `None`: there is none, or the `first` sampler leaves no more tokens than it would.
    #[must_use]
    pub fn before(&self, first: Option<Sampler>, top_k: u32) -> Option<ChainStep> {
        let is_less = first == Some(Sampler::TopK) && (1..=self.at_most).contains(&top_k);
        (self.at_most > 0 && !is_less).then_some(ChainStep::AtMost(self.at_most))
    }

    /// The step of top-k.
    #[must_use]
    pub fn top_k(&self, top_k: u32) -> ChainStep {
        let is_greedy = self.top_1_is_greedy && top_k == 1;
        if self.top_k_ties && !is_greedy { ChainStep::TopKTies } else { ChainStep::TopK }
    }

    /// The step of min-p, if it is on.
    #[must_use]
    pub fn min_p(&self, min_p: f32) -> Option<ChainStep> {
        match self.min_p_above {
            true => (min_p > 0.0 && min_p < 1.0).then_some(ChainStep::MinPAbove),
            false => (min_p > 0.0).then_some(ChainStep::MinP),
        }
    }

    /// The step of typical-p.
    #[must_use]
    pub fn typical(&self, p: f32) -> ChainStep {
        match self.typical {
            TypicalRule::Reached => ChainStep::TypicalP(p),
            TypicalRule::Above => ChainStep::TypicalAbove(p),
            TypicalRule::Ties => ChainStep::TypicalTies(p),
        }
    }

    /// The step of tail-free sampling.
    #[must_use]
    pub fn tfs(&self, z: f32) -> ChainStep {
        match self.tfs {
            TfsRule::Left => ChainStep::Tfs(z),
            TfsRule::WithRemoved => ChainStep::TfsWithRemoved(z),
            TfsRule::OneFewer => ChainStep::TfsOneFewer(z),
        }
    }

    /// The temperature that the engine uses for this one.
    #[must_use]
    pub fn temperature(&self, temperature: f32) -> f32 {
        if f64::from(temperature) < self.greedy_below { 0.0 } else { self.raised(temperature) }
    }

    /// The temperature that the engine uses for this one, if it changes from one temperature to another over the text.
    #[must_use]
    pub fn raised(&self, temperature: f32) -> f32 {
        if temperature > 0.0 { temperature.max(self.least_temperature) } else { temperature }
    }
}

impl EngineOrder {
    /// All engines.
    pub const ALL: [Self; 12] = [
        Self::Croupier,
        Self::LlamaCpp,
        Self::Vllm,
        Self::Transformers,
        Self::TextGenerationWebui,
        Self::Exllama,
        Self::Sglang,
        Self::KoboldCpp,
        Self::ExllamaV3,
        Self::Mlx,
        Self::TensorrtLlm,
        Self::MistralRs,
    ];

    /// The end of its name on the wire, in lower case. Files use this name.
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
            Self::KoboldCpp => "kobold_cpp",
            Self::ExllamaV3 => "exllama_v3",
            Self::Mlx => "mlx",
            Self::TensorrtLlm => "tensorrt_llm",
            Self::MistralRs => "mistral_rs",
        }
    }

    /// The engine's samplers, in order.
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
            // Top-k and top-p work on the same distribution, so a token stays if both keep it. Top-p must come first to
            // see all of it.
            Self::Sglang => &[Temperature, TopP, TopK, MinP],
            // There, smoothing and top-n-sigma are part of the temperature step, and min-p is part of the top-p step.
            Self::KoboldCpp => {
                &[TopK, TopA, Tfs, TypicalP, TopP, MinP, Temperature, Smoothing, TopNSigma, Xtc, Mirostat, AdaptiveP]
            }
            Self::ExllamaV3 => &[Temperature, MinP, TopK, TopP, Xtc, AdaptiveP],
            Self::Mlx => &[TopP, MinP, Xtc, TopK, Temperature],
            Self::TensorrtLlm => &[Temperature, MinP, TopK, TopP],
            Self::MistralRs => &[Temperature, TopK, TopP, MinP],
        }
    }

    /// The engine's rules.
    #[must_use]
    pub fn rules(self) -> EngineRules {
        let rules = EngineRules::default();
        // Rules that llama.cpp and related engines share: DRY comes after the penalties, and all penalties count the
        // prompt.
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
                    tfs: TfsRule::WithRemoved,
                    xtc_unless_ignored: true,
                    ..with_prompt
                }
            }
            Self::Exllama => EngineRules { xtc_expected: true, greedy_below: 0.01, ..with_prompt },
            Self::KoboldCpp => EngineRules {
                at_most: 3000,
                typical: TypicalRule::Above,
                tfs: TfsRule::OneFewer,
                dry_of_koboldcpp: true,
                penalties_count_prompt: true,
                ..rules
            },
            Self::ExllamaV3 => EngineRules { xtc_expected: true, ..with_prompt },
            Self::Mlx => EngineRules { penalties_count_prompt: true, ..rules },
            Self::TensorrtLlm => EngineRules {
                top_k_ties: true,
                top_1_is_greedy: true,
                greedy_below: 1e-4,
                penalties_count_prompt: true,
                ..rules
            },
            Self::MistralRs => EngineRules { min_p_above: true, ..rules },
        }
    }

    /// The samplers to apply if mirostat is on and replaces the engine's filters. `None`: it does not replace them.
    #[must_use]
    pub fn with_mirostat(self) -> Option<&'static [Sampler]> {
        match self {
            Self::LlamaCpp => Some(&[Sampler::Temperature, Sampler::Mirostat]),
            Self::KoboldCpp => Some(&[Sampler::Temperature, Sampler::Smoothing, Sampler::Mirostat]),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_top_k_of_one_is_greedy_in_tensorrt_llm_alone() {
        let steps = |engine: EngineOrder| [1, 2].map(|top_k| engine.rules().top_k(top_k));
        assert_eq!(steps(EngineOrder::TensorrtLlm), [ChainStep::TopK, ChainStep::TopKTies]);
        assert_eq!(steps(EngineOrder::Transformers), [ChainStep::TopKTies; 2]);
        assert_eq!(steps(EngineOrder::Vllm), [ChainStep::TopK; 2]);
    }
}

//! The engines whose order and rules a sequence may use. Both are defined here and nowhere else. docs/engines.md says
//! which parts of each engine are implemented here and which are not. Each rule has a test in
//! `sampling/samplers/tests/engines`.

use super::Sampler;
use super::engine_rules::{EngineRules, TfsRule, TypicalRule, XtcRule};

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
            Self::Croupier => rules,
            Self::Sglang => EngineRules { subtract_penalties_first: true, bias_after_penalties: true, ..rules },
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
                    xtc: XtcRule { unless_ignored: true, expected: false },
                    ..with_prompt
                }
            }
            Self::Exllama => {
                EngineRules { xtc: XtcRule::EXPECTED, greedy_below: 0.01, bias_after_penalties: true, ..with_prompt }
            }
            Self::KoboldCpp => EngineRules {
                at_most: 3000,
                typical: TypicalRule::Above,
                tfs: TfsRule::OneFewer,
                dry_of_koboldcpp: true,
                penalties_count_prompt: true,
                ..rules
            },
            Self::ExllamaV3 => EngineRules { xtc: XtcRule::EXPECTED, ..with_prompt },
            Self::Mlx => EngineRules { penalties_count_prompt: true, ..rules },
            Self::TensorrtLlm => EngineRules {
                top_k_ties: true,
                top_1_is_greedy: true,
                greedy_below: 1e-4,
                penalties_count_prompt: true,
                ..rules
            },
            Self::MistralRs => {
                EngineRules { min_p_above: true, subtract_penalties_first: true, bias_after_penalties: true, ..rules }
            }
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

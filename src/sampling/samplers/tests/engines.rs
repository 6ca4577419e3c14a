//! Differences of engines, by hand: expected exclusions, and the engines' own rules for ties and thresholds. In these
//! rows shares are exactly on sums: logits are equal or far apart, so that masses are powers of two.

use super::*;
use crate::params::EngineOrder::{
    self, Croupier, Exllama, ExllamaV3, KoboldCpp, LlamaCpp, MistralRs, Mlx, Sglang, TensorrtLlm, TextGenerationWebui,
    Transformers, Vllm,
};
use crate::params::{SamplerOrder, SamplingParams, TypicalRule, XtcRule};

mod exllama_v3;
mod kobold_cpp;
mod others;
mod text_generation_webui;

/// The temperature at which a token's exponent is its distance from the largest logit.
const PLAIN: f32 = std::f32::consts::LOG2_E;

/// A row with masses `2^(40 - exponent)`, exact.
fn halves(exponents: &[i32]) -> Vec<Candidate> {
    let candidate = |(token, &e): (usize, &i32)| Candidate { token: token as u32, logit: -e as f32 };
    exponents.iter().enumerate().map(candidate).collect()
}

/// The tokens that an engine leaves of a row with masses `2^(40 - exponent)`.
fn left(engine: EngineOrder, exponents: &[i32], change: impl FnOnce(&mut SamplingParams)) -> Vec<u32> {
    let mut params = SamplingParams::default();
    params.samplers.sampler_order = SamplerOrder::Engine(engine);
    change(&mut params);
    params.validate(64, 9).expect("valid parameters");
    // For rows of one sampler: the temperature that makes masses exact is put before it here.
    let filters = Filters { temperature: PLAIN, ..params.filters(0) };
    let on = Sampler::ALL.into_iter().filter(|sampler| engine.samplers().contains(sampler));
    let steps: Vec<ChainStep> =
        [ChainStep::Temperature].into_iter().chain(on.filter_map(|s| s.step(&params))).collect();
    let protected = params.samplers.xtc_ignore_token_ids.clone();
    let chain = Chain { protected: &protected, min_keep: params.samplers.min_keep, ..chained(&steps) };
    let left = chain::run(halves(exponents), exponents.len(), &filters, &chain);
    let mut tokens: Vec<u32> = left.kept().iter().map(|w| w.candidate.token).collect();
    tokens.sort_unstable();
    tokens
}

#[test]
fn masses_of_these_rows_are_exact() {
    let filters = Filters { temperature: PLAIN, ..FILTERS };
    let left = chain::run(halves(&[0, 1, 1, 3]), 4, &filters, &chained(&[ChainStep::Temperature]));
    let masses: Vec<u64> = left.kept().iter().map(|w| w.mass).collect();
    assert_eq!(masses, [MASS_ONE, MASS_ONE / 2, MASS_ONE / 2, MASS_ONE / 8]);
}

#[test]
fn transformers_top_k_keeps_ties_of_the_last() {
    let of = |engine, k| left(engine, &[1, 0, 1, 1, 2], |p| p.top_k = k);
    for engine in [Transformers, TextGenerationWebui, TensorrtLlm] {
        assert_eq!([of(engine, 1), of(engine, 2), of(engine, 5)], [vec![1], vec![0, 1, 2, 3], vec![0, 1, 2, 3, 4]]);
        assert_eq!(of(engine, 9), [0, 1, 2, 3, 4], "more than there are");
    }
    let kept = left(Transformers, &[0, 1, 1, 2], |p| (p.top_k, p.samplers.min_keep) = (1, 2));
    assert_eq!(kept, [0, 1, 2], "min_keep is the k, and its ties stay");
}

/// vLLM's Triton path. Its tests say "exactly k", smallest ids first. docs/engines.md has its other paths.
#[test]
fn vllm_and_llama_cpp_keep_exactly_k() {
    for engine in [Vllm, LlamaCpp, Exllama, Croupier, KoboldCpp, Mlx, MistralRs] {
        assert_eq!(left(engine, &[1, 0, 1, 1, 2], |p| p.top_k = 2), [0, 1]);
    }
    assert_eq!(left(Vllm, &[0; 5], |p| p.top_k = 3), [0, 1, 2]);
}

/// FlashInfer's "joint" order: a token stays if both top-k and top-p, each on all tokens, keep it. With a min-p SGLang
/// renormalises between them, like the others.
#[test]
fn sglang_cuts_one_distribution_unless_there_is_a_min_p() {
    let params = |min_p: f32| {
        let mut params = SamplingParams { temperature: PLAIN, top_k: 2, top_p: 0.6, min_p, ..Default::default() };
        params.samplers.sampler_order = SamplerOrder::Engine(Sglang);
        params.validate(64, 9).expect("valid parameters");
        params
    };
    let joint = params(0.0).steps().expect("another order");
    assert_eq!(joint, [ChainStep::Temperature, ChainStep::TopP, ChainStep::TopK]);
    assert_eq!(params(0.01).steps(), None, "the order of this project");
    // Shares 1/2 and 1/4 of all, 2/3 and 1/3 of the first two.
    let kept = |steps: &[ChainStep]| {
        chain::run(halves(&[1, 2, 3, 3]), 4, &params(0.0).filters(0), &chained(steps)).kept().iter().count()
    };
    assert_eq!((kept(&joint), kept(&[ChainStep::Temperature, ChainStep::TopK, ChainStep::TopP])), (2, 1));
}

/// llama.cpp keeps tokens until the sum is at least p, Transformers drops those on an ascending sum of at most 1 - p,
/// and vLLM drops as many ties of its pivot as the sum can spare. In exact numbers, all these are the smallest prefix
/// that reaches p. (The same holds for ExLlamaV2's order here. The engine itself drops the crossing token, as
/// docs/engines.md says.)
#[test]
fn top_p_keeps_the_crossing_token() {
    let first = [LlamaCpp, Transformers, Vllm, TextGenerationWebui, Exllama, Sglang, Croupier];
    for engine in first.into_iter().chain([KoboldCpp, ExllamaV3, Mlx, TensorrtLlm, MistralRs]) {
        let of = |p: f32| left(engine, &[1, 2, 3, 3], |params| params.top_p = p);
        // Shares 1/2, 1/4, 1/8, 1/8 of what is left.
        assert_eq!([of(0.5), of(0.75), of(0.875)], [vec![0], vec![0, 1], vec![0, 1, 2]], "{engine:?}: on a sum");
        assert_eq!([of(0.51), of(0.76), of(0.99)], [vec![0, 1], vec![0, 1, 2], vec![0, 1, 2, 3]], "{engine:?}");
        assert_eq!(of(0.0), [0], "{engine:?}: 0 keeps one");
    }
    // (sum - p) / p_tie = (1 - 0.6) / 0.25: one tie to spare, the last.
    assert_eq!(left(Vllm, &[2, 2, 2, 2], |p| p.top_p = 0.6), [0, 1, 2]);
}

/// In vLLM, TensorRT-LLM and ExLlamaV3, top-p sees what min-p leaves. In the others min-p comes last.
#[test]
fn some_have_min_p_before_top_p() {
    let kept = |engine| {
        let mut params = SamplingParams { temperature: PLAIN, top_k: 9, top_p: 0.79, min_p: 0.2, ..Default::default() };
        params.samplers.sampler_order = SamplerOrder::Engine(engine);
        params.validate(64, 9).expect("valid parameters");
        let own = vec![ChainStep::Temperature, ChainStep::TopK, ChainStep::TopP, ChainStep::MinP];
        // Masses 1, 1/4 and four of 1/8: the first has 4/5 of what min-p leaves, and 4/7 of the whole row.
        let steps = params.steps().unwrap_or(own);
        chain::run(halves(&[0, 2, 3, 3, 3, 3]), 6, &params.filters(0), &chained(&steps)).kept().len()
    };
    assert_eq!([Vllm, TensorrtLlm, ExllamaV3].map(kept), [1, 1, 1]);
    let last = [Transformers, TextGenerationWebui, Exllama, Sglang, Croupier, MistralRs];
    assert_eq!(last.map(kept), [2; 6]);
}

/// Transformers and vLLM drop `p < min_p * p_max`, llama.cpp keeps `l >= max + ln min_p`.
#[test]
fn min_p_keeps_what_is_equal_to_the_threshold() {
    let first = [LlamaCpp, Transformers, Vllm, TextGenerationWebui, Exllama, Croupier];
    for engine in first.into_iter().chain([KoboldCpp, ExllamaV3, Mlx, TensorrtLlm]) {
        let of = |min_p: f32| left(engine, &[0, 1, 2, 0], |p| p.min_p = min_p);
        assert_eq!([of(0.25), of(0.250_01), of(0.5)], [vec![0, 1, 2, 3], vec![0, 1, 3], vec![0, 1, 3]], "{engine:?}");
        assert_eq!(of(1.0), [0, 3], "{engine:?}: ties of the largest stay");
    }
}

/// A half and two quarters: `indices_to_remove = probabilities < epsilon` in Transformers.
#[test]
fn epsilon_cutoff_keeps_what_is_equal_to_it() {
    for engine in [Croupier, Transformers, TextGenerationWebui] {
        let of = |epsilon| left(engine, &[1, 0, 1], |params| params.samplers.epsilon_cutoff = epsilon);
        assert_eq!([of(0.25), of(0.25f32.next_up())], [vec![0, 1, 2], vec![1]], "{engine:?}");
    }
}

/// Four equal tokens deviate equally; two of them reach 0.5.
#[test]
fn typical_p_has_enough_by_the_engines_own_rule() {
    let of = |engine, p| left(engine, &[0; 4], |params| params.samplers.typical_p = p);
    assert_eq!(of(Croupier, 0.5), [0, 1]);
    assert_eq!(of(Exllama, 0.5), [0, 1], "this project's: the engine adds p to ln p before it compares");
    assert_eq!([of(LlamaCpp, 0.5), of(KoboldCpp, 0.5)], [[0, 1, 2], [0, 1, 2]], "cum > p");
    assert_eq!(of(Transformers, 0.5), [0, 1, 2, 3], "all that deviate as much as the crossing token");
    assert_eq!(of(TextGenerationWebui, 0.5), [0, 1, 2, 3]);
    assert_eq!([of(Croupier, 0.0), of(LlamaCpp, 0.0)], [[0], [0]], "one stays");
    // Three tokens of a quarter each deviate less than two of an eighth, and have three quarters.
    let of_five = |engine| left(engine, &[0, 0, 0, 1, 1], |params| params.samplers.typical_p = 0.75);
    assert_eq!([of_five(Croupier), of_five(Transformers)], [[0, 1, 2], [0, 1, 2]], "what is reached is enough");
    assert_eq!([of_five(LlamaCpp).len(), of_five(KoboldCpp).len()], [4, 4]);
    assert_eq!(of(Croupier, 0.51), of(LlamaCpp, 0.51), "between sums there is no difference");
    let kept = |min_keep| {
        left(Transformers, &[0, 3, 3, 3], |p| (p.samplers.typical_p, p.samplers.min_keep) = (0.1, min_keep)).len()
    };
    assert_eq!([kept(1), kept(2), kept(4)], [1, 2, 4], "min_keep brings no ties along");
}

/// If too few tokens would stay, XTC leaves the row as it is, and so does its expectation, even below probability 1.
#[test]
fn xtc_on_average_does_nothing_where_min_keep_would_stop_it() {
    let of = |probability, min_keep| {
        let step = [ChainStep::Xtc { rule: XtcRule::EXPECTED, probability, threshold: 0.1 }];
        after(&[0.6, 0.4], FILTERS, Chain { min_keep, ..chained(&step) })
    };
    let alone = after(&[0.6, 0.4], FILTERS, chained(&[]));
    for probability in [0.1, 0.999, 1.0] {
        assert_eq!(of(probability, 2), alone, "{probability}");
        assert_ne!(of(probability, 1), alone, "{probability}");
    }
}

/// ExLlamaV3's own test: threshold 0.1, probability 0.5, logits 2, 1, 0, -1.
#[test]
fn exllama_xtc_is_an_expectation() {
    let probs = [2.0, 1.0, 0.0, -1.0].map(f64::exp);
    let step = |probability| [ChainStep::Xtc { rule: XtcRule::EXPECTED, probability, threshold: 0.1 }];
    let got = after(&probs, FILTERS, chained(&step(0.5)));
    let weights = [0.169_081, 0.236_883, 0.087_144, 0.032_059];
    let total: f64 = weights.iter().sum();
    for ((token, p), weight) in got.iter().zip(weights) {
        assert!((p - weight / total).abs() < 1e-5, "{token}: {p}");
    }
    // At other probabilities: what XTC's roll gives on average, with protected tokens too.
    for protected in [&[][..], &[1]] {
        let chain = |step| Chain { protected, ..chained(step) };
        let (with, expected) = (step(1.0), step(0.3));
        let (with, got) = (after(&FOUR, FILTERS, chain(&with)), after(&FOUR, FILTERS, chain(&expected)));
        for (token, p) in got {
            let with = with.iter().find(|with| with.0 == token).map_or(0.0, |with| with.1);
            let expected = 0.3 * with + 0.7 * FOUR[token as usize];
            assert!((p - expected).abs() < 1e-5, "{token}: {p} {expected}");
        }
    }
    assert_eq!(xtc::lowered(0.5, 0, 9), None, "nothing to lower");
    assert_eq!(xtc::lowered(0.5, 9, 9), None, "nothing else to raise");
    let params = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams::default();
        params.samplers.xtc_probability = 0.5;
        change(&mut params);
        params.steps().unwrap()
    };
    let expected = [ChainStep::Xtc { rule: XtcRule::EXPECTED, probability: 0.5, threshold: 0.1 }];
    assert_eq!(params(|p| p.samplers.xtc_expected = Some(true)), expected);
    assert_eq!(params(|p| p.samplers.sampler_order = SamplerOrder::Engine(Exllama)), expected);
    let exllama = |p: &mut SamplingParams| {
        (p.samplers.sampler_order, p.samplers.xtc_expected) = (SamplerOrder::Engine(Exllama), Some(false));
    };
    let by_chance = [ChainStep::Xtc { rule: XtcRule::default(), probability: 0.5, threshold: 0.1 }];
    assert_eq!(params(exllama), by_chance, "asked otherwise");
}

#[test]
fn exllama_smooths_before_temperature_and_warms_behind_its_filters() {
    let steps = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams::default();
        params.samplers.sampler_order = SamplerOrder::Engine(Exllama);
        change(&mut params);
        assert_eq!(params.validate(9, 9), Ok(()));
        (params.steps(), params.filters(0).temperature)
    };
    // exp(-d^2 * factor / T), where d is not divided by T: this is softmax with exponent 2 at temperature T / factor.
    let smoothing = ChainStep::Smoothing { factor: 0.5, curve: 1.0 };
    let smoothed = steps(|p| (p.temperature, p.samplers.smoothing_factor) = (2.0, 0.5));
    assert_eq!(smoothed, (Some(vec![smoothing, ChainStep::Temperature]), 2.0));
    let dynamic = ChainStep::DynamicTemperature { low: 0.0, high: 2.0, exponent: 1.0 };
    assert_eq!(
        steps(|p| (p.temperature, p.top_k, p.samplers.dynatemp_high) = (0.5, 5, 2.0)),
        (Some(vec![ChainStep::Temperature, ChainStep::TopK, dynamic]), 0.5),
        "on what truncation left of the tempered row"
    );
    assert_eq!(steps(|p| (p.temperature, p.samplers.skew) = (0.009, 0.5)), (None, 0.0), "below 0.01: greedy");
    // `temperature < 0.01` on a float: both sides become doubles, and 0.01 as a float is the smaller one.
    assert_eq!(steps(|p| (p.temperature, p.samplers.skew) = (0.01, 0.5)), (None, 0.0));
    let next = 0.01f32.next_up();
    assert_eq!(steps(|p| (p.temperature, p.samplers.skew) = (0.01f32.next_up(), 0.5)).1, next);
}

#[test]
fn vllm_raises_temperatures_to_a_hundredth() {
    let of = |engine, temperature| {
        let mut params = SamplingParams { temperature, ..SamplingParams::default() };
        params.samplers.sampler_order = SamplerOrder::Engine(engine);
        params.filters(3).temperature
    };
    assert_eq!([0.0, 1e-5, 0.009, 0.01, 0.5].map(|t| of(Vllm, t)), [0.0, 0.01, 0.01, 0.01, 0.5]);
    assert_eq!([0.0, 1e-5, 0.009].map(|t| of(Croupier, t)), [0.0, 1e-5, 0.009]);
    // The same on its way from one temperature to another.
    let along = |engine, position| {
        let mut params = SamplingParams { temperature: 0.008, ..SamplingParams::default() };
        (params.samplers.temperature_end, params.samplers.temperature_tokens) = (0.016, 4);
        params.samplers.sampler_order = SamplerOrder::Engine(engine);
        params.filters(position).temperature
    };
    assert_eq!([0, 2, 4, 9].map(|at| along(Vllm, at)), [0.01, 0.012, 0.016, 0.016]);
    assert_eq!([0, 4].map(|at| along(Croupier, at)), [0.008, 0.016]);
}

#[test]
fn an_order_of_ones_own_has_the_rules_that_it_is_given() {
    let mut params = SamplingParams { top_k: 2, temperature: 0.7, ..SamplingParams::default() };
    params.samplers.typical_p = 0.5;
    let mut of = |engine| {
        let order = vec![Sampler::TopK, Sampler::TypicalP, Sampler::Temperature];
        params.samplers.sampler_order = SamplerOrder::Custom(order, engine);
        params.steps().unwrap()
    };
    assert_eq!(of(Croupier), [ChainStep::TopK, ChainStep::TypicalP(TypicalRule::Reached, 0.5), ChainStep::Temperature]);
    assert_eq!(
        of(TextGenerationWebui),
        [ChainStep::TopKTies, ChainStep::TypicalP(TypicalRule::Ties, 0.5), ChainStep::Temperature],
        "temperature last"
    );
    assert_eq!(of(LlamaCpp), [ChainStep::TopK, ChainStep::TypicalP(TypicalRule::Above, 0.5), ChainStep::Temperature]);
}

/// Of .5, .3, .1, .05, .05, two are choices at .2. If one of them is protected, nothing happens (ExLlamaV2's `x_tokens
/// <= 1`).
#[test]
fn exllama_counts_no_protected_token_as_a_choice() {
    let row = [0.5, 0.3, 0.1, 0.05, 0.05];
    for step in [
        ChainStep::Xtc { rule: XtcRule::EXPECTED, probability: 0.5, threshold: 0.2 },
        ChainStep::Xtc { rule: XtcRule::default(), probability: 1.0, threshold: 0.2 },
    ] {
        let of = |protected| after(&row, FILTERS, Chain { protected, ..chained(&[step]) });
        assert_eq!(of(&[1]), of(&[0, 1, 2, 3, 4]), "{step:?}: one choice is none");
        assert!((of(&[1])[0].1 - 0.5).abs() < 1e-6, "{step:?}");
        assert_ne!(of(&[2]), of(&[1]), "{step:?}: two choices");
    }
}

#[test]
fn parameters_that_an_engine_does_not_have_are_refused_by_name() {
    let cases: [(EngineOrder, fn(&mut SamplingParams), &str); 10] = [
        (Vllm, |p| p.samplers.dynatemp_high = 2.0, "dynatemp_high"),
        (Transformers, |p| p.samplers.dynatemp_high = 2.0, "dynatemp_high"),
        (Vllm, |p| (p.temperature, p.samplers.temperature_tokens) = (0.5, 9), "temperature_tokens"),
        (Exllama, |p| (p.samplers.smoothing_factor, p.samplers.smoothing_curve) = (1.0, 2.0), "smoothing_curve"),
        (LlamaCpp, |p| p.samplers.top_p_decay = 0.9, "top_p_decay"),
        (LlamaCpp, |p| (p.samplers.xtc_probability, p.samplers.xtc_expected) = (0.5, Some(true)), "xtc_expected"),
        (
            LlamaCpp,
            |p| (p.samplers.xtc_probability, p.samplers.xtc_ignore_token_ids) = (0.5, vec![1]),
            "xtc_ignore_token_ids",
        ),
        (Exllama, |p| p.samplers.mirostat = 1, "mirostat 1"),
        (Vllm, |p| p.samplers.mirostat = 1, "mirostat"),
        (Vllm, |p| p.samplers.min_keep = 2, "min_keep"),
    ];
    for (engine, change, name) in cases {
        let mut params = SamplingParams::default();
        change(&mut params);
        assert_eq!(params.validate(9, 9), Ok(()), "{name}: this project has it");
        params.samplers.sampler_order = SamplerOrder::Engine(engine);
        let refused = params.validate(9, 9).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("engine_order: has no place for {name},")), "{refused}");
        params.samplers.sampler_order = SamplerOrder::Custom(Croupier.samplers().to_vec(), engine);
        assert_eq!(params.validate(9, 9), Ok(()), "{name}: an order of one's own with the rules of {engine:?}");
    }
}

//! ExLlamaV3, `generator/sampler/{presets,custom}.py`.

use super::*;
use crate::params::XtcRule;

/// `cumsum - p < top_p`, and the first token whatever it has (1.6.5; earlier versions dropped the token that crosses).
#[test]
fn its_top_p_keeps_the_crossing_token() {
    // Shares 1/2, 1/4, 1/8, 1/8.
    let of = |p: f32| left(ExllamaV3, &[1, 2, 3, 3], |params| params.top_p = p).len();
    assert_eq!([0.0, 0.3, 0.5, 0.74, 0.75, 0.8, 0.875, 0.99].map(of), [1, 1, 1, 2, 2, 3, 3, 4]);
    assert_eq!(left(ExllamaV3, &[0; 4], |p| p.top_p = 0.7), [0, 1, 2], "of equal ones as many as it takes");
}

#[test]
fn its_order() {
    let mut params = SamplingParams { temperature: 0.5, top_k: 9, top_p: 0.8, min_p: 0.1, ..Default::default() };
    params.samplers.sampler_order = SamplerOrder::Engine(ExllamaV3);
    (params.samplers.xtc_probability, params.samplers.adaptive_target) = (0.5, 0.4);
    params.samplers.xtc_ignore_token_ids = vec![1];
    params.validate(9, 9).expect("valid parameters");
    let expected = [
        ChainStep::Temperature,
        ChainStep::MinP,
        ChainStep::TopK,
        ChainStep::TopP,
        ChainStep::Xtc { rule: XtcRule::EXPECTED, probability: 0.5, threshold: 0.1 },
        ChainStep::AdaptiveP { target: 0.4, decay: 0.9 },
    ];
    assert_eq!(params.steps().expect("a chain"), expected);
    // TabbyAPI's order, with the engine's rules.
    let tabby =
        vec![Sampler::Temperature, Sampler::TopK, Sampler::TopP, Sampler::MinP, Sampler::Xtc, Sampler::AdaptiveP];
    params.samplers.sampler_order = SamplerOrder::Custom(tabby, ExllamaV3);
    assert_eq!(params.steps().expect("a chain")[2..4], [ChainStep::TopP, ChainStep::MinP]);
}

//! MLX (`mlx_lm/sample_utils.py`), TensorRT-LLM (`pyexecutor/sampler/ops`) and mistral.rs
//! (`mistralrs-core/src/sampler.rs`).

use super::*;
use crate::params::XtcRule;

/// The steps of an engine's parameters, and the temperature.
fn steps(engine: EngineOrder, change: impl FnOnce(&mut SamplingParams)) -> (Option<Vec<ChainStep>>, f32) {
    let mut params = SamplingParams::default();
    params.samplers.sampler_order = SamplerOrder::Engine(engine);
    change(&mut params);
    params.validate(9, 9).expect("valid parameters");
    (params.steps(), params.filters(0).temperature)
}

#[test]
fn mlx_has_temperature_last_and_top_k_behind_xtc() {
    let (all, _) = steps(Mlx, |p| {
        (p.temperature, p.top_k, p.top_p, p.min_p) = (0.5, 9, 0.8, 0.1);
        (p.samplers.xtc_probability, p.samplers.xtc_ignore_token_ids) = (0.5, vec![1]);
    });
    let xtc = ChainStep::Xtc { rule: XtcRule::default(), probability: 0.5, threshold: 0.1 };
    assert_eq!(all.expect("a chain"), [ChainStep::TopP, ChainStep::MinP, xtc, ChainStep::TopK, ChainStep::Temperature]);
}

/// `temperature <= 1e-4` is greedy, in f32 too: the f32 nearest to 1e-4 is below it.
#[test]
fn tensorrt_llm_is_greedy_up_to_a_ten_thousandth() {
    let of = |temperature| steps(TensorrtLlm, |p| p.temperature = temperature).1;
    assert_eq!([0.0, 5e-5, 1e-4].map(of), [0.0; 3]);
    assert_eq!(of(1e-4f32.next_up()), 1e-4f32.next_up());
}

#[test]
fn tensorrt_llm_has_min_p_first_and_ties_of_top_k() {
    let (all, _) = steps(TensorrtLlm, |p| {
        (p.temperature, p.top_k, p.top_p, p.min_p, p.samplers.top_p_decay) = (0.5, 9, 0.8, 0.1, 0.9)
    });
    assert_eq!(all.expect("a chain"), [ChainStep::Temperature, ChainStep::MinP, ChainStep::TopKTies, ChainStep::TopP]);
}

/// `if min_p_threshold >= *prob { 0 }`, and `min_p <= 0.0 || min_p >= 1.0` is off.
#[test]
fn mistral_rs_keeps_what_is_above_min_p() {
    let of = |min_p: f32| left(MistralRs, &[0, 1, 2, 0], |p| p.min_p = min_p);
    assert_eq!([of(0.25), of(0.249_99), of(0.5)], [vec![0, 1, 3], vec![0, 1, 2, 3], vec![0, 3]]);
    assert_eq!(of(1f32.next_down()), [0, 3], "the largest stay");
    assert_eq!(of(1.0), [0, 1, 2, 3]);
    let (all, _) = steps(MistralRs, |p| (p.temperature, p.top_k, p.top_p, p.min_p) = (0.5, 9, 0.8, 0.1));
    assert_eq!(all.expect("a chain"), [ChainStep::Temperature, ChainStep::TopK, ChainStep::TopP, ChainStep::MinPAbove]);
    assert_eq!(steps(MistralRs, |p| (p.temperature, p.top_k, p.top_p) = (0.5, 9, 0.8)).0, None, "the usual way");
}

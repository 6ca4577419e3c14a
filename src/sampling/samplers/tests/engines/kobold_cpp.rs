//! KoboldCpp, `gpttype_adapter.cpp`.

use super::*;
use crate::params::{MirostatVersion, TfsRule, TypicalRule, XtcRule};

/// The steps of these parameters.
fn steps(change: impl FnOnce(&mut SamplingParams)) -> Vec<ChainStep> {
    chain_of(change).expect("a chain")
}

/// The same; `None` for the usual filters in the usual order.
fn chain_of(change: impl FnOnce(&mut SamplingParams)) -> Option<Vec<ChainStep>> {
    let mut params = SamplingParams::default();
    params.samplers.sampler_order = SamplerOrder::Engine(KoboldCpp);
    change(&mut params);
    params.validate(9, 9).expect("valid parameters");
    params.steps()
}

#[test]
fn its_order() {
    let all = steps(|p| {
        (p.temperature, p.top_k, p.top_p, p.min_p) = (0.5, 9, 0.8, 0.1);
        let s = &mut p.samplers;
        (s.top_a, s.tfs, s.typical_p, s.top_n_sigma) = (0.3, 0.9, 0.7, 2.0);
        (s.smoothing_factor, s.smoothing_curve) = (0.2, 1.5);
        (s.xtc_probability, s.xtc_threshold, s.adaptive_target) = (0.5, 0.1, 0.4);
    });
    let expected = [
        ChainStep::TopK,
        ChainStep::TopA(0.3),
        ChainStep::Tfs(TfsRule::OneFewer, 0.9),
        ChainStep::TypicalP(TypicalRule::Above, 0.7),
        ChainStep::TopP,
        ChainStep::MinP,
        ChainStep::Temperature,
        ChainStep::Smoothing { factor: 0.2, curve: 1.5 },
        ChainStep::TopNSigma(2.0),
        ChainStep::Xtc { rule: XtcRule::default(), probability: 0.5, threshold: 0.1 },
        ChainStep::AdaptiveP { target: 0.4, decay: 0.9 },
    ];
    assert_eq!(all, expected);
    let warm = steps(|p| (p.top_k, p.samplers.dynatemp_high) = (9, 2.0));
    assert_eq!(warm, [ChainStep::TopK, ChainStep::DynamicTemperature { low: 0.0, high: 2.0, exponent: 1.0 }]);
}

/// "prefilter to top 3k tokens for improved speed", whatever samplers are on.
#[test]
fn it_sees_3000_tokens() {
    let kept = |steps: &[ChainStep], filters: Filters| {
        chain::run(halves(&[0; 5000]), 5000, &filters, &chained(steps)).kept().iter().count()
    };
    let top_p = steps(|p| p.top_p = 0.9);
    assert_eq!(top_p, [ChainStep::AtMost(3000), ChainStep::TopP]);
    assert_eq!(kept(&top_p, Filters { top_p: 0.9, ..FILTERS }), 2700);
    assert_eq!(steps(|_| ()), [ChainStep::AtMost(3000)]);
    // A top-k that comes first and keeps no more makes the limit unnecessary.
    assert_eq!([1, 3000].map(|k| chain_of(|p| p.top_k = k)), [None, None]);
    assert_eq!(chain_of(|p| (p.top_k, p.top_p, p.min_p) = (40, 0.9, 0.05)), None, "in the usual order");
    assert_eq!(steps(|p| p.top_k = 3001), [ChainStep::AtMost(3000), ChainStep::TopK]);
    // The same in a custom order that begins with another sampler.
    let own = steps(|p| {
        p.samplers.sampler_order = SamplerOrder::Custom(vec![Sampler::TopP, Sampler::TopK], KoboldCpp);
        (p.top_k, p.top_p) = (40, 0.5);
    });
    assert_eq!(own, [ChainStep::AtMost(3000), ChainStep::TopP, ChainStep::TopK]);
}

/// Masses 16, 8, 4, 2 and 2 have curvatures 4, 2, 2, whose shares add up to .5, .75 and 1. `sample_tail_free` cuts at
/// the place where the sum exceeds z, but not at the first place.
#[test]
fn its_tail_free_keeps_one_fewer() {
    let of = |engine, z| left(engine, &[0, 1, 2, 3, 3], |p| p.samplers.tfs = z).len();
    assert_eq!([0.3, 0.5, 0.6, 0.75, 0.8].map(|z| of(KoboldCpp, z)), [1, 1, 1, 2, 2]);
    assert_eq!([0.3, 0.5, 0.6, 0.75, 0.8].map(|z| of(Croupier, z)), [1, 2, 2, 3, 3]);
    assert_eq!(of(KoboldCpp, 0.0), 1);
    // Two tokens have no curvature. Three have only one, at the first place, which ends nothing.
    assert_eq!(left(KoboldCpp, &[0, 1], |p| p.samplers.tfs = 0.5), [0, 1]);
    assert_eq!(left(KoboldCpp, &[0, 3, 4], |p| p.samplers.tfs = 0.5), [0, 1, 2]);
    assert_eq!(left(Croupier, &[0, 3, 4], |p| p.samplers.tfs = 0.5), [0]);
    let kept = |min_keep| {
        let step = [ChainStep::Temperature, ChainStep::Tfs(TfsRule::OneFewer, 0.8)];
        let chain = Chain { min_keep, ..chained(&step) };
        let filters = Filters { temperature: PLAIN, ..FILTERS };
        chain::run(halves(&[0, 1, 2, 3, 3]), 5, &filters, &chain).kept().len()
    };
    assert_eq!([1, 2, 3, 9].map(kept), [2, 2, 3, 5]);
}

/// `mirostat == 1 || mirostat == 2` is a separate branch.
#[test]
fn its_mirostat_takes_the_place_of_its_filters() {
    let on = steps(|p| {
        (p.temperature, p.samplers.mirostat) = (0.5, 1);
        p.samplers.smoothing_factor = 0.2;
    });
    let smoothing = ChainStep::Smoothing { factor: 0.2, curve: 1.0 };
    let mirostat = ChainStep::Mirostat { version: MirostatVersion::One, tau: 5.0, eta: 0.1 };
    assert_eq!(on, [ChainStep::AtMost(3000), ChainStep::Temperature, smoothing, mirostat]);
    let mut params = SamplingParams { top_k: 40, ..SamplingParams::default() };
    (params.samplers.mirostat, params.samplers.sampler_order) = (2, SamplerOrder::Engine(KoboldCpp));
    let refused = params.validate(9, 9).unwrap_err().to_string();
    assert!(refused.starts_with("engine_order: has no place for top_k, which is on"), "{refused}");
}

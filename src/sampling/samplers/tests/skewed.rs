//! Skew by hand, and what mirostat learns if there is a skew.

use super::*;
use crate::params::EngineOrder::{Croupier, Exllama};
use crate::params::{SamplerOrder, SamplingParams};
use crate::sampling::logits::{Dtype, Logits};
use crate::sampling::row::{Action, RowSpec};
use crate::sampling::sample_row;

/// A row that asks for the probability of a token.
fn scored(token: u32, chain: Chain<'_>) -> RowSpec<'_> {
    RowSpec { chain: Some(chain), ..RowSpec::plain(FILTERS, Action::Score { token }) }
}

#[test]
fn skew_raises_the_draw_to_a_power() {
    // Decreasing shares .4 .3 .2 .1, sums .4 .7 .9 1.
    for skew in [-2.0f32, -0.5, 0.3, 1.0, 10.0] {
        let power = f64::from(skew).exp();
        let expected = [1.0 - 0.9f64.powf(power), 0.9f64.powf(power) - 0.7f64.powf(power)];
        let got = after(&FOUR, FILTERS, chained(&[ChainStep::Skew(skew)]));
        let p = |token: u32| got.iter().find(|got| got.0 == token).map_or(0.0, |got| got.1);
        for (token, expected) in (0..).zip(expected) {
            assert!((p(token) - expected).abs() < 2e-5, "{skew}, {token}: {} {expected}", p(token));
        }
    }
    // The draw itself: u -> u^exp(-skew) along decreasing probabilities picks each token as often.
    let (skew, draws) = (0.7f64, 100_000);
    let mut counts = [0u32; 4];
    for i in 0..draws {
        let u = ((f64::from(i) + 0.5) / f64::from(draws)).powf((-skew).exp());
        counts[if u < 0.4 {
            3
        } else if u < 0.7 {
            2
        } else if u < 0.9 {
            1
        } else {
            0
        }] += 1;
    }
    for (token, p) in after(&FOUR, FILTERS, chained(&[ChainStep::Skew(skew as f32)])) {
        assert!((p - f64::from(counts[token as usize]) / f64::from(draws)).abs() < 2e-5, "{token}");
    }
}

/// ExLlamaV2's `mirostat_post_cpu` uses the probability before the skew: with .5, .3 and .2, tau 3 and eta 1 the second
/// token takes mu from 6 to 6 - (1.737 - 3).
#[test]
fn mirostat_learns_from_what_a_skew_bends_the_draw_from() {
    let mut params = SamplingParams::default();
    (params.samplers.mirostat, params.samplers.mirostat_tau, params.samplers.mirostat_eta) = (2, 3.0, 1.0);
    let state = remembering(Some(6.0), None);
    let mut mu = |engine, skew, behind: &[ChainStep]| {
        (params.samplers.skew, params.samplers.sampler_order) = (skew, SamplerOrder::Engine(engine));
        let steps = [params.steps().expect("a chain"), behind.to_vec()].concat();
        let row = Dtype::F32.encode(&[0.5f32, 0.3, 0.2].map(f32::ln));
        let spec = scored(1, Chain { state, ..chained(&steps) });
        let observed = sample_row(&Logits::new(Dtype::F32, &row), &spec).expect("a row").observed;
        learned(state, &steps, observed.expect("it has a state")).mirostat_mu.expect("mirostat is on")
    };
    for (engine, skew) in [(Exllama, 0.0), (Exllama, 2.0), (Croupier, 2.0), (Croupier, -2.0)] {
        assert!((mu(engine, skew, &[]) - 7.263).abs() < 1e-3, "{engine:?}, {skew}: {}", mu(engine, skew, &[]));
    }
    // If a step comes after it, a skew is a sampler like others: to the power e^2 the shares are .006, .186 and .808.
    let with_a_step = mu(Croupier, 2.0, &[ChainStep::Temperature]);
    assert!((with_a_step - 6.576).abs() < 2e-3, "{with_a_step}");
}

#[test]
fn skew_at_its_edges() {
    assert_eq!(after(&[1.0], FILTERS, chained(&[ChainStep::Skew(10.0)])), [(0, 1.0)]);
    let far = [1.0, 1e-15, 0.5];
    assert_eq!(tokens(&far, &[ChainStep::Skew(-10.0)]), [0, 2], "what has no mass goes");
    for skew in [-10.0, 10.0] {
        let many = after(&vec![1.0; 5000], FILTERS, chained(&[ChainStep::Skew(skew)]));
        let most = many.iter().map(|m| m.1).fold(0.0, f64::max);
        assert!(most > 0.9 && many.len() == 5000, "{skew}: {most}");
    }
    // A token in a million keeps its probability to a millionth.
    let power = skew::power(0.5);
    let got = f64::from(skew::logit(power, 1, 1_000_000, 1_000_000)).exp();
    assert!((got / (power * 1e-6) - 1.0).abs() < 1e-5, "{got}");
}

//! text-generation-webui, `modules/sampler_hijack.py`.

use super::*;

/// Probabilities .5 .3 .2 .05 .01, of which top-k leaves three. These alone have one curvature, .1, so the last token
/// goes. With the zeros after them, the curvatures are .1, .1 and .2.
#[test]
fn it_takes_tail_free_over_the_whole_vocabulary() {
    let of = |engine, k, z| {
        let mut params = SamplingParams { top_k: k, ..SamplingParams::default() };
        (params.samplers.tfs, params.samplers.sampler_order) = (z, SamplerOrder::Engine(engine));
        params.validate(9, 9).expect("valid parameters");
        let steps = params.steps().expect("a chain");
        let left = after(&[0.5, 0.3, 0.2, 0.05, 0.01], params.filters(0), chained(&steps));
        left.into_iter().map(|(token, _)| token).collect::<Vec<_>>()
    };
    assert_eq!(of(TextGenerationWebui, 3, 0.9), [0, 1, 2]);
    assert_eq!([of(TextGenerationWebui, 3, 0.2), of(TextGenerationWebui, 3, 0.3)], [vec![0], vec![0, 1]]);
    for engine in [Croupier, Exllama] {
        assert_eq!(of(engine, 3, 0.9), [0], "{engine:?}");
    }
    // Of two tokens, .625 and .375: curvatures .125 and .375. Alone they have none.
    assert_eq!([of(TextGenerationWebui, 2, 0.2), of(TextGenerationWebui, 2, 0.3)], [vec![0], vec![0, 1]]);
    assert_eq!(of(Croupier, 2, 0.2), [0, 1]);
    assert_eq!(of(TextGenerationWebui, 1, 0.0), [0]);
    // With one zero after them, the last token goes whatever z is. If nothing was removed, so does the very last token.
    assert_eq!(of(TextGenerationWebui, 4, 1f32.next_down()), [0, 1, 2]);
    assert_eq!(of(TextGenerationWebui, 0, 1f32.next_down()), of(Croupier, 0, 1f32.next_down()));
}

#[test]
fn it_leaves_out_xtc_where_a_newline_or_eos_would_go() {
    let of = |engine, ignored: &[u32]| {
        left(engine, &[0, 1, 2, 9], |p| {
            (p.samplers.xtc_probability, p.samplers.xtc_threshold) = (1.0, 0.1);
            p.samplers.xtc_ignore_token_ids = ignored.to_vec();
        })
    };
    assert_eq!(of(TextGenerationWebui, &[]), [2, 3]);
    assert_eq!(of(TextGenerationWebui, &[1]), [0, 1, 2, 3]);
    assert_eq!(of(TextGenerationWebui, &[2, 3]), [2, 3], "these would have stayed");
    assert_eq!(of(Croupier, &[1]), [1, 2, 3], "here it only spares them");
}

/// Of .4, .3, .2 and .1, the first two would go at .15. If one of them is ignored, XTC never happens, so its average
/// has no effect either, however likely it is.
#[test]
fn it_expects_nothing_where_a_newline_or_eos_would_go() {
    let of = |engine, probability, ignored: &[u32]| {
        let mut params = SamplingParams::default();
        params.samplers.sampler_order = SamplerOrder::Custom(vec![Sampler::Temperature, Sampler::Xtc], engine);
        (params.samplers.xtc_probability, params.samplers.xtc_threshold) = (probability, 0.15);
        (params.samplers.xtc_expected, params.samplers.xtc_ignore_token_ids) = (Some(true), ignored.to_vec());
        params.validate(9, 9).expect("valid parameters");
        let steps = params.steps().expect("a chain");
        after(&[0.4, 0.3, 0.2, 0.1], FILTERS, Chain { protected: ignored, ..chained(&steps) })
    };
    let alone = after(&[0.4, 0.3, 0.2, 0.1], FILTERS, chained(&[]));
    for probability in [0.5, 0.999, 1.0] {
        assert_eq!(of(TextGenerationWebui, probability, &[0]), alone, "{probability}");
        assert_ne!(of(Croupier, probability, &[0]), alone, "{probability}: here it only spares them");
        assert_ne!(of(TextGenerationWebui, probability, &[2, 3]), alone, "{probability}: these would have stayed");
    }
}

/// Both temperatures apply, one after the other. In other engines, dynamic temperature replaces the plain one.
#[test]
fn it_warms_twice() {
    let steps = |engine| {
        let mut params = SamplingParams { temperature: 0.5, ..SamplingParams::default() };
        (params.samplers.dynatemp_high, params.samplers.sampler_order) = (2.0, SamplerOrder::Engine(engine));
        assert_eq!(params.validate(9, 9), Ok(()));
        params.steps().unwrap()
    };
    let dynamic = ChainStep::DynamicTemperature { low: 0.0, high: 2.0, exponent: 1.0 };
    assert_eq!(steps(TextGenerationWebui), [ChainStep::Temperature, dynamic]);
    assert_eq!([steps(LlamaCpp), steps(Croupier)], [[dynamic], [dynamic]]);
    // Probabilities .8 and .2 are 16 to 1 at temperature 1/2, and with a temperature of 2 after that 4 to 1 again.
    let flat = ChainStep::DynamicTemperature { low: 2.0, high: 2.0, exponent: 1.0 };
    let got = after(&[0.8, 0.2], Filters { temperature: 0.5, ..FILTERS }, chained(&[ChainStep::Temperature, flat]));
    assert!((got[0].1 - 0.8).abs() < 1e-5, "{got:?}");
}

/// Its adaptive-p and its mirostat draw the token and leave nothing else: a sampler after them would have no effect.
#[test]
fn it_has_nothing_behind_what_draws() {
    let at_fault = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams::default();
        params.samplers.sampler_order = SamplerOrder::Engine(TextGenerationWebui);
        change(&mut params);
        params.validate(9, 9).map_err(|e| e.to_string().split(';').next().unwrap().to_owned())
    };
    let lacks = |name: &str| Err(format!("engine_order: has no place for {name}, which is on"));
    assert_eq!(at_fault(|p| (p.samplers.xtc_probability, p.samplers.mirostat) = (0.5, 2)), lacks("xtc_probability"));
    assert_eq!(at_fault(|p| (p.samplers.adaptive_target, p.samplers.mirostat) = (0.5, 2)), lacks("mirostat"));
    assert_eq!(at_fault(|p| (p.min_p, p.samplers.adaptive_target) = (0.1, 0.5)), Ok(()));
    assert_eq!(at_fault(|p| (p.min_p, p.samplers.xtc_probability) = (0.1, 0.5)), Ok(()));
}

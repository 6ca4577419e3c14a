//! Top-p before other filters that cut the order: on flat rows, the backend lets these cut first, which must not change
//! the result.

use super::*;
use croupier::params::{TypicalRule, XtcRule};

/// Steps after top-p that cut the order or do nothing, and a step after those.
fn behind() -> impl Strategy<Value = Vec<ChainStep>> {
    let idle = ChainStep::Xtc { rule: XtcRule::default(), probability: 0.0, threshold: 0.1 };
    let cut = prop::sample::select(vec![
        ChainStep::TopK,
        ChainStep::TopKTies,
        ChainStep::MinP,
        ChainStep::MinP,
        ChainStep::MinPAbove,
        idle,
        ChainStep::Temperature,
    ]);
    let last = prop::sample::select(vec![
        ChainStep::Temperature,
        ChainStep::Skew(0.4),
        ChainStep::TypicalP(TypicalRule::Reached, 0.7),
        ChainStep::TopA(0.1),
    ]);
    (prop::collection::vec(cut, 1..4), prop::option::of(last))
        .prop_map(|(cuts, last)| cuts.into_iter().chain(last).collect())
}

/// Filters that are on, with shares close to what a cut by the others leaves, and short lists as often as long ones.
fn on() -> impl Strategy<Value = Filters> {
    let temperature = prop_oneof![2 => Just(1.0f32), 3 => 0.05f32..3.0];
    let top_k = prop_oneof![4 => 1..60u32, 1 => 60..1500u32];
    let top_p = prop_oneof![3 => 0.0f32..1.0, 1 => 0.0f32..0.05, 1 => 0.9f32..1.0];
    let min_p = prop_oneof![3 => 0.0f32..1.0, 1 => 0.9f32..1.0, 2 => 1e-6f32..1e-2];
    (temperature, top_k, top_p, min_p).prop_map(|(temperature, top_k, top_p, min_p)| Filters {
        temperature,
        top_k,
        top_p,
        min_p,
    })
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn a_nucleus_within_other_cuts_is_that_of_the_specification(
        vocab in prop_oneof![1 => 1..200usize, 4 => 200..9000usize],
        shape in prop_oneof![4 => 0..3u8, 1 => 0..SHAPES],
        (seed, uniform) in any::<(u64, u64)>(),
        dtype in prop::sample::select(&Dtype::ALL[..]),
        filters in on(),
        cools in any::<bool>(),
        behind in behind(),
        min_keep in prop_oneof![4 => Just(1u32), 1 => 2..50u32, 1 => 500..2000u32],
        shown in prop::option::weighted(0.3, Just((3, LogprobsMode::Processed, vec![0]))),
    ) {
        let mut case = Case::new(dtype, &row(shape, vocab, seed));
        let first = cools.then_some(ChainStep::Temperature);
        let steps = first.into_iter().chain([ChainStep::TopP]).chain(behind).collect();
        case.chain = Some(Chained { steps, min_keep, ..Chained::default() });
        (case.filters, case.logprobs) = (filters, shown);
        for uniform in uniforms(&case, uniform) {
            case.action = Action::Draw { uniform };
            check(&case);
        }
    }
}

//! Rows that need only their first tokens, after texts that touch many tokens. The backend leaves out blocks that cannot contain one of
//! these, which must not change the result.

use super::*;
use croupier::params::Decay;
use croupier::params::report::ReportParams;
use croupier::sampling::adjust::Nudge;

/// A change to one of the largest logits.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Banned,
    /// Banned by its adjust, not only at this position.
    Forbidden,
    Biased(f32),
    /// Equal to another one, which may be in any block.
    LikeThe(usize),
    /// Biased so much that the logit overflows.
    Infinite,
    Late(f32),
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        8 => Just(Fate::Banned),
        4 => Just(Fate::Forbidden),
        8 => (-9.0f32..9.0).prop_map(Fate::Biased),
        12 => (0..80usize).prop_map(Fate::LikeThe),
        1 => Just(Fate::Infinite),
        4 => (-20.0f32..0.0).prop_map(Fate::Late),
    ]
}

/// Tokens of a text: some of the vocabulary, all of it, or all tokens of some blocks.
fn seen() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        3 => prop::collection::vec(any::<u32>(), 0..20),
        4 => prop::collection::vec(any::<u32>(), 100..1500),
        1 => Just((0..9000).collect()),
        2 => prop::collection::vec(0..70u32, 1..20)
            .prop_map(|blocks| blocks.into_iter().flat_map(|block| block * 128..(block + 1) * 128).collect()),
    ]
}

fn penalties() -> impl Strategy<Value = Penalties> {
    let ratio = || prop_oneof![1 => Just(1.0f32), 2 => 0.5f32..2.0];
    let decay = (any::<u16>(), 1..2000u16, 1..60_000u16);
    let decay = decay.prop_map(|(place, last_n, decay_n)| Decay { place, last_n, decay_n });
    let (decay, length) =
        (prop_oneof![4 => Just(Decay::OFF), 1 => decay], prop_oneof![3 => Just(0.0f32), 1 => -1.0f32..3.0]);
    let counted = || prop_oneof![1 => Just(0.0f32), 3 => -2.0f32..2.0];
    (ratio(), ratio(), counted(), counted(), decay, length, any::<bool>()).prop_map(
        |(repetition, encoder, frequency, presence, decay, length, subtract_first)| Penalties {
            repetition,
            frequency,
            presence,
            encoder,
            decay,
            length,
            subtract_first,
        },
    )
}

prop_compose! {
    fn touched()(
        vocab in prop_oneof![3 => 150..9000usize, 1 => (2..70usize, 0..3usize).prop_map(|(blocks, more)| blocks * 128 + more - 1)],
        shape in prop_oneof![3 => 0..3u8, 1 => 0..SHAPES],
        dtype in prop::sample::select(&Dtype::ALL[..]),
        filters in filters(),
        top_k in prop_oneof![3 => 1..20u32, 1 => 20..70u32],
        (mark, report) in (prop::option::weighted(0.3, mark()), prop::bool::weighted(0.05)),
        fates in prop::collection::vec((0..60usize, fate()), 0..30),
        (seen, flags, banned) in (seen(), any::<u64>(), prop_oneof![3 => Just(vec![]), 1 => seen()]),
        penalties in penalties(),
        allowed in prop::option::weighted(0.05, prop::collection::vec(any::<u32>(), 1..3000)),
        (uniform, seed, action) in (any::<u64>(), any::<u64>(), prop_oneof![8 => Just(0u32), 3 => Just(1u32), 1 => Just(2u32)]),
        shown in prop::option::weighted(0.5, (
            0..200u32, prop_oneof![Just(LogprobsMode::Raw), Just(LogprobsMode::Processed)],
            prop::collection::vec(any::<u32>(), 0..9)
        )),
    ) -> Case {
        let logits = row(shape, vocab, seed);
        let mut order: Vec<usize> = (0..vocab).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let mut case = Case::new(dtype, &logits);
        (case.mark, case.penalties, case.filters) = (mark, penalties, Filters { top_k, ..filters });
        let mut adjusts: BTreeMap<u32, TokenAdjust> = BTreeMap::new();
        for (i, at) in (0u32..).zip(seen) {
            let (token, flags) = (at % vocab as u32, (flags >> (i % 60)) as u32 & 14);
            adjusts.insert(token, TokenAdjust { token, flags, bias: 0.0, output_count: i % 3 }.at((i * 97) as u16));
        }
        let (mut nudges, mut bans): (BTreeMap<u32, Nudge>, Vec<u32>) = (BTreeMap::new(), ascending(banned, vocab));
        for (at, fate) in fates {
            let token = order[at % vocab] as u32;
            let known = TokenAdjust { token, ..TokenAdjust::default() };
            let like = |other: usize| logits[order[other % vocab]] - logits[token as usize];
            match fate {
                Fate::Banned => bans.push(token),
                Fate::Forbidden => drop(adjusts.insert(token, TokenAdjust { flags: TokenAdjust::BANNED, ..known })),
                Fate::Biased(bias) => drop(adjusts.insert(token, TokenAdjust { bias, flags: 2, output_count: 1, ..known })),
                Fate::LikeThe(other) if like(other).is_finite() => drop(adjusts.insert(token, TokenAdjust { bias: like(other), ..known })),
                Fate::LikeThe(_) => {}
                Fate::Infinite => drop(adjusts.insert(token, TokenAdjust { bias: f32::MAX, flags: 2, ..known })),
                Fate::Late(late) => drop(nudges.insert(token, Nudge { token, bias: late / 4.0, late })),
            }
        }
        (case.adjusts, case.nudges) = (adjusts.into_values().collect(), nudges.into_values().collect());
        (case.banned, case.allowed) = (ascending(bans, vocab), allowed.map(|allowed| ascending(allowed, vocab)));
        case.logprobs = shown.map(|(n, mode, ids)| (n, mode, ids.into_iter().map(|t| t % vocab as u32).collect()));
        case.report = report.then(|| ReportParams {
            support_size: true, max_surviving_token_ids: 9, entropy: true, why_not_token_ids: vec![0, order[0] as u32],
        });
        case.action = match action {
            0 => Action::Draw { uniform },
            1 => Action::Propose { uniform },
            _ => Action::Score { token: order[uniform as usize % 90 % vocab] as u32 },
        };
        case
    }
}

proptest! {
    #![proptest_config(config(300))]

    /// Several rows in sequence, so that nothing of one row shows in the next.
    #[test]
    fn what_is_left_out_of_a_row_is_missed_nowhere(cases in prop::collection::vec(touched(), 1..5)) {
        let mut backends = backends();
        for mut case in cases {
            let uniforms = if let Action::Draw { uniform } = case.action { uniforms(&case, uniform) } else { vec![0] };
            for uniform in uniforms {
                if let Action::Draw { .. } = case.action {
                    case.action = Action::Draw { uniform };
                }
                let expected = bits(&case.expected());
                for (name, backend) in &mut backends {
                    let got = bits(&backend.run(&[case.job()])[0]);
                    prop_assert_eq!(&got, &expected, "{} on {}", name, summary(&case));
                }
            }
        }
    }
}

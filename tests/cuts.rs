//! Long rows whose cut falls on a boundary of the CPU backend's search: masses that sum to exactly the wanted share,
//! ties around the cut, misleading samples, lists at the limit of their length.

use croupier::backend::cpu::{CpuBackend, Level};
use croupier::backend::{Backend, RowJob};
use croupier::params::state::{Average, SamplerState};
use croupier::params::{TfsRule, TypicalRule};
use croupier::sampling::adjust::TokenAdjust;
use croupier::sampling::chain::{Chain, ChainStep};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::row::{Action, Filters, LogprobsMode, LogprobsSpec, RowSpec};
use croupier::sampling::sample_row;

/// 192 blocks. The search samples every fourth.
const VOCAB: usize = 24_576;
const BLOCK: usize = 128;
/// At this temperature the exponent is the logit's distance from the largest, so integer distances have exact masses.
const EXACT: f32 = std::f32::consts::LOG2_E;

fn scrambled(token: usize) -> usize {
    token * 7919 % VOCAB
}

/// Rows, each with a name.
fn rows() -> Vec<(&'static str, Vec<f32>)> {
    let row = |value: &dyn Fn(usize) -> f32| (0..VOCAB).map(value).collect::<Vec<f32>>();
    let sampled = |token: usize| (token / BLOCK).is_multiple_of(4);
    vec![
        ("all equal", row(&|_| 1.5)),
        ("both zeros", row(&|t| if t % 3 == 0 { -0.0 } else { 0.0 })),
        // The first level holds exactly half of the mass: n tokens of 1 and 2n of 1/2.
        ("two levels", row(&|t| if scrambled(t) < VOCAB / 3 { 0.0 } else { -1.0 })),
        ("twenty levels", row(&|t| -((scrambled(t) % 20) as f32))),
        ("flat", row(&|t| (scrambled(t) as f32 / VOCAB as f32 - 0.5) * 6.0)),
        ("ties of 16", row(&|t| (scrambled(t) / 16) as f32 * 0.003)),
        ("neighbouring floats", row(&|t| f32::from_bits(0x4000_0000 + (scrambled(t) % 3000) as u32))),
        ("heavy where nothing is sampled", row(&|t| if sampled(t) { -9.0 } else { (t % 7) as f32 * 0.1 })),
        ("heavy where all is sampled", row(&|t| if sampled(t) { (t % 5) as f32 } else { -4.0 - (t % 3) as f32 })),
        ("3000 heavy tokens, too many to sort", row(&|t| if scrambled(t) < 3000 { 9.0 } else { -2.0 })),
        ("one token far above the rest", row(&|t| if t == 5000 { 30.0 } else { (t % 11) as f32 * 0.01 })),
        ("one block above the rest", row(&|t| if t / BLOCK == 77 { 8.0 + (t % 4) as f32 } else { (t % 2) as f32 })),
        ("one token", row(&|t| if t == VOCAB - 1 { -7.0 } else { f32::NEG_INFINITY })),
        ("three tokens", row(&|t| if t % 9000 == 77 { -0.3 * (t / 9000) as f32 } else { f32::NEG_INFINITY })),
        ("mostly masked", row(&|t| if t % 50 == 3 { -((t % 13) as f32) } else { f32::NEG_INFINITY })),
        ("as far apart as floats go", row(&|t| if scrambled(t) < 9000 { f32::MAX } else { f32::MIN })),
        ("massless tail", row(&|t| if scrambled(t) < 2500 { -((t % 30) as f32) } else { -60.0 - (t % 5) as f32 })),
    ]
}

fn filters() -> Vec<Filters> {
    let off = Filters { temperature: EXACT, top_k: 0, top_p: 1.0, min_p: 0.0 };
    let half = 0.5f32;
    let shares = [0.0, 1e-6, 0.1, 0.25, half.next_down(), half, half.next_up(), 0.75, 0.9, 0.99, 1.0f32.next_down()];
    let counts = [1025, 2048, 2049, 8191, 8192, 8193, 24_000, 24_575];
    let least = [1e-12, 1e-4, 0.25, half.next_down(), half, half.next_up(), 1.0];
    let mut all = vec![Filters { temperature: 0.9, ..off }];
    all.extend(shares.map(|top_p| Filters { top_p, ..off }));
    all.extend(counts.map(|top_k| Filters { top_k, ..off }));
    all.extend(least.map(|min_p| Filters { min_p, ..off }));
    all.extend([0.3, half].map(|top_p| Filters { top_p, min_p: 0.5, ..off }));
    all.extend([0.3, half].map(|top_p| Filters { top_p, top_k: 8192, ..off }));
    all.push(Filters { top_k: 3000, min_p: half, ..off });
    all.extend([1e-5, 1e5].map(|temperature| Filters { temperature, top_p: 0.6, ..off }));
    all
}

/// One backend of each level that this processor has.
fn backends() -> Vec<(Level, CpuBackend)> {
    let levels = Level::ALL.into_iter().filter(|level| level.is_available());
    levels.map(|level| (level, CpuBackend::with_level(1, level))).collect()
}

/// Adjusts of some tokens that were seen, with a bias.
fn touched() -> Vec<TokenAdjust> {
    let touched = |i: u32| {
        let bias = (i % 3) as f32 - 1.0;
        TokenAdjust { token: i * 601, flags: TokenAdjust::SEEN, bias, output_count: 0 }
    };
    (0..40).map(touched).collect()
}

#[test]
fn cuts_equal_the_specification() {
    let (mut backends, touched) = (backends(), touched());
    for (name, row) in rows() {
        for (turn, filters) in filters().into_iter().enumerate() {
            let dtype = Dtype::ALL[turn % 3];
            // Numbers beyond a format's range become infinite in it.
            let dtype = if name.starts_with("as far") { Dtype::F32 } else { dtype };
            let bytes = dtype.encode(&row);
            for adjusts in [&[][..], &touched] {
                let uniform = 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(turn as u64 + 1);
                let spec = RowSpec {
                    adjusts: adjusts.into(),
                    // Errors in the total and the cut would show in the logprobs.
                    logprobs: Some(LogprobsSpec { top_n: 3, mode: LogprobsMode::Processed, tokens: &[0, 601, 20_000] }),
                    ..RowSpec::plain(filters, Action::Draw { uniform })
                };
                let job = RowJob { logits: Logits::new(dtype, &bytes), spec };
                let expected = sample_row(&job.logits, &job.spec);
                for (level, backend) in &mut backends {
                    let got = backend.run(&[job]).remove(0);
                    let touched = adjusts.len();
                    assert_eq!(got, expected, "{}, {name}, {dtype:?}, {filters:?}, {touched} touched", level.name());
                }
            }
        }
    }
}

/// Chains that the backend may run without a list if only a token is asked for.
fn chains() -> Vec<(Vec<ChainStep>, SamplerState)> {
    let mut chains: Vec<Vec<ChainStep>> = vec![];
    chains
        .extend([0.01, 0.5, 0.9, 0.99, 1.0f32.next_down()].map(|p| vec![ChainStep::TypicalP(TypicalRule::Reached, p)]));
    chains.extend(
        [0.25, 0.9]
            .map(|p| vec![ChainStep::Temperature, ChainStep::TypicalP(TypicalRule::Above, p), ChainStep::Temperature]),
    );
    chains.extend([0.25, 0.9].map(|p| vec![ChainStep::TypicalP(TypicalRule::Ties, p)]));
    chains.extend([-1.0, 0.3, 2.0].map(|by| vec![ChainStep::TopP, ChainStep::Temperature, ChainStep::Skew(by)]));
    chains.extend(
        [ChainStep::TopK, ChainStep::TopKTies, ChainStep::TopNSigma(1.0)].map(|cut| vec![cut, ChainStep::Skew(0.3)]),
    );
    chains.extend(
        [0.0, 3.0, 1e3, 1e5].map(|tau| vec![ChainStep::MinK(tau), ChainStep::Temperature, ChainStep::Skew(0.3)]),
    );
    chains.extend([0.0, 3.0, 1e4, f32::MAX].map(|tau| vec![ChainStep::Temperature, ChainStep::MinK(tau)]));
    chains.extend([0.0, 1e3].map(|tau| vec![ChainStep::TopP, ChainStep::MinK(tau), ChainStep::MinP]));
    chains.extend(
        [0.0, 0.5, 0.95, 1.0f32.next_down()].map(|z| vec![ChainStep::Temperature, ChainStep::Tfs(TfsRule::Left, z)]),
    );
    chains.extend(
        [0.0, 0.5, 0.95, 1.0f32.next_down()]
            .map(|z| vec![ChainStep::Temperature, ChainStep::Tfs(TfsRule::WithRemoved, z)]),
    );
    chains.extend(
        [0.0, 0.5, 0.95, 1.0f32.next_down()]
            .map(|z| vec![ChainStep::Temperature, ChainStep::Tfs(TfsRule::OneFewer, z)]),
    );
    chains.extend(
        [1, 5, 1500, 3000]
            .map(|most| vec![ChainStep::AtMost(most), ChainStep::Tfs(TfsRule::Left, 0.9), ChainStep::Temperature]),
    );
    chains.push(vec![ChainStep::Temperature, ChainStep::MinP, ChainStep::TopP]);
    // The number of candidates matters: those without mass count, masked ones do not.
    chains.push(vec![ChainStep::PLess { norm: true }]);
    chains.push(vec![ChainStep::Smoothing { factor: 0.3, curve: 1.0 }, ChainStep::PLess { norm: true }]);
    chains.push(vec![ChainStep::Tfs(TfsRule::Left, 0.9), ChainStep::Temperature, ChainStep::Skew(0.3)]);
    // A minimum mass, at this temperature and at 1, for tokens that are then weighed at another temperature.
    let last: [&[ChainStep]; 2] = [&[ChainStep::Temperature], &[ChainStep::Temperature, ChainStep::Skew(0.3)]];
    for behind in last {
        chains.push([&[ChainStep::TopKTies], behind].concat());
        chains.push([&[ChainStep::MinP], behind].concat());
        let masses = [
            ChainStep::MinP,
            ChainStep::MinPAbove,
            ChainStep::TopA(0.9),
            ChainStep::EpsilonCutoff(1e-4),
            ChainStep::PLess { norm: false },
            ChainStep::PLess { norm: true },
        ];
        for cut in masses.into_iter().chain([ChainStep::TopNSigma(0.5)]) {
            chains.push([&[ChainStep::Temperature, cut], behind].concat());
        }
    }
    let mut all: Vec<(Vec<ChainStep>, SamplerState)> =
        chains.into_iter().map(|steps| (steps, SamplerState::default())).collect();
    for target in [0.0, 1e-30, 4e-5, 1e-4, 0.03, 0.3, 0.5, 1.0] {
        let adaptive = Some(Average { sum: 0.0, weight: 0.0 });
        let steps = vec![ChainStep::AdaptiveP { target, decay: 0.9 }, ChainStep::Temperature];
        all.push((steps, SamplerState { adaptive, mirostat_mu: None }));
    }
    all
}

#[test]
fn tokens_of_chains_equal_the_specification() {
    let (mut backends, touched) = (backends(), touched());
    for (name, row) in rows() {
        for (turn, (steps, state)) in chains().into_iter().enumerate() {
            let dtype = if name.starts_with("as far") { Dtype::F32 } else { Dtype::ALL[turn % 3] };
            let bytes = dtype.encode(&row);
            let chain = Chain {
                steps: &steps,
                min_keep: 1,
                protected: &[],
                eos: &[],
                xtc: 0,
                state,
                infill: None,
                tournament: None,
            };
            let filters = Filters { temperature: EXACT, top_k: 6000, top_p: 0.95, min_p: 0.25 };
            for (turn, uniform) in
                [0, u64::MAX, 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(turn as u64 + 1)].into_iter().enumerate()
            {
                let spec = RowSpec {
                    chain: Some(chain),
                    adjusts: if turn == 1 { touched.as_slice().into() } else { [][..].into() },
                    ..RowSpec::plain(filters, Action::Draw { uniform })
                };
                let job = RowJob { logits: Logits::new(dtype, &bytes), spec };
                let expected = sample_row(&job.logits, &job.spec);
                for (level, backend) in &mut backends {
                    let got = backend.run(&[job]).remove(0);
                    assert_eq!(got, expected, "{}, {name}, {dtype:?}, {steps:?}, uniform {uniform}", level.name());
                }
            }
        }
    }
}

//! Results of chains of samplers, against definitions in f64 written from the papers, not from the code under test.
//!
//! Rows are random. If a definition compares two reals that are closer than rounding can tell, the case decides nothing
//! and is left out. The number of such cases is printed and bounded.

use croupier::backend::cpu::CpuBackend;
use croupier::backend::{Backend, RowJob};
use croupier::params::chain::SamplerParams;
use croupier::params::state::{Average, SamplerState};
use croupier::params::{MirostatVersion, SamplingParams, TfsRule, TypicalRule, XtcRule};
use croupier::sampling::chain::{self, Chain, ChainStep};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::order::Candidate;
use croupier::sampling::philox::{Purpose, uniform};
use croupier::sampling::row::{Action, Filters, RowSpec};
use croupier::sampling::sample_row;
use croupier::sampling::samplers::infill::Infill;
use croupier::sequence::Sequence;
use croupier::sequence::rules::Rules;
use croupier::vocabulary::Vocabulary;
use std::sync::{Arc, LazyLock};

use crate::chi_square::{DEVIATE, FALSE_ALARM, deviate};
mod naive;
use naive::Naive;

/// Reals that are closer than this, relative to the larger, count as equal.
const NEAR: f64 = 2e-5;
/// The state that samplers remember.
const STATE: SamplerState = SamplerState { mirostat_mu: Some(3.5), adaptive: Some(Average { sum: 3.0, weight: 10.0 }) };
const FILTERS: Filters = Filters { temperature: 0.7, top_k: 20, top_p: 0.9, min_p: 0.03 };

fn random(seed: u64, index: u64) -> f64 {
    uniform(seed, index, Purpose::Sample) as f64 / 2f64.powi(64)
}

fn row(vocab: usize, spread: f64, seed: u64) -> Vec<f32> {
    (0..vocab as u64).map(|i| (spread * (0..3).map(|j| random(seed, 3 * i + j) - 0.5).sum::<f64>()) as f32).collect()
}

/// The text of a token. If it is empty, the token has no text.
fn text(token: usize) -> String {
    let letters = (0..token % 5).map(|place| if token >> (place + 3) & 1 == 1 { 'a' } else { 'b' });
    letters.collect()
}

/// Tokens that end a text. The second is in every row, the first in none.
const ENDS: [u32; 2] = [1_000_000, 5];

fn known() -> Infill<'static> {
    static TEXTS: LazyLock<Vocabulary> = LazyLock::new(|| {
        Vocabulary::new(&(0..500).map(|token| Some(text(token).into_bytes())).collect::<Vec<_>>(), b"")
    });
    Infill { vocabulary: &TEXTS, ends: &ENDS }
}

/// EOS tokens. One of them is in no row.
const EOS: [u32; 3] = [11, 1_000_000, 4];

/// A step of a kind, with a random parameter.
fn step(kind: usize, seed: u64) -> ChainStep {
    let share = random(seed, kind as u64) as f32;
    match kind {
        0 => ChainStep::Temperature,
        1 => ChainStep::DynamicTemperature { low: share, high: 1.5, exponent: 1.0 + share },
        2 => ChainStep::Smoothing { factor: 0.1 + share, curve: 1.0 },
        3 => ChainStep::Smoothing { factor: 0.05 + 0.1 * share, curve: 1.5 },
        4 => ChainStep::TopK,
        5 => ChainStep::TopP,
        6 => ChainStep::MinP,
        7 => ChainStep::TypicalP(TypicalRule::Reached, 0.05 + 0.9 * share),
        8 => ChainStep::Tfs(TfsRule::Left, 0.05 + 0.9 * share),
        9 => ChainStep::TopA(share),
        10 => ChainStep::TopNSigma(0.3 + 2.0 * share),
        28 => ChainStep::PLess { norm: true },
        32 => ChainStep::MinPAbove,
        33 => ChainStep::Tfs(TfsRule::OneFewer, 0.05 + 0.9 * share),
        31 => ChainStep::AtMost(1 + (40.0 * share) as u32),
        30 => ChainStep::Xtc {
            rule: XtcRule { expected: true, unless_ignored: true },
            probability: 0.9 * share,
            threshold: 0.02 + 0.1 * share,
        },
        29 => ChainStep::Tfs(TfsRule::WithRemoved, 0.05 + 0.9 * share),
        // In half of the cases the cliff alone decides, mostly.
        27 => ChainStep::MinK(if share < 0.5 { 3.0 } else { 400.0 * (share - 0.5) }),
        11 => ChainStep::EpsilonCutoff(0.05 * share),
        12 => ChainStep::EtaCutoff(0.05 * share),
        13 => ChainStep::TopH(0.1 + 0.8 * share),
        14 => ChainStep::PLess { norm: false },
        15 => ChainStep::Mirostat { version: MirostatVersion::One, tau: 3.0, eta: 0.1 },
        16 => ChainStep::Mirostat { version: MirostatVersion::Two, tau: 3.0, eta: 0.1 },
        17 => ChainStep::AdaptiveP { target: share, decay: 0.9 },
        18 => ChainStep::Skew(3.0 * share - 1.5),
        19 => ChainStep::Xtc { rule: XtcRule::EXPECTED, probability: 0.9 * share, threshold: 0.02 + 0.1 * share },
        20 => ChainStep::TopKTies,
        21 => ChainStep::TypicalP(TypicalRule::Above, 0.05 + 0.9 * share),
        22 => ChainStep::TypicalP(TypicalRule::Ties, 0.05 + 0.9 * share),
        24 => ChainStep::Infill,
        25 => ChainStep::MinEosP(0.1 * share),
        23 => ChainStep::Xtc {
            rule: XtcRule { expected: false, unless_ignored: true },
            probability: 1.0,
            threshold: 0.02 + 0.2 * share,
        },
        _ => ChainStep::Xtc { rule: XtcRule::default(), probability: 1.0, threshold: 0.02 + 0.2 * share },
    }
}

const KINDS: usize = 34;

/// Every sampler alone and after every other: the tokens that are left and their probabilities match the definitions.
#[test]
fn definitions() {
    // Counts for each kind of step, as the first or the second of the chain.
    let (mut decided, mut left_out) = ([0; KINDS], [0; KINDS]);
    let count = |of: &mut [u32; KINDS], kinds: [usize; 2]| kinds.into_iter().for_each(|kind| of[kind] += 1);
    for first in 0..KINDS {
        for second in 0..KINDS {
            for seed in 0..8u64 {
                let case = seed + 100 * first as u64 + 10_000 * second as u64;
                let logits = row(30 + 40 * seed as usize, 3.0 + seed as f64, case);
                let steps = [step(first, case), step(second, case + 50)];
                // Large logits are anywhere in random rows, so some protected tokens are among XTC's choices.
                let (min_keep, protected): (u32, &[u32]) =
                    [(1, &[][..]), (4, &[2, 9, 17, 25]), (12, &[1])][seed as usize % 3];
                let mut naive = Naive { min_keep: min_keep as usize, protected, ..Naive::new(&logits) };
                steps.iter().for_each(|&step| naive.apply(step));
                if naive.near {
                    count(&mut left_out, [first, second]);
                    continue;
                }
                let all = logits.iter().enumerate().map(|(t, &logit)| Candidate { token: t as u32, logit }).collect();
                let chain = Chain {
                    steps: &steps,
                    min_keep,
                    protected,
                    eos: &EOS,
                    xtc: 0,
                    state: STATE,
                    infill: Some(known()),
                    tournament: None,
                };
                let left = chain::run(all, logits.len(), &FILTERS, &chain);
                let mut tokens: Vec<usize> = left.kept().iter().map(|w| w.candidate.token as usize).collect();
                tokens.sort_unstable();
                assert_eq!(tokens, naive.left(), "{steps:?}, case {case}");
                let (expected, total) = (naive.probabilities(), left.total() as f64);
                for weighted in left.kept() {
                    let (got, expected) = (weighted.mass as f64 / total, expected[weighted.candidate.token as usize]);
                    assert!(
                        (got - expected).abs() <= 1e-4 * expected + 1e-9,
                        "{steps:?}, case {case}: {got} {expected}"
                    );
                }
                count(&mut decided, [first, second]);
            }
        }
    }
    let all = |of: [u32; KINDS]| of.iter().sum::<u32>() / 2;
    println!("{} cases decided, {} too near to decide", all(decided), all(left_out));
    assert!(all(left_out) * 10 < all(decided), "too few cases decide anything");
    for kind in 0..KINDS {
        let (decided, left_out, step) = (decided[kind], left_out[kind], step(kind, 0));
        println!("{decided} decided, {left_out} not: {step:?}");
        assert!(left_out < decided, "too few cases decide anything about {step:?}");
    }
}

/// The tokens that the backend draws after a chain have the probabilities of the definitions.
#[test]
fn draws() {
    const DRAWS: u64 = 200_000;
    let chains: [(&str, &[ChainStep]); 15] = [
        ("typical", &[ChainStep::Temperature, ChainStep::TypicalP(TypicalRule::Reached, 0.9)]),
        ("smoothing", &[ChainStep::Smoothing { factor: 0.15, curve: 1.5 }]),
        ("dynamic temperature", &[ChainStep::DynamicTemperature { low: 0.2, high: 2.0, exponent: 1.3 }]),
        ("top-n-sigma, temperature last", &[ChainStep::TopNSigma(1.5), ChainStep::Temperature]),
        ("p-less", &[ChainStep::PLess { norm: false }]),
        ("mirostat", &[ChainStep::Mirostat { version: MirostatVersion::One, tau: 3.0, eta: 0.1 }]),
        (
            "mirostat 2 at a temperature",
            &[ChainStep::Temperature, ChainStep::Mirostat { version: MirostatVersion::Two, tau: 3.0, eta: 0.1 }],
        ),
        ("adaptive-p behind min-p", &[ChainStep::MinP, ChainStep::AdaptiveP { target: 0.1, decay: 0.9 }]),
        ("skew behind top-p", &[ChainStep::TopP, ChainStep::Skew(0.7)]),
        ("xtc on average", &[ChainStep::Xtc { rule: XtcRule::EXPECTED, probability: 0.5, threshold: 0.03 }]),
        ("infill behind top-k", &[ChainStep::TopK, ChainStep::Infill, ChainStep::Temperature]),
        (
            "xtc behind min-p",
            &[ChainStep::MinP, ChainStep::Xtc { rule: XtcRule::default(), probability: 1.0, threshold: 0.05 }],
        ),
        ("likely ends", &[ChainStep::MinEosP(0.001), ChainStep::Temperature]),
        ("min-k behind a temperature", &[ChainStep::Temperature, ChainStep::MinK(50.0)]),
        ("p-less, normalized", &[ChainStep::PLess { norm: true }]),
    ];
    for (i, (name, steps)) in chains.into_iter().enumerate() {
        let logits = row(300, 4.0, 77 + i as u64);
        let mut naive = Naive::new(&logits);
        steps.iter().for_each(|&step| naive.apply(step));
        assert!(!naive.near, "{name}: choose another row");
        let bytes = Dtype::F32.encode(&logits);
        let (mut backend, mut counts) = (CpuBackend::new(1), vec![0u64; logits.len()]);
        for position in 0..DRAWS {
            let spec = RowSpec {
                chain: Some(Chain {
                    steps,
                    min_keep: 1,
                    protected: &[],
                    eos: &EOS,
                    xtc: 0,
                    state: STATE,
                    infill: Some(known()),
                    tournament: None,
                }),
                ..RowSpec::plain(FILTERS, Action::Draw { uniform: uniform(0xD1CE, position, Purpose::Sample) })
            };
            let result = backend.run(&[RowJob { logits: Logits::new(Dtype::F32, &bytes), spec }]).remove(0);
            counts[result.expect("the row is fine").token as usize] += 1;
        }
        let deviate = deviate(&counts, &naive.probabilities());
        println!("{name}: {deviate:+.2} standard deviations (alarm above {DEVIATE}, false alarms {FALSE_ALARM})");
        assert!(deviate < DEVIATE, "{name}: drawn tokens do not have their probabilities ({deviate:.1} deviations)");
    }
}

/// XTC happens at a given share of positions.
#[test]
fn xtc_by_positions() {
    let happened = (0..100_000u64)
        .filter(|&position| croupier::sampling::samplers::xtc::happens(0.3, uniform(5, position, Purpose::Xtc)));
    let deviations = (happened.count() as f64 - 30_000.0) / (100_000f64 * 0.3 * 0.7).sqrt();
    println!("{deviations:+.2} standard deviations (alarm beyond 4.5, false alarms 7e-6)");
    assert!(deviations.abs() < 4.5);
}

/// Whether XTC happens says nothing about the draw: of two equal tokens the first, which XTC excludes, is drawn half as
/// often as without XTC.
#[test]
fn xtc_and_the_draw_are_independent() {
    let samplers = SamplerParams { xtc_probability: 0.5, xtc_threshold: 0.1, ..SamplerParams::default() };
    let params = SamplingParams { samplers: samplers.into(), ..SamplingParams::default() };
    let rules = Arc::new(Rules::new(params, &[]));
    let bytes = Dtype::F32.encode(&[0.0, 0.0]);
    let is_first = |&seed: &u64| {
        let sequence = Sequence::open(Arc::clone(&rules), seed, &[1, 0], &[]);
        let spec = sequence.spec(sequence.draw(Purpose::Sample));
        sample_row(&Logits::new(Dtype::F32, &bytes), &spec).expect("the row is fine").token == 0
    };
    let firsts = (0..100_000).filter(is_first).count();
    let deviations = (firsts as f64 - 25_000.0) / (100_000f64 * 0.25 * 0.75).sqrt();
    println!("{deviations:+.2} standard deviations (alarm beyond 4.5, false alarms 7e-6)");
    assert!(deviations.abs() < 4.5, "{firsts}");
}

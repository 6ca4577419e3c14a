//! Plain rows and draft rows with the kernels on a CPU: what is kept of a draft row around the longest lists, and proof that wrong
//! inputs of a kernel are noticed.

use super::harness::{Emulator, Layout, Spoil, built, each_flags, each_job, unspoilt};
use crate::cases::{Case, SHAPES, bits, case, row, summary};
use croupier::backend::cuda::abi::{self, LISTED};
use croupier::backend::cuda::ask::{Asked, has_kernel};
use croupier::params::Decay;
use croupier::sampling::adjust::{Penalties, TokenAdjust};
use croupier::sampling::kept::{Form, Kept};
use croupier::sampling::logits::Dtype;
use croupier::sampling::row::{Action, Filters, LogprobsMode, RowResult};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::panic::{AssertUnwindSafe, catch_unwind};

const LAYOUT: Layout = Layout { team_size: 2, teams: 2, cached: 0, seed: 5 };

/// The results of rows, with a launch for each number format; `None` where a kernel contradicts itself.
fn run(emulator: &mut Emulator, cases: &[Case], layout: Layout, spoil: Spoil<'_>) -> Vec<Option<RowResult>> {
    let asked: Vec<Asked<'_>> = cases.iter().map(|case| Asked::row(case.job())).collect();
    let answers = emulator.ask(&asked, layout, spoil);
    cases.iter().zip(answers).map(|(case, answer)| answer.result(&case.job())).collect()
}

/// Draft rows of `vocab` tokens, with a top-k around the largest that is kept as a list.
fn drafts(vocab: usize, dtype: Dtype) -> Vec<Case> {
    let longest = vocab * dtype.size() / 16;
    let listed = LISTED as usize;
    let top_ks = [0, 1, longest.saturating_sub(1), longest, longest + 1, listed - 1, listed, listed + 1, vocab];
    let cuts =
        [(1.0, 1.0, 0.0), (0.3, 0.9, 0.0), (1.5, 0.999, 1e-6), (1e-3, 1.0, 0.0), (1.0, 1.0, 0.3), (0.0, 1.0, 0.0)];
    let mut all = Vec::new();
    for (i, top_k) in top_ks.into_iter().enumerate() {
        for (j, (temperature, top_p, min_p)) in cuts.into_iter().enumerate() {
            let seed = (vocab * 64 + i * 8 + j) as u64;
            let mut case = Case::new(dtype, &row((seed % u64::from(SHAPES)) as u8, vocab, seed));
            case.filters = Filters { temperature, top_k: top_k as u32, top_p, min_p };
            case.action = Action::Propose { uniform: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) };
            case.allowed = (j == 4).then(|| (0..vocab as u32).filter(|t| t % 3 != 1).collect());
            let mode = [LogprobsMode::Raw, LogprobsMode::Processed][i % 2];
            case.logprobs = (j % 2 == 0).then(|| (4, mode, vec![0, vocab as u32 - 1]));
            all.push(case);
        }
    }
    all
}

#[test]
fn what_is_kept_is_the_distribution() {
    if !built() {
        return;
    }
    let (mut lists, mut rows) = (0, 0);
    for (build, sizes) in [("narrow", &[1usize, 4, 9, 1023, 4096, 4100, 8195][..]), ("wide", &[8193])] {
        let mut emulator = Emulator::start(build);
        for (turn, &vocab) in sizes.iter().enumerate() {
            let dtype = Dtype::ALL[turn % 3];
            let cases = drafts(vocab, dtype);
            for (case, got) in cases.iter().zip(run(&mut emulator, &cases, LAYOUT, &unspoilt)) {
                let got = got.expect("the kernel contradicted itself");
                assert_eq!(bits(&got), bits(&case.expected()), "{}", summary(case));
                let Ok(got) = got else { continue };
                let kept = got.kept.expect("it was asked for");
                assert!(kept.bytes() <= size_of::<Kept>() + (vocab * 4).max(16), "{}", summary(case));
                match kept.form() {
                    Form::List(_) => lists += 1,
                    Form::Row(_) => rows += 1,
                }
            }
        }
    }
    println!("{lists} lists, {rows} rows");
    assert!(lists > 100 && rows > 100);
}

/// The bound of the first tokens is rounded, so the last of them may be just at the bound: one without an adjust, one that has its
/// place by a bias, or one as it was sent.
#[test]
fn first_tokens_at_their_bound() {
    if !built() {
        return;
    }
    // From the second one on, each is in a bin of its own, whose end is halfway between two floats.
    let value = |i: u16| 1000.0 - f32::from(if i > 0 { i + 15 } else { 0 }) / 16_384.0;
    let touched = |token, bias| TokenAdjust { token, bias, ..TokenAdjust::default() };
    let mut emulator = Emulator::start("narrow");
    for top in 2..=16 {
        let mut logits = vec![0.0; 300];
        (0..40).for_each(|i| logits[100 + 4 * usize::from(i)] = value(i));
        let case = Case {
            filters: Filters { top_k: top, ..Filters::OFF },
            logprobs: Some((top, LogprobsMode::Raw, vec![0])),
            ..Case::new(Dtype::F32, &logits)
        };
        logits[0] = value(top as u16 - 1) - 1.0;
        let raised = Case { bytes: Dtype::F32.encode(&logits), adjusts: vec![touched(0, 1.0)], ..case.clone() };
        let lowered = Case { adjusts: (0..40).map(|i| touched(100 + 4 * i, -1.0)).collect(), ..case.clone() };
        let draws =
            |case: &Case| [0, u64::MAX].map(|uniform| Case { action: Action::Draw { uniform }, ..case.clone() });
        let cases = [case, raised, lowered].map(|case| draws(&case)).concat();
        for (case, got) in cases.iter().zip(run(&mut emulator, &cases, Layout { team_size: 1, ..LAYOUT }, &unspoilt)) {
            assert_eq!(got.as_ref().map(bits), Some(bits(&case.expected())), "{}", summary(case));
        }
    }
}

/// Deterministic samples of the cases: `wanted` chooses among them.
fn samples(count: usize, wanted: impl Fn(&Case) -> bool) -> Vec<Case> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = case();
    let drawn = std::iter::from_fn(|| Some(strategy.new_tree(&mut runner).unwrap().current()));
    drawn.filter(|case| has_kernel(&case.job().spec).is_ok() && wanted(case)).take(count).collect()
}

/// How many of the cases differ from the specification.
fn differing(emulator: &mut Emulator, cases: &[Case], spoil: Spoil<'_>) -> usize {
    let got = run(emulator, cases, LAYOUT, spoil);
    cases.iter().zip(got).filter(|(case, got)| got.as_ref().map(bits) != Some(bits(&case.expected()))).count()
}

/// The same case with every penalty that depends on the history, and without filters.
fn with_history(case: Case) -> Case {
    let decay = Decay { place: 300, last_n: 100, decay_n: 800 };
    // Up to 899 tokens ago, so that positions wrap around at 2^16.
    let placed = |adjust: &TokenAdjust| adjust.at(300u16.wrapping_sub((adjust.token % 900) as u16));
    Case {
        filters: Filters::OFF,
        chain: None,
        penalties: Penalties {
            repetition: 1.3,
            frequency: 0.2,
            presence: 0.4,
            encoder: 0.8,
            decay,
            length: 0.7,
            ..case.penalties
        },
        adjusts: case.adjusts.iter().map(placed).collect(),
        logprobs: Some((5, LogprobsMode::Processed, vec![0])),
        ..case
    }
}

/// Each of these would give plausible tokens.
const OF_HISTORY: [(&str, Spoil<'static>); 9] = [
    ("no encoder penalty", &|_, rows, inputs| each_job(rows, inputs, |job| job.encoder = 1.0)),
    ("no length penalty", &|_, rows, inputs| each_job(rows, inputs, |job| job.length = 0.0)),
    ("penalties at full strength", &|_, rows, inputs| each_job(rows, inputs, |job| job.decay_n = 0)),
    ("penalties of the place behind", &|_, rows, inputs| {
        each_job(rows, inputs, |job| job.place = (job.place + 1) & 0xFFFF)
    }),
    ("penalties that fall off one token later", &|_, rows, inputs| each_job(rows, inputs, |job| job.last_n += 1)),
    ("penalties that fall off more slowly", &|_, rows, inputs| each_job(rows, inputs, |job| job.decay_n += 1)),
    ("penalties that always divide first", &|_, rows, inputs| {
        each_job(rows, inputs, |job| job.flags &= !abi::SUBTRACT_FIRST)
    }),
    ("penalties that always subtract first", &|_, rows, inputs| {
        each_job(rows, inputs, |job| job.flags |= abi::SUBTRACT_FIRST)
    }),
    ("biases before the penalties", &|_, rows, inputs| each_flags(rows, inputs, |flags| flags & !TokenAdjust::LATE)),
];

/// The same for the distribution that a draft token is drawn from.
const OF_DRAFTS: [(&str, Spoil<'static>); 4] = [
    ("one token more", &|_, rows, inputs| {
        each_job(rows, inputs, |job| job.top_k = job.top_k.saturating_add(u32::from(job.top_k > 0)))
    }),
    ("half of the least mass", &|_, rows, inputs| each_job(rows, inputs, |job| job.min_p_need /= 2)),
    ("another temperature", &|_, rows, inputs| each_job(rows, inputs, |job| job.scale *= 0.9)),
    ("a little more of the mass", &|_, rows, inputs| {
        each_job(rows, inputs, |job| job.top_p_fraction = (job.top_p_fraction + (1 << 26)).min(1 << 32));
    }),
];

#[test]
fn planted_faults_in_plain_rows_are_seen() {
    if !built() {
        return;
    }
    let mut emulator = Emulator::start("narrow");
    // With penalties, a reduction by DRY that comes after them has no kernel.
    let has_one = |case: &Case| case.adjusts.len() > 8 && has_kernel(&with_history(case.clone()).job().spec).is_ok();
    let of_history: Vec<Case> = samples(40, has_one).into_iter().map(with_history).collect();
    let proposes = |case: &Case| matches!(case.action, Action::Propose { .. }) && case.filters.temperature > 0.0;
    let of_drafts = samples(240, proposes);
    for (cases, planted) in [(&of_history, &OF_HISTORY[..]), (&of_drafts, &OF_DRAFTS[..])] {
        assert_eq!(differing(&mut emulator, cases, &unspoilt), 0);
        for (name, spoil) in planted {
            let seen = differing(&mut emulator, cases, spoil);
            println!("{name}: seen in {seen} of {}", cases.len());
            assert!(seen > 0, "{name} was not seen");
        }
    }
}

/// Blocks that never wait for each other at their barrier in global memory, or only for the phase before. Results are then from
/// what other blocks wrote earlier, or not at all. A kernel that contradicts itself or waits for ever counts as seen, too.
#[test]
fn a_missing_barrier_of_the_grid_is_seen() {
    if !built() {
        return;
    }
    let mut emulator = Emulator::start("narrow");
    let (drawn, listed) = (Filters::OFF, Filters { top_k: 40, top_p: 0.9, ..Filters::OFF });
    let case = |at: u64| Case {
        filters: [drawn, listed][at as usize % 2],
        action: Action::Draw { uniform: at.wrapping_mul(0x9E37_79B9_7F4A_7C15) },
        ..Case::new(Dtype::F32, &row(0, 5000, at))
    };
    let cases: Vec<Case> = (0..16).map(case).collect();
    assert_eq!(differing(&mut emulator, &cases, &unspoilt), 0);
    for arrived in [1 << 30, LAYOUT.team_size] {
        let differs = |case: &&Case| {
            emulator.arrived = arrived;
            let alone = std::slice::from_ref(*case);
            let ran = catch_unwind(AssertUnwindSafe(|| differing(&mut emulator, alone, &unspoilt)));
            ran.unwrap_or_else(|_| {
                emulator = Emulator::start("narrow");
                1
            }) > 0
        };
        let seen = cases.iter().filter(differs).count();
        println!("{arrived} blocks there too soon: seen in {seen} of {}", cases.len());
        assert!(seen > cases.len() / 2, "{arrived}: seen in {seen}");
    }
}

/// A logit masked with the least finite number becomes the largest finite one, as the penalty's formula says, and not infinity,
/// which would fail the row.
#[test]
fn a_length_penalty_makes_no_infinity() {
    if !built() {
        return;
    }
    let mut emulator = Emulator::start("narrow");
    let masked = |case: Case| {
        let ends = |adjust: &TokenAdjust| TokenAdjust {
            flags: TokenAdjust::END,
            bias: -f32::MAX,
            ..TokenAdjust { token: adjust.token, ..TokenAdjust::default() }
        };
        let adjusts = case.adjusts.iter().map(ends).collect();
        Case { adjusts, ..with_history(case) }
    };
    let masked: Vec<Case> = samples(40, |case| case.adjusts.len() > 8).into_iter().map(masked).collect();
    let largest =
        masked.iter().map(|case| Case { penalties: Penalties { length: 1.59, ..case.penalties }, ..case.clone() });
    let largest: Vec<Case> = largest.collect();
    assert_eq!(differing(&mut emulator, &largest, &unspoilt), 0);
    assert!(largest.iter().filter(|case| case.expected().is_ok()).count() > 10);
}

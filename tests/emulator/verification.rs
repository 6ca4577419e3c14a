//! Verification with the kernels on a CPU, compared with the specification: every rule, chains and trees, distributions that are
//! kept, sent or absent. Also proves that wrong inputs of a kernel are noticed.

use super::harness::{Emulator, Layout, Spoil, built, config, each_job, layout, unspoilt};
use crate::draft_jobs::{Case, OFF, Recipe, Row, Source, bits, recipe, summary, together};
use croupier::backend::cpu::CpuBackend;
use croupier::backend::cuda::abi;
use croupier::backend::cuda::ask::{Asked, HostRows, Kernel, LaunchLimits, NoKernel, has_kernel};
use croupier::backend::cuda::read::Answer;
use croupier::backend::cuda::verify::verify;
use croupier::backend::{Backend, RowJob, VerifyJob, VerifyResult};
use croupier::sampling::kept::Kept;
use croupier::sampling::logits::Dtype;
use croupier::sampling::mass::{exponent, mass, scale};
use croupier::sampling::row::{Action, Filters};
use croupier::speculative::numbers::Numbers;
use croupier::speculative::rule::AcceptanceRule;
use croupier::speculative::typical::Typical;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};

const ROOM: usize = 64 << 20;

/// What is kept of a draft row: from the kernel's report or, if the row has no kernel, from the backend that it is handed over to.
fn kept(emulator: &mut Emulator, job: &RowJob<'_>, layout: Layout) -> Box<Kept> {
    let result = match has_kernel(&job.spec) {
        Ok(()) => emulator.ask(&[Asked::row(*job)], layout, &unspoilt).remove(0).result(job),
        Err(_) => Some(CpuBackend::new(1).run(&[*job]).remove(0)),
    };
    result.expect("the kernel contradicted itself").unwrap().kept.unwrap()
}

/// The results of the cases, verified together on a device that does `at_once` rows at once, and how many rows each launch has.
fn run(
    emulator: &mut Emulator,
    cases: &[Case],
    layout: Layout,
    at_once: usize,
    spoil: Spoil<'_>,
) -> (Vec<Result<VerifyResult, NoKernel>>, Vec<usize>) {
    let (mut results, mut launches) = (vec![], vec![]);
    let emulator = RefCell::new(emulator);
    let keep = |job: &RowJob<'_>| kept(&mut emulator.borrow_mut(), job, layout);
    together(cases, &keep, &mut Vec::new(), &mut |jobs: &[VerifyJob<'_>]| {
        let verified = verify::<Infallible>(
            jobs,
            LaunchLimits { bytes: ROOM, logits: 1 << 20, at_once, host_rows: HostRows::Cuda },
            &mut |asked| {
                launches.push(asked.len());
                let answers: Vec<Answer> = emulator.borrow_mut().ask(asked, layout, spoil);
                Ok(answers)
            },
        );
        results = verified.unwrap();
    });
    (results, launches)
}

fn check(emulator: &mut Emulator, cases: &[Case], layout: Layout) -> Vec<usize> {
    check_on(emulator, cases, layout, usize::MAX)
}

/// The same on a device that does `at_once` rows at once.
pub(crate) fn check_on(emulator: &mut Emulator, cases: &[Case], layout: Layout, at_once: usize) -> Vec<usize> {
    let (results, launches) = run(emulator, cases, layout, at_once, &unspoilt);
    for (case, got) in cases.iter().zip(results) {
        match got {
            Ok(got) => assert_eq!(bits(&got), bits(&case.expected()), "{layout:?} on {}", summary(case)),
            Err(reason) => assert_eq!(Some(reason), case.rows.iter().find_map(no_kernel), "{}", summary(case)),
        }
    }
    launches
}

/// Why a row has no kernel.
fn no_kernel(row: &Row) -> Option<NoKernel> {
    let spec = row.job(Action::Score { token: 0 }).spec;
    let left = spec.mask.map_or(1, |mask| {
        let listed = |token: &u32| spec.allowed.is_none_or(|allowed| allowed.contains(token));
        mask.tokens().filter(listed).count()
    });
    let reasons = [
        (row.chain.is_some() && row.filters.temperature != 0.0, NoKernel::Chain),
        (row.mark.is_some(), NoKernel::Watermark),
        (left == 0 || left > 4096, NoKernel::TokenMask),
        (spec.adjusts.have_two_biases(&spec.penalties), NoKernel::TwoBiases),
    ];
    reasons.into_iter().find(|reason| reason.0).map(|(_, reason)| reason)
}

/// Cases of which most target rows have no chain and no watermark, since those have no kernel; drafts may have chains.
fn cases(vocabs: Vec<usize>, most: usize) -> impl Strategy<Value = Option<Case>> {
    (recipe(vocabs, most), prop::bool::weighted(0.05)).prop_map(|(mut recipe, chained)| {
        if !chained {
            (recipe.chains[0], recipe.mark) = (None, None);
        }
        recipe.case()
    })
}

fn random_drafts(build: &str, batches: u32, largest: usize, most: usize, vocabs: Vec<usize>) {
    if !built() {
        return;
    }
    let at_once = prop_oneof![Just(usize::MAX), 0..2 * most];
    let strategy = (prop::collection::vec(cases(vocabs, most), 1..largest), layout(), at_once);
    let result = TestRunner::new(config(batches)).run(&strategy, |(cases, layout, at_once)| {
        thread_local!(static RUNNING: RefCell<Option<Emulator>> = const { RefCell::new(None) });
        let mut emulator = RUNNING.take().unwrap_or_else(|| Emulator::start(build));
        let cases: Vec<Case> = cases.into_iter().flatten().collect();
        if !cases.is_empty() {
            check_on(&mut emulator, &cases, layout, at_once);
        }
        RUNNING.set(Some(emulator));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn random_drafts_on_narrow_blocks_equal_the_specification() {
    random_drafts("narrow", 150, 4, 6, vec![127, 128, 129, 1023, 1025, 2049, 5000]);
}

#[test]
fn random_drafts_on_wide_blocks_equal_the_specification() {
    random_drafts("wide", 10, 2, 4, vec![8191, 8193, 17_000]);
}

#[test]
fn long_drafts_equal_the_specification() {
    random_drafts("narrow", 12, 2, 64, vec![64, 1025]);
}

/// What is left of the target if the draft's distribution is cut among equal tokens, or if its likely tokens have just the mass that
/// min-p asks for: most draws are at the cut or just after it.
#[test]
fn residuals_are_drawn_alike_where_a_draft_is_cut() {
    if !built() {
        return;
    }
    let vocab = 1500;
    let step = |at: usize, [low, high]: [f32; 2]| [vec![low; at], vec![high; vocab - at]].concat();
    let by_mass = |cut| Row::new(Dtype::F32, &step(cut, [1.0, 0.0]), Filters { min_p: 1.0, ..OFF });
    let by_count = |cut| Row::new(Dtype::F32, &vec![1.0; vocab], Filters { top_k: cut as u32, ..OFF });
    // A thread takes four tokens at a time, and the last one that a draft has may be any of them.
    let drafts = (1298..=1301).map(|cut| (cut, by_count(cut))).chain([(1300, by_mass(1300))]);
    let mut emulator = Emulator::start("narrow");
    for (cut, draft) in drafts {
        let case = |seed| Case {
            rows: vec![Row::new(Dtype::F32, &step(cut - 10, [0.0, 5.0]), OFF); 2],
            numbers: Numbers { seed, start: 3 },
            ..Case::new(vec![(7, Source::Kept(draft.clone()))])
        };
        let cases: Vec<Case> = (0..40).map(case).collect();
        let behind = |case: &Case| case.expected().is_ok_and(|found| found.emitted[0] as usize + 1 >= cut);
        assert!(cases.iter().filter(|case| behind(case)).count() > 26);
        for cases in cases.chunks(20) {
            check(&mut emulator, cases, LAYOUT);
        }
    }
}

/// Typical acceptance is measured by what a draft gives to the tokens that are typical of the target.
#[test]
fn what_a_draft_gives_to_typical_tokens_is_measured() {
    if !built() {
        return;
    }
    let row = |logits: [f32; 4]| Row::new(Dtype::F32, &logits.into_iter().cycle().take(300).collect::<Vec<_>>(), OFF);
    let case = |epsilon| Case {
        rows: vec![row([4.0, 0.0, 1.0, 2.0]); 2],
        rule: AcceptanceRule::Typical(Typical { epsilon, alpha: 1.0 }),
        ..Case::new(vec![(3, Source::Kept(row([1.0, 2.0, 0.5, 3.0])))])
    };
    let cases = [0.0, 0.001, 0.01, 1.0].map(case);
    check(&mut Emulator::start("narrow"), &cases, LAYOUT);
}

/// Rows of lengths around those of vectors, lanes and warps, of which nearly all is left after a rejected token. What follows them
/// in memory would be likely, and weighs nothing.
#[test]
fn what_follows_a_row_is_not_weighed() {
    if !built() {
        return;
    }
    let mut emulator = Emulator::start("narrow");
    for dtype in Dtype::ALL {
        let case = |vocab: usize| {
            let likely = |token| if token == 3 { 9.0 } else { 0.0 };
            let draft = Row::new(dtype, &(0..vocab).map(likely).collect::<Vec<f32>>(), OFF);
            let rows = vec![Row::new(dtype, &vec![1.0; vocab], OFF); 2];
            Case { rows, ..Case::new(vec![(3, Source::Kept(draft))]) }
        };
        let sizes = [5..=12, 125..=132, 252..=260, 1021..=1029].into_iter().flatten();
        let cases: Vec<Case> = sizes.map(case).collect();
        let rejects = |case: &&Case| case.expected().is_ok_and(|found| found.emitted[0] != 3);
        assert!(cases.iter().filter(rejects).count() > 25);
        check(&mut emulator, &cases, LAYOUT);
    }
}

/// Probabilities that were sent become masses when what is left is summed, and again when a token is drawn from it. Here each is half
/// a unit of mass, which is rounded up, and half of what the target has.
#[test]
fn sent_probabilities_are_rounded_alike_in_sums_and_draws() {
    if !built() {
        return;
    }
    let (vocab, unlikely, least) = (1500, 1.0 / (1u64 << 41) as f32, -27.0);
    let target = |at| [0.0, f32::NEG_INFINITY].get(at).copied().unwrap_or(least);
    let target: Vec<f32> = (0..vocab).map(target).collect();
    assert_eq!(mass(exponent(least, 0.0, scale(1.0))), 2);
    let sent: Vec<f32> = (0..vocab).map(|at| if at == 0 { 1.0 } else { unlikely }).collect();
    let case = |seed| Case {
        rows: vec![Row::new(Dtype::F32, &target, OFF); 2],
        numbers: Numbers { seed, start: 3 },
        ..Case::new(vec![(1, Source::Dense(Dtype::F32, Dtype::F32.encode(&sent)))])
    };
    let cases: Vec<Case> = (0..20).map(case).collect();
    assert!(cases.iter().all(|case| case.expected().is_ok_and(|found| found.emitted[0] > 1)));
    check(&mut Emulator::start("narrow"), &cases, LAYOUT);
}

/// Two siblings that are mostly rejected, each with a row of its own format, or without a row.
#[test]
fn siblings_may_have_different_formats() {
    if !built() {
        return;
    }
    let (vocab, target) = (300, [2.0, -1.0, 0.5, 1.0]);
    let likely = |dtype, sent: bool, token: usize| {
        let value = |at: usize| match (at == token, sent) {
            (true, _) => [8.0, 0.75][usize::from(sent)],
            (false, true) => 0.25 / 299.0,
            (false, false) => [0.0, 0.25, -2.0][at % 3],
        };
        let values: Vec<f32> = (0..vocab).map(value).collect();
        match sent {
            true => Source::Dense(dtype, dtype.encode(&values)),
            false => Source::Kept(Row::new(dtype, &values, OFF)),
        }
    };
    let source = |kind: usize, token: u32| match kind {
        6 => Source::Sparse(vec![token, 90], vec![0.5, 0.5]),
        _ => likely(Dtype::ALL[kind % 3], kind >= 3, token as usize),
    };
    let target: Vec<f32> = target.into_iter().cycle().take(vocab).collect();
    let case = |kinds: usize| Case {
        rows: vec![Row::new(Dtype::F32, &target, OFF); 3],
        parents: vec![-1, -1],
        numbers: Numbers { seed: kinds as u64, start: 3 },
        ..Case::new(vec![(7, source(kinds % 7, 7)), (11, source(kinds / 7, 11))])
    };
    let cases: Vec<Case> = (0..49).map(case).collect();
    let rejects = |case: &&Case| case.expected().is_ok_and(|found| !matches!(found.emitted[0], 7 | 11));
    assert!(cases.iter().filter(rejects).count() > 40);
    check(&mut Emulator::start("narrow"), &cases, LAYOUT);
}

/// Deterministic samples of the recipes: `wanted` chooses among them.
fn samples(count: usize, wanted: impl Fn(&Recipe) -> bool) -> Vec<Case> {
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let strategy = recipe(vec![127, 300, 1025], 5);
    let mut found = Vec::new();
    while found.len() < count {
        let mut recipe = strategy.new_tree(&mut runner).unwrap().current();
        (recipe.chains, recipe.mark) = ([None, None], None);
        if wanted(&recipe) {
            found.extend(recipe.case());
        }
    }
    found
}

pub(crate) const LAYOUT: Layout = Layout { team_size: 2, teams: 2, cached: 0, seed: 5 };

/// What a verification costs: one launch if draws decide, one more for what a rejected draft leaves, and one more for block
/// verification. In a chain, only the row that rejected is weighed: a walk that lacks an answer does not ask about what would
/// follow without it.
#[test]
fn launches_are_few() {
    if !built() {
        return;
    }
    let mut emulator = Emulator::start("narrow");
    // The most launches, and the most rows in launches after the first.
    let mut most = |count: usize, wanted: &dyn Fn(&Recipe) -> bool| {
        let cases = samples(count, wanted);
        let launches = cases.into_iter().map(|case| check(&mut emulator, &[case], LAYOUT));
        launches.fold((0, 0), |(most, weighed), of| (most.max(of.len()), weighed.max(of.iter().skip(1).sum())))
    };
    let certain = |recipe: &Recipe| recipe.sources.iter().all(|kind| kind % 4 == 3);
    let rejection = |recipe: &Recipe| recipe.rule == AcceptanceRule::Rejection && !recipe.measure;
    assert_eq!(most(20, &|r| rejection(r) && certain(r)), (1, 0));
    assert_eq!(most(20, &|r| r.rule == AcceptanceRule::Greedy && !r.measure), (1, 0));
    assert_eq!(most(40, &|r| rejection(r) && r.tree.is_none()), (2, 1));
    assert!(most(60, &|r| r.rule == AcceptanceRule::Block && !r.measure && r.tree.is_none()).0 <= 3);
}

/// Changes the kernels' inputs about each draft.
fn each_draft(rows: usize, inputs: &mut [u8], change: impl Fn(&mut abi::DraftRow)) {
    let from = rows * size_of::<abi::RowJob>();
    let jobs = inputs[..from].chunks_exact(size_of::<abi::RowJob>());
    let count: u32 = jobs.map(|place| bytemuck::pod_read_unaligned::<abi::RowJob>(place).draft_count).sum();
    let places = inputs[from..].chunks_exact_mut(size_of::<abi::DraftRow>()).take(count as usize);
    for place in places {
        let mut draft = bytemuck::pod_read_unaligned(place);
        change(&mut draft);
        place.copy_from_slice(bytemuck::bytes_of(&draft));
    }
}

/// Each of these would give plausible tokens.
const PLANTED: [(&str, Spoil<'static>); 8] = [
    ("a residual without subtraction", &|_, rows, inputs| each_draft(rows, inputs, |draft| draft.of_draft = 0.0)),
    ("a draft that counts by half", &|_, rows, inputs| each_draft(rows, inputs, |draft| draft.of_draft /= 2.0)),
    ("a draft at another temperature", &|_, rows, inputs| each_draft(rows, inputs, |draft| draft.scale *= 0.9)),
    ("masses of another token", &|_, rows, inputs| {
        each_draft(rows, inputs, |draft| draft.masses = draft.masses.saturating_sub(8));
    }),
    ("a target that is not cut", &|kernel, rows, inputs| {
        each_job(rows, inputs, |job| {
            if kernel == Kernel::Weigh {
                job.last_key = 0xFF7F_FFFF_FFFF_FFFF
            }
        });
    }),
    ("the row before", &|_, rows, inputs| {
        let before = std::cell::Cell::new(None);
        each_job(rows, inputs, |job| {
            let own = job.logits;
            job.logits = before.replace(Some(own)).unwrap_or(own);
        });
    }),
    ("another number where it rejects", &|kernel, rows, inputs| {
        each_job(rows, inputs, |job| {
            if kernel == Kernel::Weigh {
                job.uniform = !job.uniform
            }
        });
    }),
    ("another number where it does not", &|kernel, rows, inputs| {
        each_job(rows, inputs, |job| {
            if kernel == Kernel::Sample {
                job.uniform = !job.uniform
            }
        });
    }),
];

#[test]
fn verification_of_planted_faults_is_seen() {
    if !built() {
        return;
    }
    let mut emulator = Emulator::start("narrow");
    // Rows of one length, so that any can take another's place; some draft that was kept, so that it has a temperature.
    let is_kept = |recipe: &Recipe| recipe.sources.iter().any(|kind| kind % 4 == 0);
    let is_wanted = |r: &Recipe| r.rule == AcceptanceRule::Rejection && r.bad_row.is_none() && is_kept(r);
    let cases = samples(120, is_wanted);
    let mut differing = |spoil: Spoil<'_>| {
        let mut differs = |case: &&Case| {
            let ran = AssertUnwindSafe(|| {
                run(&mut emulator, std::slice::from_ref(*case), LAYOUT, usize::MAX, spoil).0.remove(0)
            });
            match catch_unwind(ran) {
                Ok(Ok(got)) => bits(&got) != bits(&case.expected()),
                // A kernel that contradicts itself is caught; a row without a kernel says nothing.
                Ok(Err(reason)) => reason == NoKernel::Contradiction,
                // The sanitizers have seen it, such as a logit above what the kernel was told is the maximum.
                Err(_) => {
                    emulator = Emulator::start("narrow");
                    true
                }
            }
        };
        cases.iter().filter(|case| differs(case)).count()
    };
    assert_eq!(differing(&unspoilt), 0);
    for (name, spoil) in PLANTED {
        let seen = differing(spoil);
        println!("{name}: seen in {seen} of {}", cases.len());
        assert!(seen > 0, "{name} was not seen");
    }
}

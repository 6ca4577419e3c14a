//! Runs the kernels on a CPU, from the same sources as on a GPU, with a fiber for each thread and under sanitizers, and compares
//! the results bit for bit with the specification. Also proves that the emulator notices faults: each planted fault must be caught.
//!
//! Narrow and wide are the two builds, of blocks with 64 and 512 threads. A team is the blocks that work on one row, and a slice is
//! the chunks of the row that one of them works on (kernels/README.md has all words).

mod beside;
mod by_position;
mod harness;
mod machine;
mod on_device;
mod plain;
mod spread;
mod verification;

use crate::cases::{Case, SHAPES, bits, case, row, summary};
use crate::rows::Lcg;
use croupier::backend::cuda::abi::{LISTED, SLICE_CHUNKS};
use croupier::backend::cuda::ask::{Asked, has_kernel};
use croupier::sampling::adjust::{Penalties, TokenAdjust};
use croupier::sampling::logits::Dtype;
use croupier::sampling::row::{Action, Filters, LogprobsMode};
use harness::{Emulator, FOLDER, Layout, built, config, layout, unspoilt};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::process::Command;

/// Runs the rows that have a kernel, by number format, and compares the results with the specification's.
fn check(emulator: &mut Emulator, cases: &[Case], layout: Layout) {
    let can = |case: &&Case| {
        let job = case.job();
        emulator.has_room(job.logits.vocab_size()) && has_kernel(&job.spec).is_ok()
    };
    // Kernels do not report how a token was chosen.
    let cases: Vec<Case> = cases.iter().map(|case| Case { report: None, ..case.clone() }).collect();
    let fit: Vec<&Case> = cases.iter().filter(can).collect();
    let asked: Vec<Asked<'_>> = fit.iter().map(|case| Asked::row(case.job())).collect();
    for (case, answer) in fit.into_iter().zip(emulator.ask(&asked, layout, &unspoilt)) {
        let got = answer.result(&case.job()).expect("the kernel contradicted itself");
        assert_eq!(bits(&got), bits(&case.expected()), "{layout:?} on {}", summary(case));
    }
}

/// Runs random batches on one build. After a failure a new emulator is started, so that a smaller case can be found.
fn random_batches(build: &str, batches: u32, largest: usize) {
    if !built() {
        return;
    }
    let strategy = (prop::collection::vec(case(), 1..largest), layout());
    let result = TestRunner::new(config(batches)).run(&strategy, |(cases, layout)| {
        thread_local!(static RUNNING: std::cell::RefCell<Option<Emulator>> = const { std::cell::RefCell::new(None) });
        let mut emulator = RUNNING.take().unwrap_or_else(|| Emulator::start(build));
        check(&mut emulator, &cases, layout);
        RUNNING.set(Some(emulator));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn random_batches_of_narrow_blocks_equal_the_specification() {
    random_batches("narrow", 300, 6);
}

#[test]
fn random_batches_of_wide_blocks_equal_the_specification() {
    random_batches("wide", 30, 4);
}

#[test]
fn named_edges() {
    if !built() {
        return;
    }
    for (build, team_size) in [("narrow", 1), ("narrow", 3), ("wide", 1), ("wide", 2)] {
        let mut emulator = Emulator::start(build);
        for (name, case) in crate::cases::named_edges() {
            println!("{name}");
            check(&mut emulator, &[case], Layout { team_size, teams: 1, cached: team_size - 1, seed: 1 });
        }
    }
}

/// Rows of one token less and more than vectors, warps, chunks and slices hold, so that the last of these are almost empty.
#[test]
fn sizes_at_the_boundaries() {
    if !built() {
        return;
    }
    let mut rng = Lcg(5);
    for (build, chunk) in [("narrow", 1024usize), ("wide", 8192)] {
        let slice = chunk * SLICE_CHUNKS as usize;
        let mut sizes = vec![1, 2, 7, 8, 9, 31, 33, 127, chunk - 1, chunk, chunk + 1, 3 * chunk + 5];
        sizes.extend(if build == "narrow" {
            vec![slice - 1, slice, slice + 1, 8 * slice]
        } else {
            vec![slice + 1, 1 << 20]
        });
        let mut emulator = Emulator::start(build);
        for size in sizes {
            let shape = rng.below(u64::from(SHAPES)) as u8;
            let mut case = Case::new(Dtype::ALL[rng.below(3) as usize], &row(shape, size, rng.next()));
            case.filters.top_p = [1.0, 0.9][rng.below(2) as usize];
            case.penalties = Penalties { repetition: 1.3, frequency: 0.1, presence: 0.2, ..Penalties::OFF };
            // The last token of the row is reported, and the last that a draw can reach is drawn.
            case.banned = vec![size as u32 / 2];
            case.action = Action::Draw { uniform: u64::MAX };
            case.logprobs = Some((3, LogprobsMode::Raw, vec![0, size as u32 - 1]));
            let layout = Layout { team_size: 1 + rng.below(3) as u32, teams: 1, cached: rng.below(4) as u32, seed: 3 };
            check(&mut emulator, &[case], layout);
        }
    }
}

/// Short lists are put in order by counting; longer ones are sorted, and drawn from by bins. The lengths are on both sides of each
/// bound; tokens are close together and far apart; the first, the last and other tokens are drawn; ids take two and three rounds of
/// bins.
#[test]
fn lists_of_every_kind_of_length() {
    if !built() {
        return;
    }
    let mut rng = Lcg(11);
    let lengths: &[u32] = &[1, 2, 16, 17, 31, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024];
    for (build, lengths, vocab, apart) in [
        ("narrow", lengths, 1500, 1),
        ("narrow", lengths, 100_000, 97),
        ("wide", &[128, 129, 600], 40_000, 1),
        ("wide", &[1024], 270_000, 263),
    ] {
        let mut emulator = Emulator::start(build);
        for (&top_k, cut) in lengths.iter().zip([0.0, 0.01].into_iter().cycle()) {
            let mut logits: Vec<f32> = (0..vocab).map(|_| -20.0 - rng.below(8) as f32).collect();
            let first = rng.below(vocab as u64 - 1024 * apart as u64) as usize;
            (0..1024).for_each(|i| logits[first + i * apart] = rng.below(1000) as f32 / 128.0);
            let cases = [0, u64::MAX, rng.next(), rng.next()].map(|uniform| Case {
                filters: Filters { temperature: 1.0, top_k, top_p: 0.99, min_p: cut },
                action: Action::Draw { uniform },
                logprobs: Some((top_k, LogprobsMode::Processed, vec![0, first as u32])),
                ..Case::new(Dtype::F32, &logits)
            });
            check(&mut emulator, &cases, Layout { team_size: 3, teams: 2, cached: 1, seed: rng.next() });
        }
    }
}

/// As many likely tokens as a list holds, and one more. Each is one of another thread in its chunk, so that as many threads of one
/// block are noted.
#[test]
fn one_token_more_than_a_list_holds() {
    if !built() {
        return;
    }
    let mut emulator = Emulator::start("narrow");
    let (threads, chunk) = (emulator.threads, 16 * emulator.threads);
    // The first vector of each thread. Those of a warp are adjacent.
    let place = |i: u32| i / threads * chunk + i % threads / 32 * 512 + i % 32 * 4;
    for likely in [LISTED, LISTED + 1] {
        let mut rng = Lcg(29);
        let mut logits: Vec<f32> = (0..20 * chunk).map(|_| -20.0 - rng.below(64) as f32 / 16.0).collect();
        (0..likely).for_each(|i| logits[place(i) as usize] = 5.0 + rng.below(16) as f32 / 16384.0);
        let cases = [1000, LISTED].map(|top_k| Case {
            filters: Filters { top_k, ..Filters::OFF },
            action: Action::Draw { uniform: u64::MAX },
            logprobs: Some((top_k, LogprobsMode::Processed, vec![0, place(likely - 1)])),
            ..Case::new(Dtype::F32, &logits)
        });
        check(&mut emulator, &cases, Layout { team_size: 1, teams: 1, cached: 1, seed: rng.next() });
    }
}

/// The first tokens, wherever they are: up to as many as groups of threads can bound, and one more. If they are close together, few
/// groups have them all, so that more tokens reach the bound than a list holds, or fewer groups than are needed have a token with a
/// chance. The rows of a launch differ in this.
#[test]
fn first_tokens_wherever_they_lie() {
    if !built() {
        return;
    }
    let mut rng = Lcg(17);
    for (build, vocab, team_sizes) in [("narrow", 8190, &[1u32, 2, 3, 5, 8][..]), ("wide", 40_000, &[1, 5])] {
        let mut emulator = Emulator::start(build);
        for &team_size in team_sizes {
            let most = team_size * (emulator.threads >> team_size.next_power_of_two().trailing_zeros()) / 4;
            let rows = [(2000, 1, -20.0), (9, 1, f32::NEG_INFINITY), (300, 17, 0.0), (2000, 1, f32::NEG_INFINITY)];
            let mut cases = Vec::new();
            for ((high, apart, low), first_logit) in rows.into_iter().zip([12.0, 9.0, 6.0, 3.0]) {
                let first = rng.below(u64::from(vocab - high * apart)) as u32;
                let mut logits: Vec<f32> = (0..vocab).map(|_| low - rng.below(64) as f32 / 16.0).collect();
                let mut likely = || first_logit + rng.below(4096) as f32 / 1024.0;
                (0..high).for_each(|i| logits[(first + i * apart) as usize] = likely());
                for top in [1, most, most + 1] {
                    cases.extend(cases_of_first_tokens(&logits, (first, high, apart), top, rng.next()));
                }
            }
            check(&mut emulator, &cases, Layout { team_size, teams: 2, cached: 1, seed: rng.next() });
        }
    }
}

/// Draws from a third of `top` tokens and from `top`, each with a report of `top`; a greedy draw from a few allowed tokens; and the
/// score of a given token. In some cases half of the likely tokens are banned.
fn cases_of_first_tokens(logits: &[f32], likely: (u32, u32, u32), top: u32, uniform: u64) -> [Case; 5] {
    let (first, high, apart) = likely;
    let filters = Filters { temperature: 1.0, top_k: top, top_p: 0.99, min_p: 0.0 };
    let case = Case {
        filters,
        action: Action::Draw { uniform },
        logprobs: Some((top, LogprobsMode::Raw, vec![0, first])),
        ..Case::new(Dtype::F32, logits)
    };
    let banned = Case { banned: (0..high / 2).map(|i| first + 2 * i * apart).collect(), ..case.clone() };
    let processed = Some((top, LogprobsMode::Processed, vec![first]));
    [
        Case { filters: Filters { top_k: top.div_ceil(3), ..filters }, ..case.clone() },
        Case {
            filters: Filters { temperature: 0.0, ..filters },
            allowed: Some((first..first + 9).collect()),
            ..case.clone()
        },
        Case { action: Action::Score { token: first + 1 }, ..banned.clone() },
        Case { logprobs: processed, ..banned.clone() },
        banned,
    ]
}

/// If the first tokens of both views are asked for (adjusted and as sent), one phase lists both, each in half of the room. There
/// are lists that fit, and lists that are too long for the half of one block or of all, both or only one of them; more threads than
/// can be noted; and tokens with an adjust that belong in both lists, in one of them, or in none.
#[test]
fn first_tokens_of_both_views_on_narrow_blocks() {
    first_tokens_of_both_views("narrow", 8190, &[1, 2, 3, 8]);
}

#[test]
fn first_tokens_of_both_views_on_wide_blocks() {
    first_tokens_of_both_views("wide", 40_000, &[1, 4]);
}

fn first_tokens_of_both_views(build: &str, vocab: u32, team_sizes: &[u32]) {
    if !built() {
        return;
    }
    let mut rng = Lcg(23);
    let mut emulator = Emulator::start(build);
    for &team_size in team_sizes {
        let most = team_size * (emulator.threads >> team_size.next_power_of_two().trailing_zeros()) / 4;
        let mut cases = Vec::new();
        // Some are so near each other that any bound of the first tokens lets all into the list: one token more than half of a block's
        // room, and more than all. With every fourth token likely, each thread has some: more threads than can be noted.
        for (likely, apart, steps) in [
            (5, 7, 10),
            (20, 400, 10),
            (513, 8, 14),
            (600, 8, 10),
            (600, 7, 10),
            (1020, 8, 10),
            (1100, 7, 14),
            (vocab / 4 - 1, 4, 10),
        ] {
            let first = rng.below(u64::from(vocab - likely * apart)) as u32;
            let tokens: Vec<u32> = (0..likely).map(|i| first + i * apart).collect();
            let mut logits: Vec<f32> = (0..vocab).map(|_| -20.0 - rng.below(64) as f32 / 16.0).collect();
            let step = 1.0 / (1 << steps) as f32;
            tokens.iter().for_each(|&t| logits[t as usize] = 5.0 + rng.below(16) as f32 * step);
            let few = 1 + rng.below(u64::from(most)) as u32;
            cases.extend(cases_of_both_views(&logits, &tokens, (few, most), &mut rng));
        }
        check(&mut emulator, &cases, Layout { team_size, teams: 2, cached: 1, seed: rng.next() });
    }
}

/// Draws from `few` first tokens with a report of `most` as sent, and the other way round.
fn cases_of_both_views(logits: &[f32], likely: &[u32], (few, most): (u32, u32), rng: &mut Lcg) -> Vec<Case> {
    let adjusted = |case: &Case, flags: u32, bias: f32, every: usize| {
        let adjust = |&token: &u32| TokenAdjust { token, flags, bias, ..TokenAdjust::default() };
        Case { adjusts: likely.iter().step_by(every).map(adjust).collect(), ..case.clone() }
    };
    let mut cases = Vec::new();
    for (top_k, top_n) in [(few, most), (most, few)] {
        let case = Case {
            filters: Filters { temperature: 1.0, top_k, top_p: 0.9, min_p: 0.0 },
            action: Action::Draw { uniform: rng.next() },
            logprobs: Some((top_n, LogprobsMode::Raw, vec![0, likely[0]])),
            ..Case::new(Dtype::F32, logits)
        };
        let mut low = logits.to_vec();
        likely.iter().for_each(|&t| low[t as usize] -= 60.0);
        let low = Case { bytes: Dtype::F32.encode(&low), ..case.clone() };
        cases.extend([
            Case { banned: likely.to_vec(), ..case.clone() },
            Case { allowed: Some(likely.to_vec()), ..case.clone() },
            Case { allowed: Some(likely.iter().map(|t| t + 1).collect()), ..case.clone() },
            Case { action: Action::Score { token: likely[0] }, ..case.clone() },
            adjusted(&case, 0, 0.0, 2),
            adjusted(&case, TokenAdjust::SEEN, -1.0 / 256.0, 3),
            adjusted(&low, 0, 60.0, 1),
            adjusted(&low, 0, 60.0, 2),
            case,
        ]);
    }
    cases
}

/// A token without a chance has a rank too, and searches have to cope with rows of one value.
#[test]
fn searches_through_ties_and_ranks_of_the_masked() {
    if !built() {
        return;
    }
    let mut emulator = Emulator::start("narrow");
    let off = Filters::OFF;
    for shape in [1, 3, 4, 6, 8, 10, 11] {
        for (filters, team_size) in [
            (Filters { top_k: 2000, ..off }, 1),
            (Filters { top_p: 0.7, ..off }, 2),
            (Filters { top_k: 3000, top_p: 0.4, min_p: 0.01, ..off }, 3),
            (Filters { temperature: 1e5, top_p: 0.999, min_p: 0.2, ..off }, 1),
        ] {
            let mut case = Case::new(Dtype::F32, &row(shape, 5000, u64::from(shape)));
            case.filters = filters;
            case.allowed = (shape == 6).then(|| (0..5000).filter(|t| t % 3 > 0).collect());
            case.banned = (0..40).map(|i| i * 100).collect();
            case.logprobs = Some((900, LogprobsMode::Processed, vec![0, 100, 4999]));
            let scored = Case { action: Action::Score { token: 300 }, ..case.clone() };
            check(&mut emulator, &[case, scored], Layout { team_size, teams: 2, cached: 0, seed: 9 });
        }
    }
}

/// Checks, float by float, masses that kernels compute in fewer instructions, and what passes assume about masses.
#[test]
fn short_cuts_to_masses_hold_for_every_float() {
    if !built() {
        return;
    }
    let output = Command::new(format!("{FOLDER}/numbers")).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.starts_with("276824065 floats"), "{told}");
}

#[test]
fn planted_faults_are_caught() {
    if !built() {
        return;
    }
    let planted = |arguments: &[&str]| Command::new(format!("{FOLDER}/planted")).args(arguments).output().unwrap();
    let expected = [
        ("missing_thread", "FAULT: divergent barrier"),
        ("two_barriers", "FAULT: divergent barrier"),
        ("missing_lane", "FAULT: divergent barrier"),
        ("half_a_warp", "FAULT: a warp operation without all lanes"),
        ("shared_beyond_its_end", "is out of bounds of shared memory"),
        ("two_at_an_odd_place", "which is no even place"),
        ("more_shared_than_given", "bytes of shared memory are used"),
        ("read_before_write", "reads uninitialised shared memory"),
        ("add_before_write", "reads uninitialised shared memory"),
        ("read_without_barrier", "FAULT: race in shared memory"),
        ("write_without_barrier", "FAULT: race in shared memory"),
        ("far_read_without_barrier", "FAULT: race between blocks"),
        ("far_write_without_barrier", "FAULT: race between blocks"),
        ("far_read_before_write", "reads uninitialised memory of another block"),
        ("far_read_of_the_ended", "reads shared memory of a block that has ended"),
        ("wait_for_nobody", "FAULT: a thread spins for what never comes"),
        ("global_beyond_its_end", "AddressSanitizer: heap-buffer-overflow"),
        ("fetch_of_too_much", "bytes are fetched ahead at once"),
        ("undefined_shift", "runtime error: shift exponent 32 is too large"),
        ("nothing", ""),
    ];
    let names = String::from_utf8(planted(&[]).stdout).unwrap();
    assert_eq!(names.lines().collect::<Vec<_>>(), expected.map(|(name, _)| name));
    for (name, message) in expected {
        let output = planted(&[name]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), message.is_empty(), "{name}: {errors}");
        assert!(errors.contains(message), "{name}: {errors}");
    }
}

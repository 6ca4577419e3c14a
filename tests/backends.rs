//! Every backend equals the specification bit for bit: every dtype, instruction set, thread count and
//! batch arrangement, on rows that aim at the boundaries.

#![allow(clippy::print_stdout)] // what was measured or skipped is worth reading

mod cases;
#[path = "support/gpu.rs"]
mod gpu;
#[path = "support/rows.rs"]
mod rows;

use cases::{Case, SHAPES, bits, case, chained, filters, row, summary};
use croupier::backend::cpu::{CpuBackend, Level};
use croupier::backend::{Backend, RowJob};
use croupier::sampling::adjust::{Penalties, TokenAdjust};
use croupier::sampling::logits::Dtype;
use croupier::sampling::philox::{Purpose, uniform};
use croupier::sampling::row::{Action, Filters, RowResult, RowSpec};
use croupier::sampling::sample_row;
use gpu::Gpu;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn backends() -> Vec<(String, Box<dyn Backend>)> {
    let mut all: Vec<(String, Box<dyn Backend>)> = vec![];
    if Gpu::opened().is_some() {
        all.push(("cuda".to_owned(), Box::new(Gpu)));
    }
    for level in Level::ALL {
        if level.is_available() {
            all.push((level.name().to_owned(), Box::new(CpuBackend::with_level(1, level))));
        } else {
            println!("SKIPPED level {}: this CPU does not have it", level.name());
        }
    }
    all
}

fn check(case: &Case) {
    let expected = bits(&case.expected());
    for (name, backend) in &mut backends() {
        let got = bits(&backend.run(&[case.job()])[0]);
        assert_eq!(got, expected, "{name} on {}", summary(case));
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn fast_equals_specification(case in case()) {
        check(&case);
    }

    #[test]
    fn batches_and_threads_change_nothing(cases in prop::collection::vec(case(), 1..12), threads in 1..5usize) {
        let expected: Vec<String> = cases.iter().map(|case| bits(&case.expected())).collect();
        let mut backend = CpuBackend::new(threads).sharing_from(0);
        let jobs: Vec<RowJob<'_>> = cases.iter().map(Case::job).collect();
        let got: Vec<String> = backend.run(&jobs).iter().map(bits).collect();
        prop_assert_eq!(got, expected);
    }
}

proptest! {
    #![proptest_config(config(40))]

    /// Vocabularies of real models, where cuts are too long to sort.
    #[test]
    fn long_rows_equal_the_specification(
        vocab in prop::sample::select(&[32_000usize, 50_257, 128_256][..]),
        shape in 0..SHAPES,
        seed in any::<u64>(),
        dtype in prop::sample::select(&Dtype::ALL[..]),
        filters in filters(),
        chain in prop::option::weighted(0.5, chained()),
        uniform in any::<u64>(),
        penalised in any::<bool>(),
    ) {
        let mut case = Case::new(dtype, &row(shape, vocab, seed));
        (case.filters, case.chain) = (filters, chain);
        case.action = Action::Draw { uniform };
        if penalised {
            case.penalties = Penalties { repetition: 1.2, frequency: 0.2, presence: 0.1, ..Penalties::OFF };
            case.adjusts = (0..64)
                .map(|i| TokenAdjust { token: i * 499 + (seed % 100) as u32, flags: 2, bias: 0.0, output_count: i % 3 })
                .collect();
        }
        check(&case);
    }
}

/// Ten to the sixth draws by each instruction set, thread count and batch arrangement at hand: not one
/// differs. (The specification draws them too, on rows short enough for it.)
#[test]
fn a_million_draws_are_the_same_everywhere() {
    const ROWS: usize = 64;
    let rows: Vec<Case> = (0..ROWS as u64)
        .map(|i| {
            let mut case = Case::new(Dtype::ALL[i as usize % 3], &row((i % 12) as u8, 40 + 3 * i as usize, i));
            case.filters = Filters {
                temperature: 0.6 + 0.1 * (i % 8) as f32,
                top_k: [0, 0, 5, 30][i as usize % 4],
                top_p: [1.0, 0.9, 0.6][i as usize % 3],
                min_p: [0.0, 0.02][i as usize % 2],
            };
            case.logprobs = None;
            case
        })
        .collect();
    let mut arrangements = backends();
    arrangements.push(("two threads".to_owned(), Box::new(CpuBackend::new(2).sharing_from(0))));
    let draws = 1_000_000 / (arrangements.len() * ROWS) + 1;
    let mut compared = 0usize;
    for position in 0..draws as u64 {
        let uniform = uniform(42, position, Purpose::Sample);
        let jobs: Vec<RowJob<'_>> = rows
            .iter()
            .map(|case| RowJob { spec: RowSpec { action: Action::Draw { uniform }, ..case.job().spec }, ..case.job() })
            .collect();
        let expected: Vec<RowResult> = jobs.iter().map(|job| sample_row(&job.logits, &job.spec)).collect();
        for (turn, (name, backend)) in arrangements.iter_mut().enumerate() {
            // Each arrangement deals the rows in another order and in batches of another size.
            let batch = [1, 3, 17, 64][(turn + position as usize) % 4];
            let from = (position as usize * 7 + turn * 13) % ROWS;
            let order: Vec<usize> = (0..ROWS).map(|i| (i * 5 + from) % ROWS).collect();
            for chunk in order.chunks(batch) {
                let together: Vec<RowJob<'_>> = chunk.iter().map(|&i| jobs[i]).collect();
                for (&i, got) in chunk.iter().zip(backend.run(&together)) {
                    assert_eq!(got, expected[i], "{name}, row {i}, draw {position}");
                    compared += 1;
                }
            }
        }
    }
    println!("{compared} draws compared, 0 differ");
    assert!(compared >= 1_000_000);
}

/// What the property tests once found, by name, and edges that they could miss.
#[test]
fn named_edges() {
    for (name, case) in cases::named_edges() {
        println!("{name}");
        check(&case);
    }
}

/// More cases where time allows: PROPTEST_CASES. Failures are kept beside the tests and tried first.
fn config(cases: u32) -> ProptestConfig {
    let wanted = std::env::var("PROPTEST_CASES").ok().and_then(|v| v.parse().ok());
    ProptestConfig {
        cases: wanted.unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/regressions/backends.txt"))),
        ..ProptestConfig::default()
    }
}

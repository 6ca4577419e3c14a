//! Every backend equals the specification bit for bit: every dtype, instruction set, thread count and
//! batch arrangement, on rows that aim at the boundaries.

#![allow(clippy::print_stdout)] // what was measured or skipped is worth reading

use croupier::backend::cpu::{CpuBackend, Level};
use croupier::backend::{Backend, RowJob};
use croupier::sampling::adjust::{Penalties, TokenAdjust};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::philox::{Purpose, uniform};
use croupier::sampling::row::{Action, Filters, LogprobsMode, LogprobsSpec, RowResult, RowSpec};
use croupier::sampling::sample_row;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

#[path = "support/rows.rs"]
mod rows;
use rows::{SHAPES, ascending, filters, row};

/// A row with everything it borrows.
#[derive(Debug, Clone)]
struct Case {
    dtype: Dtype,
    /// Bytes before the row, so that it is unaligned.
    shift: usize,
    bytes: Vec<u8>,
    filters: Filters,
    penalties: Penalties,
    adjusts: Vec<TokenAdjust>,
    banned: Vec<u32>,
    allowed: Option<Vec<u32>>,
    action: Action,
    logprobs: Option<(u32, LogprobsMode, Vec<u32>)>,
}

impl Case {
    fn new(dtype: Dtype, logits: &[f32]) -> Self {
        Self {
            dtype,
            shift: 0,
            bytes: dtype.encode(logits),
            filters: Filters { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 },
            penalties: Penalties::OFF,
            adjusts: vec![],
            banned: vec![],
            allowed: None,
            action: Action::Draw { uniform: 0x9E37_79B9_7F4A_7C15 },
            logprobs: Some((5, LogprobsMode::Processed, vec![0])),
        }
    }

    fn job(&self) -> RowJob<'_> {
        let logprobs = self.logprobs.as_ref();
        RowJob {
            logits: Logits::new(self.dtype, &self.bytes[self.shift..]),
            spec: RowSpec {
                filters: self.filters,
                penalties: self.penalties,
                adjusts: self.adjusts.as_slice().into(),
                banned: &self.banned,
                allowed: self.allowed.as_deref(),
                action: self.action,
                logprobs: logprobs.map(|(top_n, mode, tokens)| LogprobsSpec { top_n: *top_n, mode: *mode, tokens }),
            },
        }
    }

    fn expected(&self) -> RowResult {
        let job = self.job();
        sample_row(&job.logits, &job.spec)
    }
}

/// Bits instead of values, so that −0 and 0 differ and NaN would show.
fn bits(result: &RowResult) -> String {
    match result {
        Ok(output) => {
            let logprobs = output.logprobs.as_ref().map(|l| {
                let top: Vec<(u32, u32)> = l.top.iter().map(|&(t, x)| (t, x.to_bits())).collect();
                let requested: Vec<u32> = l.requested.iter().map(|x| x.to_bits()).collect();
                (l.logprob.to_bits(), l.rank, top, requested)
            });
            format!("{} {logprobs:?}", output.token)
        }
        Err(error) => format!("{error:?}"),
    }
}

fn backends() -> Vec<(String, CpuBackend)> {
    let mut all = vec![];
    for level in Level::ALL {
        if level.is_available() {
            all.push((level.name().to_owned(), CpuBackend::with_level(1, level)));
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

fn summary(case: &Case) -> String {
    let mut short = case.clone();
    short.bytes.truncate(64);
    format!("{} bytes, {short:?}", case.bytes.len())
}

prop_compose! {
    fn case()(
        vocab in prop_oneof![
            1..300usize,
            Just(127usize), Just(128), Just(129), Just(2047), Just(2049), 4000..9000usize
        ],
        shape in 0..SHAPES,
        dtype in prop::sample::select(&Dtype::ALL[..]),
        shift in 0..3usize,
        filters in filters(),
        (repetition, frequency, presence) in (
            prop_oneof![Just(1.0f32), 0.5f32..2.0], prop_oneof![Just(0.0f32), -2.0f32..2.0], prop_oneof![Just(0.0f32), -2.0f32..2.0]
        ),
        touched in prop_oneof![
            2 => Just(vec![]),
            2 => prop::collection::vec((any::<u32>(), 0..4u32, -5.0f32..5.0, 0..4u32), 1..40),
            1 => prop::collection::vec((any::<u32>(), 0..4u32, -5.0f32..5.0, 0..4u32), 100..400)
        ],
        ban_first in any::<bool>(),
        banned in prop_oneof![Just(vec![]), prop::collection::vec(any::<u32>(), 1..10)],
        allowed in prop_oneof![
            4 => Just(None),
            1 => prop::collection::vec(any::<u32>(), 1..50).prop_map(Some),
            1 => prop::collection::vec(any::<u32>(), 300..3000).prop_map(Some)
        ],
        (uniform, score, seed) in (any::<u64>(), prop::option::weighted(0.2, any::<u32>()), any::<u64>()),
        logprobs in prop::option::of((
            0..40u32, prop::sample::select(&[LogprobsMode::Raw, LogprobsMode::Processed][..]),
            prop::collection::vec(any::<u32>(), 0..5)
        )),
    ) -> Case {
        let logits = row(shape, vocab, seed);
        let mut tokens: Vec<_> = touched;
        tokens.iter_mut().for_each(|t| t.0 %= vocab as u32);
        if ban_first && let Some(first) = tokens.first_mut() {
            // The most likely token, so that the adjusted maximum is another.
            let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(t, _)| t);
            *first = (best as u32, 1, 0.0, 0);
        }
        tokens.sort_by_key(|t| t.0);
        tokens.dedup_by_key(|t| t.0);
        let adjusts = tokens.into_iter().map(|(token, flags, bias, output_count)| {
            // Mostly unbanned: bit 0 bans.
            let flags = if output_count == 3 { flags } else { flags & !1 };
            TokenAdjust { token, flags, bias, output_count }
        }).collect();
        let case = Case::new(dtype, &logits);
        let mut bytes = vec![0xAB; shift];
        bytes.extend_from_slice(&case.bytes);
        Case {
            shift, bytes, filters, adjusts,
            penalties: Penalties { repetition, frequency, presence },
            banned: ascending(banned, vocab),
            allowed: allowed.map(|a| ascending(a, vocab)),
            action: score.map_or(Action::Draw { uniform }, |t| Action::Score { token: t % vocab as u32 }),
            logprobs: logprobs.map(|(n, mode, ids)| (n, mode, ids.into_iter().map(|t| t % vocab as u32).collect())),
            ..case
        }
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
        uniform in any::<u64>(),
        penalised in any::<bool>(),
    ) {
        let mut case = Case::new(dtype, &row(shape, vocab, seed));
        case.filters = filters;
        case.action = Action::Draw { uniform };
        if penalised {
            case.penalties = Penalties { repetition: 1.2, frequency: 0.2, presence: 0.1 };
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
    arrangements.push(("two threads".to_owned(), CpuBackend::new(2).sharing_from(0)));
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
    let flat = |filters| Case { filters, ..Case::new(Dtype::F32, &vec![1.0; 5000]) };
    let off = Filters { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
    let zeros: Vec<f32> = (0..300).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect();
    let processed = |top_n| Some((top_n, LogprobsMode::Processed, vec![0, 299]));
    let cases = [
        ("top_p 0 among more ties than are listed", flat(Filters { top_p: 0.0, ..off })),
        ("top_p 1 bit below 1, all equal", flat(Filters { top_p: 1.0f32.next_down(), ..off })),
        ("top_k beyond the blocks, all equal", flat(Filters { top_k: 4999, ..off })),
        ("top_k, top_p, min_p through ties", flat(Filters { top_k: 3000, top_p: 0.5, min_p: 1.0, ..off })),
        ("zeros of both signs", Case { logprobs: processed(5), ..Case::new(Dtype::F32, &zeros) }),
        (
            "rank of a token that is not allowed",
            Case {
                allowed: Some(vec![3, 200]),
                action: Action::Score { token: 299 },
                logprobs: processed(5),
                ..Case::new(Dtype::Bf16, &row(0, 300, 1))
            },
        ),
        (
            "the most likely token banned, far above the rest",
            Case { banned: vec![7], ..Case::new(Dtype::F32, &[vec![0.0; 7], vec![3e38], vec![0.5; 900]].concat()) },
        ),
        (
            "min_p between two masses that stand in the wrong order",
            Case {
                filters: Filters { temperature: std::f32::consts::LOG2_E, min_p: 0.757_854_7, ..off },
                logprobs: processed(2).map(|(n, mode, _)| (n, mode, vec![])),
                ..Case::new(Dtype::F32, &[0.0, -0.400_006_95, -0.400_006_98, -30.0])
            },
        ),
        (
            "banned giants that a sample still sees",
            Case {
                filters: Filters { temperature: 1e-5, top_p: 0.5, ..off },
                banned: vec![0, 1, 2, 3],
                ..Case::new(
                    Dtype::F32,
                    &(0..20_000).map(|i| if i < 4 { 1e6 } else { (i % 4) as f32 * 1e-6 }).collect::<Vec<_>>(),
                )
            },
        ),
        ("one token", Case::new(Dtype::F16, &[-3.0])),
        ("one token left", Case::new(Dtype::F32, &[vec![f32::NEG_INFINITY; 400], vec![-5.0]].concat())),
        ("NaN in the tail", Case::new(Dtype::F32, &[vec![0.0; 400], vec![f32::NAN]].concat())),
        ("negative NaN and infinity", Case::new(Dtype::F32, &[-f32::NAN, f32::INFINITY])),
        ("infinity", Case::new(Dtype::Bf16, &[vec![0.0; 140], vec![f32::INFINITY]].concat())),
        ("nothing left", Case::new(Dtype::F32, &[f32::NEG_INFINITY; 130])),
        ("everything banned", Case { banned: (0..130).collect(), ..Case::new(Dtype::F32, &[1.0; 130]) }),
        (
            "a bias that overflows",
            Case {
                adjusts: vec![TokenAdjust { token: 1, flags: 0, bias: f32::MAX, output_count: 0 }],
                ..Case::new(Dtype::F32, &[0.0, f32::MAX, 1.0])
            },
        ),
        ("denormals", Case::new(Dtype::F32, &row(11, 1000, 3))),
    ];
    for (name, case) in cases {
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

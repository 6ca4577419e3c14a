//! The kernels on a CPU: the same sources as a GPU gets, each thread a fiber, under sanitizers, bit for bit against the
//! specification. And proof that the machine they run on sees what is wrong: faults are planted, each must be caught.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

mod cases;

use cases::rows::Lcg;
use cases::{Case, SHAPES, bits, case, row, summary};
use croupier::backend::RowJob;
use croupier::backend::cuda::abi::{MAX_TEAM, SCRATCH_BYTES, SLICE_CHUNKS};
use croupier::backend::cuda::pack::{Packer, has_kernel};
use croupier::backend::cuda::shape::{chunk, shared_bytes};
use croupier::sampling::adjust::Penalties;
use croupier::sampling::logits::Dtype;
use croupier::sampling::row::{Action, Filters, LogprobsMode, RowResult};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/emulator");
const SKIPPED: i32 = 77;

/// Whether the programs are there; built once. Without a C++ compiler the tests are skipped, loudly.
fn built() -> bool {
    static BUILT: OnceLock<bool> = OnceLock::new();
    *BUILT.get_or_init(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/emulator-build");
        let status = Command::new("bash").arg(script).status();
        match status.map(|status| status.code()) {
            Ok(Some(0)) => true,
            Ok(Some(SKIPPED)) | Err(_) => {
                eprintln!("SKIPPED: the kernels were NOT run: no C++ compiler");
                false
            }
            Ok(code) => panic!("the kernels do not compile for the CPU: {code:?}"),
        }
    })
}

/// One build of the kernels, running.
struct Emulator {
    child: Child,
    threads: u32,
}

/// How a batch is laid over the machine.
#[derive(Debug, Clone, Copy)]
struct Layout {
    team_size: u32,
    teams: u32,
    cached: bool,
    seed: u64,
}

impl Emulator {
    fn start(name: &str) -> Self {
        let mut child = Command::new(format!("{FOLDER}/{name}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut about = [0; 16];
        child.stdout.as_mut().unwrap().read_exact(&mut about).unwrap();
        let [threads, _, scratch, tokens]: [u32; 4] = bytemuck::cast(about);
        assert_eq!(scratch as usize, SCRATCH_BYTES);
        assert_eq!(tokens, chunk(threads));
        Self { child, threads }
    }

    fn chunks(&self, case: &Case) -> u32 {
        (case.job().logits.vocab_size() as u32).div_ceil(chunk(self.threads))
    }

    /// Whether the largest team can hold the row.
    fn has_room(&self, case: &Case) -> bool {
        self.chunks(case) <= SLICE_CHUNKS * MAX_TEAM && has_kernel(&case.job().spec).is_ok()
    }

    /// Results of rows of one number format.
    fn run(&mut self, cases: &[&Case], layout: Layout) -> Vec<RowResult> {
        let jobs: Vec<RowJob<'_>> = cases.iter().map(|case| case.job()).collect();
        let mut packer = Packer::new(chunk(self.threads));
        jobs.iter().for_each(|job| packer.push(job));
        let mut inputs = vec![0xEE; packer.inputs_bytes()];
        packer.write(jobs.iter(), &mut inputs);

        let dtype = cases[0].dtype;
        let chunks = cases.iter().map(|case| self.chunks(case)).max().unwrap();
        let team_size = layout.team_size.max(chunks.div_ceil(SLICE_CHUNKS));
        let slice = chunks.div_ceil(team_size) * chunk(self.threads) * dtype.size() as u32 / 16;
        let cached = if layout.cached { slice } else { 0 };
        let element = Dtype::ALL.iter().position(|&d| d == dtype).unwrap() as u32;
        let words =
            [element, jobs.len() as u32, team_size, layout.teams, cached, shared_bytes(self.threads) + 16 * cached];
        let sizes = [layout.seed, inputs.len() as u64, packer.outputs_bytes() as u64];

        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(bytemuck::cast_slice(&words)).unwrap();
        input.write_all(bytemuck::cast_slice(&sizes)).unwrap();
        input.write_all(&inputs).unwrap();
        input.flush().unwrap();
        let mut outputs = vec![0; packer.outputs_bytes()];
        if self.child.stdout.as_mut().unwrap().read_exact(&mut outputs).is_err() {
            let all: String = cases.iter().map(|case| format!("\n  {}", summary(case))).collect();
            panic!("the emulator stopped ({:?}) with {layout:?} on{all}", self.child.wait());
        }
        let results = jobs.iter().enumerate().map(|(i, job)| packer.result(i, job, &outputs));
        results.map(|result| result.expect("the kernel contradicted itself")).collect()
    }

    /// Runs the rows, by number format, and compares.
    fn check(&mut self, cases: &[Case], layout: Layout) {
        for dtype in Dtype::ALL {
            let fit: Vec<&Case> = cases.iter().filter(|c| c.dtype == dtype && self.has_room(c)).collect();
            if fit.is_empty() {
                continue;
            }
            for (case, got) in fit.iter().zip(self.run(&fit, layout)) {
                assert_eq!(bits(&got), bits(&case.expected()), "{layout:?} on {}", summary(case));
            }
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It ends with its input; a fault has been reported by then.
        let _ = self.child.wait();
    }
}

fn layout() -> impl Strategy<Value = Layout> {
    (prop_oneof![2 => Just(1u32), 1 => Just(2), 2 => 3..=MAX_TEAM], 1..=3u32, any::<bool>(), any::<u64>())
        .prop_map(|(team_size, teams, cached, seed)| Layout { team_size, teams, cached, seed })
}

fn config(cases: u32) -> ProptestConfig {
    let wanted = std::env::var("PROPTEST_CASES").ok().and_then(|v| v.parse().ok());
    ProptestConfig {
        cases: wanted.unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/regressions/emulator.txt"))),
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    }
}

/// Random batches on one build; a new machine after a failure, so that a smaller case can be found.
fn random_batches(build: &str, batches: u32, largest: usize) {
    if !built() {
        return;
    }
    let strategy = (prop::collection::vec(case(), 1..largest), layout());
    let result = TestRunner::new(config(batches)).run(&strategy, |(cases, layout)| {
        thread_local!(static RUNNING: std::cell::RefCell<Option<Emulator>> = const { std::cell::RefCell::new(None) });
        let mut emulator = RUNNING.take().unwrap_or_else(|| Emulator::start(build));
        emulator.check(&cases, layout);
        RUNNING.set(Some(emulator));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn random_batches_of_narrow_blocks_equal_the_specification() {
    random_batches("narrow", 400, 6);
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
        for (name, case) in cases::named_edges() {
            println!("{name}");
            emulator.check(&[case], Layout { team_size, teams: 1, cached: team_size > 1, seed: 1 });
        }
    }
}

/// One token less and more than vectors, warps, chunks and slices hold, where the last of them are almost empty.
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
            // The last token there is, and the last that a draw can reach.
            case.banned = vec![size as u32 / 2];
            case.action = Action::Draw { uniform: u64::MAX };
            case.logprobs = Some((3, LogprobsMode::Raw, vec![0, size as u32 - 1]));
            let layout = Layout { team_size: 1 + rng.below(3) as u32, teams: 1, cached: rng.below(2) == 0, seed: 3 };
            emulator.check(&[case], layout);
        }
    }
}

/// A token that has no chance has a rank too, and searches have to get by with rows of one value.
#[test]
fn searches_through_ties_and_ranks_of_the_masked() {
    if !built() {
        return;
    }
    let mut emulator = Emulator::start("narrow");
    let off = Filters { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
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
            emulator.check(&[case, scored], Layout { team_size, teams: 2, cached: false, seed: 9 });
        }
    }
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
        ("more_shared_than_given", "bytes of shared memory are used"),
        ("read_before_write", "reads uninitialised shared memory"),
        ("add_before_write", "reads uninitialised shared memory"),
        ("read_without_barrier", "FAULT: race in shared memory"),
        ("write_without_barrier", "FAULT: race in shared memory"),
        ("wait_for_nobody", "FAULT: a thread spins for what never comes"),
        ("global_beyond_its_end", "AddressSanitizer: heap-buffer-overflow"),
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

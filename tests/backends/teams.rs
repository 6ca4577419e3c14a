//! Teams of blocks on a GPU: teams of each size, and teams that take several rows, for which one launch needs more rows than the host
//! uploads at a time. Without a GPU, most of these tests only print that they were skipped.

use super::*;
use croupier::backend::cuda::CudaBackend;
use croupier::backend::cuda::ask::Asked;
use croupier::backend::cuda::costs::Costs;
use croupier::backend::cuda::machine::Machine;
use croupier::backend::cuda::shape::{Laid, sampling};
use std::process::Command;

/// Room for one launch: 100 rows of 128,256 f32 logits are 51 MB.
const ROOM: usize = 64 << 20;

/// The GPU, which has proved itself, with launches as large as the room allows.
fn whole() -> Option<CudaBackend> {
    if Gpu::opened().is_none() {
        println!("SKIPPED: teams of blocks were NOT compared");
        return None;
    }
    let backend = CudaBackend::open_unproved("0", Box::new(CpuBackend::new(1)), ROOM);
    Some(backend.unwrap_or_else(|error| panic!("{error}")).in_pieces_of(ROOM))
}

/// A mix of all kinds of rows. If `proposes` is set, every fourth is a draft row.
fn mixed(dtype: Dtype, count: usize, proposes: bool, vocab: impl Fn(usize) -> usize) -> Vec<Case> {
    let cuts = [
        (0.0, 0, 1.0, 0.0),
        (1.0, 0, 1.0, 0.0),
        (0.7, 50, 0.9, 0.02),
        (1.0, 0, 0.9, 0.0),
        (1.5, 0, 1.0, 0.05),
        (1.0, 500, 1.0, 0.0),
        (1.0, 900, 0.999, 0.0),
    ];
    let case = |i: usize| {
        let vocab = vocab(i);
        let mut case = Case::new(dtype, &row((i % usize::from(SHAPES)) as u8, vocab, i as u64));
        let (temperature, top_k, top_p, min_p) = cuts[i % cuts.len()];
        case.filters = Filters { temperature, top_k, top_p, min_p };
        let uniform = uniform(42, i as u64, Purpose::Sample);
        case.action = match i % 4 {
            1 => Action::Score { token: (vocab / 2) as u32 },
            3 if proposes => Action::Propose { uniform },
            _ => Action::Draw { uniform },
        };
        case.logprobs = [None, Some(LogprobsMode::Raw), Some(LogprobsMode::Processed)][i % 3]
            .map(|mode| (i as u32 % 8, mode, vec![0, vocab as u32 - 1]));
        if i.is_multiple_of(2) {
            case.penalties = Penalties { repetition: 1.2, frequency: 0.2, presence: 0.1, ..Penalties::OFF };
            let touched = vocab.min(100);
            let adjust = |at: usize| TokenAdjust {
                token: (at * vocab / touched) as u32,
                flags: [TokenAdjust::SEEN, TokenAdjust::PROMPT, TokenAdjust::END][at % 3],
                bias: 0.5,
                output_count: at as u32 % 4,
            };
            case.adjusts = (0..touched).map(adjust).collect();
        }
        case.banned = if i.is_multiple_of(5) { vec![3, vocab as u32 / 3] } else { vec![] };
        case.allowed = (i % 11 == 10).then(|| (0..vocab as u32).filter(|token| token % 7 != 2).collect());
        case
    };
    (0..count).map(case).collect()
}

/// Runs rows of one number format in one launch by teams of `team_size` blocks, of which one takes at least `in_turn` rows. Every bit must
/// be as on the CPU.
fn one_launch(backend: &mut CudaBackend, cases: &[Case], (team_size, in_turn): (u32, u32)) {
    backend.set_costs(Costs::only(team_size));
    let jobs: Vec<RowJob<'_>> = cases.iter().map(Case::job).collect();
    let room: usize = jobs.iter().map(|job| Asked::row(*job).room()).sum();
    assert!(room <= ROOM, "{room} bytes are more than one launch");
    let (rows, dtype) = (jobs.len() as u32, jobs[0].logits.dtype());
    let largest = jobs.iter().map(|job| job.logits.vocab_size()).max().unwrap_or(0);
    let device = backend.machine().facts();
    let laid = sampling(rows, largest as u32, dtype.size() as u32, &device);
    assert_eq!(laid.rest, None);
    let shape = laid.shape;
    println!("{rows} {} rows of up to {largest} logits: {} teams of {}", dtype.name(), shape.teams, shape.team_size);
    assert!(shape.team_size == team_size && rows > (in_turn - 1) * shape.teams, "{shape:?}");
    compare(backend, cases, laid);
}

fn compare(backend: &mut CudaBackend, cases: &[Case], laid: Laid) {
    let jobs: Vec<RowJob<'_>> = cases.iter().map(Case::job).collect();
    let got = backend.run(&jobs);
    let expected = CpuBackend::new(2).sharing_above(0).run(&jobs);
    for (at, case) in cases.iter().enumerate() {
        assert_eq!(bits(&got[at]), bits(&expected[at]), "row {at}, {laid:?}: {}", summary(case));
    }
    let handed_over: u64 = backend.handed_over().iter().map(|(_, rows)| *rows).sum();
    assert_eq!(handed_over, 0, "every row is one for the GPU");
}

/// Slightly more rows than blocks that run at once: larger teams take the rest, after the others.
#[test]
fn the_last_rows_have_teams_of_their_own() {
    let Some(mut backend) = whole() else { return };
    let device = backend.machine().facts();
    let (rows, vocab) = (device.resident(1) + device.resident(1).div_ceil(16), 100_000);
    let laid = sampling(rows, vocab, Dtype::Bf16.size() as u32, &device);
    let Some((from, shape)) = laid.rest else {
        println!("SKIPPED: rows do NOT lie in two parts on this GPU: {laid:?}");
        return;
    };
    println!(
        "{rows} rows: {from} by {} teams of {}, the rest by teams of {}",
        laid.shape.teams, laid.shape.team_size, shape.team_size
    );
    compare(&mut backend, &mixed(Dtype::Bf16, rows as usize, true, |_| vocab as usize), laid);
}

/// Teams of several blocks that take one row after another. The blocks keep the row completely, or a part of it.
#[test]
fn clusters_take_row_after_row() {
    let Some(mut backend) = whole() else { return };
    let vocab = |i: usize| [128_256, 128_256, 151_936, 50_257, 1000, 128_256, 32_000][i % 7];
    one_launch(&mut backend, &mixed(Dtype::F32, 100, true, vocab), (4, 3));
    let pairs = backend.machine().facts().resident(2) as usize;
    one_launch(&mut backend, &mixed(Dtype::F32, 70.max(pairs + 6), false, |_| 128_256), (2, 2));
    one_launch(&mut backend, &mixed(Dtype::Bf16, 100.max(pairs + 6), false, |_| 128_256), (2, 2));
}

/// The same for teams of one block.
#[test]
fn blocks_take_row_after_row() {
    let Some(mut backend) = whole() else { return };
    one_launch(&mut backend, &mixed(Dtype::F32, 256, false, |i| 4900 + i), (1, 2));
    one_launch(&mut backend, &mixed(Dtype::F16, 400, true, |i| 40 + 7 * i), (1, 3));
    let blocks = backend.machine().facts().resident(1) as usize;
    one_launch(&mut backend, &mixed(Dtype::F32, 140.max(blocks + 8), false, |i| 80_000 + i), (1, 2));
}

/// Few and short rows, so that a sanitizer can run this: teams of two to eight blocks with one row each, and blocks that take a second row.
#[test]
fn teams_of_each_size() {
    let Some(mut backend) = whole() else { return };
    let sizes = [(2, 9000), (3, 20_000), (4, 30_000), (5, 40_478), (6, 57_000), (7, 57_000), (8, 70_000)];
    let cases = mixed(Dtype::F32, sizes.len(), true, |i| sizes[i].1);
    for (case, (team_size, _)) in cases.into_iter().zip(sizes) {
        one_launch(&mut backend, &[case], (team_size, 1));
    }
    one_launch(&mut backend, &mixed(Dtype::Bf16, sizes.len(), true, |i| sizes[i].1), (4, 1));
    let blocks = backend.machine().facts().multiprocessors as usize;
    one_launch(&mut backend, &mixed(Dtype::F32, blocks + 20, false, |i| 40 + i), (1, 2));
}

/// Runs these tests on a driver without a GPU that runs the kernels on the CPU (tests/cuda_driver): the same launches, with one to eight
/// teams.
fn on_a_driver_without_a_gpu(name: &str, faults: &str) -> Option<(bool, String)> {
    crate::build::built().then(|| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--nocapture", "--test-threads=1", "--skip", "without_a_gpu"]);
        command
            .env("LD_LIBRARY_PATH", format!("{}/driver", crate::build::FOLDER))
            .env("FAKE_CUDA_MULTIPROCESSORS", "8");
        command.env("CROUPIER_TEST_GPU", "required-clusters").env("CROUPIER_TEST_GPU_PROOF", "skip");
        let output = command.env("FAKE_CUDA_FAULTS", faults).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.success(), told.into_owned())
    })
}

#[test]
fn so_do_they_on_a_driver_without_a_gpu() {
    let Some((is_well, told)) = on_a_driver_without_a_gpu("teams::", "") else { return };
    let launches = [
        "100 f32 rows of up to 151936 logits: 2 teams of 4",
        "70 f32 rows of up to 128256 logits: 4 teams of 2",
        "100 bf16 rows of up to 128256 logits: 4 teams of 2",
        "256 f32 rows of up to 5155 logits: 8 teams of 1",
        "140 f32 rows of up to 80139 logits: 8 teams of 1",
        "1 f32 rows of up to 40478 logits: 1 teams of 5",
        "1 f32 rows of up to 57000 logits: 1 teams of 6",
        "1 f32 rows of up to 57000 logits: 1 teams of 7",
        "1 f32 rows of up to 70000 logits: 1 teams of 8",
        "9 rows: 8 by 8 teams of 1, the rest by teams of 7",
        "4 passed",
    ];
    assert!(is_well && launches.iter().all(|launch| told.contains(launch)), "{told}");
}

/// The fault: one bit of one row of one launch.
#[test]
fn a_result_that_differs_is_seen_without_a_gpu() {
    let Some((is_well, told)) = on_a_driver_without_a_gpu("teams::blocks_take_row_after_row", "spoil@2=0") else {
        return;
    };
    assert!(!is_well && told.contains("row 0, Laid { shape: Shape { team_size: 1"), "{told}");
}

//! Devices that run only small teams of blocks.

use crate::build::{FOLDER, built};
use crate::cuda_host::server::{field, start};
use croupier::backend::cpu::CpuBackend;
use croupier::backend::cuda::CudaBackend;
use croupier::backend::cuda::machine::Machine;
use croupier::backend::{Backend, RowJob};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::row::{Action, Filters, RowSpec};
use std::process::Command;

/// Not a test: runs in a separate process that finds the driver. The largest clusters have three blocks, so only the CPU can sample a row
/// of more logits than they hold.
#[test]
#[ignore = "started by the test below"]
#[allow(clippy::print_stdout)]
fn of_three_blocks() {
    let mut backend = CudaBackend::open_unproved("0", Box::new(CpuBackend::new(1)), 16 << 20).unwrap();
    assert_eq!(backend.machine().facts().most_blocks(), 3);
    let row = |size: usize| Dtype::Bf16.encode(&(0..size).map(|at| (at % 97) as f32 / 8.0).collect::<Vec<_>>());
    let most = backend.machine().facts().most_logits();
    assert!(most >= 3 << 17);
    let rows = [most, most + 1, 1000].map(row);
    let filters = Filters { temperature: 1.0, top_k: 0, top_p: 0.9, min_p: 0.0 };
    let spec = RowSpec::plain(filters, Action::Draw { uniform: 7 });
    let jobs = rows.each_ref().map(|row| RowJob { logits: Logits::new(Dtype::Bf16, row), spec });
    assert_eq!(backend.run(&jobs), CpuBackend::new(1).run(&jobs));
    let handed_over: Vec<_> = backend.handed_over().iter().filter(|(_, rows)| *rows > 0).copied().collect();
    assert_eq!(handed_over, [("too_large", 1)]);
    println!("\nof three blocks");
}

/// The device proves itself with what it can do.
#[test]
fn a_device_on_which_no_clusters_run_serves() {
    let driver = [("FAKE_CUDA_MULTIPROCESSORS", "1"), ("FAKE_CUDA_DEVICES", "9.0,Small")];
    let Some(mut server) = start(&["--backend=cuda"], &driver) else { return };
    assert!(field(&server.ready(), "device").starts_with("Small (9.0, "));
}

fn finds_three_blocks(driver: &[(&str, &str)]) -> Result<(), String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "cuda_host::teams::of_three_blocks", "--ignored", "--nocapture"]);
    command.env("LD_LIBRARY_PATH", format!("{FOLDER}/driver")).envs(driver.iter().copied());
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let is_well = output.status.success() && told.contains("\nof three blocks\n");
    if is_well { Ok(()) } else { Err(told.into_owned()) }
}

/// The driver says that no larger clusters run, or refuses their size, as it may if only a part of a card is there.
#[test]
fn rows_that_no_team_holds_are_left_to_the_cpu() {
    if built() {
        finds_three_blocks(&[("FAKE_CUDA_MULTIPROCESSORS", "3")]).unwrap();
        finds_three_blocks(&[("FAKE_CUDA_LARGEST_CLUSTER", "3")]).unwrap();
    }
}

/// The number of questions for each team size: one for each kernel.
const KERNELS: usize = 6;

/// The kernel of which the fewest blocks can run as a team decides.
#[test]
fn a_team_is_no_larger_than_any_kernel_runs() {
    if !built() {
        return;
    }
    for kernel in 1..=KERNELS {
        let fault = format!("clusters@{}=912", 3 * KERNELS + kernel);
        finds_three_blocks(&[("FAKE_CUDA_MULTIPROCESSORS", "4"), ("FAKE_CUDA_FAULTS", &fault)]).unwrap();
    }
}

/// If the driver cannot answer, no team is ruled out.
#[test]
fn a_question_that_fails_is_no_bound() {
    if !built() {
        return;
    }
    let fails = |kernels| -> String {
        let faults: Vec<String> =
            (1..=kernels).map(|kernel| format!("clusters@{}=801", 3 * KERNELS + kernel)).collect();
        faults.join(",")
    };
    // The driver's answer about another kernel still holds.
    finds_three_blocks(&[("FAKE_CUDA_MULTIPROCESSORS", "3"), ("FAKE_CUDA_FAULTS", &fails(KERNELS - 1))]).unwrap();
    let driver = [("FAKE_CUDA_MULTIPROCESSORS", "3"), ("FAKE_CUDA_FAULTS", &fails(KERNELS))];
    let told = finds_three_blocks(&driver).unwrap_err();
    assert!(told.contains("left: 4") && told.contains("right: 3"), "{told}");
}

/// Not a test: runs in a separate process that finds the driver.
#[test]
#[ignore = "started by the tests below"]
#[allow(clippy::print_stdout)]
fn prove_themselves() {
    let mut backend = CudaBackend::open_unproved("0", Box::new(CpuBackend::new(1)), 64 << 20).unwrap();
    let costs = *backend.costs();
    println!("\nproof: {}", backend.prove_teams().map_or_else(|error| error.to_string(), |()| "well".to_owned()));
    // Whatever the result, teams are chosen as before.
    assert_eq!(*backend.costs(), costs);
}

fn proof(device: &str, multiprocessors: &str, fault: &str) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "cuda_host::teams::prove_themselves", "--ignored", "--nocapture"]);
    command.env("FAKE_CUDA_DEVICES", device).env("FAKE_CUDA_MULTIPROCESSORS", multiprocessors);
    command.env("LD_LIBRARY_PATH", format!("{FOLDER}/driver")).env("FAKE_CUDA_FAULTS", fault);
    let output = command.env("FAKE_CUDA_ANSWERS", format!("{FOLDER}/driver/answers")).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    told.lines().find_map(|line| line.strip_prefix("proof: ")).unwrap_or_else(|| panic!("{told}")).to_owned()
}

/// Kinds of rows in a proof, including broken ones.
const PROVED: usize = 25;

/// Only rows after a team's first are wrong, or only rows that teams of one size weigh, or only the last rows of a batch.
#[test]
fn teams_of_each_size_prove_rows_behind_another_and_what_they_weigh() {
    if !built() {
        return;
    }
    assert_eq!(proof("9.0", "4", ""), "well");
    // With this many teams, a proof has twice as many rows, plus one of each kind.
    for (team_size, teams) in [(1, 4), (2, 2), (3, 1), (4, 1)] {
        let told = proof("9.0", "4", &format!("behind@1={team_size}"));
        let parts = [format!(" of {}, ", 2 * teams + PROVED), format!("team_size: {team_size}, teams: {teams}, ")];
        assert!(parts.iter().all(|part| told.contains(part)), "{team_size} blocks: {told}");
        let told = proof("9.0", "4", &format!("weigh@1={team_size}"));
        let size = (team_size - 1) * 8192 + 1000;
        assert!(told.contains(&format!("of {size} f32 logits, verified by Rejection")), "{team_size} blocks: {told}");
    }
    // Like a card with more multiprocessors than rows in the other proofs. Row 32 is a broken one, which has no token that could be wrong.
    let told = proof("9.0", "32", "behind@1=1");
    assert!(
        told.contains(&format!("row 33 of {}, ", 64 + PROVED)) && told.contains("team_size: 1, teams: 32, "),
        "{told}"
    );
    // The rows left after full rounds of blocks, taken by teams of two.
    let told = proof("9.0", "4", "rest@1=2");
    assert!(told.contains("row 8 of 10, ") && told.contains("rest: Some((8, Shape { team_size: 2, "), "{told}");
    // Without clusters, kernels that weigh also take several rows per team.
    let told = proof("8.6", "4", "weighmore@1=1");
    assert!(told.contains("of 1000 f32 logits, verified by Rejection"), "{told}");
}

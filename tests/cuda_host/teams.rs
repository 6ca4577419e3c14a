//! Devices on which only small teams of blocks run.

use crate::build::{FOLDER, built};
use crate::server::{field, start};
use croupier::backend::cpu::CpuBackend;
use croupier::backend::cuda::CudaBackend;
use croupier::backend::cuda::machine::Machine;
use croupier::backend::{Backend, RowJob};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::row::{Action, Filters, RowSpec};
use std::process::Command;

/// Not a test: a process of its own, which finds the driver. Clusters of three blocks are the largest, so a row of more than
/// 3 * 2^17 logits is nobody's but the CPU's.
#[test]
#[ignore = "started by the test below"]
#[allow(clippy::print_stdout)]
fn of_three_blocks() {
    let mut backend = CudaBackend::open_unproved("0", Box::new(CpuBackend::new(1)), 16 << 20).unwrap();
    assert_eq!(backend.machine().facts().most_blocks(), 3);
    let row = |size: usize| Dtype::Bf16.encode(&(0..size).map(|at| (at % 97) as f32 / 8.0).collect::<Vec<_>>());
    let rows = [3 << 17, (3 << 17) + 1, 1000].map(row);
    let filters = Filters { temperature: 1.0, top_k: 0, top_p: 0.9, min_p: 0.0 };
    let spec = RowSpec::plain(filters, Action::Draw { uniform: 7 });
    let jobs = rows.each_ref().map(|row| RowJob { logits: Logits::new(Dtype::Bf16, row), spec });
    assert_eq!(backend.run(&jobs), CpuBackend::new(1).run(&jobs));
    let handed_over: Vec<_> = backend.handed_over().iter().filter(|(_, rows)| *rows > 0).copied().collect();
    assert_eq!(handed_over, [("too_large", 1)]);
    println!("\nof three blocks");
}

/// It proves itself on what it can do.
#[test]
fn a_device_on_which_no_clusters_run_serves() {
    let driver = [("FAKE_CUDA_MULTIPROCESSORS", "1"), ("FAKE_CUDA_DEVICES", "9.0,Small")];
    let Some(mut server) = start(&["--backend=cuda"], &driver) else { return };
    assert!(field(&server.ready(), "device").starts_with("Small (9.0, "));
}

fn finds_three_blocks(driver: &[(&str, &str)]) -> Result<(), String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "teams::of_three_blocks", "--ignored", "--nocapture"]);
    command.env("LD_LIBRARY_PATH", format!("{FOLDER}/driver")).envs(driver.iter().copied());
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let is_well = output.status.success() && told.contains("\nof three blocks\n");
    if is_well { Ok(()) } else { Err(told.into_owned()) }
}

/// Whether the driver says that none run, or refuses their size, as it may where only a part of a card is there.
#[test]
fn rows_that_no_team_holds_are_left_to_the_cpu() {
    if built() {
        finds_three_blocks(&[("FAKE_CUDA_MULTIPROCESSORS", "3")]).unwrap();
        finds_three_blocks(&[("FAKE_CUDA_LARGEST_CLUSTER", "3")]).unwrap();
    }
}

/// A driver that cannot tell rules no team out.
#[test]
fn a_question_that_fails_is_no_bound() {
    if built() {
        let driver = [("FAKE_CUDA_MULTIPROCESSORS", "3"), ("FAKE_CUDA_FAULTS", "clusters@4=801")];
        let told = finds_three_blocks(&driver).unwrap_err();
        assert!(told.contains("left: 4") && told.contains("right: 3"), "{told}");
    }
}

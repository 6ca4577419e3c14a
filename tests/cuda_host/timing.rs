//! The bench's use of the driver: a device that fails its proof is still measured, and the failure is reported in full.

use crate::build::{FOLDER, built};
use croupier::backend::cpu::CpuBackend;
use croupier::backend::cuda::CudaBackend;
use croupier::backend::{Backend, RowJob};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::row::{Action, Filters, RowSpec};
use std::process::Command;

/// Not a test: runs in a separate process that finds the driver.
#[test]
#[ignore = "started by the tests below"]
#[allow(clippy::print_stdout)]
fn measure() {
    let mut backend = CudaBackend::open_unproved("0", Box::new(CpuBackend::new(1)), 16 << 20).unwrap();
    println!("proof: {}", backend.prove().map_or_else(|error| error.to_string(), |()| "well".to_owned()));
    let bytes = Dtype::F32.encode(&[0.5; 9001]);
    let spec =
        RowSpec::plain(Filters { temperature: 1.0, top_k: 0, top_p: 0.9, min_p: 0.0 }, Action::Draw { uniform: 7 });
    let jobs = [RowJob { logits: Logits::new(Dtype::F32, &bytes), spec }; 2];
    let timing = backend.time(&jobs, 3).unwrap();
    let in_graph = backend.time_in_graph(&jobs, 3).unwrap();
    assert!(in_graph.len() == 3 && in_graph.iter().all(|&time| time > 0.0), "{in_graph:?}");
    // What it left over does not keep the next batch from running.
    assert_eq!(backend.run(&jobs), CpuBackend::new(1).run(&jobs));
    assert!([&timing.cold, &timing.hot, &timing.empty].iter().all(|times| times.len() == 3), "{timing:?}");
    println!("copy rate: {}", backend.copy_rate().unwrap());
    backend.tune().unwrap();
    println!("costs: {}", backend.costs());
    assert_eq!(backend.run(&jobs), CpuBackend::new(1).run(&jobs));
    println!("measured");
}

fn measured(faults: &str, call_micros: &str) -> Option<String> {
    built().then(|| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "cuda_host::timing::measure", "--ignored", "--nocapture"])
            .env("FAKE_CUDA_FAULTS", faults);
        command.env("FAKE_CUDA_CALL", call_micros);
        command.env("LD_LIBRARY_PATH", format!("{FOLDER}/driver"));
        let output = command.env("FAKE_CUDA_ANSWERS", format!("{FOLDER}/driver/answers")).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("\nmeasured\n"), "{told}");
        told.into_owned()
    })
}

#[test]
fn a_device_is_measured_from_cold_and_hot_caches() {
    // However long the host takes for each call, that time is not measured.
    for call_micros in ["0", "2"] {
        let Some(told) = measured("", call_micros) else { return };
        assert!(told.contains("proof: well"), "{told}");
        // The time of each row on that driver's clock: 4 us, plus 1 us for each block of the team, plus 2 us for each chunk.
        let teams = "1: 5.0+2.00 2: 6.0+2.00 3: 7.0+2.00 4: 8.0+2.00";
        assert!(
            told.contains(&format!("costs: 2 bytes a logit: {teams}"))
                && told.contains(&format!("; 4 bytes a logit: {teams}")),
            "a call of {call_micros} us: {told}"
        );
        // Bytes read and written per microsecond; copying a byte takes a millionth of one.
        assert!(told.contains("\ncopy rate: 2000000\n"), "a call of {call_micros} us: {told}");
    }
}

#[test]
fn a_device_that_computes_something_else_is_measured_and_tells_what() {
    let Some(told) = measured("spoil@1=0", "0") else { return };
    let parts = [
        "computes wrong results (row 0 of 11, 1000 f32 logits, Laid { shape: Shape { team_size: 1,",
        "expected token ",
        " rank 1 logprob ",
        " total ",
        " last_key 0x",
        ", got token ",
        "asked again, the kernel wrote status 0 token ",
    ];
    parts.iter().for_each(|part| assert!(told.contains(part), "{part} is missing in:\n{told}"));
}

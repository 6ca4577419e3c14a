//! Tests of the fake driver itself: what tests of the host code rely on, including memory that processes share.

use crate::build::{FOLDER, built};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

fn check(name: &str, faults: &str) -> Output {
    let mut command = Command::new(format!("{FOLDER}/driver/check"));
    command.args((!name.is_empty()).then_some(name)).env("FAKE_CUDA_FAULTS", faults).output().unwrap()
}

#[test]
fn the_driver_does_what_it_says() {
    if !built() {
        return;
    }
    // Name, planted faults, and the signal that ends the program.
    let checks = [
        ("by_descriptor", "", None),
        ("by_handle", "", None),
        ("mistakes", "", None),
        ("as_late_as_it_may", "", None),
        ("sticky", "copy@2=700", None),
        ("host_reads_the_device", "", Some(libc::SIGSEGV)),
    ];
    let names = String::from_utf8(check("", "").stdout).unwrap();
    assert_eq!(names.lines().collect::<Vec<_>>(), checks.map(|(name, ..)| name));
    for (name, faults, signal) in checks {
        let output = check(name, faults);
        let errors = String::from_utf8_lossy(&output.stderr);
        let code = if signal.is_some() { None } else { Some(0) };
        assert_eq!((output.status.code(), output.status.signal()), (code, signal), "{name}: {errors}");
    }
}

//! The programs that `scripts/emulator-build` builds: they run the kernels on a CPU, and one is a CUDA driver that does so.

#![allow(clippy::print_stderr)]

use std::process::Command;
use std::sync::OnceLock;

pub(crate) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/emulator");
const SKIPPED: i32 = 77;

/// Builds the programs, once. Returns false if there is no C++ compiler: then the tests are skipped, with a message.
pub(crate) fn built() -> bool {
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

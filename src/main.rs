//! The `croupier` program.

use croupier::bench;
use croupier::config::{self, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    match config::parse_process() {
        Ok(Command::Bench(args)) => bench::main(args),
        Ok(Command::BenchBaseline(args)) => bench::baseline_main(args),
        Ok(_) => ExitCode::FAILURE,
        Err(stop) => stop.report(),
    }
}

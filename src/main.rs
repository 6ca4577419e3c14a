//! The `croupier` program.

use croupier::config::{self, Command};
use croupier::{app, bench, compare, explain, healthcheck, inject, shutdown, top, watermark};
use std::process::ExitCode;

fn main() -> ExitCode {
    shutdown::end_until_watched();
    shutdown::outlive_file_limits();
    match config::parse_process() {
        Ok(Command::Serve(config)) => app::run(*config),
        Ok(Command::Healthcheck(args)) => healthcheck::run(&args),
        Ok(Command::Bench(args)) => bench::main(args),
        Ok(Command::Top(args)) => top::main(&args),
        Ok(Command::Inject(args)) => inject::main(&args),
        Ok(Command::Explain(args)) => explain::main(&args),
        Ok(Command::Compare(args)) => compare::main(&args),
        Ok(Command::Detect(args)) => watermark::command::main(&args),
        Ok(Command::BenchWriter(args)) => bench::writer_main(args),
        Ok(Command::BenchBaseline(args)) => bench::baseline_main(args),
        Err(stop) => stop.report(),
    }
}

//! The `croupier` program.

use croupier::config::{self, Command};
use croupier::{app, healthcheck};
use std::process::ExitCode;

fn main() -> ExitCode {
    match config::parse_process() {
        Ok(Command::Serve(config)) => app::run(*config),
        Ok(Command::Healthcheck(args)) => healthcheck::run(&args),
        Err(stop) => stop.report(),
    }
}

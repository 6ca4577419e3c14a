//! `croupier healthcheck`: for a container's health check or an exec probe.

mod grpc;

use crate::config::{HealthcheckArgs, Target};
use crate::rpc::health::{LIVENESS, READINESS};
use crate::{admin_client, output};
use std::process::ExitCode;

/// An answer of `/readyz` is never longer.
const LONGEST_ANSWER: u64 = 4096;

/// Asks the server, prints the result, and returns the exit code: 0 if the server serves, 1 if not.
#[must_use]
pub fn run(args: &HealthcheckArgs) -> ExitCode {
    match ask(args) {
        Ok(()) => {
            // The exit code says whether the server serves, even if nobody reads this line.
            let _ = output::say("serving\n");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            output::complain(&format!("croupier healthcheck: {reason}"));
            ExitCode::FAILURE
        }
    }
}

fn ask(args: &HealthcheckArgs) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let asked = async {
        match &args.target {
            Target::Grpc(address) => grpc::check(address, &args.access, &args.service).await,
            Target::Admin(url) => admin(url, &args.service).await,
        }
    };
    let done = runtime.block_on(async { tokio::time::timeout(args.timeout, asked).await });
    // A name lookup that is still running may not hold up the end.
    runtime.shutdown_background();
    done.unwrap_or_else(|_| {
        Err(format!("no answer within {:?}; is the server running, and is this its address?", args.timeout))
    })
}

async fn admin(url: &str, service: &str) -> Result<(), String> {
    let address = admin_client::authority(url)?;
    let page = match service {
        LIVENESS => "/livez",
        name if READINESS.contains(&name) => "/readyz",
        other => {
            return Err(format!("unknown service \"{other}\"; write liveness or readiness, or leave --service out"));
        }
    };
    let answer = admin_client::get(address, page, LONGEST_ANSWER).await;
    let answer = answer.map_err(|e| format!("cannot ask {address}: {e}"))?;
    match answer.status {
        200 => Ok(()),
        _ => Err(format!("{address} answers {}: {}", answer.status_line, answer.body.trim())),
    }
}

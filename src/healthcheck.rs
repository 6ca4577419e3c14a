//! `croupier healthcheck`: for a container's health check or an exec probe.

use crate::config::{HealthcheckArgs, Target};
use crate::rpc::probe;
use std::process::ExitCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// More of an answer than this is not read.
const LONGEST_ANSWER: u64 = 4096;

/// Asks, says what came of it, and gives the exit code: 0 if the server serves, 1 if not.
#[must_use]
#[allow(clippy::print_stdout, clippy::print_stderr)] // It is the command's output.
pub fn run(args: &HealthcheckArgs) -> ExitCode {
    match ask(args) {
        Ok(()) => {
            println!("serving");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("croupier healthcheck: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn ask(args: &HealthcheckArgs) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let asked = async {
        match &args.target {
            Target::Grpc(address) => probe::check(address, &args.service).await,
            Target::Admin(url) => readyz(url).await,
        }
    };
    runtime.block_on(async { tokio::time::timeout(args.timeout, asked).await }).unwrap_or_else(|_| {
        Err(format!("no answer within {:?}; is the server running, and is this its address?", args.timeout))
    })
}

/// One request is too little for an HTTP client.
async fn readyz(url: &str) -> Result<(), String> {
    let address = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
    let failed = |e: std::io::Error| format!("cannot ask {address}: {e}");
    let mut stream = TcpStream::connect(address).await.map_err(failed)?;
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer).await.map_err(failed)?;
    let answer = String::from_utf8_lossy(&answer);
    match answer.lines().next() {
        Some(status) if status.split(' ').nth(1) == Some("200") => Ok(()),
        Some(status) => Err(format!("{address} answers {status}: {}", answer.lines().last().unwrap_or_default())),
        None => Err(format!("{address} closed the connection without an answer")),
    }
}

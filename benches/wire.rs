//! What TLS and traces cost on the wire, compared with a plain server without traces.
//!
//!   cargo bench --bench wire                        five rounds of five seconds
//!   cargo bench --bench wire -- --quick             one short round: does it run?
//!   cargo bench --bench wire -- --other PATH        also another croupier, such as one built before a change
//!
//! Each side is a server of its own on TCP. In each round all sides are measured one after another with the same rows,
//! so that noise from other processes affects all of them. A figure is the median of the rounds' ratios to the plain
//! server. The plain server is listed twice: the distance of its second ratio from 1 shows the noise of the machine.

#![allow(clippy::print_stdout)] // it prints a table

#[path = "../tests/traces/collector.rs"]
mod collector;
#[path = "../tests/tls/pki.rs"]
#[allow(dead_code)]
mod pki;

#[path = "support/options.rs"]
mod options;

use clap::Parser;
use collector::{Collector, Manner};
use croupier::bench::{self, Address, BenchArgs};
use croupier::dial::Access;
use croupier::tls::client::ClientTls;
use pki::{Authority, Mounted};
use std::ffi::OsString;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

#[derive(Parser)]
#[command(about = "What TLS and traces cost on the wire, over a plain server without traces")]
struct Options {
    #[command(flatten)]
    common: options::Common,
    /// Another croupier to measure too, such as one built before a change.
    #[arg(long, value_name = "PATH")]
    other: Option<OsString>,
}

/// A server, with the credentials for connecting to it.
struct Side {
    name: String,
    process: Child,
    address: Address,
    access: Access,
    /// For each round: tokens per second, and the median step in milliseconds.
    rounds: Vec<(f64, f64)>,
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Side {
    fn start(name: &str, binary: &OsString, flags: &[String], access: Access) -> Self {
        let port =
            std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|l| l.local_addr()).expect("a free port").port();
        let process = Command::new(binary)
            .args(["serve", "--admin=none", "--log-level=warn", &format!("--listen=127.0.0.1:{port}")])
            .args(flags)
            .stdin(Stdio::null())
            .spawn()
            .expect("the program starts");
        let address = Address::Tcp(format!("localhost:{port}"));
        Self { name: name.to_owned(), process, address, access, rounds: Vec::new() }
    }

    async fn measure(&mut self, args: &BenchArgs) {
        let args = BenchArgs { addr: Some(self.address.clone()), access: self.access.clone(), ..args.clone() };
        let mut attempts = 0;
        let report = loop {
            attempts += 1;
            match bench::run(args.clone()).await {
                Ok(report) => break report,
                // It may not listen yet. This is reported only if it takes long.
                Err(error) if attempts < 100 && self.process.try_wait().is_ok_and(|ended| ended.is_none()) => {
                    if attempts % 10 == 0 {
                        eprintln!("{}: {error}", self.name);
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Err(error) => panic!("{}: {error}", self.name),
            }
        };
        assert!(report.croupier.failures.is_empty(), "{}: {:?}", self.name, report.croupier.failures);
        self.rounds.push((report.croupier.tokens_per_second, report.croupier.step_milliseconds.p50));
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print(load: &str, sides: &[Side]) {
    println!("\n{load}\n\n{:32} {:>9} {:>9} {:>7}  rounds", "side", "tokens/s", "step p50", "ratio");
    let plain = &sides[0].rounds;
    for side in sides {
        let ratios: Vec<f64> = side.rounds.iter().zip(plain).map(|(own, plain)| own.0 / plain.0).collect();
        let each: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        let (tokens, p50) = side.rounds.iter().copied().unzip();
        let (tokens, p50, ratio): (f64, f64, f64) = (median(tokens), median(p50), median(ratios));
        println!("{:32} {tokens:>9.0} {p50:>6.2} ms {ratio:>7.3}  {}", side.name, each.join(" "));
    }
}

#[tokio::main]
async fn main() {
    let Options { common, other } = Options::parse();
    let quick = common.quick();
    let own = OsString::from(env!("CARGO_BIN_EXE_croupier"));

    let authority = Authority::new();
    let pair = authority.server();
    let files = Mounted::new(&[("tls.crt", &pair.cert), ("tls.key", &pair.key), ("ca.crt", &authority.pem())]);
    let file = |name: &str| files.path(name).display().to_string();
    let tls = ClientTls { ca: files.path("ca.crt"), identity: None, name: None };
    let (_collector, collector) = Collector::start(Manner::Takes).await;
    let traced = |ratio: &str| vec![format!("--otlp-endpoint=http://{collector}"), format!("--trace-ratio={ratio}")];
    let plain = || Access::default();

    let sides = || {
        let mut sides = vec![
            Side::start("plain", &own, &[], plain()),
            Side::start("plain, once more", &own, &[], plain()),
            Side::start("traces of 1 in 100", &own, &traced("0.01"), plain()),
            Side::start("traces of all", &own, &traced("1"), plain()),
        ];
        let certificate = [format!("--tls-cert={}", file("tls.crt")), format!("--tls-key={}", file("tls.key"))];
        sides.push(Side::start("TLS", &own, &certificate, Access { tls: Some(tls.clone()), token_file: None }));
        sides.extend(other.iter().map(|other| Side::start("the other program, plain", other, &[], plain())));
        sides
    };
    let rounds = if quick { 1 } else { 5 };
    let time = |seconds, short| if quick { Duration::from_millis(short) } else { Duration::from_secs(seconds) };
    let base = BenchArgs { warmup: time(1, 50), duration: time(5, 200), rounds: 1, ..BenchArgs::default() };
    // The first load is limited by bytes. The second is limited by messages, so it shows what a step costs apart from its rows.
    let large = BenchArgs { batch: if quick { 4 } else { 16 }, ..base.clone() };
    let small = BenchArgs { vocab: 512, batch: 16, message_bytes: 2048, ..base };
    for (load, args) in [
        ("rows of 128,256 f32, two to a message of 1 MB", large),
        ("rows of 512 f32, one to a message of 2 KiB", small),
    ] {
        let mut sides = sides();
        for _ in 0..rounds {
            for side in &mut sides {
                side.measure(&args).await;
            }
        }
        print(load, &sides);
    }
}

//! The command line of `croupier bench`.

use super::flags::{Reader, option, option_with, switch};
use super::{access, values};
use crate::bench::{
    Address, BaselineArgs, BenchArgs, Distribution, LogitsPath, MAX_RATE, MIN_RATE, Mix, Transport, WriterArgs, is_rate,
};
use crate::params::MAX_VOCAB_SIZE;
use crate::sampling::logits::Dtype;
use clap::ArgMatches;
use std::ops::RangeInclusive;
use std::time::Duration;

pub(super) const BENCH: &str = "bench";
pub(super) const BASELINE: &str = "bench-baseline-server";
pub(super) const WRITER: &str = "bench-shard-writer";

pub(super) const DTYPES: [(&str, Dtype); 3] = [("f32", Dtype::F32), ("f16", Dtype::F16), ("bf16", Dtype::Bf16)];

/// The clap definition of `croupier bench`. The defaults in the help are those of [`BenchArgs`].
pub(super) fn command() -> clap::Command {
    let d = BenchArgs::default();
    let with = |name, value, help, default: String| option_with(name, value, help, &default);
    clap::Command::new(BENCH)
        .about("Measure a server: send it logits as workers do and count the tokens that come back")
        .after_help("Everything at once, with its own server: croupier bench --spawn uds --baseline")
        .arg(with("addr", "ADDR", "The server, HOST:PORT or unix:PATH", Address::default().to_string()))
        .args(access::tls_flags())
        .arg(access::token_flag())
        .arg(option("spawn", "SOCKET", "Start a server for the measurement, on tcp or uds"))
        .arg(with("streams", "N", "Concurrent streams, each on its own connection", d.streams.to_string()))
        .arg(with("batch", "N", "Sequences per stream", d.batch.to_string()))
        .arg(with("vocab", "N", "Logits per row", d.vocab.to_string()))
        .arg(with("dtype", "NAME", "Number format of the logits: f32, f16 or bf16", d.dtype.name().to_owned()))
        .arg(with(
            "mix",
            "NAME",
            "What sequences ask for: greedy, top-k, temperature, top-p, min-p, full (penalties, raw logprobs, top-20, top-k, top-p) or mixed",
            d.mix.name().to_owned(),
        ))
        .arg(with("distribution", "NAME", "What rows look like: peaked or flat", d.distribution.name().to_owned()))
        .arg(with("duration", "TIME", "How long a round measures", values::show_duration(d.duration)))
        .arg(with("warmup", "TIME", "How long a round runs before it measures", values::show_duration(d.warmup)))
        .arg(with("message-bytes", "SIZE", "Rows go into one message up to this size, at least one row", values::show_size(d.message_bytes as u64)))
        .arg(with("transport", "NAME", "How logits get to the server: inline, or shm (shared memory, all rows of a stream in one step; the rows are there before the first step, as if a device had put them there), or shm-slots (the same, and tokens come back through shared memory too)", d.path.name().to_owned()))
        .arg(option("shards", "N,...", "Measure rows whose columns come from this many ranks, each in its own process, next to whole rows in the same run: 1,2,4,8"))
        .arg(with("rate", "HZ", "Steps per second for each message (the sequences that travel together), to measure latency at a given load; 0: as fast as replies come", d.rate.to_string()))
        .arg(with("rounds", "N", "Number of rounds, whose medians are shown; 0: three with --baseline, --in-process or --shards, else one", d.rounds.to_string()))
        .arg(with("seed", "N", "Seed of rows and sequences", d.seed.to_string()))
        .arg(switch("in-process", "Also run the same rows on a backend in this process, alternately, and show the ratio"))
        .arg(switch("baseline", "Also measure a bare tonic stream, alternately, and show the ratio"))
        .arg(switch("json", "Print one JSON object instead of a table"))
}

/// The hidden `croupier bench-baseline-server`.
pub(super) fn baseline_command() -> clap::Command {
    clap::Command::new(BASELINE).hide(true).arg(option("addr", "ADDR", "Where to listen").required(true))
}

/// Makes the arguments from what clap parsed.
///
/// # Errors
/// Every mistake, including those found before.
pub(super) fn args(matches: &ArgMatches, problems: Vec<String>) -> Result<BenchArgs, Vec<String>> {
    let d = BenchArgs::default();
    let mut reader = Reader::new(matches, problems);
    let day = Duration::from_secs(24 * 3600);
    let args = BenchArgs {
        addr: reader.read("addr", None, |t| t.parse::<Address>().map(Some)),
        access: access::read(&mut reader),
        spawn: reader.read("spawn", None, |t| values::one_of(t, &Transport::NAMES).map(Some)),
        streams: reader.read("streams", d.streams, |t| values::count(t, 1..=4096)),
        mix: reader.read("mix", d.mix, |t| values::one_of(t, &Mix::NAMES)),
        duration: reader.read("duration", d.duration, |t| values::duration(t, Duration::from_millis(1)..=day)),
        warmup: reader.read("warmup", d.warmup, |t| values::duration(t, Duration::ZERO..=day)),
        in_process: matches.get_flag("in-process"),
        shards: reader.read("shards", Vec::new(), |t| numbers(t, 1..=64)),
        rate: reader.read("rate", d.rate, rate),
        rounds: reader.read("rounds", d.rounds, |t| values::count(t, 0..=1000)),
        baseline: matches.get_flag("baseline"),
        json: matches.get_flag("json"),
        ..load(&mut reader)
    };
    if let Some(problem) = args.addr.as_ref().and_then(|addr| args.access.suits(&addr.to_string()).err()) {
        reader.note(problem);
    }
    reader.end(args)
}

/// The arguments about rows, which a writer of shards needs too.
fn load(reader: &mut Reader<'_>) -> BenchArgs {
    let d = BenchArgs::default();
    BenchArgs {
        batch: reader.read("batch", d.batch, |t| values::count(t, 1..=65_536)),
        vocab: reader.read("vocab", d.vocab, |t| values::count(t, 1..=MAX_VOCAB_SIZE)),
        dtype: reader.read("dtype", d.dtype, |t| values::one_of(t, &DTYPES)),
        distribution: reader.read("distribution", d.distribution, |t| values::one_of(t, &Distribution::NAMES)),
        message_bytes: reader
            .read("message-bytes", d.message_bytes, |t| values::size(t, 1..=1 << 30).map(|n| n as usize)),
        path: reader.read("transport", d.path, |t| values::one_of(t, &LogitsPath::NAMES)),
        seed: reader.read("seed", d.seed, |t| values::count(t, 0..=u64::MAX)),
        ..d
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|&rate| is_rate(rate));
    rate.ok_or_else(|| format!("\"{text}\" is neither 0 nor a number in {MIN_RATE} ..= {MAX_RATE}"))
}

fn numbers(text: &str, range: RangeInclusive<u32>) -> Result<Vec<u32>, String> {
    text.split(',').map(|number| values::count(number, range.clone())).collect()
}

/// The hidden `croupier bench-shard-writer`.
pub(super) fn writer_command() -> clap::Command {
    let flags = ["addr", "token", "rank", "columns", "region", "vocab", "dtype", "distribution", "batch"];
    let flags = flags.into_iter().chain(["message-bytes", "transport", "seed"]);
    clap::Command::new(WRITER).hide(true).args(flags.map(|name| option(name, "VALUE", "As its parent says")))
}

/// The flags that make the hidden command do this.
#[must_use]
pub fn writer_flags(args: &WriterArgs) -> Vec<String> {
    let WriterArgs { addr, token, rank, columns, region, load } = args;
    let list = |numbers: &mut dyn Iterator<Item = u64>| -> String {
        let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
        numbers.join(",")
    };
    let mut region = region.iter().flatten().copied();
    let flags = [
        ("addr", addr.to_string()),
        ("token", token.iter().map(|byte| format!("{byte:02x}")).collect()),
        ("rank", rank.to_string()),
        ("columns", list(&mut columns.iter().map(|&columns| columns.into()))),
        ("region", list(&mut region)),
        ("vocab", load.vocab.to_string()),
        ("dtype", load.dtype.name().to_owned()),
        ("distribution", load.distribution.name().to_owned()),
        ("batch", load.batch.to_string()),
        ("message-bytes", load.message_bytes.to_string()),
        ("transport", load.path.name().to_owned()),
        ("seed", load.seed.to_string()),
    ];
    let flags = flags.into_iter().map(|(name, value)| format!("--{name}={value}"));
    [WRITER.to_owned()].into_iter().chain(flags).collect()
}

/// Makes the arguments of that command from what clap parsed.
///
/// # Errors
/// Every mistake, including those found before.
pub(super) fn writer_args(matches: &ArgMatches, problems: Vec<String>) -> Result<WriterArgs, Vec<String>> {
    let mut reader = Reader::new(matches, problems);
    let load = load(&mut reader);
    let args = WriterArgs {
        addr: reader.read("addr", Address::default(), str::parse),
        token: reader.read("token", Vec::new(), hexadecimal),
        rank: reader.read("rank", 1, |t| values::count(t, 1..=1023)),
        columns: reader.read("columns", Vec::new(), |t| numbers(t, 1..=MAX_VOCAB_SIZE)),
        region: reader.read("region", None, region),
        load,
    };
    reader.end(args)
}

fn hexadecimal(text: &str) -> Result<Vec<u8>, String> {
    let byte = |at: usize| text.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    (0..text.len()).step_by(2).map(|at| byte(at).ok_or_else(|| "is not hexadecimal".to_owned())).collect()
}

/// A region's id and generation. Empty: no region.
fn region(text: &str) -> Result<Option<[u64; 2]>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let parts: Result<Vec<u64>, String> = text.split(',').map(|part| values::count(part, 0..=u64::MAX)).collect();
    <[u64; 2]>::try_from(parts?).map(Some).map_err(|_| "must have two parts".to_owned())
}

/// Makes the arguments of the hidden baseline command from what clap parsed.
///
/// # Errors
/// Every mistake, including those found before.
pub(super) fn baseline_args(matches: &ArgMatches, problems: Vec<String>) -> Result<BaselineArgs, Vec<String>> {
    let mut reader = Reader::new(matches, problems);
    let addr = reader.read("addr", Address::default(), str::parse);
    reader.end(BaselineArgs { addr })
}

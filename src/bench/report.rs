//! The report of a measurement, for people and for programs.

use super::load::Tally;
use super::pace::Pace;
use super::{Address, BenchArgs};
use crate::output::counted;
use crate::proto::GetServerInfoResponse;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Durations of steps, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct StepTimes {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// The result of one side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SideReport {
    /// Tokens that came back, per second.
    pub tokens_per_second: f64,
    /// Logits of those tokens, in 10^9 bytes per second.
    pub gigabytes_per_second: f64,
    /// Number of messages answered.
    pub steps: u64,
    /// From handing a message to the transport (with a rate: from when it was due) until its reply.
    pub step_milliseconds: StepTimes,
    /// Numbers of results other than OK, by reason.
    pub failures: BTreeMap<String, u64>,
    /// Number of streams requested.
    pub streams: usize,
    /// Number of streams that ran, in the round with the fewest.
    pub streams_ran: usize,
    /// How many messages were answered per second, beside how many were due. `None`: none was due at a set time.
    pub pace: Option<Pace>,
}

impl SideReport {
    /// Whether there are tokens, and no stream was missing or broke off. Otherwise the rates, which cover whole rounds,
    /// would be wrong.
    pub(super) fn is_complete(&self) -> bool {
        self.tokens_per_second > 0.0 && !self.failures.keys().any(|reason| reason.starts_with("stream "))
    }
}

/// One round: Croupier and, if requested, the bare stream.
#[derive(Debug)]
pub(super) struct RoundReport {
    pub(super) croupier: Tally,
    pub(super) bare: Option<Tally>,
    pub(super) in_process: Option<Tally>,
}

/// The whole report. Figures are medians over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Where the server listened.
    pub address: String,
    /// The server's version, backend, device and sampling threads.
    pub server: String,
    /// A description of the load.
    pub load: String,
    /// What the time of a step includes.
    pub step_time_is: &'static str,
    /// Number of rounds measured.
    pub rounds: usize,
    /// Croupier's result.
    pub croupier: SideReport,
    /// The result of the bare tonic stream.
    pub baseline: Option<SideReport>,
    /// Croupier's share of the bare stream's bytes per second: the median of the rounds' ratios.
    pub share_of_baseline: Option<f64>,
    /// That ratio in each round.
    pub shares: Vec<f64>,
    /// The result of a backend in the load generator's process, over the same rows.
    pub in_process: Option<SideReport>,
    /// Croupier's share of that backend's tokens per second, in each round.
    pub shares_of_in_process: Vec<f64>,
    /// How much longer a step takes than in process: the difference of the two sides' p50, and of their p99.
    pub added_milliseconds: Option<(f64, f64)>,
}

impl Report {
    pub(super) fn new(
        args: &BenchArgs,
        addr: &Address,
        server: GetServerInfoResponse,
        rounds: Vec<RoundReport>,
    ) -> Self {
        let shares = shares(&rounds);
        let inner: Vec<&Tally> = rounds.iter().filter_map(|round| round.in_process.as_ref()).collect();
        // It samples one batch after the other, whatever the rate.
        let in_process = (!inner.is_empty()).then(|| SideReport { pace: None, ..side(args, &inner) });
        let shares_of_in_process = rounds
            .iter()
            .zip(&inner)
            .map(|(round, inner)| round.croupier.tokens as f64 / inner.tokens as f64)
            .collect();
        let croupier: Vec<&Tally> = rounds.iter().map(|round| &round.croupier).collect();
        let bare: Vec<&Tally> = rounds.iter().filter_map(|round| round.bare.as_ref()).collect();
        let croupier = side(args, &croupier);
        let added_milliseconds = in_process.as_ref().map(|inner| {
            let (with, without) = (croupier.step_milliseconds, inner.step_milliseconds);
            (with.p50 - without.p50, with.p99 - without.p99)
        });
        Self {
            address: addr.to_string(),
            server: self::server(&server),
            load: describe(args),
            step_time_is: step_time_is(args),
            rounds: rounds.len(),
            croupier,
            baseline: (!bare.is_empty()).then(|| side(args, &bare)),
            share_of_baseline: (!shares.is_empty()).then(|| median(shares.iter().copied())),
            shares,
            in_process,
            shares_of_in_process,
            added_milliseconds,
        }
    }

    /// The report as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a report has only strings and finite numbers")
    }
}

/// Croupier's share of the bare stream's tokens, for each round in which the bare stream has any.
fn shares(rounds: &[RoundReport]) -> Vec<f64> {
    let share = |round: &RoundReport| {
        let bare = round.bare.as_ref().filter(|bare| bare.tokens > 0)?;
        Some(round.croupier.tokens as f64 / bare.tokens as f64)
    };
    rounds.iter().filter_map(share).collect()
}

/// A description of the server.
pub(super) fn server(info: &GetServerInfoResponse) -> String {
    let threads = counted(info.parallelism.into(), "thread");
    format!("{} {}, {}, {threads}", info.version, info.backend, info.device)
}

pub(super) fn describe(args: &BenchArgs) -> String {
    let pace =
        if args.rate > 0.0 { format!("{} steps/s each", args.rate) } else { "as fast as replies come".to_owned() };
    format!(
        "{} x {}, {} a row ({}), {} a step ({} KiB, {}), mix {}, {pace}, {:?} a round",
        counted(args.streams as u64, "stream"),
        counted(args.batch as u64, "sequence"),
        counted(args.vocab.into(), &format!("{} logit", args.dtype.name())),
        args.distribution.name(),
        counted(args.rows_per_message() as u64, "row"),
        args.rows_per_message() * args.row_bytes() / 1024,
        args.path.name(),
        args.mix.name(),
        args.duration,
    )
}

fn step_time_is(args: &BenchArgs) -> &'static str {
    if args.rate > 0.0 {
        "from when the message was due to its reply (corrected for coordinated omission)"
    } else {
        "from handing the message to the transport to its reply (closed loop: the next waits for its tokens)"
    }
}

pub(super) fn side(args: &BenchArgs, rounds: &[&Tally]) -> SideReport {
    let seconds = args.duration.as_secs_f64();
    let of = |figure: &dyn Fn(&Tally) -> f64| median(rounds.iter().map(|tally| figure(tally)));
    let milliseconds = |quantile: f64| of(&|tally| tally.times.value_at_quantile(quantile) as f64 / 1e6);
    let mut failures = BTreeMap::new();
    for (reason, count) in rounds.iter().flat_map(|tally| &tally.failures) {
        *failures.entry(reason.clone()).or_default() += count;
    }
    let tokens_per_second = of(&|tally| tally.tokens as f64 / seconds);
    SideReport {
        tokens_per_second,
        gigabytes_per_second: tokens_per_second * args.row_bytes() as f64 / 1e9,
        steps: rounds.iter().map(|tally| tally.steps).sum(),
        step_milliseconds: StepTimes {
            p50: milliseconds(0.5),
            p99: milliseconds(0.99),
            p999: milliseconds(0.999),
            max: of(&|tally| tally.times.max() as f64 / 1e6),
        },
        failures,
        streams: args.streams,
        streams_ran: args.streams - rounds.iter().map(|tally| tally.missing).max().unwrap_or(0),
        pace: Pace::of(args, rounds.iter().map(|tally| tally.steps)),
    }
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "server  {} at {}", self.server, self.address)?;
        writeln!(f, "load    {}", self.load)?;
        writeln!(f, "step    {}", self.step_time_is)?;
        writeln!(f, "rounds  {}, medians shown\n", self.rounds)?;
        heading(f)?;
        row(f, "croupier", &self.croupier)?;
        if let Some(baseline) = &self.baseline {
            row(f, "bare tonic", baseline)?;
        }
        if let Some(inner) = &self.in_process {
            row(f, "in process", inner)?;
        }
        if !self.shares_of_in_process.is_empty() {
            let share = median(self.shares_of_in_process.iter().copied());
            writeln!(f, "\ncroupier / in process  {share:.2}  ({})", ratios(&self.shares_of_in_process))?;
        }
        if let Some((p50, p99)) = self.added_milliseconds {
            writeln!(f, "added to a step        {p50:.3} ms (p50 less p50), {p99:.3} ms (p99 less p99)")?;
        }
        if let Some(share) = self.share_of_baseline {
            writeln!(f, "\ncroupier / bare tonic  {share:.2}  ({}; goal 0.80)", ratios(&self.shares))?;
        }
        writeln!(f)?;
        failures(f, "croupier", &self.croupier)?;
        self.baseline.as_ref().map_or(Ok(()), |baseline| failures(f, "bare tonic", baseline))
    }
}

/// What a ratio of two sides is the median of. It is not the ratio of the medians in the table.
pub(super) fn ratios(of_rounds: &[f64]) -> String {
    let each: Vec<String> = of_rounds.iter().map(|ratio| format!("{ratio:.2}")).collect();
    format!("tokens/s; median of the rounds' ratios: {}", each.join(", "))
}

pub(super) fn heading(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        f,
        "{:12} {:>12} {:>8} {:>9} {:>9} {:>9} {:>9}",
        "", "tokens/s", "GB/s", "p50 ms", "p99 ms", "p99.9 ms", "max ms"
    )
}

pub(super) fn row(f: &mut fmt::Formatter<'_>, name: &str, side: &SideReport) -> fmt::Result {
    let StepTimes { p50, p99, p999, max } = side.step_milliseconds;
    let (tokens, gigabytes) = (side.tokens_per_second, side.gigabytes_per_second);
    writeln!(f, "{name:12} {tokens:>12.0} {gigabytes:>8.2} {p50:>9.3} {p99:>9.3} {p999:>9.3} {max:>9.3}")
}

pub(super) fn failures(f: &mut fmt::Formatter<'_>, name: &str, side: &SideReport) -> fmt::Result {
    if side.streams_ran < side.streams {
        writeln!(f, "{name}: {} of {} ran", side.streams_ran, counted(side.streams as u64, "stream"))?;
    }
    if let Some(pace) = side.pace {
        writeln!(f, "{name}: {pace}")?;
    }
    if side.failures.is_empty() {
        return match side.tokens_per_second > 0.0 {
            true => writeln!(f, "{name}: no errors, no refusals"),
            false => {
                writeln!(f, "{name}: no step was answered within the measured time; make it longer with --duration")
            }
        };
    }
    side.failures.iter().try_for_each(|(reason, count)| writeln!(f, "{name}: {count} x {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_takes_the_middle() {
        assert_eq!(median([].into_iter()), 0.0);
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
    }
}

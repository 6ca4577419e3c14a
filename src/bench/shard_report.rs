//! The report of a measurement of ranks beside whole rows.

use super::load::Tally;
use super::report::{self, SideReport};
use super::{Address, BenchArgs};
use crate::output::counted;
use crate::proto::GetServerInfoResponse;
use serde::Serialize;
use std::fmt;

/// One round.
#[derive(Debug)]
pub(super) struct ShardRound {
    pub(super) whole: Tally,
    /// In the order of [`BenchArgs::shards`].
    pub(super) sharded: Vec<Tally>,
}

/// The result for one number of ranks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RanksReport {
    /// The number of ranks. Each is a process of its own.
    pub ranks: u32,
    /// The result of this side.
    pub croupier: SideReport,
    /// Share of the tokens per second of whole rows, in each round.
    pub shares_of_whole: Vec<f64>,
}

impl RanksReport {
    fn name(&self) -> String {
        counted(self.ranks.into(), "rank")
    }
}

/// The whole report of ranks beside whole rows. Figures are medians over the rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShardReport {
    /// Where the server listened.
    pub address: String,
    /// The server's version, backend, device and sampling threads.
    pub server: String,
    /// A description of the load.
    pub load: String,
    /// Number of rounds measured.
    pub rounds: usize,
    /// The result with one process that sends whole rows.
    pub whole: SideReport,
    /// The results with several processes that send columns.
    pub shards: Vec<RanksReport>,
}

impl ShardReport {
    pub(super) fn new(
        args: &BenchArgs,
        addr: &Address,
        server: GetServerInfoResponse,
        rounds: Vec<ShardRound>,
    ) -> Self {
        let of_ranks = |(at, &ranks): (usize, &u32)| {
            let tallies: Vec<&Tally> = rounds.iter().filter_map(|round| round.sharded.get(at)).collect();
            let share = |(round, tally): (&ShardRound, &&Tally)| tally.tokens as f64 / round.whole.tokens.max(1) as f64;
            let shares_of_whole = rounds.iter().zip(&tallies).map(share).collect();
            RanksReport { ranks, croupier: report::side(args, &tallies), shares_of_whole }
        };
        let whole: Vec<&Tally> = rounds.iter().map(|round| &round.whole).collect();
        Self {
            address: addr.to_string(),
            server: report::server(&server),
            load: report::describe(args),
            rounds: rounds.len(),
            whole: report::side(args, &whole),
            shards: args.shards.iter().enumerate().map(of_ranks).collect(),
        }
    }

    /// The report as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a report has only strings and finite numbers")
    }

    /// Whether every side gave tokens until the end.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.shards.iter().map(|ranks| &ranks.croupier).chain([&self.whole]).all(SideReport::is_complete)
    }
}

impl fmt::Display for ShardReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "server  {} at {}", self.server, self.address)?;
        writeln!(f, "load    {}", self.load)?;
        writeln!(f, "ranks   one process each, columns split evenly; rank 0 is the load generator")?;
        writeln!(f, "rounds  {}, medians shown\n", self.rounds)?;
        report::heading(f)?;
        report::row(f, "whole rows", &self.whole)?;
        for ranks in &self.shards {
            report::row(f, &ranks.name(), &ranks.croupier)?;
        }
        writeln!(f)?;
        for ranks in &self.shards {
            let share = report::median(ranks.shares_of_whole.iter().copied());
            let of_rounds = report::ratios(&ranks.shares_of_whole);
            writeln!(f, "{} / whole rows  {share:.2}  ({of_rounds})", ranks.name())?;
        }
        writeln!(f)?;
        report::failures(f, "whole rows", &self.whole)?;
        self.shards.iter().try_for_each(|ranks| report::failures(f, &ranks.name(), &ranks.croupier))
    }
}

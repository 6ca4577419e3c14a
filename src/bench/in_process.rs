//! The same rows on a backend in this process: what sampling takes when nothing has to be carried.

use super::load::Tally;
use super::pool::RowPool;
use super::{BenchArgs, BenchError, Mix};
use crate::backend::cpu::CpuBackend;
use crate::backend::{Backend, RowJob};
use crate::sampling::logits::Logits;
use crate::sampling::philox::{Purpose, uniform};
use crate::sampling::row::{Action, Filters, RowSpec};
use std::time::Instant;

/// Whether a mix can be run without a sequence: those without history and logprobs.
pub(super) fn is_possible(mix: Mix) -> bool {
    filters(mix).is_some()
}

/// Samples batches as large as a server's steps, on as many threads as the server has, for the warm-up and the duration.
pub(super) async fn measure(args: &BenchArgs, pool: &RowPool, threads: usize) -> Result<Tally, BenchError> {
    let (args, pool) = (args.clone(), pool.clone());
    let measured = tokio::task::spawn_blocking(move || run(&args, &pool, threads)).await;
    measured.map_err(|failed| BenchError::Io(std::io::Error::other(failed)))
}

fn run(args: &BenchArgs, pool: &RowPool, threads: usize) -> Tally {
    let mut backend = CpuBackend::new(threads);
    let mut tally = Tally::new();
    let Some(filters) = filters(args.mix) else { return tally };
    let (rows, from) = (args.rows_per_message(), Instant::now() + args.warmup);
    for turn in 0.. {
        let bytes = pool.slice(rows, turn);
        let started = Instant::now();
        if started > from + args.duration {
            break;
        }
        let jobs: Vec<RowJob<'_>> = (0..)
            .zip(bytes.chunks_exact(args.row_bytes()))
            .map(|(row, bytes)| RowJob { logits: Logits::new(args.dtype, bytes), spec: spec(filters, row, turn) })
            .collect();
        let tokens = backend.run(&jobs).iter().filter(|result| result.is_ok()).count() as u64;
        if started >= from {
            tally.record(tokens, started.elapsed());
        }
    }
    tally
}

/// As [`Mix::params`] says it, for rows that need no sequence.
fn filters(mix: Mix) -> Option<Filters> {
    let warm = Filters { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0 };
    match mix {
        Mix::Greedy => Some(Filters { temperature: 0.0, ..warm }),
        Mix::TopK => Some(Filters { top_k: 50, top_p: 0.95, ..warm }),
        Mix::Temperature => Some(warm),
        Mix::TopP => Some(Filters { top_p: 0.9, ..warm }),
        Mix::MinP => Some(Filters { min_p: 0.05, ..warm }),
        Mix::Full | Mix::Mixed => None,
    }
}

fn spec(filters: Filters, row: u64, turn: u64) -> RowSpec<'static> {
    RowSpec::plain(filters, Action::Draw { uniform: uniform(row, turn, Purpose::Sample) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_draws_a_token_for_every_row() {
        let args = BenchArgs {
            vocab: 256,
            batch: 4,
            duration: Duration::from_millis(20),
            warmup: Duration::ZERO,
            ..Default::default()
        };
        for (_, mix) in Mix::NAMES {
            let args = BenchArgs { mix, ..args.clone() };
            let tally = run(&args, &RowPool::new(&args), 1);
            assert_eq!(tally.tokens, tally.steps * 4);
            assert_eq!(tally.steps > 0, is_possible(mix), "{mix:?}");
        }
    }
}

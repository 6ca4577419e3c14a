//! Samples the same rows on a backend in this process. This shows the cost of sampling without any transport.

use super::load::Tally;
use super::pool::RowPool;
use super::{BenchArgs, BenchError};
use crate::backend::cpu::CpuBackend;
use crate::backend::{Backend, RowJob};
use crate::sampling::logits::Logits;
use crate::sampling::philox::{Purpose, uniform};
use crate::sampling::row::{Action, Filters, RowSpec};
use std::time::Instant;

/// Samples batches as large as a server's steps, on as many threads as the server has, during the warm-up and the
/// duration.
pub(super) async fn measure(args: &BenchArgs, pool: &RowPool, threads: usize) -> Result<Tally, BenchError> {
    let (args, pool) = (args.clone(), pool.clone());
    let measured = tokio::task::spawn_blocking(move || run(&args, &pool, threads)).await;
    measured.map_err(|failed| BenchError::Io(std::io::Error::other(failed)))
}

fn run(args: &BenchArgs, pool: &RowPool, threads: usize) -> Tally {
    let mut backend = CpuBackend::new(threads);
    let mut tally = Tally::new();
    let Some(filters) = args.mix.filters() else { return tally };
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

fn spec(filters: Filters, row: u64, turn: u64) -> RowSpec<'static> {
    RowSpec::plain(filters, Action::Draw { uniform: uniform(row, turn, Purpose::Sample) })
}

#[cfg(test)]
mod tests {
    use super::super::Mix;
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
            assert_eq!(tally.steps > 0, mix.filters().is_some(), "{mix:?}");
        }
    }
}

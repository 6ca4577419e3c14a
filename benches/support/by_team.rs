//! The time that teams of each size take, compared with the chosen teams: this shows whether the choice is right.

use super::{Bench, Drafts, KEPT, MIXES, Rows, median, micros};
use crate::rows::Shape;
use croupier::backend::cuda::OpenError;
use croupier::backend::cuda::abi::MAX_TEAM;
use croupier::backend::cuda::costs::Costs;
use croupier::sampling::logits::Dtype;

/// Measures batches that are large enough for teams to matter.
pub(super) fn rows(bench: &mut Bench) {
    header("rows | mix", "cold us");
    let batches = bench.extent.batches;
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let rows = Rows::new(bench.extent.drafted_vocab_size, dtype, Shape::Peaked);
        for &batch in &batches[batches.len() / 2..] {
            for mix in &MIXES[1..] {
                let time = |bench: &mut Bench, rounds| {
                    rows.timed(bench, batch, mix, rounds).map(|timing| format!("{:.1}", median(timing.cold)))
                };
                println!("| {} | {batch} | {} | {} |", dtype.name(), mix.0, by_each(bench, time));
            }
        }
    }
}

/// Measures rows that are weighed once more after a draft was rejected: the launches of a verification after the first.
pub(super) fn weighing(bench: &mut Bench) {
    println!("\nverification by teams of each size: its first launch, then what weighs rows");
    header("drafts", "cold us of each launch");
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let drafts = Drafts::new(dtype, bench.extent.drafted_vocab_size);
        for &batch in bench.extent.weighed {
            let time = |bench: &mut Bench, rounds| {
                let timings = drafts.timed(bench, batch, &KEPT, rounds)?;
                Ok(micros(&timings.into_iter().map(|of| median(of.cold)).collect::<Vec<_>>()))
            };
            println!("| {} | {batch} | {} |", dtype.name(), by_each(bench, time));
        }
    }
}

fn header(of: &str, what: &str) {
    let sizes: Vec<String> = (2..=MAX_TEAM).map(|size| size.to_string()).collect();
    println!("\n| format | {of} | chosen, {what} | by teams of 1 | {} |", sizes.join(" | "));
    println!("|{}", "---|".repeat(2 + of.split('|').count() + MAX_TEAM as usize));
}

/// The time with the chosen teams, then with teams of each size, as cells of a table. For a size that is not possible,
/// the cell says why.
fn by_each(bench: &mut Bench, time: impl Fn(&mut Bench, usize) -> Result<String, OpenError>) -> String {
    let (measured, rounds) = (*bench.backend.costs(), bench.extent.rounds.div_ceil(10));
    let costs = std::iter::once(measured).chain((1..=MAX_TEAM).map(Costs::only));
    let cells = costs.map(|costs| {
        bench.backend.set_costs(costs);
        time(bench, rounds).unwrap_or_else(|error| error.to_string())
    });
    let cells: Vec<String> = cells.collect();
    bench.backend.set_costs(measured);
    cells.join(" | ")
}

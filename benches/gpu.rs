//! What the kernels cost on a GPU, over one read of the logits at the rate of a device copy measured beside them.
//!
//! Times are medians of many launches between CUDA events, from cold caches. scripts/gpu-bench runs this on a machine with
//! a GPU, next to PyTorch and FlashInfer. Without a GPU it says so and ends.

#![allow(clippy::print_stdout)] // it prints a table

use croupier::backend::cpu::CpuBackend;
use croupier::backend::cuda::CudaBackend;
use croupier::backend::{Backend, RowJob};
use croupier::sampling::adjust::{Penalties, TokenAdjust};
use croupier::sampling::logits::{Dtype, Logits};
use croupier::sampling::row::{Action, Filters, LogprobsMode, LogprobsSpec, RowSpec};

#[path = "support/rows.rs"]
#[allow(dead_code)] // The reference of the CPU's benches.
mod rows;
use rows::Shape;

const ROUNDS: usize = 200;
/// For 256 rows of 151,936 f32 logits.
const ROOM: usize = 192 << 20;
const OFF: Filters = Filters { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.0 };
const TOP_20: LogprobsSpec<'static> = LogprobsSpec { top_n: 20, mode: LogprobsMode::Raw, tokens: &[] };

/// Parameter mixes: name, filters, penalties on 64 tokens, logprobs.
const MIXES: [(&str, Filters, bool, Option<LogprobsSpec<'static>>); 6] = [
    ("greedy", Filters { temperature: 0.0, ..OFF }, false, None),
    ("top-k 50, top-p .9", Filters { top_k: 50, top_p: 0.9, ..OFF }, false, None),
    ("min-p .05", Filters { min_p: 0.05, ..OFF }, false, None),
    ("temperature only", OFF, false, None),
    ("top-p .9", Filters { top_p: 0.9, ..OFF }, false, None),
    ("penalties, raw top-20, k, p", Filters { top_k: 50, top_p: 0.9, ..OFF }, true, Some(TOP_20)),
];

fn main() {
    let mut backend = match CudaBackend::open_with("0", Box::new(CpuBackend::new(1)), ROOM) {
        Ok(backend) => backend,
        Err(reason) => return println!("SKIPPED: nothing was measured: {reason}"),
    };
    println!("{}\n", backend.info().device);
    println!(
        "| vocabulary | format | rows | shape | mix | us | GB/s of one read | x one read |\n|---|---|---|---|---|---|---|---|"
    );
    for vocab in [32_000, 128_256, 151_936] {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            for shape in [Shape::Peaked, Shape::Flat] {
                let encoded: Vec<Vec<u8>> = (0..8).map(|seed| dtype.encode(&rows::row(shape, vocab, seed))).collect();
                for batch in [1, 8, 64, 256] {
                    MIXES.iter().for_each(|mix| line(&mut backend, vocab, dtype, shape, &encoded, batch, mix));
                }
            }
        }
    }
}

fn line(
    backend: &mut CudaBackend,
    vocab: usize,
    dtype: Dtype,
    shape: Shape,
    encoded: &[Vec<u8>],
    batch: usize,
    &(name, filters, penalised, logprobs): &(&str, Filters, bool, Option<LogprobsSpec<'static>>),
) {
    let adjusts: Vec<TokenAdjust> = (0..if penalised { 64 } else { 0 })
        .map(|i| TokenAdjust { token: i * 499, flags: 2, bias: 0.0, output_count: i % 3 })
        .collect();
    let spec = RowSpec {
        filters,
        chain: None,
        penalties: Penalties { repetition: 1.1, frequency: 0.1, presence: 0.1, ..Penalties::OFF },
        adjusts: adjusts.as_slice().into(),
        banned: &[],
        allowed: None,
        action: Action::Draw { uniform: 0x9E37_79B9_7F4A_7C15 },
        logprobs,
    };
    let jobs: Vec<RowJob<'_>> =
        (0..batch).map(|i| RowJob { logits: Logits::new(dtype, &encoded[i % encoded.len()]), spec }).collect();
    let timing = backend.time(&jobs, ROUNDS).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut times = timing.launches;
    times.sort_by(f32::total_cmp);
    let median = times[times.len() / 2];
    let bytes = (batch * vocab * dtype.size()) as f32;
    println!(
        "| {vocab} | {} | {batch} | {} | {name} | {median:.1} | {:.0} | {:.2} |",
        dtype.name(),
        shape.name(),
        bytes / median / 1e3,
        median * timing.copy_rate / bytes
    );
}

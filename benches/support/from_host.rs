//! The time of a batch as the server sees it: from the rows' jobs to their results, including commands, uploads and
//! waiting. Rows in the host's memory are sampled by the CPU or copied to the device. Rows on the device stay there
//! unless the CPU samples them.

use super::{OFF, Rows, Shape, median};
use croupier::backend::cuda::{CudaBackend, HostRows};
use croupier::backend::{Backend, RowJob};
use croupier::sampling::chain::{Chain, Step};
use croupier::sampling::logits::{Dtype, Foreign, Logits};
use croupier::sampling::row::{Action, Filters, RowSpec};
use cudarc::driver::result;
use std::time::Instant;

/// llama.cpp's order with its defaults. The kernel begins such a chain, and the CPU ends it.
const BEGUN: [Step; 4] = [Step::TopK, Step::TopP, Step::MinP, Step::Temperature];
/// The same kind of chain, with many tokens left to the CPU.
const LONG: [Step; 2] = [Step::TopK, Step::Temperature];
/// A chain that the CPU does entirely. The row is copied to the host for it.
const BROUGHT: [Step; 2] = [Step::TypicalP(0.9), Step::Temperature];

/// Name, filters, steps of a chain.
type Kind = (&'static str, Filters, &'static [Step]);

const KINDS: [Kind; 5] = [
    ("greedy", Filters { temperature: 0.0, ..OFF }, &[]),
    ("top-k 50, top-p .9", Filters { top_k: 50, top_p: 0.9, ..OFF }, &[]),
    ("llama.cpp's order, k 40, p .95, min-p .05", Filters { top_k: 40, top_p: 0.95, min_p: 0.05, ..OFF }, &BEGUN),
    ("the same, k 256 alone", Filters { top_k: 256, ..OFF }, &LONG),
    ("typical-p .9, by the CPU", OFF, &BROUGHT),
];

/// Prints a table.
///
/// # Errors
/// The error of the device's memory or of the driver.
pub(crate) fn table(backend: &mut CudaBackend, vocab: usize, batches: &[usize], rounds: usize) -> Result<(), String> {
    println!(
        "\nfrom the host, {vocab} f32 logits a row, peaked; one thread of the CPU does what kernels do not: chains of rows in the host's memory too"
    );
    println!(
        "| rows | what | us, rows in the host's memory, by the CPU | us, brought to the device | us, rows on the device |"
    );
    println!("|---|---|---|---|---|");
    let rows = Rows::new(vocab, Dtype::F32, Shape::Peaked);
    for &batch in batches {
        let there = on_device(backend, &rows, batch)?;
        for (name, filters, steps) in &KINDS {
            let chain = (!steps.is_empty()).then(|| Chain::of_filters(steps));
            let spec = RowSpec { chain, ..RowSpec::plain(*filters, Action::Draw { uniform: 0x9E37_79B9_7F4A_7C15 }) };
            let own =
                |i: usize| RowJob { logits: Logits::new(Dtype::F32, &rows.encoded[i % rows.encoded.len()]), spec };
            let moved = |i: usize| {
                let logits = Logits::foreign(Dtype::F32, &*there, i * vocab * Dtype::F32.size(), vocab);
                RowJob { logits, spec }
            };
            let own: Vec<RowJob<'_>> = (0..batch).map(own).collect();
            let moved: Vec<RowJob<'_>> = (0..batch).map(moved).collect();
            backend.set_host_rows(HostRows::Cpu);
            let (of_cpu, cpu) = (backend.run(&own), timed(backend, &own, rounds));
            backend.set_host_rows(HostRows::Cuda);
            if backend.run(&own) != of_cpu || backend.run(&moved) != of_cpu {
                return Err(format!("{name}: rows have other tokens on the device"));
            }
            let [brought, device] = [&own, &moved].map(|jobs| timed(backend, jobs, rounds));
            println!("| {batch} | {name} | {cpu:.0} | {brought:.0} | {device:.0} |");
        }
    }
    Ok(())
}

/// Copies the rows of a batch to the device's memory.
fn on_device(backend: &mut CudaBackend, rows: &Rows, batch: usize) -> Result<Box<dyn Foreign + Send>, String> {
    // This makes the device current in this thread.
    backend.run(&[]);
    let memory = backend.device_memory().ok_or("the device lends no memory")?;
    let row_bytes = rows.encoded[0].len();
    let made = memory.allocate((batch * row_bytes).next_multiple_of(memory.granularity()));
    let made = made.map_err(|error| error.to_string())?.memory;
    let at = made.device_address().ok_or("the memory has no address")?;
    for i in 0..batch {
        let row = &rows.encoded[i % rows.encoded.len()];
        // SAFETY: so many bytes were asked for, and nobody else knows of them.
        let copied = unsafe { result::memcpy_htod_sync(at + (i * row_bytes) as u64, row) };
        copied.map_err(|error| error.to_string())?;
    }
    // The last bytes may still be in transfer.
    result::ctx::synchronize().map_err(|error| error.to_string())?;
    Ok(made)
}

fn timed(backend: &mut CudaBackend, jobs: &[RowJob<'_>], rounds: usize) -> f32 {
    let times = (0..rounds).map(|_| {
        let start = Instant::now();
        backend.run(jobs);
        start.elapsed().as_secs_f32() * 1e6
    });
    median(times.collect())
}

//! The time of a batch as the server sees it: from the rows' jobs to their results, including commands, uploads and
//! waiting. Rows in the host's memory are sampled by the CPU or copied to the device. Rows on the device stay there
//! unless the CPU samples them.

use super::{OFF, Rows, Shape, median};
use croupier::backend::cuda::{CudaBackend, HostRows};
use croupier::backend::{Backend, RowJob, VerifyJob};
use croupier::params::TypicalRule;
use croupier::sampling::chain::{Chain, ChainStep};
use croupier::sampling::logits::{Dtype, Foreign, Logits};
use croupier::sampling::row::{Action, Filters, LogprobsMode, LogprobsSpec, RowSpec};
use croupier::sampling::spread::SpreadRows;
use croupier::speculative::job::{DraftSource, DraftToken};
use croupier::speculative::numbers::Numbers;
use croupier::speculative::rule::AcceptanceRule;
use croupier::speculative::tree::Tree;
use cudarc::driver::result;
use std::time::Instant;

/// llama.cpp's order with its defaults. The kernel begins such a chain, and the CPU ends it.
const BEGUN: [ChainStep; 4] = [ChainStep::TopK, ChainStep::TopP, ChainStep::MinP, ChainStep::Temperature];
/// The same kind of chain, with many tokens left to the CPU.
const LONG: [ChainStep; 2] = [ChainStep::TopK, ChainStep::Temperature];
/// A chain that the CPU does entirely. The row is copied to the host for it.
const BROUGHT: [ChainStep; 2] = [ChainStep::TypicalP(TypicalRule::Reached, 0.9), ChainStep::Temperature];

/// The filters that llama.cpp has by default.
const LLAMA: Filters = Filters { top_k: 40, top_p: 0.95, min_p: 0.05, ..OFF };
/// Twenty alternatives, of the logits as sent.
const RAW: LogprobsSpec<'_> = LogprobsSpec { top_n: 20, mode: LogprobsMode::Raw, tokens: &[] };

/// Name, filters, steps of a chain, logprobs.
type Kind = (&'static str, Filters, &'static [ChainStep], Option<LogprobsSpec<'static>>);

const KINDS: [Kind; 6] = [
    ("greedy", Filters { temperature: 0.0, ..OFF }, &[], None),
    ("top-k 50, top-p .9", Filters { top_k: 50, top_p: 0.9, ..OFF }, &[], None),
    ("llama.cpp's order, k 40, p .95, min-p .05", LLAMA, &BEGUN, None),
    ("the same, raw top 20", LLAMA, &BEGUN, Some(RAW)),
    ("top-k 256 in a chain of its own", Filters { top_k: 256, ..OFF }, &LONG, None),
    ("typical-p .9, by the CPU", OFF, &BROUGHT, None),
];
/// A draft model knows one of so many tokens.
const KNOWN: usize = 4;
/// Draft tokens of each verification.
const DRAFTED: usize = 4;

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
        let there = on_device(backend, &rows, batch * (DRAFTED + 1))?;
        for &(name, filters, steps, logprobs) in &KINDS {
            let chain = (!steps.is_empty()).then(|| Chain::of_filters(steps));
            let plain = RowSpec::plain(filters, Action::Draw { uniform: 0x9E37_79B9_7F4A_7C15 });
            let spec = RowSpec { chain, logprobs, ..plain };
            let [own, moved] = placed(&rows, &*there, batch, spec);
            let times = compared(backend, [&own, &moved], rounds, |backend, jobs| backend.run(jobs))
                .ok_or_else(|| format!("{name}: rows have other tokens on the device"))?;
            println!("| {batch} | {name} | {times} |");
        }
        let times = of_draft_model(backend, &*there, vocab, batch, rounds)?;
        println!("| {batch} | draft rows of {} logits, top-k 50, top-p .9 | {times} |", vocab / KNOWN);
        let times = verified(backend, &rows, &*there, batch, rounds)?;
        println!("| {batch} | {DRAFTED} draft tokens each, llama.cpp's order | {times} |");
    }
    Ok(())
}

/// Rows of a draft model that knows every fourth token, whose worker spreads them over the vocabulary in the host's
/// memory, or leaves them as they are on the device.
fn of_draft_model(
    backend: &mut CudaBackend,
    sent: &dyn Foreign,
    vocab_size: usize,
    batch: usize,
    rounds: usize,
) -> Result<String, String> {
    let token_ids: Vec<u32> = (0..vocab_size / KNOWN).map(|column| (column * KNOWN) as u32).collect();
    let rows = SpreadRows { sent, dtype: Dtype::F32, token_ids: &token_ids, vocab_size };
    let mut whole = vec![vec![0; vocab_size * Dtype::F32.size()]; batch];
    whole.iter_mut().enumerate().for_each(|(at, row)| rows.row(at).copy_to(row));
    let filters = Filters { top_k: 50, top_p: 0.9, ..OFF };
    let spec = RowSpec::plain(filters, Action::Draw { uniform: 0x9E37_79B9_7F4A_7C15 });
    let own: Vec<RowJob<'_>> = whole.iter().map(|row| RowJob { logits: Logits::new(Dtype::F32, row), spec }).collect();
    let there: Vec<RowJob<'_>> = (0..batch).map(|at| RowJob { logits: rows.row(at), spec }).collect();
    let times = compared(backend, [&own, &there], rounds, |backend, jobs| backend.run(jobs));
    times.ok_or_else(|| "rows of a draft model have other tokens on the device".to_owned())
}

/// Verifies drafts without chance whose rows have chains.
fn verified(
    backend: &mut CudaBackend,
    rows: &Rows,
    there: &dyn Foreign,
    batch: usize,
    rounds: usize,
) -> Result<String, String> {
    let plain = RowSpec::plain(LLAMA, Action::Draw { uniform: 0 });
    let spec = RowSpec { chain: Some(Chain::of_filters(&BEGUN)), ..plain };
    let placed = placed(rows, there, batch * (DRAFTED + 1), spec);
    let tree = Tree::chain(DRAFTED);
    // The likeliest tokens, of which many are accepted.
    let drafts: Vec<DraftToken<'_>> = (rows.encoded.iter().map(|row| first(row)))
        .map(|token| DraftToken { token, source: DraftSource::Deterministic })
        .collect();
    let drafts = (0..batch * (DRAFTED + 1)).map(|i| drafts[i % drafts.len()]).collect::<Vec<_>>();
    let job = |(rows, drafts)| VerifyJob {
        rows,
        ends: &[false; DRAFTED],
        drafts,
        tree: &tree,
        rule: AcceptanceRule::Rejection,
        strict: &[],
        numbers: Numbers { seed: 1, start: 0 },
        measure: false,
    };
    let of_jobs = || drafts.chunks(DRAFTED + 1).map(|drafts| &drafts[..DRAFTED]);
    let jobs = placed.each_ref().map(|rows| rows.chunks(DRAFTED + 1).zip(of_jobs()).map(job).collect::<Vec<_>>());
    let times = compared(backend, [&jobs[0], &jobs[1]], rounds, |backend, jobs| backend.verify(jobs));
    times.ok_or_else(|| "drafts are verified otherwise on the device".to_owned())
}

/// The likeliest token of a row of f32 logits.
fn first(row: &[u8]) -> u32 {
    let logits = Logits::new(Dtype::F32, row);
    (0..logits.vocab_size() as u32).max_by(|&a, &b| logits.get(a).total_cmp(&logits.get(b))).unwrap_or(0)
}

/// The same rows in the host's memory and in the device's.
fn placed<'a>(rows: &'a Rows, there: &'a dyn Foreign, count: usize, spec: RowSpec<'a>) -> [Vec<RowJob<'a>>; 2] {
    let bytes = rows.encoded[0].len();
    let own = |i: usize| Logits::new(Dtype::F32, &rows.encoded[i % rows.encoded.len()]);
    let moved = |i: usize| Logits::foreign(Dtype::F32, there, i * bytes, bytes / Dtype::F32.size());
    let job = |logits| RowJob { logits, spec };
    [(0..count).map(|i| job(own(i))).collect(), (0..count).map(|i| job(moved(i))).collect()]
}

/// The times of jobs in the host's memory, by the CPU and brought to the device, and of those on the device; `None` if
/// results differ.
fn compared<J, R: PartialEq>(
    backend: &mut CudaBackend,
    [own, moved]: [&[J]; 2],
    rounds: usize,
    run: impl Fn(&mut CudaBackend, &[J]) -> Vec<R>,
) -> Option<String> {
    let timed = |backend: &mut CudaBackend, jobs| {
        let times = (0..rounds).map(|_| {
            let start = Instant::now();
            run(backend, jobs);
            start.elapsed().as_secs_f32() * 1e6
        });
        median(times.collect())
    };
    backend.set_host_rows(HostRows::Cpu);
    let (of_cpu, cpu) = (run(backend, own), timed(backend, own));
    backend.set_host_rows(HostRows::Cuda);
    let are_equal = run(backend, own) == of_cpu && run(backend, moved) == of_cpu;
    let [brought, device] = [own, moved].map(|jobs| timed(backend, jobs));
    are_equal.then(|| format!("{cpu:.0} | {brought:.0} | {device:.0}"))
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

//! The CPU backend: the specification at the speed of memory.
//!
//! Reading order: [`row`] (one row, from logits to result), [`view`] (the row with masks and penalties
//! applied on the side), [`distribution`] (which road a combination of filters takes), [`select`] and
//! [`search`] (finding the cut), [`chain`] (all other samplers, and other orders), [`passes`] (every loop over logits), [`simd`] (the instructions). Then [`verify`] for
//! drafts.

mod chain;
mod distribution;
mod greens;
pub(super) mod keep;
pub(super) mod keys;
mod level;
mod memory;
mod own;
mod passes;
mod report;
mod row;
mod search;
mod select;
mod simd;
mod verify;
mod view;

pub use level::Level;
pub(super) use verify::{Proposed, Source};

use super::{ALONE_BYTES, Backend, BackendInfo, RowJob, VerifyJob, VerifyResult};
use crate::locks::lock;
use crate::sampling::row::RowResult;
use crate::speculative::job;
use own::OwnRows;
use row::{Scratch, sample_row};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// Batches above this do not fit the cache of a core, so their rows are read as rows from memory are read fastest.
const FAR_BYTES: usize = 1 << 20;

/// What a thread needs to sample, kept from batch to batch.
#[derive(Debug, Default)]
struct Tools {
    scratch: Scratch,
    own: OwnRows,
}

/// Tools that nobody has in hand: never more than there are threads, whichever threads these are.
#[derive(Debug, Default)]
struct Shelf(Mutex<Vec<Tools>>);

impl Shelf {
    /// Does `work` with tools in hand.
    fn with<R>(&self, work: impl FnOnce(&mut Tools) -> R) -> R {
        let mut tools = self.lock().pop().unwrap_or_default();
        let result = work(&mut tools);
        self.lock().push(tools);
        result
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Tools>> {
        lock(&self.0)
    }
}

/// Samples on the CPU, rows spread over a fixed pool of threads.
#[derive(Debug)]
pub struct CpuBackend {
    level: Level,
    threads: usize,
    /// Threads beside the calling one, which samples too; absent when there are none.
    pool: Option<rayon::ThreadPool>,
    tools: Shelf,
    share_above_bytes: usize,
}

impl CpuBackend {
    /// A backend with `threads` threads, at least 1, at the fastest level of this CPU.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self::with_level(threads, Level::detect())
    }

    /// As [`CpuBackend::new`] at a given level, for tests and comparisons.
    ///
    /// # Panics
    /// If this CPU lacks the level.
    #[must_use]
    pub fn with_level(threads: usize, level: Level) -> Self {
        assert!(level.is_available(), "this CPU has no {}", level.name());
        let threads = threads.max(1);
        let pool = (threads > 1).then(|| {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(threads - 1);
            builder.thread_name(|i| format!("sample-{i}")).build().expect("threads can be started")
        });
        Self { level, threads, pool, tools: Shelf::default(), share_above_bytes: ALONE_BYTES }
    }

    /// Spreads batches of more bytes over the threads. The result does not depend on it.
    #[must_use]
    pub fn sharing_above(self, bytes: usize) -> Self {
        Self { share_above_bytes: bytes, ..self }
    }
}

impl Backend for CpuBackend {
    fn info(&self) -> BackendInfo {
        let device = format!("{} ({})", std::env::consts::ARCH, self.level.name());
        BackendInfo { name: "cpu", device, parallelism: self.threads }
    }

    fn runs_anywhere(&self) -> bool {
        true
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        let level = self.level;
        let far = jobs.iter().map(|job| job.logits.byte_len()).sum::<usize>() > FAR_BYTES;
        let sample = |job: &RowJob<'_>, tools: &mut Tools| {
            if job.logits.listed().is_some() {
                // As long as its list: the specification is as fast as anything.
                return crate::sampling::sample_row(&job.logits, &job.spec);
            }
            sample_row(level, job, far, &mut tools.own, &mut tools.scratch)
        };
        self.spread(jobs, time_bytes(jobs), sample)
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        let level = self.level;
        let verify = |job: &VerifyJob<'_>, tools: &mut Tools| {
            let Tools { scratch, own } = tools;
            own.with_rows(job, |job| match job.has_lists() {
                true => job::verify(job),
                false => verify::verify(level, job, scratch),
            })
        };
        self.spread(jobs, time_bytes(jobs.iter().flat_map(|job| job.rows)), verify)
    }
}

/// What rows are worth in bytes of whole ones.
fn time_bytes<'a>(rows: impl IntoIterator<Item = &'a RowJob<'a>>) -> usize {
    rows.into_iter().map(|row| row.logits.time_bytes()).fold(0, usize::saturating_add)
}

impl CpuBackend {
    /// Does jobs on this thread alone, or on all where `bytes` of rows are worth it.
    fn spread<J: Sync, R: Send + Sync>(
        &self,
        jobs: &[J],
        bytes: usize,
        work: impl Fn(&J, &mut Tools) -> R + Sync,
    ) -> Vec<R> {
        match &self.pool {
            Some(pool) if jobs.len() > 1 && bytes > self.share_above_bytes => share(pool, jobs, &self.tools, work),
            _ => self.tools.with(|tools| jobs.iter().map(|job| work(job, tools)).collect()),
        }
    }
}

/// Does jobs on the pool and on this thread until none is left: whoever is free takes the next, so a
/// thread that wakes late costs nothing.
fn share<J: Sync, R: Send + Sync>(
    pool: &rayon::ThreadPool,
    jobs: &[J],
    shelf: &Shelf,
    work_on: impl Fn(&J, &mut Tools) -> R + Sync,
) -> Vec<R> {
    let results: Vec<OnceLock<R>> = jobs.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let take = |tools: &mut Tools| {
        while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&i| i < jobs.len()) {
            let _ = results[i].set(work_on(&jobs[i], tools));
        }
    };
    let work = || shelf.with(take);
    pool.in_place_scope(|scope| {
        for _ in 0..pool.current_num_threads().min(jobs.len() - 1) {
            scope.spawn(|_| work());
        }
        work();
    });
    results.into_iter().map(|result| result.into_inner().expect("every job was taken; this is a bug")).collect()
}

//! The CPU backend: the specification's results at the speed of memory.
//!
//! Reading order: [`row`] (one row, from logits to result), [`view`] (the row with masks and penalties applied without
//! copying it), [`distribution`] (which algorithm a combination of filters takes), [`select`] and [`search`] (finding
//! where filters cut), [`chain`] (all other samplers, and other orders), [`passes`] (every loop over logits), [`simd`]
//! (the instructions). Then [`verify`] for drafts.

mod chain;
mod distribution;
mod foreign_rows;
mod greens;
pub(super) mod keep;
pub(super) mod keys;
mod level;
mod memory;
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
use foreign_rows::RowCopies;
use row::{Scratch, sample_row};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// Larger batches do not fit the cache of a core.
const CACHE_BYTES: usize = 1 << 20;

/// Where the rows of a batch are when they are read. Each is read in the way that is fastest from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadFrom {
    Cache,
    Memory,
}

impl ReadFrom {
    /// Where a batch of `bytes` bytes is.
    fn of_bytes(bytes: usize) -> Self {
        if bytes > CACHE_BYTES { Self::Memory } else { Self::Cache }
    }
}

/// What a thread needs to sample. Kept from batch to batch.
#[derive(Debug, Default)]
struct Workspace {
    scratch: Scratch,
    copies: RowCopies,
}

/// Workspaces that no thread uses at the moment. There are never more than threads, whichever threads these are.
#[derive(Debug, Default)]
struct WorkspacePool(Mutex<Vec<Workspace>>);

impl WorkspacePool {
    /// Calls `work` with a workspace that no other thread uses.
    fn with<R>(&self, work: impl FnOnce(&mut Workspace) -> R) -> R {
        let mut workspace = self.lock().pop().unwrap_or_default();
        let result = work(&mut workspace);
        self.lock().push(workspace);
        result
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Workspace>> {
        lock(&self.0)
    }
}

/// Samples on the CPU. Rows are spread over a fixed pool of threads.
#[derive(Debug)]
pub struct CpuBackend {
    level: Level,
    threads: usize,
    /// Threads in addition to the calling one, which samples too; absent when there are none.
    pool: Option<rayon::ThreadPool>,
    workspaces: WorkspacePool,
    share_above_bytes: usize,
}

impl CpuBackend {
    /// A backend with `threads` threads, at least 1, at the fastest level of this CPU.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self::with_level(threads, Level::detect())
    }

    /// As [`CpuBackend::new`], at a given instruction-set level, for tests and comparisons.
    ///
    /// # Panics
    /// If this CPU does not support the level.
    #[must_use]
    pub fn with_level(threads: usize, level: Level) -> Self {
        assert!(level.is_available(), "this CPU does not support {}", level.name());
        let threads = threads.max(1);
        let pool = (threads > 1).then(|| {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(threads - 1);
            builder.thread_name(|i| format!("sample-{i}")).build().expect("cannot start the threads of the CPU backend")
        });
        Self { level, threads, pool, workspaces: WorkspacePool::default(), share_above_bytes: ALONE_BYTES }
    }

    /// Spreads batches of more than `bytes` bytes over the threads. Results do not depend on it.
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
        let read_from = ReadFrom::of_bytes(jobs.iter().map(|job| job.logits.byte_len()).sum());
        let sample = |job: &RowJob<'_>, workspace: &mut Workspace| {
            if job.logits.listed().is_some() {
                // The work is proportional to the list, and the specification is as fast as anything.
                return crate::sampling::sample_row(&job.logits, &job.spec);
            }
            sample_row(level, job, read_from, &mut workspace.copies, &mut workspace.scratch)
        };
        self.spread(jobs, time_bytes(jobs), sample)
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        let level = self.level;
        let verify = |job: &VerifyJob<'_>, workspace: &mut Workspace| {
            let Workspace { scratch, copies } = workspace;
            copies.with_rows(job, |job| match job.has_lists() {
                true => job::verify(job),
                false => verify::verify(level, job, scratch),
            })
        };
        self.spread(jobs, time_bytes(jobs.iter().flat_map(|job| job.rows)), verify)
    }
}

/// How many bytes of whole rows take as long to sample as these rows.
fn time_bytes<'a>(rows: impl IntoIterator<Item = &'a RowJob<'a>>) -> usize {
    rows.into_iter().map(|row| row.logits.time_bytes()).fold(0, usize::saturating_add)
}

impl CpuBackend {
    /// Does jobs on this thread alone, or on all threads if there are enough `bytes` of rows.
    fn spread<J: Sync, R: Send + Sync>(
        &self,
        jobs: &[J],
        bytes: usize,
        work: impl Fn(&J, &mut Workspace) -> R + Sync,
    ) -> Vec<R> {
        match &self.pool {
            Some(pool) if jobs.len() > 1 && bytes > self.share_above_bytes => share(pool, jobs, &self.workspaces, work),
            _ => self.workspaces.with(|workspace| jobs.iter().map(|job| work(job, workspace)).collect()),
        }
    }
}

/// Does jobs on the pool and on this thread until none is left. Whichever thread is free takes the next job, so a
/// thread that wakes late costs nothing.
fn share<J: Sync, R: Send + Sync>(
    pool: &rayon::ThreadPool,
    jobs: &[J],
    workspaces: &WorkspacePool,
    work: impl Fn(&J, &mut Workspace) -> R + Sync,
) -> Vec<R> {
    let results: Vec<OnceLock<R>> = jobs.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let take_jobs = |workspace: &mut Workspace| {
        while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&i| i < jobs.len()) {
            let _ = results[i].set(work(&jobs[i], workspace));
        }
    };
    let help = || workspaces.with(take_jobs);
    pool.in_place_scope(|scope| {
        for _ in 0..pool.current_num_threads().min(jobs.len() - 1) {
            scope.spawn(|_| help());
        }
        help();
    });
    results.into_iter().map(|result| result.into_inner().expect("every job was taken; this is a bug")).collect()
}

//! Rows in the host's memory, which the CPU samples while the device samples other rows, with the emulator as the device.

use super::harness::{built, config};
use super::machine::{Emulated, ROOM, beside};
use super::on_device::{OnDevice, moved};
use crate::cases::{self, Case, case, summary};
use crate::draft_jobs::{self, recipe, together};
use croupier::backend::cpu::CpuBackend;
use croupier::backend::cuda::ask::has_kernel;
use croupier::backend::cuda::{CudaBackend, HostRows};
use croupier::backend::{Backend, BackendInfo, RowJob, VerifyJob, VerifyResult};
use croupier::sampling::kept::Kept;
use croupier::sampling::logits::Dtype;
use croupier::sampling::row::RowResult;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What the CPU was asked: for each call, how many rows or drafts, and how many launches were under way.
#[derive(Debug, Default)]
struct Seen {
    under_way: Mutex<Arc<AtomicUsize>>,
    calls: Mutex<Vec<(usize, usize)>>,
    panics: AtomicBool,
}

impl Seen {
    fn note(&self, jobs: usize) {
        let under_way = self.under_way.lock().unwrap().load(Ordering::Relaxed);
        self.calls.lock().unwrap().push((jobs, under_way));
        assert!(!self.panics.swap(false, Ordering::Relaxed), "the CPU panics");
    }

    fn taken(&self) -> Vec<(usize, usize)> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

struct Watched(CpuBackend, Arc<Seen>);

impl Backend for Watched {
    fn info(&self) -> BackendInfo {
        self.0.info()
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        self.1.note(jobs.len());
        self.0.run(jobs)
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        // Drafts of the device, of whose rows kernels left lists, are not what it is asked about the host's memory.
        if !jobs.iter().flat_map(|job| job.rows).any(|row| row.logits.listed().is_some()) {
            self.1.note(jobs.len());
        }
        self.0.verify(jobs)
    }
}

/// A backend that leaves rows in the host's memory to the CPU, and what the CPU is asked.
fn watched() -> (CudaBackend<Emulated>, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let other = Box::new(Watched(CpuBackend::new(1), Arc::clone(&seen)));
    let mut backend = beside("narrow", ROOM, other);
    backend.set_host_rows(HostRows::Cpu);
    *seen.under_way.lock().unwrap() = Arc::clone(&backend.machine().under_way);
    (backend, seen)
}

/// How many rows were handed over since the last call: those in the host's memory, and all.
fn handed_over(backend: &mut CudaBackend<Emulated>) -> (u64, u64) {
    let rows = backend.handed_over().iter_mut().map(|(reason, rows)| (*reason, std::mem::take(rows)));
    rows.fold((0, 0), |(here, all), (reason, rows)| (here + if reason == "host_memory" { rows } else { 0 }, all + rows))
}

#[test]
fn rows_in_the_hosts_memory_are_the_cpus_while_the_device_does_its_own() {
    if !built() {
        return;
    }
    let (running, both) = (RefCell::new(watched()), Cell::new(0));
    let strategy = prop::collection::vec((case(), any::<bool>()), 1..12);
    let result = TestRunner::new(config(60)).run(&strategy, |cases| {
        let (backend, seen) = &mut *running.borrow_mut();
        let own: Vec<RowJob<'_>> = cases.iter().map(|(case, _)| case.job()).collect();
        let there: Vec<OnDevice> = own.iter().map(|job| OnDevice::of(job.logits.bytes().to_vec())).collect();
        let placed = own.iter().zip(&there).zip(&cases);
        let jobs = placed.map(|((job, there), (_, is_there))| if *is_there { moved(job, there, 0) } else { *job });
        let jobs: Vec<RowJob<'_>> = jobs.collect();
        for ((case, _), got) in cases.iter().zip(backend.run(&jobs)) {
            assert_eq!(cases::bits(&got), cases::bits(&case.expected()), "{}", summary(case));
        }
        let here = cases.iter().filter(|(_, is_there)| !is_there).count();
        assert_eq!(handed_over(backend).0, here as u64);
        let calls = seen.taken();
        let launched = std::mem::take(&mut backend.machine().copies) > 0;
        if here > 0 {
            assert_eq!(calls[0], (here, usize::from(launched)), "all of them together, beside a launch");
            both.set(both.get() + usize::from(launched));
        }
        // Further calls are about rows without a kernel, or chains that the CPU ends. No launch may be using its memory then.
        assert!(calls[usize::from(here > 0)..].iter().all(|(_, under_way)| *under_way == 0), "{calls:?}");
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    println!("{} batches had both", both.get());
    assert!(both.get() >= 5, "some batches need both for this to show anything");
}

#[test]
fn drafts_in_the_hosts_memory_are_the_cpus_while_the_device_does_its_own() {
    if !built() {
        return;
    }
    let both = Cell::new(0);
    let strategy = (prop::collection::vec(recipe(vec![127, 1025], 4), 1..6), any::<u8>(), any::<bool>(), any::<bool>());
    let result = TestRunner::new(config(60)).run(&strategy, |(recipes, which, holds, is_mixed)| {
        let cases: Vec<draft_jobs::Case> = recipes.iter().filter_map(draft_jobs::Recipe::case).collect();
        let (mut backend, seen) = watched();
        // If the device cannot hold rows, they are copied to the host, but the device still verifies them.
        backend.machine().holds = if holds { usize::MAX } else { 0 };
        let backend = RefCell::new(backend);
        let keep =
            |job: &RowJob<'_>| -> Box<Kept> { backend.borrow_mut().run(&[*job]).remove(0).unwrap().kept.unwrap() };
        let (mut got, mut here, mut has_kernels) = (Vec::new(), (0, 0), false);
        together(&cases, &keep, &mut Vec::new(), &mut |jobs: &[VerifyJob<'_>]| {
            drop((seen.taken(), handed_over(&mut backend.borrow_mut())));
            let there: Vec<Vec<OnDevice>> = jobs
                .iter()
                .map(|job| job.rows.iter().map(|row| OnDevice::of(row.logits.bytes().to_vec())).collect())
                .collect();
            let is_there = |at: usize| which >> (at % 8) & 1 == 1;
            let mut placed: Vec<Vec<RowJob<'_>>> = Vec::new();
            for (at, (job, there)) in jobs.iter().zip(&there).enumerate() {
                let rows = job.rows.iter().zip(there);
                // Some rows of a draft may be on the device and others on the host.
                let is_moved = |row: usize| is_there(at) && (row.is_multiple_of(2) || !is_mixed);
                let place = |(row, (job, there))| if is_moved(row) { moved(job, there, 0) } else { *job };
                placed.push(rows.enumerate().map(place).collect());
            }
            for (at, job) in jobs.iter().enumerate().filter(|(_, job)| !job.rows.is_empty()) {
                if is_there(at) {
                    has_kernels |= job.rows.iter().all(|row| has_kernel(&row.spec).is_ok());
                } else {
                    here = (here.0 + 1, here.1 + job.rows.len());
                }
            }
            let jobs = jobs.iter().zip(&placed).map(|(job, rows)| VerifyJob { rows, ..*job });
            got = backend.borrow_mut().verify(&jobs.collect::<Vec<_>>());
        });
        for (case, got) in cases.iter().zip(&got) {
            assert_eq!(draft_jobs::bits(got), draft_jobs::bits(&case.expected()), "{}", draft_jobs::summary(case));
        }
        assert_eq!(handed_over(&mut backend.borrow_mut()).0, here.1 as u64);
        let calls = seen.taken();
        if here.0 > 0 {
            assert_eq!(calls[0].0, here.0, "all of them together");
            both.set(both.get() + usize::from(calls[0].1 == 1));
            assert!(calls[0].1 <= usize::from(has_kernels), "a launch without rows");
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    println!("{} batches had both", both.get());
    assert!(both.get() >= 3, "some batches need both for this to show anything");
}

/// A launch that was under way when the CPU panicked is waited for before anything else is done.
#[test]
fn a_panic_beside_a_launch_leaves_nothing_behind() {
    if !built() {
        return;
    }
    let (mut backend, seen) = watched();
    let values: Vec<Vec<f32>> = (0..2).map(|seed| cases::row(seed, 3000, 1)).collect();
    let cases: Vec<Case> = values.iter().map(|values| Case::new(Dtype::F32, values)).collect();
    let there = OnDevice::of(Dtype::F32.encode(&values[0]));
    let jobs = [moved(&cases[0].job(), &there, 0), cases[1].job()];
    seen.panics.store(true, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| backend.run(&jobs))).is_err());
    assert_eq!(backend.machine().under_way.load(Ordering::Relaxed), 1);
    for (case, got) in cases.iter().zip(backend.run(&jobs)) {
        assert_eq!(cases::bits(&got), cases::bits(&case.expected()));
    }
    assert_eq!(backend.machine().under_way.load(Ordering::Relaxed), 0);
    assert_eq!(seen.taken(), [(1, 1), (1, 1)]);
}

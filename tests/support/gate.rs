//! A backend that waits until it is allowed to run.

use super::NEVER;
use croupier::backend::cpu::CpuBackend;
use croupier::backend::{Backend, BackendInfo, RowJob, VerifyJob, VerifyResult};
use croupier::sampling::row::RowResult;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// A backend that runs a batch only once it is allowed to, so that tests can fill queues before it.
#[derive(Clone, Default)]
pub struct Gate {
    state: Arc<(Mutex<bool>, Condvar)>,
    /// Batches that reached the backend.
    pub batches: Arc<AtomicUsize>,
}

impl Gate {
    pub fn open(&self) {
        *self.state.0.lock().unwrap() = true;
        self.state.1.notify_all();
    }

    /// Waits until a batch waits at the gate.
    pub async fn wait_for_batch(&self) {
        let started = Instant::now();
        while self.batches.load(Ordering::SeqCst) == 0 {
            assert!(started.elapsed() < NEVER, "no batch came");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Backend for Gate {
    fn info(&self) -> BackendInfo {
        CpuBackend::new(1).info()
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        self.batches.fetch_add(1, Ordering::SeqCst);
        let guard = self.state.0.lock().unwrap();
        let (guard, waited) = self.state.1.wait_timeout_while(guard, NEVER, |open| !*open).unwrap();
        assert!(!waited.timed_out(), "the gate was never opened");
        drop(guard);
        CpuBackend::new(1).run(jobs)
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        CpuBackend::new(1).verify(jobs)
    }
}

//! A backend that does everything with each available instruction set and as the specification does, and notes differences.

use crate::draft_jobs;
use croupier::backend::cpu::{CpuBackend, Level};
use croupier::backend::{Backend, BackendInfo, RowJob, VerifyJob, VerifyResult};
use croupier::sampling::distribution::Distribution;
use croupier::sampling::row::{Action, RowResult};
use croupier::sampling::sample_row;
use croupier::speculative::verify;
use std::sync::{Arc, Mutex};

/// Descriptions of the differences.
pub type Faults = Arc<Mutex<Vec<String>>>;

pub struct Checking {
    levels: Vec<(Level, CpuBackend)>,
    faults: Faults,
}

impl Checking {
    pub fn new() -> (Self, Faults) {
        let levels = Level::ALL.into_iter().filter(|level| level.is_available());
        let levels = levels.map(|level| (level, CpuBackend::with_level(1, level))).collect();
        let faults = Faults::default();
        (Self { levels, faults: Arc::clone(&faults) }, faults)
    }

    fn compare(&self, level: Level, what: impl Fn() -> String, got: &[String], expected: &[String]) {
        if got != expected {
            let fault = format!("{level:?} {}: {got:?} instead of {expected:?}", what());
            self.faults.lock().unwrap().push(fault);
        }
    }
}

impl Backend for Checking {
    fn info(&self) -> BackendInfo {
        CpuBackend::new(1).info()
    }

    fn run(&mut self, jobs: &[RowJob<'_>]) -> Vec<RowResult> {
        let plain: Vec<RowResult> = jobs.iter().map(|job| sample_row(&job.logits, &job.spec)).collect();
        for (job, result) in jobs.iter().zip(&plain) {
            if let Err(fault) = survives(job, result) {
                self.faults.lock().unwrap().push(fault);
            }
        }
        let expected: Vec<String> = plain.iter().map(bits).collect();
        let mut results = plain;
        for at in 0..self.levels.len() {
            results = self.levels[at].1.run(jobs);
            let got: Vec<String> = results.iter().map(bits).collect();
            self.compare(self.levels[at].0, || format!("{:?}", jobs[0].spec), &got, &expected);
        }
        results
    }

    fn verify(&mut self, jobs: &[VerifyJob<'_>]) -> Vec<VerifyResult> {
        let mut results: Vec<VerifyResult> = jobs.iter().map(verify).collect();
        let expected: Vec<String> = results.iter().map(draft_jobs::bits).collect();
        for at in 0..self.levels.len() {
            results = self.levels[at].1.verify(jobs);
            let got: Vec<String> = results.iter().map(draft_jobs::bits).collect();
            self.compare(self.levels[at].0, || format!("{:?}", jobs[0].rows[0].spec), &got, &expected);
        }
        results
    }
}

/// A drawn token must be one that the filters leave, so there is one.
fn survives(job: &RowJob<'_>, result: &RowResult) -> Result<(), String> {
    let (Ok(output), Action::Draw { .. } | Action::Propose { .. }) = (result, job.spec.action) else { return Ok(()) };
    let left = Distribution::of(&job.logits, &job.spec).map_err(|error| format!("{error:?} and yet a token"))?;
    let is_left = left.kept().iter().any(|w| w.candidate.token == output.token && w.mass > 0);
    if is_left { Ok(()) } else { Err(format!("{} is not left by {:?}", output.token, job.spec)) }
}

/// Everything about a result, bit for bit. Floats are printed so that different values look different, and zeros have their signs.
fn bits(result: &RowResult) -> String {
    match result {
        Ok(output) => {
            let kept = output.kept.as_ref().map(|kept| (kept.total(), kept.entries()));
            format!("{} {:?} {:?} {:?} {kept:?}", output.token, output.logprobs, output.observed, output.report)
        }
        Err(error) => format!("{error:?}"),
    }
}

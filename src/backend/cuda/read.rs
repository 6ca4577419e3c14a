//! Reads what a launch wrote about a row, and derives the row's result.

use super::abi::{self, ReportedToken, RowResult as Written};
use super::pack::scale;
use crate::backend::RowJob;
use crate::sampling::kept::Kept;
use crate::sampling::listed::Approximation;
use crate::sampling::mass;
use crate::sampling::row::{Action, LogprobsMode, RowError, RowOutput, RowResult, TokenLogprobs};

/// What a launch wrote about a row.
#[derive(Debug, Clone)]
pub struct Answer {
    pub(super) written: Written,
    /// Room for the most likely tokens, of which `written` says how many there are, then the requested ones.
    pub(super) reported: Vec<ReportedToken>,
    /// The distribution of a proposed token; `None` if the kernel contradicted itself.
    pub(super) kept: Option<Kept>,
}

impl Answer {
    /// Whether the row has a result; `None` if the kernel contradicted itself.
    pub(super) fn status(&self) -> Option<Result<(), RowError>> {
        Some(match self.written.status {
            abi::OK => Ok(()),
            abi::NAN => Err(RowError::Nan),
            abi::POSITIVE_INFINITY => Err(RowError::PositiveInfinity),
            abi::ALL_MASKED => Err(RowError::AllMasked),
            _ => return None,
        })
    }

    /// The most likely tokens, for which there was room for `top_n`, and the requested ones.
    pub(super) fn reported(&self, top_n: u32) -> (&[ReportedToken], &[ReportedToken]) {
        let (top, requested) = self.reported.split_at(top_n as usize);
        (&top[..self.written.top_count as usize], requested)
    }

    /// The result of a plain row; `None` if the kernel contradicted itself.
    #[must_use]
    pub fn result(self, job: &RowJob<'_>) -> Option<RowResult> {
        let proposes = matches!(job.spec.action, Action::Propose { .. });
        match self.status()? {
            Ok(()) if proposes && self.kept.is_none() => None,
            status => Some(status.map(|()| self.output(job))),
        }
    }

    fn output(self, job: &RowJob<'_>) -> RowOutput {
        let written = &self.written;
        let logprobs = job.spec.logprobs.map(|wanted| {
            let scale = if wanted.mode == LogprobsMode::Raw { mass::scale(1.0) } else { scale(&job.spec) };
            let log_total = mass::log_total(written.total);
            let logprob = |logit| mass::logprob(mass::exponent(logit, written.max, scale), log_total);
            let (top, requested) = self.reported(wanted.top_n);
            let top = top.iter().map(|r| (r.token, logprob(r.logit))).collect();
            let requested = requested.iter().map(|r| logprob(r.logit)).collect();
            TokenLogprobs { logprob: logprob(written.logit), rank: written.rank, top, requested }
        });
        let (kept, approximation) = (self.kept.map(Box::new), Approximation::default());
        RowOutput { token: written.token, logprobs, kept, observed: None, report: None, approximation }
    }
}

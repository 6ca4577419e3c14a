//! One row on the CPU backend: [`sample_row`](crate::sampling::sample_row), fast.

use super::ReadFrom;
use super::distribution::{Distribution, Store, Wanted};
use super::foreign_rows::RowCopies;
use super::keep;
use super::level::Level;
use super::passes::Scan;
use super::report;
use super::verify::ResidualStore;
use super::view::{self, View, ViewStore};
use crate::backend::RowJob;
use crate::sampling::distribution::unless_greedy;
use crate::sampling::listed::Approximation;
use crate::sampling::row::{Action, LogprobsMode, RowError, RowOutput, RowResult};

/// Buffers of one thread, reused from row to row. Their size is bounded by the largest row seen, which the vocabulary
/// limit bounds.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) maxima: Vec<f32>,
    pub(super) view: ViewStore,
    pub(super) processed: Store,
    /// For a second distribution at the same time, in verification.
    pub(super) other: Store,
    pub(super) keys: Vec<u64>,
    pub(super) left: ResidualStore,
}

/// Scans a row and adjusts it. Returns its largest logit as sent, and leaves in the stores what a [`View`] of it needs.
pub(super) fn prepare(
    level: Level,
    job: &RowJob<'_>,
    read_from: ReadFrom,
    maxima: &mut Vec<f32>,
    store: &mut ViewStore,
) -> Result<f32, RowError> {
    let scan = view::scan(level.passes(job.logits.dtype()), &job.logits, read_from, maxima);
    prepare_scanned(level, job, scan, maxima, store)
}

/// The same, for a row that has been scanned.
fn prepare_scanned(
    level: Level,
    job: &RowJob<'_>,
    scan: Scan,
    maxima: &[f32],
    store: &mut ViewStore,
) -> Result<f32, RowError> {
    if scan.nan {
        return Err(RowError::Nan);
    }
    if scan.max == f32::INFINITY {
        return Err(RowError::PositiveInfinity);
    }
    let raw = View::raw(level, job.logits, maxima, scan.max);
    let adjusted = View::adjusted(&raw, &job.spec, store)?;
    if adjusted.max == f32::NEG_INFINITY { Err(RowError::AllMasked) } else { Ok(scan.max) }
}

/// Samples or scores one row.
pub(super) fn sample_row(
    level: Level,
    job: &RowJob<'_>,
    read_from: ReadFrom,
    copies: &mut RowCopies,
    scratch: &mut Scratch,
) -> RowResult {
    let Scratch { maxima, view, processed: store, keys, .. } = scratch;
    let (logits, scan) = copies.scan(level, job, read_from, maxima);
    let job = &RowJob { logits, spec: job.spec };
    let max = prepare_scanned(level, job, scan, maxima, view)?;
    let raw = View::raw(level, job.logits, maxima, max);
    let adjusted = View::from_store(&raw, &job.spec, view);
    let processed = is_filtered(job)
        .then(|| Distribution::processed(&adjusted, &job.spec.filters, job.spec.chain.as_ref(), wanted_of(job), store));
    let processed = processed.as_ref();
    let token = match (job.spec.action, processed) {
        (Action::Draw { uniform } | Action::Propose { uniform }, Some(processed)) => {
            processed.draw_by(job.spec.race(), &adjusted, uniform, store)
        }
        (Action::Draw { .. } | Action::Propose { .. }, None) => unreachable!("a draw has a distribution"),
        (Action::Score { token }, _) => token,
    };
    let logprobs = job.spec.logprobs.map(|wanted| match (wanted.mode, processed) {
        (LogprobsMode::Processed, Some(processed)) => processed.report(&adjusted, token, &wanted, keys, store),
        (LogprobsMode::Tempered, _) => {
            let temperature = unless_greedy(job.spec.filters.temperature);
            Distribution::tempered(&adjusted, temperature).report(&adjusted, token, &wanted, keys, store)
        }
        _ => Distribution::tempered(&raw, 1.0).report(&raw, token, &wanted, keys, store),
    });
    let report = job.spec.report.zip(processed);
    let report = report.map(|(wanted, processed)| report::report(job, &raw, &adjusted, processed, &wanted, store));
    let observed = processed.filter(|_| job.spec.has_state() && !job.spec.is_scored_raw());
    let observed = observed.map(|processed| processed.observed(&adjusted, token, store));
    let kept = processed.filter(|_| matches!(job.spec.action, Action::Propose { .. }));
    let kept = kept.map(|processed| Box::new(keep::keep(job, &adjusted, processed, store)));
    let report = report.transpose()?.map(Box::new);
    Ok(RowOutput { token, logprobs, kept, observed, report, approximation: Approximation::default() })
}

/// Whether the filtered distribution is needed: to draw from it, or to report on it.
fn is_filtered(job: &RowJob<'_>) -> bool {
    !job.spec.is_scored_raw() || job.spec.report.is_some()
}

/// What a row's distribution is needed for.
fn wanted_of(job: &RowJob<'_>) -> Wanted {
    let is_shown = job.spec.report.is_some()
        || job.spec.logprobs.is_some_and(|logprobs| matches!(logprobs.mode, LogprobsMode::Processed));
    match job.spec.action {
        Action::Draw { uniform } if job.spec.race().is_none() && !is_shown => Wanted::Token(uniform),
        _ => Wanted::All,
    }
}

//! Turns rows of work into jobs of the backend, and guards the engine against a failing backend.

use super::draft::Branch;
use super::step::{DraftWork, RowFailure, RowStatus, Score, WorkKind};
use crate::backend::{Backend, DeviceLost, RowJob};
use crate::params::state::SamplerState;
use crate::sampling::logits::Logits;
use crate::sampling::mask::TokenMask;
use crate::sampling::observed::learned;
use crate::sampling::philox::Purpose;
use crate::sampling::row::{Action, Filters, LogprobsSpec, RowOutput, RowSpec};
use crate::sequence::Sequence;
use crate::sequence::history::HistoryAhead;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// How many entries of histories may be held at a time for rows that look ahead. Such rows run in several rounds, so
/// that a long history is not copied for each of them at once.
pub(super) const MAX_AHEAD_ENTRIES: usize = 1 << 20;

/// A row's logits, its mask and what it is wanted for.
#[derive(Debug)]
pub(super) struct RowSource<'a> {
    logits: Logits<'a>,
    mask: Option<TokenMask<'a>>,
    request: RowRequest<'a>,
}

/// What a row is wanted for.
#[derive(Debug)]
enum RowRequest<'a> {
    Sample(&'a Sequence),
    /// A draft token that follows `path`.
    Draft {
        sequence: &'a Sequence,
        path: Vec<u32>,
        uniform: u64,
        /// What samplers remember after `path`.
        state: Option<SamplerState>,
    },
    /// Row `row`, scored by the model's own distribution.
    ScoreRaw {
        score: &'a Score,
        row: usize,
    },
    /// Row `row`, scored by the distribution that the sequence would draw from.
    ScoreProcessed {
        score: &'a Score,
        row: usize,
        sequence: &'a Sequence,
    },
}

impl<'a> RowSource<'a> {
    /// Row `row` of a work; `None` if the work needs a sequence and has none.
    pub(super) fn new(
        logits: Logits<'a>,
        mask: Option<TokenMask<'a>>,
        kind: &'a WorkKind,
        sequence: Option<&'a Sequence>,
        row: usize,
    ) -> Option<Self> {
        let request = match kind {
            WorkKind::Sample => RowRequest::Sample(sequence?),
            WorkKind::Draft(work) => Self::draft(*work, sequence?)?,
            WorkKind::Verify(_) => return None,
            WorkKind::Score(score) if score.is_raw() => RowRequest::ScoreRaw { score, row },
            WorkKind::Score(score) => RowRequest::ScoreProcessed { score, row, sequence: sequence? },
        };
        Some(Self { logits, mask, request })
    }

    fn draft(work: DraftWork, sequence: &'a Sequence) -> Option<RowRequest<'a>> {
        let branch = Branch::of(work, sequence.drafts()).ok()?;
        let path = branch.path(sequence.drafts());
        let state = branch.parent.and_then(|parent| sequence.drafts().state(parent));
        Some(RowRequest::Draft { uniform: sequence.numbers().draft(branch.spot), sequence, path, state })
    }

    /// The history that this row must see if its sequence has not emitted all the tokens before it. Starting from the
    /// `previous` row's history saves growing it from the beginning.
    fn ahead(&self, previous: Option<&HistoryAhead>) -> Option<HistoryAhead> {
        let (sequence, tokens, previous) = match &self.request {
            RowRequest::Draft { sequence, path, .. } => (sequence, path.as_slice(), None),
            RowRequest::ScoreProcessed { score, row, sequence } => (sequence, score.tokens.get(..*row)?, previous),
            RowRequest::Sample(_) | RowRequest::ScoreRaw { .. } => return None,
        };
        let (last, before) = tokens.split_last()?;
        let mut history = match previous {
            // The row before is of the same work unless this is the work's first row, which looks at no token ahead.
            // The second row follows a row without a history of its own.
            Some(previous) if !before.is_empty() => previous.clone(),
            _ => {
                let mut history = sequence.ahead();
                for &token in before {
                    sequence.grow(&mut history, token);
                }
                history
            }
        };
        sequence.grow(&mut history, *last);
        Some(history)
    }

    /// Whether samplers learn from the row before how to treat this one.
    fn follows(&self) -> bool {
        matches!(&self.request, RowRequest::ScoreProcessed { row, sequence, .. } if *row > 0 && sequence.state().is_some())
    }

    /// The row's job. `state` is what samplers remember of the rows before, if the row [follows](Self::follows) them.
    fn job<'b>(&self, ahead: Option<&'b HistoryAhead>, state: Option<SamplerState>) -> RowJob<'b>
    where
        'a: 'b,
    {
        let spec = match &self.request {
            RowRequest::Sample(sequence) => sequence.spec(sequence.draw(Purpose::Sample)),
            // Nobody needs the logprob of a draft token, which may never be emitted.
            RowRequest::Draft { sequence, uniform, state, .. } => {
                let spec = spec(sequence, ahead, Action::Propose { uniform: *uniform }).remembering(*state);
                RowSpec { logprobs: None, report: None, ..spec }
            }
            RowRequest::ScoreRaw { score, row } => {
                RowSpec { logprobs: Some(wanted(score)), ..RowSpec::plain(Filters::OFF, known(score, *row)) }
            }
            RowRequest::ScoreProcessed { score, row, sequence } => {
                let spec = spec(sequence, ahead, known(score, *row)).remembering(state.filter(|_| self.follows()));
                RowSpec { logprobs: Some(wanted(score)), ..spec }
            }
        };
        RowJob { logits: self.logits, spec: RowSpec { mask: self.mask, ..spec } }
    }
}

fn spec<'b>(sequence: &'b Sequence, ahead: Option<&'b HistoryAhead>, action: Action) -> RowSpec<'b> {
    match ahead {
        Some(ahead) => sequence.spec_ahead(ahead, action),
        None => sequence.spec(action),
    }
}

fn known(score: &Score, row: usize) -> Action {
    Action::Score { token: score.tokens.get(row).copied().unwrap_or_default() }
}

fn wanted(score: &Score) -> LogprobsSpec<'_> {
    let wanted = &score.logprobs;
    LogprobsSpec { top_n: wanted.top_n, mode: wanted.mode, tokens: &wanted.token_ids }
}

/// Runs all rows; one result per row, in order. At most `max_entries` of histories that look ahead are held at a time
/// (beside one history, which has to fit).
pub(super) fn run_rows(
    sources: &[RowSource<'_>],
    max_entries: usize,
    backend: &mut dyn Backend,
) -> Vec<Result<RowOutput, RowFailure>> {
    let mut results = Vec::with_capacity(sources.len());
    let (mut last, mut state) = (None, None);
    while let Some(rest) = sources.get(results.len()..).filter(|rest| !rest.is_empty()) {
        // A row whose samplers learn from the row before comes in the next round.
        let independent = 1 + rest[1..].iter().take_while(|source| !source.follows()).count();
        let mut ahead = histories(&rest[..independent], last.as_ref(), max_entries);
        let jobs = rest.iter().zip(&ahead).enumerate();
        let jobs = jobs.map(|(i, (source, ahead))| source.job(ahead.as_ref(), state.filter(|_| i == 0)));
        let jobs: Vec<RowJob<'_>> = jobs.collect();
        results.extend(run_guarded(backend, &jobs));
        state = after(jobs.last(), results.last());
        // The next round continues from here instead of from the start of its work.
        last = ahead.pop().flatten();
    }
    results
}

/// What samplers remember after a row, if they learned anything from it.
fn after(job: Option<&RowJob<'_>>, result: Option<&Result<RowOutput, RowFailure>>) -> Option<SamplerState> {
    let (chain, output) = (job?.spec.chain?, result?.as_ref().ok()?);
    Some(learned(chain.state, chain.steps, output.observed?))
}

/// The histories of the first rows: at least one, and as many as may be held at a time. `before` is the history of the
/// row before them.
fn histories(rows: &[RowSource<'_>], before: Option<&HistoryAhead>, max_entries: usize) -> Vec<Option<HistoryAhead>> {
    let mut histories: Vec<Option<HistoryAhead>> = Vec::with_capacity(rows.len());
    let mut entries = 0;
    for source in rows {
        let previous = if histories.is_empty() { before } else { histories.last().and_then(Option::as_ref) };
        let history = source.ahead(previous);
        entries += history.as_ref().map_or(0, HistoryAhead::weight);
        histories.push(history);
        if entries > max_entries {
            break;
        }
    }
    histories
}

/// The backend's results, one per job. If the backend panics, only these rows fail and the server stays up.
pub(super) fn run_guarded(backend: &mut dyn Backend, jobs: &[RowJob<'_>]) -> Vec<Result<RowOutput, RowFailure>> {
    match guarded(jobs.len(), || backend.run(jobs)) {
        Ok(results) => {
            let results = results.into_iter().zip(jobs);
            results.map(|(result, job)| result.map_err(|error| RowFailure::of_row(error, Some(&job.logits)))).collect()
        }
        Err(failure) => vec![Err(failure); jobs.len()],
    }
}

/// `len` results of the backend, or why there are none. A lost device ends the engine and with it the process.
pub(super) fn guarded<R>(len: usize, run: impl FnOnce() -> Vec<R>) -> Result<Vec<R>, RowFailure> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(results) if results.len() == len => Ok(results),
        Ok(_) => Err(RowFailure::new(RowStatus::Internal, "the backend lost rows")),
        Err(panic) if panic.is::<DeviceLost>() => resume_unwind(panic),
        Err(_) => Err(RowFailure::new(RowStatus::Internal, "the backend failed on this batch")),
    }
}

//! Turns verify work into jobs of the backend, and into the rows that report on emitted tokens.

use super::rows::{guarded, run_guarded};
use super::step::{LogitsBlock, Masks, RowFailure, RowStatus, VerifyWork};
use super::verification::Verification;
use crate::backend::{Backend, RowJob, VerifyJob};
use crate::params::FieldError;
use crate::params::acceptance::AcceptanceRule;
use crate::sampling::listed::Approximation;
use crate::sampling::row::{Action, RowOutput, RowSpec};
use crate::sequence::Sequence;
use crate::sequence::history::HistoryAhead;
use crate::speculative::job::{DraftSource, DraftToken, VerifyFailure};
use crate::speculative::tree::Tree;
use crate::speculative::verified::Verified;
use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};

/// A verify work with its logits and its sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct VerifySource<'a> {
    pub(super) work: &'a VerifyWork,
    pub(super) logits: &'a LogitsBlock,
    pub(super) masks: &'a Masks,
    pub(super) first_row: u64,
    pub(super) sequence: &'a Sequence,
}

/// One in this many verifications is measured without being asked for, to see whether acceptance is as expected.
const MEASURED_ONE_IN: u64 = 16;

/// Draws which verifications are measured. The choice is random, because anything regular might match a regularity of
/// the text. It does not use a number of the sequence, because texts that share a seed would all be measured at the
/// same positions, or at none.
#[derive(Debug, Default)]
pub(super) struct MeasurementSelector {
    key: RandomState,
    drawn: u64,
}

impl MeasurementSelector {
    fn draw(&mut self) -> bool {
        self.drawn += 1;
        self.key.hash_one(self.drawn) < u64::MAX / MEASURED_ONE_IN
    }
}

/// Everything that one job borrows.
pub(super) struct Prepared<'a> {
    pub(super) source: VerifySource<'a>,
    pub(super) tree: Tree,
    drafts: Vec<DraftToken<'a>>,
    /// The sequence's history after each draft token.
    ahead: Vec<HistoryAhead>,
    ends: Vec<bool>,
    /// For each row, whether relaxed acceptance is strict there; empty means nowhere.
    strict: Vec<bool>,
    /// Whether the expected acceptance is computed.
    pub(super) measure: bool,
}

/// Runs verify works; one result for each, in order. At most `max_entries` of histories that look ahead are held at a
/// time (beside those of one work, which have to fit).
pub(super) fn run_verifications(
    sources: &[VerifySource<'_>],
    max_entries: usize,
    selector: &mut MeasurementSelector,
    backend: &mut dyn Backend,
) -> Vec<Result<Verification, RowFailure>> {
    let mut results = Vec::with_capacity(sources.len());
    while results.len() < sources.len() {
        let mut entries = 0;
        let mut round = Vec::new();
        for source in &sources[results.len()..] {
            let prepared = Prepared::new(*source, selector.draw());
            entries += prepared.as_ref().map_or(0, Prepared::weight);
            round.push(prepared);
            if entries > max_entries {
                break;
            }
        }
        results.extend(run_round(round, backend));
    }
    results
}

fn run_round(
    round: Vec<Result<Prepared<'_>, RowFailure>>,
    backend: &mut dyn Backend,
) -> Vec<Result<Verification, RowFailure>> {
    let ready: Vec<&Prepared<'_>> = round.iter().flatten().collect();
    let mut verified = verify(&ready, backend);
    report(&ready, &mut verified, backend);
    let mut verified = verified.into_iter();
    let lost = || Err(RowFailure::lost("the verification was lost"));
    round
        .into_iter()
        .map(|prepared| {
            let prepared = prepared?;
            let (verified, outputs) = verified.next().unwrap_or_else(lost)?;
            Ok(Verification::of(&prepared, verified, outputs))
        })
        .collect()
}

type Emitted = (Verified, Vec<RowOutput>);

/// Finds what is emitted, without reports on the tokens.
fn verify(ready: &[&Prepared<'_>], backend: &mut dyn Backend) -> Vec<Result<Emitted, RowFailure>> {
    let rows: Vec<Vec<RowJob<'_>>> = ready.iter().map(|prepared| prepared.rows()).collect();
    let jobs: Vec<VerifyJob<'_>> = ready.iter().zip(&rows).map(|(prepared, rows)| prepared.job(rows)).collect();
    if jobs.is_empty() {
        return Vec::new();
    }
    let results = match guarded(jobs.len(), || backend.verify(&jobs)) {
        Ok(results) => results,
        Err(failure) => return vec![Err(failure); jobs.len()],
    };
    let approximation = Approximation::default();
    let bare =
        |&token: &u32| RowOutput { token, logprobs: None, kept: None, observed: None, report: None, approximation };
    let each = results.into_iter().zip(ready).map(|(result, prepared)| match result {
        Ok(verified) => {
            let outputs = verified.emitted.iter().map(bare).collect();
            Ok((verified, outputs))
        }
        Err(failure) => Err(prepared.failed(&failure)),
    });
    each.collect()
}

/// Reports on emitted tokens as on those of plain rows, by scoring them.
fn report(ready: &[&Prepared<'_>], verified: &mut [Result<Emitted, RowFailure>], backend: &mut dyn Backend) {
    let mut jobs = Vec::new();
    // How many of the jobs belong to each verification.
    let mut counts = Vec::with_capacity(ready.len());
    for (prepared, found) in ready.iter().zip(verified.iter()) {
        let before = jobs.len();
        jobs.extend(found.iter().flat_map(|(found, _)| prepared.scores(found)));
        counts.push(jobs.len() - before);
    }
    if jobs.is_empty() {
        return;
    }
    let mut scored = run_guarded(backend, &jobs).into_iter();
    for ((prepared, result), count) in ready.iter().zip(verified).zip(counts) {
        // All of them are taken even if one fails, because the rest would be taken for the next verification's.
        let own: Vec<_> = scored.by_ref().take(count).collect();
        let Ok((verified, outputs)) = result else { continue };
        if prepared.wants_words() {
            match own.into_iter().collect::<Result<Vec<_>, _>>() {
                Ok(own) if own.iter().map(|output| output.token).eq(verified.emitted.iter().copied()) => *outputs = own,
                Ok(_) => *result = Err(RowFailure::new(RowStatus::Internal, "the report is for other tokens")),
                Err(failure) => *result = Err(failure),
            }
        }
    }
}

impl<'a> Prepared<'a> {
    fn new(source: VerifySource<'a>, by_lot: bool) -> Result<Self, RowFailure> {
        let VerifySource { work, sequence, .. } = source;
        let len = work.tokens.len();
        let parents = work.parents_among(sequence.drafts());
        let tree = Tree::new(&parents, len).map_err(|_| lost())?;
        let draft = |(index, &token)| {
            let kept = || sequence.drafts().kept(index).map(DraftSource::Kept);
            let source = work.sent(index).or_else(kept)?;
            Some(DraftToken { token, source })
        };
        let drafts = work.tokens.iter().enumerate().map(draft).collect::<Option<_>>().ok_or_else(lost)?;
        let (ahead, ends, strict) = (Vec::with_capacity(len), Vec::with_capacity(len), Vec::new());
        // If a key draws the tokens, there is no expected acceptance with which tests could be compared.
        let measure = (work.measure || by_lot) && !sequence.spec(Action::Score { token: 0 }).is_raced();
        let mut prepared = Self { source, tree, drafts, ahead, ends, strict, measure };
        for (&token, &parent) in work.tokens.iter().zip(&parents) {
            let parent = usize::try_from(parent).ok().and_then(|parent| prepared.ahead.get(parent));
            let mut ahead = parent.cloned().unwrap_or_else(|| sequence.ahead());
            prepared.ends.push(sequence.grow(&mut ahead, token).is_some());
            prepared.ahead.push(ahead);
        }
        if matches!(sequence.acceptance(), AcceptanceRule::Relaxed(relaxed) if relaxed.in_thinking_only) {
            let rows = std::iter::once(None).chain(prepared.ahead.iter().map(Some));
            prepared.strict = rows.map(|ahead| !sequence.thinks(ahead)).collect();
        }
        Ok(prepared)
    }

    fn weight(&self) -> usize {
        self.ahead.iter().map(HistoryAhead::weight).sum()
    }

    /// The job for the row after draft token `row - 1`; row 0 is the one after the sequence's last token.
    fn row(&self, row: usize, action: Action) -> Option<RowJob<'_>> {
        let VerifySource { logits, masks, first_row, sequence, .. } = self.source;
        let logits = logits.row(first_row + row as u64)?;
        let spec = match row.checked_sub(1) {
            Some(draft) => sequence.spec_ahead(self.ahead.get(draft)?, action),
            None => sequence.spec(action),
        };
        Some(RowJob { logits, spec: RowSpec { mask: masks.row(row), ..spec } })
    }

    fn rows<'b>(&'b self) -> Vec<RowJob<'b>> {
        // Emitted tokens are reported on by rows of their own.
        let silent = |job: RowJob<'b>| RowJob { spec: RowSpec { report: None, ..job.spec }, ..job };
        (0..=self.drafts.len()).filter_map(|row| self.row(row, Action::Draw { uniform: 0 }).map(silent)).collect()
    }

    fn job<'b>(&'b self, rows: &'b [RowJob<'b>]) -> VerifyJob<'b> {
        let sequence = self.source.sequence;
        VerifyJob {
            rows,
            ends: &self.ends,
            drafts: &self.drafts,
            tree: &self.tree,
            rule: sequence.acceptance(),
            strict: &self.strict,
            numbers: sequence.numbers(),
            measure: self.measure,
        }
    }

    fn wants_words(&self) -> bool {
        let spec = self.source.sequence.spec(Action::Score { token: 0 });
        spec.logprobs.is_some() || spec.report.is_some()
    }

    /// Rows that score the emitted tokens: each token at the row that follows the tokens before it.
    fn scores(&self, verified: &Verified) -> impl Iterator<Item = RowJob<'_>> {
        let wanted = if self.wants_words() { verified.emitted.len() } else { 0 };
        let after = |at: usize| at.checked_sub(1).map_or(0, |before| verified.accepted_path[before] + 1);
        let row = |at: usize| {
            let RowJob { logits, spec } = self.row(after(at), Action::Score { token: verified.emitted[at] })?;
            let state = at.checked_sub(1).and_then(|before| verified.states.get(before)).copied();
            Some(RowJob { logits, spec: spec.remembering(state) })
        };
        let jobs: Vec<_> = (0..wanted).filter_map(row).collect();
        jobs.into_iter()
    }

    fn failed(&self, failure: &VerifyFailure) -> RowFailure {
        match failure {
            VerifyFailure::Target(error) => {
                let row = self.source.logits.row(self.source.first_row + error.row as u64);
                let RowFailure { status, message, .. } = RowFailure::of_row(error.error, row.as_ref());
                RowFailure::new(status, format!("target row {}: {message}", error.row))
            }
            VerifyFailure::Draft { index, error } => {
                let field = self.source.work.distribution_field();
                let error = FieldError::new(format!("verify.{field}"), format!("draft token {index}: {error}"));
                RowFailure::new(RowStatus::InvalidWork, Cow::Owned(error.to_string()))
            }
        }
    }
}

fn lost() -> RowFailure {
    RowFailure::lost("a draft token was lost")
}

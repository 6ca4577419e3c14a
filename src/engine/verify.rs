//! Turns verify work into jobs of the backend, and into the rows that report on emitted tokens.

use super::repeated::VerifiedRows;
use super::rows::{guarded, run_guarded};
use super::step::{DraftsFrom, LogitsBlock, Masks, RowFailure, RowStatus, VerifyWork};
use crate::backend::{Backend, RowJob, VerifyJob};
use crate::metrics::{Last, Proposer, Round};
use crate::params::acceptance::AcceptanceRule;
use crate::params::{FieldError, ProposerKind};
use crate::sampling::fingerprint::{Fingerprint, is_flat};
use crate::sampling::listed::Approximation;
use crate::sampling::row::{Action, RowOutput, RowSpec};
use crate::sequence::Sequence;
use crate::sequence::drafts::Drafts;
use crate::sequence::history::HistoryAhead;
use crate::sequence::repeated::WorkRows;
use crate::sequence::speculation::DraftOrigin;
use crate::speculative::job::{DraftSource, DraftToken, VerifyFailure};
use crate::speculative::tree::Tree;
use crate::speculative::verified::{TokenOrigin, Verified};
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

/// The result of a verify work.
#[derive(Debug)]
pub struct Verification {
    /// What the verification found.
    pub verified: Verified,
    /// The emitted tokens with what is reported about them.
    pub outputs: Vec<RowOutput>,
    /// Where the draft tokens came from.
    pub proposer: Proposer,
    /// How many draft tokens there were.
    pub drafted: usize,
    /// How many of the first draft tokens are those that the sequence kept, whatever the work says they were drawn
    /// from.
    pub kept: usize,
    /// The largest number of draft tokens that could have been accepted.
    pub depth: usize,
    /// How the last emitted token came about.
    pub last: Last,
    /// How the token before the draft came about.
    pub after: TokenOrigin,
    /// Tokens of the text before the draft.
    pub text_tokens: u64,
    /// Whether acceptance depends on the ratio of target and draft probability.
    pub by_ratio: bool,
    /// Whether the worker asked for the expected acceptance and it was computed.
    pub tests_wanted: bool,
    /// Whether the draft tokens are kept ones that were drawn by chance, but the work said that they have no
    /// distribution.
    pub without_distribution: bool,
    /// The first row, and the rows around the last emitted token.
    pub rows: WorkRows,
    /// How many rows after a draft token equal the row before it.
    pub like_parents: usize,
    /// How many rows a token was drawn from although their logits are all the same number.
    pub flat: usize,
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
struct Prepared<'a> {
    source: VerifySource<'a>,
    tree: Tree,
    drafts: Vec<DraftToken<'a>>,
    /// The sequence's history after each draft token.
    ahead: Vec<HistoryAhead>,
    ends: Vec<bool>,
    /// For each row, whether relaxed acceptance is strict there; empty means nowhere.
    strict: Vec<bool>,
    /// Whether the expected acceptance is computed.
    measure: bool,
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
            Ok(prepared.finished(verified, outputs))
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

impl Verification {
    /// How the last emitted token came about, as the next verification sees it.
    pub(super) fn last_token_origin(&self) -> TokenOrigin {
        match self.last {
            // Without draft tokens, a verification is a plain row by another name.
            _ if self.drafted == 0 => TokenOrigin::Sampled,
            Last::Accepted => TokenOrigin::Accepted,
            Last::Recovered => TokenOrigin::Recovered,
            Last::Bonus => TokenOrigin::Bonus,
        }
    }

    /// What metrics need to know of the verification.
    pub(super) fn round(&self) -> Round<'_> {
        Round {
            proposer: self.proposer,
            drafted: self.drafted,
            accepted: self.verified.accepted_count(),
            emitted: self.outputs.len(),
            lossless: self.verified.lossless,
            last: self.last,
            after: self.after,
            text_tokens: self.text_tokens,
            one_by_one: !self.verified.is_block,
            by_ratio: self.by_ratio,
            trials: &self.verified.trials,
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

    fn finished(self, verified: Verified, outputs: Vec<RowOutput>) -> Verification {
        let children = self.tree.children(verified.accepted_path.last().copied());
        let last = match verified.emitted.len() > verified.accepted_count() {
            false => Last::Accepted,
            true if children.is_empty() => Last::Bonus,
            true => Last::Recovered,
        };
        let VerifySource { work, sequence, logits, first_row, .. } = self.source;
        let (proposer, tests_wanted) = (proposer(work, sequence), work.measure && self.measure);
        let (drafted, depth, after) = (self.drafts.len(), self.tree.depth(), sequence.last_token_origin());
        let by_ratio = matches!(sequence.acceptance(), AcceptanceRule::Rejection | AcceptanceRule::Block);
        let kept = sequence.drafts().in_common(&work.tokens);
        let without_distribution = by_ratio
            && proposer == Proposer::Deterministic
            && kept == drafted
            && is_by_chance(&work.tokens, sequence.drafts());
        let sent: Vec<_> = (0..=drafted as u64).map(|row| logits.row(first_row + row)).collect();
        let fingerprints: Vec<_> = sent.iter().map(|row| Fingerprint::of(row.as_ref()?)).collect();
        let flat_at = |row: usize, token: u32| {
            fingerprints[row].is_none() && sent[row].as_ref().is_some_and(|logits| is_flat(logits, token))
        };
        let drawn_from = std::iter::once(0).chain(verified.accepted_path.iter().map(|&node| node + 1));
        let flat = drawn_from.zip(&verified.emitted).filter(|&(row, &token)| flat_at(row, token)).count();
        let all = VerifiedRows { fingerprints: &fingerprints, tree: &self.tree, tokens: &work.tokens };
        let rows = all.around_the_last(verified.accepted_path.last().copied(), last);
        let like_parents = all.like_parents(sequence.last_emitted());
        Verification {
            verified,
            outputs,
            proposer,
            drafted,
            kept,
            depth,
            last,
            after,
            text_tokens: sequence.history_len(),
            by_ratio,
            tests_wanted,
            without_distribution,
            rows,
            like_parents,
            flat,
        }
    }

    fn failed(&self, failure: &VerifyFailure) -> RowFailure {
        match failure {
            VerifyFailure::Target(error) => {
                let RowFailure { status, message, .. } = error.error.into();
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

/// Where the draft tokens came from.
fn proposer(work: &VerifyWork, sequence: &Sequence) -> Proposer {
    match work.from {
        DraftsFrom::Kept => Proposer::Kept,
        DraftsFrom::Dense(_) | DraftsFrom::Sparse { .. } => Proposer::Sent,
        DraftsFrom::Nowhere => match sequence.speculation().and_then(|own| own.origin_of(&work.tokens)) {
            None => Proposer::Deterministic,
            Some(DraftOrigin::Found(ProposerKind::Ngram)) => Proposer::Ngram,
            Some(DraftOrigin::Found(ProposerKind::Suffix)) => Proposer::Suffix,
            Some(DraftOrigin::Found(ProposerKind::Grammar) | DraftOrigin::Grammar) => Proposer::Grammar,
            Some(DraftOrigin::Thinking) => Proposer::Thinking,
        },
    }
}

/// Whether any of these kept tokens could have been another one.
fn is_by_chance(tokens: &[u32], kept: &Drafts) -> bool {
    let is_drawn = |(at, token): (usize, u32)| kept.kept(at).is_some_and(|of| of.mass(token) < of.total());
    tokens.iter().copied().enumerate().any(is_drawn)
}

fn lost() -> RowFailure {
    RowFailure::lost("a draft token was lost")
}

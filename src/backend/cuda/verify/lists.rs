//! Drafts whose target rows all have chains that kernels can begin. The kernels report what is left of each row, and the
//! host verifies the draft with these lists, as it does with lists that a worker sends. So the rows stay on the device.
//!
//! Only the rank of a rejected draft token, which is measured, counts tokens that are not left. If the token is not
//! listed, another launch counts them.

use super::super::abi::LISTED;
use super::super::ask::{Asked, LaunchLimits, NoKernel, has_kernel};
use super::super::begun::{AT_ONCE, Begun};
use super::super::read::Answer;
use crate::backend::{RowJob, VerifyJob};
use crate::sampling::kept::Form;
use crate::sampling::listed::{BeyondTopN, Listed};
use crate::sampling::logits::Logits;
use crate::sampling::order::Candidate;
use crate::sampling::row::{Action, Filters, LogprobsMode, LogprobsSpec, RowError, RowSpec};
use crate::speculative::job::{DraftSource, DraftToken};
use crate::speculative::verified::{Trial, Verified};

/// A draft whose rows kernels begin.
#[derive(Debug)]
pub(super) struct BegunDraft {
    /// Its index among the jobs.
    pub(super) at: usize,
    /// One for each row.
    rows: Vec<Begun>,
}

impl BegunDraft {
    /// `None` if a kernel cannot begin one of the rows, or if a draft token's distribution is more than a list: the host
    /// looks at each of its tokens, which takes longer with a list than with the whole row.
    pub(super) fn of(at: usize, job: &VerifyJob<'_>, limits: &LaunchLimits) -> Option<Self> {
        if !job.drafts.iter().all(is_list) {
            return None;
        }
        let begin = |row: &RowJob<'_>| {
            let row = drawn(row);
            let begun = Begun::of(&row)?;
            let asked = begun.asked(&row);
            let fits = limits.check_logits(&row).and_then(|()| limits.check_size(&row, asked.room()));
            fits.and_then(|()| has_kernel(&asked.row.spec)).ok().map(|()| begun)
        };
        Some(Self { at, rows: job.rows.iter().map(begin).collect::<Option<_>>()? })
    }

    /// What the kernels are asked.
    pub(super) fn asked<'a>(&self, job: &VerifyJob<'a>) -> impl Iterator<Item = Asked<'a>> {
        self.rows.iter().zip(job.rows).map(|(begun, row)| begun.asked(&drawn(row)))
    }

    /// What is left of each row, by as many of the answers as there are rows.
    ///
    /// # Errors
    /// Why it is not known.
    pub(super) fn lists(
        &self,
        job: &VerifyJob<'_>,
        answers: &mut impl Iterator<Item = Answer>,
    ) -> Result<Vec<Listed>, NoKernel> {
        let answers: Vec<Answer> = answers.take(self.rows.len()).collect();
        let list = |((begun, row), answer): ((&Begun, &RowJob<'_>), &Answer)| {
            // A row without a distribution fails only a verification that comes to it.
            begun.list(row, answer)?.or_else(|error| failing(error, row))
        };
        self.rows.iter().zip(job.rows).zip(&answers).map(list).collect()
    }

    /// The rows with these lists as logits.
    pub(super) fn listed<'a>(&'a self, job: &VerifyJob<'a>, lists: &'a [Listed]) -> Vec<RowJob<'a>> {
        let rows = self.rows.iter().zip(job.rows).zip(lists);
        rows.map(|((begun, row), list)| RowJob { logits: Logits::of_list(list), spec: begun.rest(&row.spec) }).collect()
    }
}

/// A rank that a verification could not tell from the lists.
#[derive(Debug)]
pub(super) struct UnknownRank<'a> {
    /// The trial that it belongs to.
    pub(super) trial: usize,
    /// What the kernels are asked.
    pub(super) asked: Asked<'a>,
}

impl BegunDraft {
    /// The ranks of rejected draft tokens that have to be asked for, because they count tokens that are not listed.
    pub(super) fn unknown_ranks<'a>(
        &self,
        job: &VerifyJob<'a>,
        lists: &[Listed],
        verified: &Verified,
    ) -> Vec<UnknownRank<'a>> {
        let unknown = |(trial, tested): (usize, &Trial)| {
            tested.rejected_rank?;
            let (token, row) = (job.drafts[tested.index].token, job.tree.row(tested.index));
            let is_known = self.rows[row].leaves_the_first() && lists[row].lists(token);
            let wanted = LogprobsSpec { top_n: 0, mode: LogprobsMode::Processed, tokens: &[] };
            let RowJob { logits, spec } = job.rows[row];
            let (filters, action, logprobs) = (Filters::OFF, Action::Score { token }, Some(wanted));
            let spec = RowSpec { filters, chain: None, action, logprobs, ..spec };
            (!is_known).then(|| UnknownRank { trial, asked: Asked::row(RowJob { logits, spec }) })
        };
        verified.trials.iter().enumerate().filter_map(unknown).collect()
    }
}

/// How many of the first drafts are asked about together: as many as have few enough rows, but at least one.
pub(super) fn together(drafts: &[BegunDraft]) -> usize {
    let mut rows = 0;
    let fits = |draft: &&BegunDraft| {
        rows += draft.rows.len();
        rows <= AT_ONCE
    };
    drafts.iter().take_while(fits).count().max(1)
}

/// The row as a draw. What a verification's rows say to do and to report is ignored.
fn drawn<'a>(row: &RowJob<'a>) -> RowJob<'a> {
    RowJob { spec: RowSpec { action: Action::Draw { uniform: 0 }, logprobs: None, ..row.spec }, ..*row }
}

/// Whether a draft token's distribution has few tokens.
fn is_list(draft: &DraftToken<'_>) -> bool {
    match draft.source {
        DraftSource::Deterministic => true,
        DraftSource::Sparse { tokens, .. } => tokens.len() <= LISTED as usize,
        DraftSource::Kept(kept) => matches!(kept.form(), Form::List(entries) if entries.len() <= LISTED as usize),
        DraftSource::Dense(_) => false,
    }
}

/// A list that fails as the row does.
fn failing(error: RowError, row: &RowJob<'_>) -> Result<Listed, NoKernel> {
    let logit = match error {
        RowError::Nan => f32::NAN,
        RowError::PositiveInfinity => f32::INFINITY,
        RowError::AllMasked => f32::NEG_INFINITY,
        RowError::Beyond(_) => return Err(NoKernel::Contradiction),
    };
    let (vocab_size, entries) = (row.logits.vocab_size() as u32, vec![Candidate { token: 0, logit }]);
    Listed::new(vocab_size, entries, f32::NEG_INFINITY, true, BeyondTopN::Refuse).map_err(|_| NoKernel::Contradiction)
}

//! A verification as a backend gets it, and its result.

use super::VerifyError;
use super::draft::{Draft, DraftDistribution, DraftError};
use super::numbers::Numbers;
use super::plain::{self, Target};
use super::plan::Plan;
use super::relaxed::Relaxed;
use super::rule::AcceptanceRule;
use super::states::States;
use super::tree::Tree;
use super::verified::Verified;

use crate::params::state::SamplerState;
use crate::sampling::distribution::Distribution;
use crate::sampling::kept::Kept;
use crate::sampling::logits::Logits;
use crate::sampling::row::{RowError, RowJob, RowSpec};
use crate::sampling::watermark::race::Race;

/// One sequence's draft and the target rows to verify it with. All tokens are in the vocabulary.
#[derive(Debug, Clone, Copy)]
pub struct VerifyJob<'a> {
    /// One more than there are draft tokens: row 0 follows the sequence's last token, row `i + 1` follows draft token
    /// `i`. Their specs treat the draft tokens before them as emitted. Their actions and logprobs are ignored.
    pub rows: &'a [RowJob<'a>],
    /// Whether the sequence ends with draft token `i`.
    pub ends: &'a [bool],
    /// The draft tokens.
    pub drafts: &'a [DraftToken<'a>],
    /// The parent and the children of each draft token.
    pub tree: &'a Tree,
    /// The rule by which draft tokens are accepted.
    pub rule: AcceptanceRule,
    /// For each row, whether [relaxed acceptance](super::relaxed) is strict there. If empty, it is strict nowhere.
    pub strict: &'a [bool],
    /// The sequence's random numbers.
    pub numbers: Numbers,
    /// Whether trials also report what acceptance was expected, which may cost twice as much again.
    pub measure: bool,
}

/// A draft token, and where the distribution is that it was drawn from.
#[derive(Debug, Clone, Copy)]
pub struct DraftToken<'a> {
    /// The token.
    pub token: u32,
    /// Its distribution.
    pub source: DraftSource<'a>,
}

/// Where to find the distribution of a draft token.
#[derive(Debug, Clone, Copy)]
pub enum DraftSource<'a> {
    /// Nowhere: the proposer is deterministic.
    Deterministic,
    /// Kept by the sidecar since draft work drew the token.
    Kept(&'a Kept),
    /// Sent as probabilities of all tokens.
    Dense(Logits<'a>),
    /// Sent as probabilities of some tokens.
    Sparse {
        /// The tokens.
        tokens: &'a [u32],
        /// Their probabilities.
        probs: &'a [f32],
    },
}

/// Why a verification failed. Nothing is emitted then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerifyFailure {
    /// A target row that verification needs has no distribution.
    #[error(transparent)]
    Target(#[from] VerifyError),
    /// A draft token or its distribution is invalid.
    #[error("draft token {index}: {error}")]
    Draft {
        /// The draft token's index.
        index: usize,
        /// What is wrong.
        error: DraftError,
    },
}

/// A job's result.
pub type VerifyResult = Result<Verified, VerifyFailure>;

/// Verifies a draft: the specification that backends are compared with.
///
/// # Errors
/// [`VerifyFailure`]. All drafts are checked before any row.
pub fn verify(job: &VerifyJob<'_>) -> VerifyResult {
    let vocab_size = job.rows.first().map_or(0, |row| row.logits.vocab_size() as u32);
    let draft = |(index, draft): (usize, &DraftToken<'_>)| {
        draft.materialise(vocab_size).map_err(|error| VerifyFailure::Draft { index, error })
    };
    let drafts: Vec<Draft> = job.drafts.iter().enumerate().map(draft).collect::<Result<_, _>>()?;
    let mut rows = Rows { job, states: States::new(job), truncated: false, looks_aside: false };
    let verified = plain::verify(&drafts, &job.plan(), &mut rows)?;
    // A list leaves out tokens that the target has, so the text cannot have the target's distribution.
    let lossless = verified.lossless && !rows.truncated;
    Ok(Verified { lossless, truncated: rows.truncated, ..verified })
}

impl<'a> VerifyJob<'a> {
    /// What the verification goes by, besides its rows and draft tokens.
    #[must_use]
    pub fn plan(&self) -> Plan<'a> {
        let &Self { tree, rule, strict, numbers, measure, .. } = self;
        Plan { tree, rule, strict, numbers, measure }
    }

    /// Whether the sequence's draws follow a key.
    #[must_use]
    pub fn is_raced(&self) -> bool {
        self.rows.iter().any(|row| row.spec.is_raced())
    }

    /// Whether some row [lists](crate::sampling::listed) only some of its tokens.
    #[must_use]
    pub fn has_lists(&self) -> bool {
        self.rows.iter().any(|row| row.logits.listed().is_some())
    }

    /// The row as [relaxed acceptance](super::relaxed) judges it.
    #[must_use]
    pub fn relaxed(&self, row: usize) -> RowJob<'a> {
        let RowJob { logits, spec } = self.rows[row];
        RowJob { logits, spec: RowSpec { filters: Relaxed::filters(spec.filters), ..spec } }
    }
}

impl DraftToken<'_> {
    /// Checks the draft token and turns its source into the form that the specification works with.
    ///
    /// # Errors
    /// [`DraftError`].
    pub fn materialise(&self, vocab_size: u32) -> Result<Draft, DraftError> {
        let distribution = match self.source {
            DraftSource::Deterministic => return Ok(Draft::deterministic(self.token)),
            DraftSource::Kept(kept) => DraftDistribution::kept(kept),
            DraftSource::Dense(probs) => DraftDistribution::dense(&probs, vocab_size)?,
            DraftSource::Sparse { tokens, probs } => DraftDistribution::sparse(tokens, probs, vocab_size)?,
        };
        Draft::new(self.token, distribution)
    }
}

/// A job's rows as the rules see them.
struct Rows<'a> {
    job: &'a VerifyJob<'a>,
    states: States,
    /// Whether a row that verification looked at was cut to its list. Rows looked at after [`Target::look_aside`] do
    /// not count.
    truncated: bool,
    /// Whether the rows looked at from now on are only measured, so that nothing emitted depends on them.
    looks_aside: bool,
}

impl Target for Rows<'_> {
    fn distribution(&mut self, row: usize) -> Result<Distribution, RowError> {
        let found = Distribution::of(&self.job.rows[row].logits, &self.states.spec(self.job, row))?;
        self.states.learn(self.job, row, |token| found.observed(token));
        self.truncated |= found.is_truncated() && !self.looks_aside;
        Ok(found)
    }

    fn relaxed(&mut self, row: usize) -> Result<Distribution, RowError> {
        let RowJob { logits, spec } = self.job.relaxed(row);
        let found = Distribution::of(&logits, &spec.remembering(self.states.before(row)))?;
        self.truncated |= found.is_truncated();
        Ok(found)
    }

    fn ends(&self, node: usize) -> bool {
        self.job.ends[node]
    }

    fn look_aside(&mut self) {
        self.looks_aside = true;
    }

    fn is_raced(&self) -> bool {
        self.job.is_raced()
    }

    fn race(&self, row: usize) -> Option<Race> {
        self.job.rows[row].spec.race()
    }

    fn state_before(&self, row: usize) -> Option<SamplerState> {
        self.states.before(row)
    }

    fn state_after(&self, row: usize, target: &Distribution, token: u32) -> Option<SamplerState> {
        self.states.after(self.job, row, || target.observed(token))
    }
}

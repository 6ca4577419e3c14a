//! The request for one row and its result. Every backend takes and returns these types.

use super::adjust::Adjusts;
use super::chain::Chain;
use super::kept::Kept;
use super::listed::{Approximation, NeedsUnlisted};
use super::logits::Logits;
use super::mask::TokenMask;
use super::observed::Observed;
use super::report::{Report, ReportSpec};
use super::watermark::RowWatermark;
use super::watermark::greenlist::Greenlist;
use super::watermark::race::Race;
use crate::params::state::SamplerState;
pub use crate::params::{Filters, LogprobsMode, Penalties};

/// One row to sample or score: its logits, and what to do with them.
#[derive(Debug, Clone, Copy)]
pub struct RowJob<'a> {
    /// The logits, as they arrived.
    pub logits: Logits<'a>,
    /// What to do with the logits.
    pub spec: RowSpec<'a>,
}

/// Everything that decides a row's result, except its logits.
#[derive(Debug, Clone, Copy)]
pub struct RowSpec<'a> {
    /// Temperature and truncation.
    pub filters: Filters,
    /// Sampler steps that replace the filters' default order; greedy rows have none.
    pub chain: Option<Chain<'a>>,
    /// Penalties on the tokens in `adjusts`.
    pub penalties: Penalties,
    /// What the sequence knows about single tokens; all in the vocabulary.
    pub adjusts: Adjusts<'a>,
    /// Tokens banned at this position only (bad words, `min_tokens`); ascending ids, each once, all in
    /// the vocabulary.
    pub banned: &'a [u32],
    /// When set, only these tokens may be emitted; ascending ids, each once, all in the vocabulary.
    pub allowed: Option<&'a [u32]>,
    /// When set, only tokens of this mask may be emitted. It comes with the row, not from the sequence.
    pub mask: Option<TokenMask<'a>>,
    /// The row's watermark, where it is not a step of the chain.
    pub mark: Option<RowWatermark>,
    /// What to do with the distribution.
    pub action: Action,
    /// What to report about the token.
    pub logprobs: Option<LogprobsSpec<'a>>,
    /// What to report about how the token was chosen.
    pub report: Option<ReportSpec<'a>>,
}

impl RowSpec<'_> {
    /// A spec with these filters and this action, and nothing else.
    #[must_use]
    pub fn plain(filters: Filters, action: Action) -> Self {
        Self {
            filters,
            chain: None,
            penalties: Penalties::OFF,
            adjusts: Adjusts::default(),
            banned: &[],
            allowed: None,
            mask: None,
            mark: None,
            action,
            logprobs: None,
            report: None,
        }
    }

    /// Whether the row only asks for logprobs of a known token, in this mode.
    #[must_use]
    pub fn is_scored(&self, mode: LogprobsMode) -> bool {
        matches!(self.action, Action::Score { .. }) && self.logprobs.is_some_and(|wanted| wanted.mode == mode)
    }

    /// Whether the row only asks for the raw logprobs of a known token. The sequence's parameters play no part then.
    #[must_use]
    pub fn is_scored_raw(&self) -> bool {
        self.is_scored(LogprobsMode::Raw)
    }

    /// Whether the row's mask or the list of allowed tokens removes a token.
    #[must_use]
    pub fn forbids(&self, token: u32) -> bool {
        self.allowed.is_some_and(|allowed| allowed.binary_search(&token).is_err()) || self.is_masked(token)
    }

    /// Whether the row's mask removes a token.
    #[must_use]
    pub fn is_masked(&self, token: u32) -> bool {
        self.mask.is_some_and(|mask| !mask.allows(token))
    }

    /// Whether logits are left as they were sent: no token is masked, banned, biased or penalised.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        let has_lists = !self.banned.is_empty() || self.allowed.is_some() || self.mask.is_some();
        self.adjusts.is_empty() && !has_lists && self.greens().is_none()
    }

    /// Whether a sampler of the chain has a state, which this row's token updates.
    #[must_use]
    pub fn has_state(&self) -> bool {
        self.chain.is_some_and(|chain| !chain.state.is_empty())
    }

    /// The greenlist, if there is one.
    #[must_use]
    pub fn greens(&self) -> Option<&Greenlist> {
        if let Some(RowWatermark::Green(greens)) = &self.mark { Some(greens) } else { None }
    }

    /// The race that decides the draw, if one does.
    #[must_use]
    pub fn race(&self) -> Option<Race> {
        if let Some(RowWatermark::Race(race)) = self.mark { race } else { None }
    }

    /// Whether a watermark's key decides the draws of this text, at this position or at others.
    #[must_use]
    pub fn is_raced(&self) -> bool {
        matches!(self.mark, Some(RowWatermark::Race(_)))
    }

    /// The same spec. `state`, if given, replaces the state of its samplers.
    #[must_use]
    pub fn remembering(self, state: Option<SamplerState>) -> Self {
        let chain = self.chain.map(|chain| Chain { state: state.unwrap_or(chain.state), ..chain });
        Self { chain, ..self }
    }
}

/// What to do with a row's distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Draw with this uniform 64-bit number (not used when greedy).
    Draw {
        /// From [`uniform`](super::philox::uniform).
        uniform: u64,
    },
    /// As `Draw`, and keep the distribution: the token is a draft token, to be verified later.
    Propose {
        /// From [`Numbers::draft`](crate::speculative::numbers::Numbers::draft).
        uniform: u64,
    },
    /// Draw nothing; report on this token.
    Score {
        /// The token that followed; in the vocabulary.
        token: u32,
    },
}

/// What to report about a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogprobsSpec<'a> {
    /// How many of the most likely tokens to list.
    pub top_n: u32,
    /// Which distribution.
    pub mode: LogprobsMode,
    /// Tokens whose logprobs are wanted too; all in the vocabulary.
    pub tokens: &'a [u32],
}

/// The result of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowOutput {
    /// The token drawn or scored.
    pub token: u32,
    /// Present if the spec asks for logprobs.
    pub logprobs: Option<TokenLogprobs>,
    /// The distribution that the token was drawn from; present for [`Action::Propose`].
    pub kept: Option<Box<Kept>>,
    /// How likely the token was; present where samplers [have a state](RowSpec::has_state), unless the row only scores
    /// raw logprobs.
    pub observed: Option<Observed>,
    /// Present if the spec asks for a report.
    pub report: Option<Box<Report>>,
    /// How this result differs from that of a whole row.
    pub approximation: Approximation,
}

/// What is reported about a token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Its logprob; −∞ if it has no probability.
    pub logprob: f32,
    /// 1 + the number of tokens with a place before it in the order of logits: logits as sent (raw) or as adjusted
    /// (processed, tempered). Samplers do not change it.
    pub rank: u32,
    /// The most likely tokens in order with their logprobs; fewer than asked when fewer have probability.
    pub top: Vec<(u32, f32)>,
    /// Logprobs of the tokens asked for.
    pub requested: Vec<f32>,
}

/// Why a row has no result. A token is never invented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// Some logit is NaN.
    #[error("the row has a NaN logit")]
    Nan,
    /// Some logit is +∞, as sent or after bias and penalties.
    #[error("the row has a +infinity logit, as sent or after bias and penalties")]
    PositiveInfinity,
    /// No token is left.
    #[error("no token of the row is left: each is -infinity, or forbidden by a mask, the grammar, bans or min_tokens")]
    AllMasked,
    /// The row [lists](super::listed) only some tokens, and the result depends on others.
    #[error("{0}")]
    Beyond(NeedsUnlisted),
}

/// A row's result.
pub type RowResult = Result<RowOutput, RowError>;

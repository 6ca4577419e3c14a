//! The results of a step.

use super::failure::RowFailure;
use super::verification::Verification;
use crate::params::state::SamplerState;
use crate::permits::Permit;
use crate::sampling::row::RowOutput;
use crate::sequence::speculation::NextDraft;
use crate::sequence::{FinishReason, OpenError};
use std::time::Instant;

/// The results of a step.
#[derive(Debug)]
pub struct StepReply {
    /// The worker's number for the step.
    pub id: u64,
    /// One for each sequence to open.
    pub open: Vec<Opened>,
    /// One for each work.
    pub work: Vec<Result<Done, RowFailure>>,
    /// Whether the step's slots hold all results of its work.
    pub in_slots: bool,
    /// When the step was received.
    pub received: Instant,
    /// When the step's batch began.
    pub started: Instant,
    /// When the backend's results were ready.
    pub finished: Instant,
    /// Room that the reply takes of the bytes in flight until it is on the wire.
    pub room: Permit,
}

/// The result of opening a sequence.
#[derive(Debug)]
pub struct Opened {
    /// The worker's id for the sequence.
    pub sequence_id: u64,
    /// The seed and the position, or why the sequence was not opened.
    pub result: Result<(u64, u64), OpenError>,
}

/// Work that was done.
#[derive(Debug)]
pub enum Done {
    /// A token was drawn and committed.
    Sampled {
        /// The token.
        output: RowOutput,
        /// Why the sequence ends with this token, if it does.
        finish: Option<FinishReason>,
        /// What to draft next.
        next: NextDraft,
        /// What samplers remember now, if the worker asked for it.
        state: Option<SamplerState>,
    },
    /// A draft token was drawn and kept.
    Drafted {
        /// The token.
        token: u32,
        /// Why the sequence would end with this token, if it would.
        finish: Option<FinishReason>,
        /// Whether the token's row was cut to the tokens that it lists.
        truncated: bool,
    },
    /// Tokens were scored.
    Scored(Vec<RowOutput>),
    /// Draft tokens were verified and the emitted tokens committed.
    Verified {
        /// What the verification found.
        verification: Box<Verification>,
        /// Why the sequence ends with the last emitted token, if it does.
        finish: Option<FinishReason>,
        /// What to draft next.
        next: NextDraft,
        /// What samplers remember now, if the worker asked for it.
        state: Option<SamplerState>,
    },
}

impl Done {
    /// What to draft next, if tokens were emitted.
    #[must_use]
    pub fn next(&self) -> Option<&NextDraft> {
        match self {
            Self::Sampled { next, .. } | Self::Verified { next, .. } => Some(next),
            Self::Drafted { .. } | Self::Scored(_) => None,
        }
    }

    /// The same, mutable.
    pub(super) fn next_mut(&mut self) -> Option<&mut NextDraft> {
        match self {
            Self::Sampled { next, .. } | Self::Verified { next, .. } => Some(next),
            Self::Drafted { .. } | Self::Scored(_) => None,
        }
    }

    /// Whether a row was cut to the tokens that it lists although its parameters reach beyond them.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        let any = |outputs: &[RowOutput]| outputs.iter().any(|output| output.approximation.truncated);
        match self {
            Self::Sampled { output, .. } => output.approximation.truncated,
            Self::Drafted { truncated, .. } => *truncated,
            Self::Scored(outputs) => any(outputs),
            Self::Verified { verification, .. } => verification.verified.truncated || any(&verification.outputs),
        }
    }

    /// How many draft tokens were verified, and how many of them were accepted.
    #[must_use]
    pub fn drafts(&self) -> Option<(usize, usize)> {
        match self {
            Self::Verified { verification, .. } => Some((verification.drafted, verification.verified.accepted_count())),
            Self::Sampled { .. } | Self::Drafted { .. } | Self::Scored(_) => None,
        }
    }

    /// How many tokens were emitted.
    #[must_use]
    pub fn tokens(&self) -> usize {
        match self {
            Self::Sampled { .. } => 1,
            Self::Drafted { .. } | Self::Scored(_) => 0,
            Self::Verified { verification, .. } => verification.outputs.len(),
        }
    }
}

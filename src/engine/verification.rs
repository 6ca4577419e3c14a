//! The result of a verify work: what the verification found, with what metrics and the reply tell of it.

use super::repeated::VerifiedRows;
use super::step::{DraftsFrom, VerifyWork};
use super::verify::{Prepared, VerifySource};
use crate::metrics::{Last, Proposer, Round};
use crate::params::ProposerKind;
use crate::params::acceptance::AcceptanceRule;
use crate::sampling::fingerprint::{Fingerprint, is_flat};
use crate::sampling::row::RowOutput;
use crate::sequence::Sequence;
use crate::sequence::drafts::Drafts;
use crate::sequence::repeated::WorkRows;
use crate::sequence::speculation::DraftOrigin;
use crate::speculative::verified::{TokenOrigin, Verified};

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

impl Verification {
    /// The result of a verification with what is reported of its tokens.
    pub(super) fn of(prepared: &Prepared<'_>, verified: Verified, outputs: Vec<RowOutput>) -> Self {
        let VerifySource { work, sequence, .. } = prepared.source;
        let drafted = work.tokens.len();
        let last = last(prepared, &verified);
        let proposer = proposer(work, sequence);
        let by_ratio = matches!(sequence.acceptance(), AcceptanceRule::Rejection | AcceptanceRule::Block);
        let kept = sequence.drafts().in_common(&work.tokens);
        let without_distribution = by_ratio
            && proposer == Proposer::Deterministic
            && kept == drafted
            && is_by_chance(&work.tokens, sequence.drafts());
        let LooksOfRows { rows, like_parents, flat } = LooksOfRows::of(prepared, &verified, last);
        Self {
            verified,
            outputs,
            proposer,
            drafted,
            kept,
            depth: prepared.tree.depth(),
            last,
            after: sequence.last_token_origin(),
            text_tokens: sequence.history_len(),
            by_ratio,
            tests_wanted: work.measure && prepared.measure,
            without_distribution,
            rows,
            like_parents,
            flat,
        }
    }

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

/// How the last emitted token came about.
fn last(prepared: &Prepared<'_>, verified: &Verified) -> Last {
    let children = prepared.tree.children(verified.accepted_path.last().copied());
    match verified.emitted.len() > verified.accepted_count() {
        false => Last::Accepted,
        true if children.is_empty() => Last::Bonus,
        true => Last::Recovered,
    }
}

/// What the rows of a verification tell of the worker that sent them.
struct LooksOfRows {
    rows: WorkRows,
    like_parents: usize,
    flat: usize,
}

impl LooksOfRows {
    fn of(prepared: &Prepared<'_>, verified: &Verified, last: Last) -> Self {
        let VerifySource { work, sequence, logits, first_row, .. } = prepared.source;
        let sent: Vec<_> = (0..=work.tokens.len() as u64).map(|row| logits.row(first_row + row)).collect();
        let fingerprints: Vec<_> = sent.iter().map(|row| Fingerprint::of(row.as_ref()?)).collect();
        let flat_at = |row: usize, token: u32| {
            fingerprints[row].is_none() && sent[row].as_ref().is_some_and(|logits| is_flat(logits, token))
        };
        let drawn_from = std::iter::once(0).chain(verified.accepted_path.iter().map(|&node| node + 1));
        let flat = drawn_from.zip(&verified.emitted).filter(|&(row, &token)| flat_at(row, token)).count();
        let all = VerifiedRows { fingerprints: &fingerprints, tree: &prepared.tree, tokens: &work.tokens };
        Self {
            rows: all.around_the_last(verified.accepted_path.last().copied(), last),
            like_parents: all.like_parents(sequence.last_emitted()),
            flat,
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
            Some(DraftOrigin::Predicted) => Proposer::Prediction,
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

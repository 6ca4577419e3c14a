//! The outcome of a verification.

use super::plan::Plan;
use super::positions::Positions;
use super::siblings::Repeat;
use super::weights::{OwnProbability, common};
use crate::params::state::SamplerState;

/// Where a sequence's last token came from. The next draft continues from that token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenOrigin {
    /// The token was there when the sequence was opened.
    #[default]
    Opened,
    /// It was drawn in a plain row.
    Sampled,
    /// It is an accepted draft token, and nothing was emitted after it.
    Accepted,
    /// It replaces a rejected draft token.
    Recovered,
    /// It was drawn after the accepted draft tokens, and none was rejected in its place.
    Bonus,
}

impl TokenOrigin {
    /// All origins, in the order of the enum.
    pub const ALL: [Self; 5] = [Self::Opened, Self::Sampled, Self::Accepted, Self::Recovered, Self::Bonus];

    /// The value of the metrics label `after`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Sampled => "sampled",
            Self::Accepted => "accepted",
            Self::Recovered => "recovered",
            Self::Bonus => "bonus",
        }
    }
}

/// The outcome of a draft.
#[derive(Debug, Clone, PartialEq)]
pub struct Verified {
    /// The indices of the accepted draft tokens, root first.
    pub accepted_path: Vec<usize>,
    /// The tokens to emit: the accepted ones and, unless the sequence or its [block](super::block) ends with the last
    /// of them, one more: a recovered one after a rejection, the bonus otherwise. Never empty.
    pub emitted: Vec<u32>,
    /// Whether the emitted tokens have the target's distribution: the rule is lossless, at least for these rows, and no
    /// row was cut.
    pub lossless: bool,
    /// The tests that were made, in order.
    pub trials: Vec<Trial>,
    /// What samplers remember after each emitted token; empty if they have no state.
    pub states: Vec<SamplerState>,
    /// Whether draft tokens were tested [together](super::block), so that their tests are not independent.
    pub is_block: bool,
    /// Whether some row was treated as if it had only the tokens that it [lists](crate::sampling::listed).
    pub truncated: bool,
}

impl Verified {
    /// How many draft tokens were accepted.
    #[must_use]
    pub fn accepted_count(&self) -> usize {
        self.accepted_path.len()
    }
}

/// The test of one draft token, for metrics. If draft tokens were drawn from the distributions that the worker claims,
/// the sum of `expected` over many trials is the number of accepted tokens, up to chance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// The draft token's index.
    pub index: usize,
    /// How many tokens of the draft stand before it.
    pub depth: usize,
    /// The random number that decides the test: its accept number, or the plain row's number where the plain row's draw
    /// decides. If the same seed comes to the same place again, the number is the same. Such a test is no new evidence
    /// of whether draft tokens have the distributions that the worker claims.
    pub number: u64,
    /// Whether no sibling was tested before it, so that it was compared with the whole target.
    pub is_first: bool,
    /// Whether the token was accepted. Rules that judge each token independently also accept tokens off the path that
    /// is emitted.
    pub accepted: bool,
    /// The probability that a token from its draft distribution is accepted here. For rejection it is the sum of
    /// min(target, draft). For block verification it is the probability given the draft tokens before it. This field
    /// and those below are set only if the trial was measured.
    pub expected: Option<f64>,
    /// The total variation between the draft distribution and the one to draw from: 0 if they are equal, 1 if they are
    /// disjoint. For a later sibling, the distribution to draw from is the residual.
    pub total_variation: Option<f64>,
    /// The token's probability in each of the two distributions.
    pub chances: Option<Chances>,
    /// For a rejected token: 1 + the number of tokens before it in the target's order, after masks, bias and penalties.
    /// So a token that top-k 50 removed shows how far behind it was. It is also set if a later sibling was accepted. In
    /// a block it is set only for the token at which acceptance stopped. 0 if a [listed](crate::sampling::listed) row
    /// does not say.
    pub rejected_rank: Option<u32>,
    /// For a later sibling: whether it is the same token as an earlier sibling.
    pub repeat: Option<Repeat>,
    /// How well the draft would fit if rows were shifted. Set only in the first trial of a verification.
    pub shifts: Shifts,
}

/// The overlap of rows with draft distributions of other positions, measured [at the beginning of a
/// draft](super::shifts). If it is larger than the overlap of the first draft distribution with its own row, the rows
/// are shifted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shifts {
    /// The overlap of the first draft token's distribution with the row after its own. It is large if rows come one
    /// late, so that each has the distribution of the position before it.
    pub late: Option<f64>,
    /// The overlap of the first draft token's row with the distribution of the draft token after it. It is large if
    /// rows come one early.
    pub early: Option<f64>,
    /// The overlap of the second draft token's distribution with its own row, the same row as in `late`. If it is as
    /// large as `late`, the draft fits that row without a shift.
    pub next: Option<f64>,
}

impl Shifts {
    /// Compares `late` with the fit to unshifted rows. `own` is the overlap of the first draft token's distribution
    /// with its own row.
    #[must_use]
    pub fn late_held(&self, own: f64) -> Option<Held> {
        self.late.map(|shifted| Held { shifted, own: own.max(self.next.unwrap_or(0.0)) })
    }

    /// Compares `early`, likewise.
    #[must_use]
    pub fn early_held(&self, own: f64) -> Option<Held> {
        self.early.map(|shifted| Held { shifted, own })
    }
}

/// How well a draft fits shifted rows, and how well it fits its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Held {
    /// Its overlap with shifted rows.
    pub shifted: f64,
    /// Its overlap with its own rows.
    pub own: f64,
}

/// A draft token's probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chances {
    /// In the distribution to draw from: the target, or for a later sibling the residual.
    pub target: f64,
    /// In the draft token's own distribution; more than 0.
    pub draft: f64,
    /// The mean and variance of `draft` over tokens drawn from that distribution. If draft tokens were drawn from the
    /// distributions that the worker claims, the sums of `draft` and of this mean over many trials agree, up to chance.
    /// The sum of the variances says how large that chance difference is.
    pub own: OwnProbability,
}

impl Chances {
    /// `target` over `draft`, the ratio that decides rejection sampling.
    #[must_use]
    pub fn ratio(self) -> f64 {
        self.target / self.draft
    }
}

impl Trial {
    /// The trial of a position's first sibling, with nothing measured.
    pub(super) fn new(plan: &Plan<'_>, index: usize, depth: usize, accepted: bool) -> Self {
        let (expected, total_variation, chances, rejected_rank) = (None, None, None, None);
        let number = plan.numbers.accept(plan.tree.spot(index));
        let (is_first, repeat, shifts) = (true, None, Shifts::default());
        Self {
            index,
            depth,
            number,
            is_first,
            accepted,
            expected,
            total_variation,
            chances,
            rejected_rank,
            repeat,
            shifts,
        }
    }

    /// The overlap of the draft distribution and the one to draw from, if it was measured.
    #[must_use]
    pub fn overlap(&self) -> Option<f64> {
        self.total_variation.map(|variation| common(1.0, variation))
    }

    /// Adds what was measured at the current position.
    pub(super) fn measured(self, here: &mut impl Positions, expected: f64, total_variation: f64) -> Self {
        let token = here.token(self.index);
        let (draft, own) = (here.proposed(self.index), here.own_probability(self.index));
        Self {
            expected: Some(expected),
            total_variation: Some(total_variation),
            chances: Some(Chances { target: here.share(token), draft, own }),
            rejected_rank: (!self.accepted).then(|| here.rank(token)),
            ..self
        }
    }
}

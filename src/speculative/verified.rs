//! What comes of a verification.

use super::plan::Plan;
use super::positions::Positions;
use super::siblings::Repeat;
use super::weights::{OwnProbability, common};
use crate::params::state::SamplerState;

/// How a sequence's last token came about: what a draft goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenOrigin {
    /// It was there when the sequence was opened.
    #[default]
    Opened,
    /// From a plain row.
    Sampled,
    /// It is a draft token that was accepted, and nothing came after it.
    Accepted,
    /// In the place of a rejected one.
    Recovered,
    /// On top of the accepted ones.
    Bonus,
}

impl TokenOrigin {
    /// Every way, in the order of the enum.
    pub const ALL: [Self; 5] = [Self::Opened, Self::Sampled, Self::Accepted, Self::Recovered, Self::Bonus];

    /// Its name, the label `after` of metrics.
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
    /// The accepted draft tokens by their indices, root first.
    pub accepted_path: Vec<usize>,
    /// The tokens to emit: the accepted ones and, unless the sequence or its [block](super::block) ends with the last of them,
    /// one more: recovered after a rejection, the bonus otherwise. Never empty.
    pub emitted: Vec<u32>,
    /// Whether they have the target's distribution: the rule is lossless, or was here, and no row was cut.
    pub lossless: bool,
    /// The tests that were made, in order.
    pub trials: Vec<Trial>,
    /// What samplers remember after each emitted token; empty where they have no state.
    pub states: Vec<SamplerState>,
    /// Whether draft tokens were tested [together](super::block), so that their tests are not independent.
    pub is_block: bool,
    /// Whether a row that was come to was taken as if it had no tokens but those [listed](crate::sampling::listed).
    pub truncated: bool,
}

impl Verified {
    /// How many draft tokens were accepted.
    #[must_use]
    pub fn accepted_count(&self) -> usize {
        self.accepted_path.len()
    }
}

/// One draft token that was tested, for metrics. If draft tokens were drawn from the distributions that were
/// claimed, the sum of `expected` over many trials is the number of accepted tokens, up to chance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// The draft token's index.
    pub index: usize,
    /// How many tokens of the draft stand before it.
    pub depth: usize,
    /// The random number that decides it: that of its accept test, or where the plain row's draw decides that one's. A test with
    /// the same seed at the same place has the same one again, and is no further test of whether draft tokens are what they
    /// are said to be.
    pub number: u64,
    /// Whether no sibling was tested before it: what it is held against is the whole target.
    pub is_first: bool,
    /// Whether it was accepted. Rules that judge each token by itself accept some off the path that is taken, too.
    pub accepted: bool,
    /// The probability that a token from its draft distribution is accepted here. Rejection: the sum of
    /// min(target, draft). Block verification: of being accepted given the draft tokens before it. As what follows
    /// only if it was to be measured.
    pub expected: Option<f64>,
    /// The total variation between what was to be drawn and the draft distribution: 0 for equal ones, 1 for
    /// disjoint ones. For a later sibling, what was to be drawn is the residual.
    pub total_variation: Option<f64>,
    /// The token's own probabilities.
    pub chances: Option<Chances>,
    /// For a rejected token, also where a later sibling was accepted; of a block for the token at which acceptance
    /// stopped. 1 + the number of tokens before it in the target's order, after masks, bias and penalties. So a token that
    /// top-k 50 removed shows how far behind it was. 0 where a [listed](crate::sampling::listed) row does not tell.
    pub rejected_rank: Option<u32>,
    /// Of a later sibling that was measured: whether it is an earlier one again.
    pub repeat: Option<Repeat>,
    /// What of the draft would fit if rows were shifted; known for the first test of a verification.
    pub shifts: Shifts,
}

/// What is common to rows and draft distributions that do not belong together, [at the beginning of a draft](super::shifts).
/// Where it is more than what the first draft distribution and its own row have in common, the rows are shifted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shifts {
    /// The first draft token's distribution and the row after its own: rows that are one late, so that each has the
    /// distribution of the position before it.
    pub late: Option<f64>,
    /// The row of the first draft token and the distribution of the draft token after it: rows that are one early.
    pub early: Option<f64>,
    /// The draft token after the first one and its own row, which is that of `late`. Where this is as large, the draft fits that row
    /// without being shifted.
    pub next: Option<f64>,
}

impl Shifts {
    /// Late rows, where the first draft token and its own row have `own` in common.
    #[must_use]
    pub fn late_held(&self, own: f64) -> Option<Held> {
        self.late.map(|shifted| Held { shifted, own: own.max(self.next.unwrap_or(0.0)) })
    }

    /// Early rows, likewise.
    #[must_use]
    pub fn early_held(&self, own: f64) -> Option<Held> {
        self.early.map(|shifted| Held { shifted, own })
    }
}

/// How well a draft fits rows that are shifted, held against how well it fits its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Held {
    /// What it has in common with shifted rows.
    pub shifted: f64,
    /// What it has in common with its own.
    pub own: f64,
}

/// How likely a draft token was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chances {
    /// In what was to be drawn: the target, or for a later sibling the residual.
    pub target: f64,
    /// In its draft distribution; more than 0.
    pub draft: f64,
    /// What that is for tokens drawn from this draft distribution. If draft tokens were drawn from the distributions that
    /// were claimed, the sums of `draft` and of its mean over many trials are the same, up to chance: the sum of its variances says
    /// how much that is.
    pub own: OwnProbability,
}

impl Chances {
    /// The one over the other, which decides rejection sampling.
    #[must_use]
    pub fn ratio(self) -> f64 {
        self.target / self.draft
    }
}

impl Trial {
    /// Of the first of its position.
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

    /// What is common to its draft distribution and to what was to be drawn, if it was measured.
    #[must_use]
    pub fn overlap(&self) -> Option<f64> {
        self.total_variation.map(|variation| common(1.0, variation))
    }

    /// With what was measured where the positions are.
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

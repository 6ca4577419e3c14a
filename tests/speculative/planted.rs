//! Wrong rules, found in the field or easily written, with which the tests show their power.

use crate::speculative::reference;
use crate::speculative::world::{Rows, dense};
use croupier::sampling::philox::{Purpose, uniform};
use croupier::sequence::Sequence;
use croupier::speculative::draft::Draft;
use croupier::speculative::numbers::unit;
use croupier::speculative::plain::Target;
use croupier::speculative::verified::Verified;
use croupier::speculative::weights::Weights;

/// The error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// No error: the reference as it is.
    Nothing,
    /// Accepts a draft token with the target's probability, whatever the draft's.
    AcceptOnTarget,
    /// Draws the recovered token from the target itself.
    NoResidual,
    /// The same, but excludes the rejected token.
    OnlyNotTheSame,
}

impl Planted {
    /// Rejection sampling of a chain, with the error.
    pub fn verify(self, sequence: &Sequence, drafts: &[Draft], rows: &mut Rows<'_>) -> Verified {
        let mut emitted: Vec<u32> = Vec::new();
        let number = |at: usize, purpose| unit(uniform(sequence.seed(), sequence.position() + at as u64, purpose));
        let mut rejected = None;
        for (at, draft) in drafts.iter().enumerate() {
            let target = dense(&Weights::from(&rows.distribution(at).unwrap()));
            let (proposed, token) = (dense(draft.weights()), draft.token() as usize);
            let chance = if self == Self::AcceptOnTarget { target[token] } else { target[token] / proposed[token] };
            if number(at, Purpose::Accept) < chance {
                emitted.push(draft.token());
                continue;
            }
            rejected = Some(match self {
                Self::NoResidual => target,
                Self::OnlyNotTheSame => reference::beyond(1.0, &target, &reference::one_hot(token, target.len())),
                Self::Nothing | Self::AcceptOnTarget => reference::beyond(1.0, &target, &proposed),
            });
            break;
        }
        let accepted = emitted.len();
        let next = rejected.unwrap_or_else(|| dense(&Weights::from(&rows.distribution(accepted).unwrap())));
        emitted.push(reference::draw(&next, number(accepted, Purpose::Residual)));
        Verified {
            accepted_path: (0..accepted).collect(),
            emitted,
            lossless: false,
            trials: Vec::new(),
            states: Vec::new(),
            is_block: false,
            truncated: false,
        }
    }
}

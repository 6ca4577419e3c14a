//! Rejection sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2). A draft token is
//! accepted with probability `min(1, target / draft)`; otherwise a token is drawn from what the target has
//! beyond the draft, `max(target - draft, 0)` normalised. Lossless.
//!
//! With siblings it goes on (SpecInfer, Miao et al. 2024, algorithm 2, multi-step speculative sampling): the
//! next sibling is tested against the residual that the one before has left. That is exact whenever each
//! sibling was drawn from its draft distribution *given its earlier siblings*:
//! - drawn independently from one distribution (SpecInfer): each has that same distribution;
//! - drawn without replacement: each has the distribution without the tokens before it, normalised;
//! - the k most likely, or fixed candidates (EAGLE, Medusa): each is certain.
//!
//! **Proposers without chance change not one token.** Where all draft tokens of a position are certain, the
//! plain row's own draw decides: the token is drawn from the target with the plain row's number, and a draft
//! token is accepted if it is that token. The probability of acceptance is the same, `target(token)`, and so is
//! the distribution of what comes instead; but the text is, token for token, that of the same seed without
//! speculation. So prompt lookup can be switched on and off, and the draft length changed, in the middle of a
//! text.

use super::draft::Draft;
use super::numbers::{Numbers, unit};
use super::verified::Trial;
use super::weights::Weights;
use crate::sampling::distribution::Distribution;

/// What comes at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dealt {
    /// A draft token, by its index.
    Accepted(usize),
    /// A token that was drawn here: recovered, or, where no draft token was tested, the bonus.
    Drawn(u32),
}

/// Tests the draft tokens `siblings` in turn at a position that follows `depth` accepted tokens.
pub(super) fn deal(
    numbers: &Numbers,
    depth: usize,
    target: &Distribution,
    siblings: &[usize],
    drafts: &[Draft],
    trials: &mut Vec<Trial>,
) -> Dealt {
    let mut left = Weights::from(target);
    let certain = siblings.iter().all(|&i| drafts[i].is_certain());
    let plain = certain.then(|| left.draw(numbers.sample(depth)));
    for &i in siblings {
        let (token, draft) = (drafts[i].token(), drafts[i].weights());
        let accepted = match plain {
            Some(plain) => plain == token,
            None => unit(numbers.accept(depth, i)) * draft.share(token) < left.share(token),
        };
        let residual = left.residual(1.0, draft);
        trials.push(Trial::new(i, depth, accepted, left.overlap(1.0, draft), residual.sum()).ranked(target, token));
        if accepted {
            return Dealt::Accepted(i);
        }
        // Nothing is left only if the two are equal up to rounding: then the target will do.
        if residual.total() > 0 {
            left = residual;
        }
    }
    Dealt::Drawn(plain.unwrap_or_else(|| left.draw(numbers.residual(depth))))
}

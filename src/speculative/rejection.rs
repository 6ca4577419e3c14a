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
//! text. So it is too where a race decides the draws ([`mark::race`](crate::sampling::mark::race)), whatever the proposer: draft
//! work runs the same race, so that its tokens often win that of the target as well.

use super::numbers::unit;
use super::plan::Plan;
use super::positions::Positions;
use super::verified::Trial;

/// What comes at a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dealt {
    /// A draft token, by its index.
    Accepted(usize),
    /// A token that was drawn here: recovered, or, where no draft token was tested, the bonus.
    Drawn(u32),
}

/// Tests the draft tokens `siblings` in turn at the position come to, which follows `depth` accepted tokens.
pub(super) fn deal(
    plan: &Plan<'_>,
    depth: usize,
    siblings: &[usize],
    here: &mut impl Positions,
    trials: &mut Vec<Trial>,
) -> Dealt {
    let certain = siblings.iter().all(|&node| here.is_certain(node));
    let plain = certain.then(|| here.draw(plan.numbers.sample(depth)));
    for (nth, &node) in siblings.iter().enumerate() {
        let token = here.token(node);
        let accepted = match plain {
            Some(plain) => plain == token,
            None => unit(plan.numbers.accept(plan.tree.spot(node))) * here.proposed(node) < here.share(token),
        };
        let trial = plan.trial(here, node, depth, 1.0, accepted);
        let number = if certain { plan.numbers.sample(depth) } else { trial.number };
        trials.push(Trial { is_first: nth == 0, number, ..trial });
        if accepted {
            return Dealt::Accepted(node);
        }
        // Where the plain row's draw decides, what is left is only reported, of the next sibling.
        if plain.is_none() || plan.measure && nth + 1 < siblings.len() {
            here.take(1.0, node);
        }
    }
    Dealt::Drawn(plain.unwrap_or_else(|| here.draw(plan.numbers.residual(depth))))
}

//! Rejection sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2). A draft token is accepted
//! with probability `min(1, target / draft)`. If it is rejected, a token is drawn from the part of the target beyond
//! the draft: `max(target - draft, 0)`, normalised. Lossless.
//!
//! If the draft token has siblings (SpecInfer, Miao et al. 2024, algorithm 2, multi-step speculative sampling), the
//! next sibling is tested against the residual that the one before it left. This is exact if each sibling was drawn
//! from its draft distribution *given its earlier siblings*:
//! - drawn independently from one distribution (SpecInfer): each has that same distribution;
//! - drawn without replacement: each has the distribution without the tokens before it, normalised;
//! - the k most likely, or fixed candidates (EAGLE, Medusa): each is certain.
//!
//! **Proposers without chance do not change a single token.** Where all draft tokens of a position are certain, the
//! plain row's own draw decides: the token is drawn from the target with the plain row's number, and a draft token is
//! accepted if it is that token. The probability of acceptance is still `target(token)`, and the distribution after a
//! rejection is the same too. But now the text is, token for token, that of the same seed without speculation. So
//! prompt lookup can be switched on and off, and the draft length changed, in the middle of a text.
//!
//! The same holds, whatever the proposer, where a race decides the draws ([`watermark::race`](crate::sampling::watermark::race)).
//! Draft work runs the same race, so its tokens often win the target's race too.

use super::numbers::unit;
use super::plan::Plan;
use super::positions::Positions;
use super::verified::Trial;

/// The token that a position gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dealt {
    /// A draft token, named by its index.
    Accepted(usize),
    /// A token that was drawn here: a recovered one, or the bonus if no draft token was tested.
    Drawn(u32),
}

/// Tests the draft tokens `siblings` in turn at the current position, which follows `depth` accepted tokens.
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
        // If the plain row's draw decides, what is left matters only for the next sibling's report.
        if plain.is_none() || plan.measure && nth + 1 < siblings.len() {
            here.take(1.0, node);
        }
    }
    Dealt::Drawn(plain.unwrap_or_else(|| here.draw(plan.numbers.residual(depth))))
}

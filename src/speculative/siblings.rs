//! Whether siblings of a tree are the token of an earlier one as often as their distributions say. Siblings that are drawn
//! independently of one distribution are, with its probability of that token; those drawn without replacement never are, and their
//! distributions have nothing for it. A worker that draws without replacement and sends one distribution for all, or that drops
//! what it has drawn twice, shows here and hardly elsewhere: each token by itself is about as likely as it is said to be.

use super::plan::Plan;
use super::positions::Positions;
use super::verified::Trial;

/// A later sibling that was tested.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Repeat {
    /// The probability in its draft distribution of being the token of an earlier sibling.
    pub expected: f64,
    /// Whether it is.
    pub found: bool,
}

/// Notes it in the tests of later siblings, where they are measured and others could have been drawn in their place.
pub(super) fn measure(plan: &Plan<'_>, positions: &mut impl Positions, trials: &mut [Trial]) {
    let later = |trial: &&mut Trial| !trial.is_first && trial.chances.is_some_and(|chances| chances.own.mean < 1.0);
    for trial in trials.iter_mut().filter(later) {
        let before = plan.tree.siblings_before(trial.index);
        let mut tokens: Vec<u32> = before.iter().map(|&node| positions.token(node)).collect();
        tokens.sort_unstable();
        tokens.dedup();
        let found = tokens.contains(&positions.token(trial.index));
        trial.repeat = Some(Repeat { expected: positions.chance_of(trial.index, &tokens), found });
    }
}

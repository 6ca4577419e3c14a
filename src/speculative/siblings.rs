//! Measures whether siblings of a tree repeat an earlier sibling's token as often as their distributions say. Siblings
//! drawn independently of one distribution repeat a token with that token's probability. Siblings drawn without
//! replacement never repeat one, and their distributions give it probability 0. A worker that draws without replacement
//! but sends one distribution for all, or that drops repeated tokens, shows here whatever the distributions are. If they
//! are flat, it shows nowhere else, because each token by itself is about as likely as the worker claims.

use super::plan::Plan;
use super::positions::Positions;
use super::verified::Trial;

/// Whether a later sibling repeats an earlier one, and how likely that was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Repeat {
    /// The probability, in its draft distribution, of all earlier siblings' tokens together.
    pub expected: f64,
    /// Whether the sibling is the same token as an earlier one.
    pub found: bool,
}

/// Sets `repeat` in the trials of later siblings that were measured, unless their distributions have only one token.
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

//! The rules that judge each draft token independently: greedy match, typical, relaxed, synthetic. In a tree they take
//! the longest path of accepted tokens (Medusa), and of equally long paths the earlier one.

use super::plan::Plan;
use super::positions::Positions;
use super::rule::AcceptanceRule;
use super::synthetic::Synthetic;
use super::tree::row_after;
use super::verified::{Trial, Verified};
use super::{VerifyError, come_to};

/// Verifies: emits the longest accepted path, then the token after it.
pub(super) fn longest<P: Positions>(plan: &Plan<'_>, positions: &mut P) -> Result<Verified, VerifyError> {
    let nodes = plan.tree.len();
    let mut walk =
        Walk { plan, positions, accepted: vec![false; nodes], settled: vec![false; nodes + 1], trials: Vec::new() };
    let path = walk.longest_after(&mut Vec::new())?;
    let ended = path.last().is_some_and(|&node| walk.positions.ends(node));
    let mut emitted: Vec<u32> = path.iter().map(|&node| walk.positions.token(node)).collect();
    if !ended {
        emitted.push(walk.next(&path)?);
    }
    let mut rows = (0..path.len() + usize::from(!ended)).map(|depth| row_after(&path[..depth]));
    let settled = rows.clone().all(|row| walk.settled[row]);
    let lossless = plan.rule.is_lossless(settled) || rows.all(|row| plan.is_strict(row));
    let trials = walk.trials;
    let states = Vec::new();
    Ok(Verified { accepted_path: path, emitted, lossless, trials, states, is_block: false, truncated: false })
}

/// What a rule accepts at a position.
#[derive(Debug, Clone)]
enum Verdict {
    /// Accepts these tokens.
    Among(Vec<u32>),
    /// Accepts tokens of at least this probability, but never a token of probability 0.
    From(f64),
    /// Accepts by chance any token that the target could emit.
    Chance(Synthetic),
}

impl Verdict {
    /// The verdict at the current position, which follows `depth` draft tokens.
    fn of(plan: &Plan<'_>, row: usize, depth: usize, here: &mut impl Positions) -> Result<Self, VerifyError> {
        Ok(match &plan.rule {
            _ if plan.is_strict(row) => Self::Among(vec![here.draw(plan.numbers.sample(depth))]),
            AcceptanceRule::Typical(typical) => Self::From(typical.threshold(here.entropy())),
            AcceptanceRule::Relaxed(relaxed) => {
                Self::Among(here.relaxed(relaxed).map_err(|error| VerifyError { row, error })?)
            }
            AcceptanceRule::Synthetic(synthetic) => Self::Chance(*synthetic),
            _ => Self::Among(vec![here.first()]),
        })
    }

    fn accepts(&self, here: &mut impl Positions, node: usize, uniform: u64) -> bool {
        match self {
            Self::Among(tokens) => tokens.contains(&here.token(node)),
            Self::From(threshold) => {
                let share = here.share(here.token(node));
                // A token that masks or filters removed is never emitted, not even at epsilon 0.
                share > 0.0 && share >= *threshold
            }
            Self::Chance(synthetic) => here.share(here.token(node)) > 0.0 && synthetic.accepts(uniform),
        }
    }

    /// The probability that a token drawn from this draft token's distribution is accepted.
    fn chance(&self, here: &mut impl Positions, node: usize) -> f64 {
        match self {
            Self::Among(tokens) => here.chance_of(node, tokens),
            Self::From(threshold) => here.chance_from(node, *threshold),
            Self::Chance(synthetic) => f64::from(synthetic.rate) * here.chance_from(node, 0.0),
        }
    }
}

/// The search for the longest path.
struct Walk<'a, P> {
    plan: &'a Plan<'a>,
    positions: &'a mut P,
    /// For each node that was judged, whether it was accepted.
    accepted: Vec<bool>,
    /// For each row that was looked at, whether the target has only one token.
    settled: Vec<bool>,
    /// All tokens that were judged, on whatever path. Leaving out some would leave out the rejected ones, and
    /// acceptance would seem better than expected.
    trials: Vec<Trial>,
}

impl<P: Positions> Walk<'_, P> {
    /// `path` and the longest run of accepted tokens after it. The siblings of a position are judged together, so that
    /// the walk visits each position only once.
    fn longest_after(&mut self, path: &mut Vec<usize>) -> Result<Vec<usize>, VerifyError> {
        let mut longest = path.clone();
        let children = self.plan.tree.after(path);
        if children.is_empty() || path.last().is_some_and(|&node| self.positions.ends(node)) {
            return Ok(longest);
        }
        let (verdict, sample) = (self.verdict(path)?, self.plan.numbers.sample(path.len()));
        for (nth, &node) in children.iter().enumerate() {
            self.accepted[node] = self.judge(&verdict, node);
            let trial = Trial::new(self.plan, node, path.len(), self.accepted[node]);
            let number = if self.plan.is_strict(row_after(path)) { sample } else { trial.number };
            let trial = Trial { is_first: nth == 0, number, ..trial };
            let trial = if self.plan.measure { self.measured(trial, &verdict) } else { trial };
            self.trials.push(trial);
        }
        for &node in children.iter().filter(|&&node| self.accepted[node]).collect::<Vec<_>>() {
            path.push(node);
            let found = self.longest_after(path)?;
            path.pop();
            if found.len() > longest.len() {
                longest = found;
            }
        }
        Ok(longest)
    }

    fn come_to(&mut self, path: &[usize]) -> Result<usize, VerifyError> {
        let row = row_after(path);
        come_to(self.positions, row)?;
        self.settled[row] = self.positions.has_one();
        Ok(row)
    }

    fn verdict(&mut self, path: &[usize]) -> Result<Verdict, VerifyError> {
        let row = self.come_to(path)?;
        Verdict::of(self.plan, row, path.len(), self.positions)
    }

    fn judge(&mut self, verdict: &Verdict, node: usize) -> bool {
        verdict.accepts(self.positions, node, self.plan.numbers.accept(self.plan.tree.spot(node)))
    }

    /// The token after the accepted ones.
    fn next(&mut self, path: &[usize]) -> Result<u32, VerifyError> {
        self.come_to(path)?;
        Ok(match self.plan.rule {
            AcceptanceRule::Greedy => self.positions.first(),
            _ => self.positions.draw(self.plan.numbers.sample(path.len())),
        })
    }

    fn measured(&mut self, trial: Trial, verdict: &Verdict) -> Trial {
        let expected = verdict.chance(self.positions, trial.index);
        let variation = self.positions.beyond(1.0, trial.index);
        trial.measured(self.positions, expected, variation)
    }
}

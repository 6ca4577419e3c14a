//! The rules that judge each draft token by itself: greedy match, typical, relaxed, synthetic. In a tree they
//! take the longest path of accepted tokens (Medusa), the earlier one of equals.

use super::draft::Draft;
use super::numbers::Numbers;
use super::relaxed::Relaxed;
use super::rule::AcceptanceRule;
use super::synthetic::Synthetic;
use super::tree::{Tree, row_after, tokens_of};
use super::typical::Typical;
use super::verified::{Trial, Verified};
use super::weights::Weights;
use super::{Target, VerifyError, distribution, greedy};
use crate::sampling::distribution::Distribution;

/// A rule that judges each token by itself.
#[derive(Debug, Clone, Copy)]
pub(super) enum Judge {
    Greedy,
    Typical(Typical),
    Relaxed(Relaxed),
    Synthetic(Synthetic),
}

/// A position as a judge sees it.
struct Position {
    depth: usize,
    target: Distribution,
    weights: Weights,
    /// What relaxed acceptance judges by.
    relaxed: Option<Distribution>,
}

impl Judge {
    /// The rule's judge, if it has one.
    pub(super) fn of(rule: &AcceptanceRule) -> Option<Self> {
        match *rule {
            AcceptanceRule::Rejection | AcceptanceRule::Block => None,
            AcceptanceRule::Greedy => Some(Self::Greedy),
            AcceptanceRule::Typical(typical) => Some(Self::Typical(typical)),
            AcceptanceRule::Relaxed(relaxed) => Some(Self::Relaxed(relaxed)),
            AcceptanceRule::Synthetic(synthetic) => Some(Self::Synthetic(synthetic)),
        }
    }

    fn rule(self) -> AcceptanceRule {
        match self {
            Self::Greedy => AcceptanceRule::Greedy,
            Self::Typical(typical) => AcceptanceRule::Typical(typical),
            Self::Relaxed(relaxed) => AcceptanceRule::Relaxed(relaxed),
            Self::Synthetic(synthetic) => AcceptanceRule::Synthetic(synthetic),
        }
    }

    /// Verifies: the longest path, then the token after it.
    pub(super) fn longest(
        self,
        drafts: &[Draft],
        tree: &Tree,
        numbers: &Numbers,
        target: &mut impl Target,
    ) -> Result<Verified, VerifyError> {
        let path = self.longest_after(&[], drafts, tree, numbers, target)?;
        let (mut trials, mut certain) = (Vec::new(), true);
        for depth in 0..path.len() {
            let position = self.position(&path[..depth], drafts, target)?;
            certain &= position.weights.is_certain();
            trials.push(self.trial(&position, drafts, path[depth], numbers));
        }
        let mut emitted = tokens_of(drafts, &path);
        if path.is_empty() || !target.ends(&emitted) {
            let last = self.position(&path, drafts, target)?;
            certain &= last.weights.is_certain();
            trials.extend(tree.after(&path).iter().map(|&node| self.trial(&last, drafts, node, numbers)));
            emitted.push(match self {
                Self::Greedy => greedy::choice(&last.target),
                _ => last.weights.draw(numbers.sample(path.len())),
            });
        }
        Ok(Verified { accepted_path: path, emitted, lossless: self.rule().is_lossless(certain), trials })
    }

    /// `path` and the longest run of accepted tokens after it.
    fn longest_after(
        self,
        path: &[usize],
        drafts: &[Draft],
        tree: &Tree,
        numbers: &Numbers,
        target: &mut impl Target,
    ) -> Result<Vec<usize>, VerifyError> {
        let mut longest = path.to_vec();
        if tree.after(path).is_empty() || (!path.is_empty() && target.ends(&tokens_of(drafts, path))) {
            return Ok(longest);
        }
        let position = self.position(path, drafts, target)?;
        for &node in tree.after(path) {
            if self.accepts(&position, drafts[node].token(), numbers.accept(position.depth, node)) {
                let found = self.longest_after(&[path, &[node]].concat(), drafts, tree, numbers, target)?;
                if found.len() > longest.len() {
                    longest = found;
                }
            }
        }
        Ok(longest)
    }

    fn position(self, path: &[usize], drafts: &[Draft], target: &mut impl Target) -> Result<Position, VerifyError> {
        let (row, tokens) = (row_after(path), tokens_of(drafts, path));
        let relaxed = match self {
            Self::Relaxed(_) => Some(target.relaxed(row, &tokens).map_err(|error| VerifyError { row, error })?),
            _ => None,
        };
        let target = distribution(target, row, &tokens)?;
        Ok(Position { depth: path.len(), weights: Weights::from(&target), target, relaxed })
    }

    fn accepts(self, position: &Position, token: u32, uniform: u64) -> bool {
        match self {
            Self::Greedy => token == greedy::choice(&position.target),
            Self::Typical(typical) => typical.accepts(&position.weights, token),
            Self::Relaxed(relaxed) => relaxed.accepts(position.relaxed.as_ref().unwrap_or(&position.target), token),
            Self::Synthetic(synthetic) => synthetic.accepts(uniform),
        }
    }

    fn trial(self, position: &Position, drafts: &[Draft], node: usize, numbers: &Numbers) -> Trial {
        let (token, draft) = (drafts[node].token(), drafts[node].weights());
        let accepted = self.accepts(position, token, numbers.accept(position.depth, node));
        let expected = match self {
            Self::Synthetic(synthetic) => f64::from(synthetic.rate),
            // None of the others asks for chance.
            _ => draft.chance(|token| self.accepts(position, token, 0)),
        };
        let variation = position.weights.residual(1.0, draft).sum();
        Trial::new(node, position.depth, accepted, expected, variation).ranked(&position.target, token)
    }
}

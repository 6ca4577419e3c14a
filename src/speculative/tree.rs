//! Trees of draft tokens, and the walk of rejection sampling. A chain is a tree without siblings.

use super::draft::DraftError;
use super::numbers::Spot;
use super::plan::Plan;
use super::positions::Positions;
use super::rejection::{self, Dealt};
use super::verified::Verified;
use super::{VerifyError, come_to};

/// The shape of a draft. Node `i` is draft token `i`. Siblings are in the order in which they are tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The children of the root, then those of each node.
    children: Vec<Vec<usize>>,
    /// Where each node stands.
    spots: Vec<Spot>,
}

impl Tree {
    /// Builds the tree from the parent of each draft token: the index of an earlier token, or -1.
    ///
    /// # Errors
    /// [`DraftError::Parents`] if a parent is anything else, or if there are not `len` of them.
    pub fn new(parents: &[i32], len: usize) -> Result<Self, DraftError> {
        if parents.len() != len {
            return Err(DraftError::Parents);
        }
        let mut children = vec![Vec::new(); len + 1];
        let mut spots: Vec<Spot> = Vec::with_capacity(len);
        for (node, &parent) in parents.iter().enumerate() {
            let above = usize::try_from(i64::from(parent) + 1).map_err(|_| DraftError::Parents)?;
            if above > node {
                return Err(DraftError::Parents);
            }
            children[above].push(node);
            let parent = above.checked_sub(1).map(|parent| spots[parent]);
            spots.push(Spot::next(parent, spots.iter().copied()));
        }
        Ok(Self { children, spots })
    }

    /// The tree in which each token follows the one before it.
    #[must_use]
    pub fn chain(len: usize) -> Self {
        let only = |node: usize| if node < len { vec![node] } else { Vec::new() };
        Self { children: (0..=len).map(only).collect(), spots: (0..len).map(Spot::in_chain).collect() }
    }

    /// Number of draft tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spots.len()
    }

    /// Whether there is no draft token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many draft tokens can be accepted at most.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.spots.iter().map(|spot| spot.depth + 1).max().unwrap_or(0)
    }

    /// Whether each token follows the one before it.
    #[must_use]
    pub fn is_chain(&self) -> bool {
        // Then each has one child, but for the last. Children come after their parents, so it is the next one.
        self.children[..self.len()].iter().all(|children| children.len() == 1)
    }

    /// Where a node stands.
    #[must_use]
    pub fn spot(&self, node: usize) -> Spot {
        self.spots[node]
    }

    /// The nodes that were proposed after a node, or after the sequence's last token.
    #[must_use]
    pub fn children(&self, node: Option<usize>) -> &[usize] {
        &self.children[node.map_or(0, |node| node + 1)]
    }

    /// The row in which a node is tested: the one after its parent.
    #[must_use]
    pub fn row(&self, node: usize) -> usize {
        self.children.iter().position(|siblings| siblings.contains(&node)).unwrap_or(0)
    }

    /// The node's siblings that are tried before it.
    pub(super) fn siblings_before(&self, node: usize) -> &[usize] {
        let place =
            self.children.iter().find_map(|siblings| Some((siblings, siblings.iter().position(|&s| s == node)?)));
        place.map_or(&[], |(siblings, nth)| &siblings[..nth])
    }

    /// The nodes that were proposed after the last node of `path`.
    pub(super) fn after(&self, path: &[usize]) -> &[usize] {
        &self.children[row_after(path)]
    }
}

/// The row that follows the last node of `path`: 0 follows the sequence, `i + 1` follows draft token `i`.
pub(super) fn row_after(path: &[usize]) -> usize {
    path.last().map_or(0, |&node| node + 1)
}

/// The walk of rejection sampling. At each position it tests the siblings in turn until one is accepted, then moves on
/// to that one's position. If none is accepted, the token that is drawn instead ends the walk.
pub(super) fn sampled(plan: &Plan<'_>, positions: &mut impl Positions) -> Result<Verified, VerifyError> {
    let (mut path, mut emitted, mut trials) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        come_to(positions, row_after(&path))?;
        match rejection::deal(plan, path.len(), plan.tree.after(&path), positions, &mut trials) {
            Dealt::Accepted(node) => {
                path.push(node);
                emitted.push(positions.token(node));
                if positions.ends(node) {
                    break;
                }
            }
            Dealt::Drawn(token) => {
                emitted.push(token);
                break;
            }
        }
    }
    let states = Vec::new();
    Ok(Verified { accepted_path: path, emitted, lossless: true, trials, states, is_block: false, truncated: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_checked() {
        let cases: [(&[i32], usize, bool); 8] = [
            (&[], 0, true),
            (&[-1, 0, 1], 3, true),
            (&[-1, -1, 0, 0, 1], 5, true),
            (&[-1, 0], 3, false),
            (&[0], 1, false),
            (&[-1, 2, 1], 3, false),
            (&[-2], 1, false),
            (&[-1, i32::MAX], 2, false),
        ];
        for (parents, len, fine) in cases {
            assert_eq!(Tree::new(parents, len).is_ok(), fine, "{parents:?}");
        }
        assert!(Tree::new(&[-1, 0, 1], 3).unwrap().is_chain());
        assert!(!Tree::new(&[-1, -1], 2).unwrap().is_chain());
        let tree = Tree::new(&[-1, -1, 0, 0, 1], 5).unwrap();
        assert_eq!(tree.after(&[0]), [2, 3]);
        assert_eq!([1, 2, 3, 4].map(|node| tree.siblings_before(node)), [&[0][..], &[], &[2], &[]]);
    }

    #[test]
    fn tokens_of_a_depth_are_counted_in_the_order_of_the_draft() {
        let parents = [-1, 0, -1, 1, 2, 0, -1, 4];
        let tree = Tree::new(&parents, 8).unwrap();
        let depths = [0, 1, 0, 2, 1, 1, 0, 2];
        for node in 0..8 {
            let before = depths[..node].iter().filter(|&&depth| depth == depths[node]).count();
            assert_eq!(tree.spot(node), Spot { depth: depths[node], nth: before });
            // Later nodes change nothing.
            assert_eq!(Tree::new(&parents[..=node], node + 1).unwrap().spot(node), tree.spot(node));
        }
        let chain = Tree::chain(256);
        assert_eq!(chain.spot(255), Spot::in_chain(255));
        assert_eq!(Tree::new(&(-1..255).collect::<Vec<_>>(), 256).unwrap(), chain);
    }
}

//! Draft tokens that were proposed for a sequence by draft work and are not verified yet.

use crate::sampling::kept::Kept;

/// A tree of draft tokens, each with what it was drawn from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Drafts {
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, PartialEq)]
struct Node {
    token: u32,
    parent: Option<usize>,
    kept: Box<Kept>,
}

impl Drafts {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Their tokens.
    pub fn tokens(&self) -> impl Iterator<Item = u32> {
        self.nodes.iter().map(|node| node.token)
    }

    /// What draft token `index` was drawn from.
    #[must_use]
    pub fn kept(&self, index: usize) -> Option<&Kept> {
        self.nodes.get(index).map(|node| node.kept.as_ref())
    }

    /// Parents of the first `len`: the index of an earlier one, or -1.
    #[must_use]
    pub fn parents(&self, len: usize) -> Vec<i32> {
        let parent = |node: &Node| node.parent.map_or(-1, |parent| parent as i32);
        self.nodes.iter().take(len).map(parent).collect()
    }

    /// The tokens from the root to `last`.
    #[must_use]
    pub fn path(&self, last: Option<usize>) -> Vec<u32> {
        let mut path: Vec<u32> = std::iter::successors(last, |&at| self.nodes.get(at)?.parent)
            .filter_map(|at| Some(self.nodes.get(at)?.token))
            .collect();
        path.reverse();
        path
    }

    /// Adds a token that was drawn after `parent`, which is there.
    pub(super) fn push(&mut self, parent: Option<usize>, token: u32, kept: Box<Kept>) {
        self.nodes.push(Node { token, parent, kept });
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.nodes = Vec::new();
    }

    /// Memory held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let kept: usize = self.nodes.iter().map(|node| node.kept.bytes()).sum();
        kept + self.nodes.capacity() * size_of::<Node>()
    }
}

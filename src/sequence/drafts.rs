//! Draft tokens that draft work has drawn for a sequence and that are not verified yet.

use crate::params::state::SamplerState;
use crate::sampling::kept::Kept;
use crate::speculative::numbers::Spot;

/// A tree of draft tokens, each with the distribution it was drawn from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Drafts {
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, PartialEq)]
struct Node {
    token: u32,
    parent: Option<usize>,
    spot: Spot,
    kept: Box<Kept>,
    /// What samplers would remember after this token.
    state: Option<Box<SamplerState>>,
}

impl Drafts {
    pub(super) const fn none() -> Self {
        Self { nodes: Vec::new() }
    }

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

    /// How many of `tokens`, from the first on, equal the draft tokens here.
    #[must_use]
    pub fn in_common(&self, tokens: &[u32]) -> usize {
        self.tokens().zip(tokens).take_while(|(kept, token)| kept == *token).count()
    }

    /// The distribution that draft token `index` was drawn from.
    #[must_use]
    pub fn kept(&self, index: usize) -> Option<&Kept> {
        self.nodes.get(index).map(|node| node.kept.as_ref())
    }

    /// What samplers would remember after draft token `index`.
    #[must_use]
    pub fn state(&self, index: usize) -> Option<SamplerState> {
        self.nodes.get(index)?.state.as_deref().copied()
    }

    /// The parents of the first `len` draft tokens: the index of an earlier one, or -1.
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

    /// The spot that the next token would have if it followed `parent`, which must exist.
    #[must_use]
    pub fn next_spot(&self, parent: Option<usize>) -> Spot {
        let parent = parent.and_then(|parent| self.nodes.get(parent)).map(|node| node.spot);
        Spot::next(parent, self.nodes.iter().map(|node| node.spot))
    }

    /// Adds a token that was drawn after `parent`, which must exist.
    pub(super) fn push(&mut self, parent: Option<usize>, token: u32, kept: Box<Kept>, state: Option<SamplerState>) {
        let spot = self.next_spot(parent);
        self.nodes.push(Node { token, parent, spot, kept, state: state.map(Box::new) });
    }

    /// Memory held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let kept: usize = self.nodes.iter().map(|node| node.kept.bytes()).sum();
        let states = self.nodes.iter().filter(|node| node.state.is_some()).count() * size_of::<SamplerState>();
        kept + states + self.nodes.capacity() * size_of::<Node>()
    }
}

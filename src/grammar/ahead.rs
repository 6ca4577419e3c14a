//! Places ahead of a text at which masks are wanted.

/// Tokens that a text may emit next, and the places among them where a mask is wanted.
#[derive(Debug, Default)]
pub struct Ahead {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// For each token, the index of the one that it follows; -1 for the text's last token.
    pub parents: Vec<i32>,
    /// Whether only one mask is wanted, after the last token. Otherwise one is wanted where the text stands, and one
    /// after each token.
    pub is_last_only: bool,
}

impl Ahead {
    /// A chain: each token follows the one before it.
    #[must_use]
    pub fn chain(tokens: Vec<u32>) -> Self {
        Self { parents: (-1..).take(tokens.len()).collect(), tokens, is_last_only: false }
    }

    /// How many masks are wanted.
    pub(super) fn masks(&self) -> usize {
        if self.is_last_only { 1 } else { self.tokens.len() + 1 }
    }

    /// Whether each token follows the one before it.
    pub(super) fn is_chain(&self) -> bool {
        self.parents.iter().copied().eq((-1..).take(self.tokens.len()))
    }

    /// Whether only the mask where the text stands is wanted.
    pub(super) fn is_here(&self) -> bool {
        self.tokens.is_empty()
    }

    /// For each place where a mask is wanted, the tokens that lead to it.
    pub(super) fn paths(&self) -> impl Iterator<Item = Vec<u32>> {
        let first = if self.is_last_only { self.tokens.len() } else { 0 };
        (first..=self.tokens.len()).map(|place| self.path(place))
    }

    fn path(&self, place: usize) -> Vec<u32> {
        let mut path = Vec::new();
        let mut next = place.checked_sub(1);
        while let Some((at, &token)) = next.and_then(|at| Some((at, self.tokens.get(at)?))) {
            path.push(token);
            next = self.parents.get(at).and_then(|&parent| usize::try_from(parent).ok());
        }
        path.reverse();
        path
    }
}

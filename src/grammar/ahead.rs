//! Places ahead of a text.

/// Tokens that a text may come to emit, and the places where a mask is wanted.
#[derive(Debug, Default)]
pub struct Ahead {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The token that each follows, -1 for the text's last one.
    pub parents: Vec<i32>,
    /// Whether one mask is wanted, behind the last token; else one behind each, and before them one where the text stands.
    pub is_last_only: bool,
}

impl Ahead {
    /// Tokens that follow one another.
    #[must_use]
    pub fn chain(tokens: Vec<u32>) -> Self {
        Self { parents: (-1..).take(tokens.len()).collect(), tokens, is_last_only: false }
    }

    /// Masks that are wanted.
    pub(super) fn masks(&self) -> usize {
        if self.is_last_only { 1 } else { self.tokens.len() + 1 }
    }

    /// Whether its tokens follow one another.
    pub(super) fn is_chain(&self) -> bool {
        self.parents.iter().copied().eq((-1..).take(self.tokens.len()))
    }

    /// Whether masks are wanted only where the text stands.
    pub(super) fn is_here(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The tokens before each place where a mask is wanted.
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

//! Where a grammar begins in a text: behind the first of some tokens or token sequences, at a position, or at once.

use crate::automaton::{Automaton, Node};
use crate::params::grammar::GrammarStart;

/// Where a grammar begins.
#[derive(Debug)]
pub(super) struct Beginning {
    /// The tokens or sequences that it begins behind, if any.
    starts: Automaton,
    /// After how many tokens it begins, if there are no such sequences.
    position: u32,
}

/// The state of a text in which the grammar has not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// How much of a start sequence the text ends with.
    Start(Node),
    /// How many tokens, at least one, have to come first, whatever they are. A token that ends a text ends it only as
    /// the last of them.
    Tokens(u32),
}

impl Beginning {
    pub(super) fn new(start: &GrammarStart) -> Self {
        let starts: Vec<&[u32]> = start.starts().collect();
        Self { starts: Automaton::new(&starts), position: start.position }
    }

    /// The state at the beginning of a text; `None` if the grammar begins there.
    pub(super) fn first(&self) -> Option<Before> {
        let waits = || (self.position > 0).then_some(Before::Tokens(self.position));
        if self.starts.longest() > 0 { Some(Before::Start(Node::default())) } else { waits() }
    }

    /// The state after a token; `None` if the grammar begins there.
    pub(super) fn next(&self, before: Before, token: u32) -> Option<Before> {
        match before {
            Before::Start(node) => {
                let node = self.starts.next(node, token);
                (!self.starts.ends(node)).then_some(Before::Start(node))
            }
            Before::Tokens(left) => (left > 1).then(|| Before::Tokens(left - 1)),
        }
    }

    /// How many of these tokens are free: those before the grammar begins, or all if it does not begin.
    pub(super) fn within(&self, mut before: Before, tokens: &[u32]) -> usize {
        for (place, &token) in tokens.iter().enumerate() {
            match self.next(before, token) {
                Some(next) => before = next,
                None => return place + 1,
            }
        }
        tokens.len()
    }

    /// Bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        self.starts.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_behind_the_first_of_what_it_may() {
        let at = |position| Beginning::new(&GrammarStart { position, ..GrammarStart::default() });
        assert_eq!(at(0).first(), None);
        let third = at(3);
        let first = third.first().expect("it waits");
        assert_eq!([0, 2, 3, 5].map(|tokens| third.within(first, &vec![7; tokens])), [0, 2, 3, 3]);
        let start = GrammarStart { token_ids: vec![7], sequences: vec![vec![1, 2]], position: 0 };
        let behind = Beginning::new(&start);
        let first = behind.first().expect("it waits");
        let tokens: [&[u32]; 4] = [&[1, 1, 2, 7], &[7, 1, 2], &[2, 1], &[]];
        assert_eq!(tokens.map(|tokens| behind.within(first, tokens)), [3, 1, 2, 0]);
    }
}

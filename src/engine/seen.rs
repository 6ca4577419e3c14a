//! Which rows of a verification come again, in it or with the next work.

use crate::metrics::Last;
use crate::sampling::print::Print;
use crate::sequence::seen::Seen;
use crate::speculative::tree::Tree;

/// The rows of a verification: row 0 follows the text's last token, row `i + 1` draft token `i`.
pub(super) struct Rows<'a> {
    pub(super) prints: &'a [Option<Print>],
    pub(super) tree: &'a Tree,
    /// The draft tokens.
    pub(super) tokens: &'a [u32],
}

impl Rows<'_> {
    /// What its sequence remembers, where `accepted` is the last draft token that was accepted.
    pub(super) fn seen(&self, accepted: Option<usize>, last: Last) -> Seen {
        let rejected = self.tree.children(accepted).first().filter(|_| last == Last::Recovered);
        // Behind a block that ended before a row without a distribution that row is sent anew, as it may be.
        let used = accepted.filter(|_| last != Last::Accepted);
        Seen { first: self.print(0), behind: [used, rejected.copied()].map(|node| self.after(node?)) }
    }

    /// How many rows are those before the draft token that they come after: the model did not see it. Where it is the token before it once
    /// more, nothing is said: the two are nearly alike. `last` is the text's, if it is known.
    pub(super) fn like_parents(&self, last: Option<u32>) -> usize {
        let is_like = |parent: Option<usize>, node: usize| {
            let before = parent.map_or(last, |parent| Some(self.tokens[parent]));
            let row = self.print(parent.map_or(0, |parent| parent + 1));
            before != Some(self.tokens[node]) && row.is_some() && row == self.print(node + 1)
        };
        let of_parent =
            |parent: Option<usize>| self.tree.children(parent).iter().filter(|&&node| is_like(parent, node)).count();
        std::iter::once(None).chain((0..self.tokens.len()).map(Some)).map(of_parent).sum()
    }

    fn after(&self, node: usize) -> Option<(Print, u32)> {
        Some((self.print(node + 1)?, self.tokens[node]))
    }

    fn print(&self, row: usize) -> Option<Print> {
        self.prints.get(row).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::logits::{Dtype, Logits};

    /// Prints of rows, of which those with one number are the same.
    fn prints<const N: usize>(rows: [u8; N]) -> Vec<Option<Print>> {
        let row = |number: u8| Dtype::F32.encode(&(0..8u8).map(|at| f32::from(at + number)).collect::<Vec<_>>());
        rows.map(|number| Print::of(&Logits::new(Dtype::F32, &row(number)))).into()
    }

    #[test]
    fn rows_like_their_parents_are_counted_by_the_tree() {
        let like = |rows: [u8; 4], parents: &[i32; 3], tokens: &[u32; 3]| {
            let tree = Tree::new(parents, 3).expect("a tree");
            Rows { prints: &prints(rows), tree: &tree, tokens }.like_parents(Some(9))
        };
        let (chain, different) = ([-1, 0, 1], [5, 6, 7]);
        assert_eq!(like([1, 2, 3, 4], &chain, &different), 0);
        assert_eq!(like([1, 1, 3, 3], &chain, &different), 2);
        assert_eq!(like([1, 2, 1, 2], &chain, &different), 0, "they are not beside each other");
        assert_eq!(like([1, 1, 1, 1], &chain, &[9, 9, 5]), 1, "of a run nothing is said");
        // Two beside each other, and one behind the second.
        assert_eq!(like([1, 2, 2, 3], &[-1, -1, 1], &different), 0, "siblings may be alike");
        assert_eq!(like([1, 2, 3, 3], &[-1, -1, 1], &different), 1);
        let tree = Tree::chain(3);
        assert_eq!(Rows { prints: &[None; 4], tree: &tree, tokens: &different }.like_parents(None), 0);
    }

    #[test]
    fn a_sequence_remembers_the_rows_around_its_last_token() {
        let (tree, rows) = (Tree::chain(3), prints([1, 2, 3, 4]));
        let of = Rows { prints: &rows, tree: &tree, tokens: &[5, 6, 7] };
        let seen = |accepted, last| {
            let Seen { first, behind } = of.seen(accepted, last);
            let place = |print| rows.iter().position(|row| *row == Some(print));
            (first.and_then(place), behind.map(|row| row.map(|(print, token)| (place(print), token))))
        };
        assert_eq!(seen(None, Last::Recovered), (Some(0), [None, Some((Some(1), 5))]));
        assert_eq!(seen(Some(0), Last::Recovered), (Some(0), [Some((Some(1), 5)), Some((Some(2), 6))]));
        assert_eq!(seen(Some(2), Last::Bonus), (Some(0), [Some((Some(3), 7)), None]));
        assert_eq!(seen(Some(1), Last::Accepted), (Some(0), [None, None]));
    }
}

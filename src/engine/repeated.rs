//! Finds rows that come again: within a verification, with the next work, or in another text.

use crate::metrics::Last;
use crate::sampling::fingerprint::Fingerprint;
use crate::sequence::repeated::WorkRows;
use crate::speculative::tree::Tree;

/// The first row of a work, and the token that its text ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FirstRow {
    pub(super) fingerprint: Fingerprint,
    pub(super) after: u32,
}

/// How many of a step's works have the same row as another work whose text ended with another token: the two rows
/// cannot both be right. Texts that end with the same token may be alike, for example texts of one prompt.
pub(super) fn like_neighbours(mut rows: Vec<FirstRow>) -> usize {
    rows.sort_unstable();
    let alike = rows.chunk_by(|a, b| a.fingerprint == b.fingerprint);
    alike.map(|rows| rows.iter().filter(|row| row.after != rows[0].after).count()).sum()
}

/// The rows of a verification: row 0 follows the text's last token, row `i + 1` follows draft token `i`.
pub(super) struct VerifiedRows<'a> {
    pub(super) fingerprints: &'a [Option<Fingerprint>],
    pub(super) tree: &'a Tree,
    /// The draft tokens.
    pub(super) tokens: &'a [u32],
}

impl VerifiedRows<'_> {
    /// What the sequence remembers of these rows; `accepted` is the last draft token that was accepted.
    pub(super) fn around_the_last(&self, accepted: Option<usize>, last: Last) -> WorkRows {
        let rejected = self.tree.children(accepted).first().filter(|_| last == Last::Recovered);
        // A block may end before a row without a distribution. The worker may rightly send that row again.
        let used = accepted.filter(|_| last != Last::Accepted);
        WorkRows { first: self.fingerprint(0), behind: [used, rejected.copied()].map(|node| self.after(node?)) }
    }

    /// How many rows after a draft token equal the row before it, which means that the model did not see that token. A
    /// draft token that repeats the token before it does not count, because the two rows are nearly alike anyway.
    /// `last` is the text's last token, if known.
    pub(super) fn like_parents(&self, last: Option<u32>) -> usize {
        let is_like = |parent: Option<usize>, node: usize| {
            let before = parent.map_or(last, |parent| Some(self.tokens[parent]));
            let row = self.fingerprint(parent.map_or(0, |parent| parent + 1));
            before != Some(self.tokens[node]) && row.is_some() && row == self.fingerprint(node + 1)
        };
        let of_parent =
            |parent: Option<usize>| self.tree.children(parent).iter().filter(|&&node| is_like(parent, node)).count();
        std::iter::once(None).chain((0..self.tokens.len()).map(Some)).map(of_parent).sum()
    }

    fn after(&self, node: usize) -> Option<(Fingerprint, u32)> {
        Some((self.fingerprint(node + 1)?, self.tokens[node]))
    }

    fn fingerprint(&self, row: usize) -> Option<Fingerprint> {
        self.fingerprints.get(row).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::logits::{Dtype, Logits};

    /// Fingerprints of rows. Rows with the same number are the same.
    fn fingerprints<const N: usize>(rows: [u8; N]) -> Vec<Option<Fingerprint>> {
        let row = |number: u8| Dtype::F32.encode(&(0..8u8).map(|at| f32::from(at + number)).collect::<Vec<_>>());
        rows.map(|number| Fingerprint::of(&Logits::new(Dtype::F32, &row(number)))).into()
    }

    #[test]
    fn rows_of_texts_that_end_otherwise_are_counted() {
        let found = fingerprints([1, 2]);
        let [a, b] = [found[0].expect("a row"), found[1].expect("a row")];
        let like = |rows: &[(Fingerprint, u32)]| {
            like_neighbours(rows.iter().map(|&(fingerprint, after)| FirstRow { fingerprint, after }).collect())
        };
        assert_eq!(like(&[]), 0);
        assert_eq!(like(&[(a, 5), (b, 6), (a, 5), (b, 6)]), 0, "they end alike");
        assert_eq!(like(&[(a, 5), (b, 6), (a, 7)]), 1);
        assert_eq!(like(&[(b, 5), (b, 6), (a, 7), (b, 8), (a, 7)]), 2);
    }

    #[test]
    fn rows_like_their_parents_are_counted_by_the_tree() {
        let like = |rows: [u8; 4], parents: &[i32; 3], tokens: &[u32; 3]| {
            let tree = Tree::new(parents, 3).expect("a tree");
            VerifiedRows { fingerprints: &fingerprints(rows), tree: &tree, tokens }.like_parents(Some(9))
        };
        let (chain, different) = ([-1, 0, 1], [5, 6, 7]);
        assert_eq!(like([1, 2, 3, 4], &chain, &different), 0);
        assert_eq!(like([1, 1, 3, 3], &chain, &different), 2);
        assert_eq!(like([1, 2, 1, 2], &chain, &different), 0, "they are not beside each other");
        assert_eq!(like([1, 1, 1, 1], &chain, &[9, 9, 5]), 1, "of a run nothing is said");
        // Two siblings, and one token after the second.
        assert_eq!(like([1, 2, 2, 3], &[-1, -1, 1], &different), 0, "siblings may be alike");
        assert_eq!(like([1, 2, 3, 3], &[-1, -1, 1], &different), 1);
        let tree = Tree::chain(3);
        assert_eq!(VerifiedRows { fingerprints: &[None; 4], tree: &tree, tokens: &different }.like_parents(None), 0);
    }

    #[test]
    fn a_sequence_remembers_the_rows_around_its_last_token() {
        let (tree, rows) = (Tree::chain(3), fingerprints([1, 2, 3, 4]));
        let of = VerifiedRows { fingerprints: &rows, tree: &tree, tokens: &[5, 6, 7] };
        let seen = |accepted, last| {
            let WorkRows { first, behind } = of.around_the_last(accepted, last);
            let place = |print| rows.iter().position(|row| *row == Some(print));
            (first.and_then(place), behind.map(|row| row.map(|(print, token)| (place(print), token))))
        };
        assert_eq!(seen(None, Last::Recovered), (Some(0), [None, Some((Some(1), 5))]));
        assert_eq!(seen(Some(0), Last::Recovered), (Some(0), [Some((Some(1), 5)), Some((Some(2), 6))]));
        assert_eq!(seen(Some(2), Last::Bonus), (Some(0), [Some((Some(3), 7)), None]));
        assert_eq!(seen(Some(1), Last::Accepted), (Some(0), [None, None]));
    }
}

//! Which rows of a verification come again, in it or with the next work.

use crate::metrics::Last;
use crate::sampling::print::Print;
use crate::sequence::seen::Seen;
use crate::speculative::tree::Tree;

/// What its sequence remembers of a verification: row 0 follows the text's last token, row `i + 1` draft token `i`, of which the last that was
/// accepted is `accepted`.
pub(super) fn of(prints: &[Option<Print>], tree: &Tree, accepted: Option<usize>, last: Last) -> Seen {
    let print = |row: usize| prints.get(row).copied().flatten();
    let rejected = tree.children(accepted).first().filter(|_| last == Last::Recovered);
    // Behind a block that ended before a row without a distribution that row is sent anew, as it may be.
    let used = if last == Last::Accepted { None } else { print(accepted.map_or(0, |node| node + 1)) };
    Seen { first: print(0), used, rejected: rejected.and_then(|&node| print(node + 1)) }
}

/// How many rows are those before the draft token that they come after: the model did not see it.
pub(super) fn like_parents(prints: &[Option<Print>], tree: &Tree) -> usize {
    let of_row = |row: usize| {
        let children = tree.children(row.checked_sub(1)).iter();
        children.filter(|&&node| prints[row].is_some() && prints.get(node + 1) == Some(&prints[row])).count()
    };
    (0..prints.len()).map(of_row).sum()
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
        let chain = Tree::chain(3);
        assert_eq!(like_parents(&prints([1, 2, 3, 4]), &chain), 0);
        assert_eq!(like_parents(&prints([1, 1, 3, 3]), &chain), 2);
        assert_eq!(like_parents(&prints([1, 2, 1, 2]), &chain), 0, "they are not beside each other");
        // Two beside each other, and one behind the second.
        let tree = Tree::new(&[-1, -1, 1], 3).expect("a tree");
        assert_eq!(like_parents(&prints([1, 2, 2, 3]), &tree), 0, "siblings may be alike");
        assert_eq!(like_parents(&prints([1, 2, 3, 3]), &tree), 1);
        assert_eq!(like_parents(&[None; 4], &chain), 0);
    }

    #[test]
    fn a_sequence_remembers_the_rows_around_its_last_token() {
        let (chain, rows) = (Tree::chain(3), prints([1, 2, 3, 4]));
        let seen = |accepted, last| {
            let Seen { first, used, rejected } = of(&rows, &chain, accepted, last);
            [first, used, rejected].map(|print| rows.iter().position(|row| *row == print))
        };
        assert_eq!(seen(None, Last::Recovered), [Some(0), Some(0), Some(1)]);
        assert_eq!(seen(Some(0), Last::Recovered), [Some(0), Some(1), Some(2)]);
        assert_eq!(seen(Some(2), Last::Bonus), [Some(0), Some(3), None]);
        assert_eq!(seen(Some(1), Last::Accepted), [Some(0), None, None]);
    }
}

//! The rows that a sequence was given last, to notice one that comes again: then a buffer was sent that nobody had written anew, or the
//! model has not read what was emitted since.

use super::Sequence;
use crate::sampling::print::Print;

/// Rows of one work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// The row after the sequence's last token.
    pub first: Option<Print>,
    /// The row that the last emitted token was drawn from, where draft tokens were accepted.
    pub used: Option<Print>,
    /// The row after a draft token that was rejected there.
    pub rejected: Option<Print>,
}

impl Seen {
    fn has(&self, print: Print) -> bool {
        [self.first, self.used, self.rejected].contains(&Some(print))
    }
}

impl Sequence {
    /// Takes note of the rows of a work whose tokens were committed. Whether the first of them is one of those before, which no model
    /// gives: a text that is longer has other logits.
    pub fn sees(&mut self, rows: Seen) -> bool {
        let before = std::mem::replace(&mut self.seen, rows);
        rows.first.is_some_and(|first| before.has(first))
    }
}

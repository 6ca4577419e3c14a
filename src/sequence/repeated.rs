//! The rows that a sequence was given last, to notice one that comes again: then a buffer was sent that nobody had written anew, or the
//! model has not read what was emitted since.

use super::Sequence;
use crate::sampling::fingerprint::Fingerprint;

/// Rows of one work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkRows {
    /// The row after the sequence's last token.
    pub first: Option<Fingerprint>,
    /// Rows after a draft token, and which: that which the last emitted token was drawn from, and that of one that was rejected there.
    pub behind: [Option<(Fingerprint, u32)>; 2],
}

/// What a sequence remembers of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct EarlierRows {
    prints: [Option<Fingerprint>; 3],
    /// The last token that was emitted since the sequence was opened.
    last: Option<u32>,
}

impl Sequence {
    /// Takes note of the rows of a work which has emitted these tokens. Whether the first of its rows is one of those before, which no model gives:
    /// after another text there are other logits. Rows that follow on the same token are not compared: of a text that repeats itself they are
    /// nearly alike, and in a few bits the same.
    pub fn note_rows(&mut self, rows: WorkRows, emitted: &[u32]) -> bool {
        let is_again = rows.first.is_some_and(|first| self.earlier_rows.prints.contains(&Some(first)));
        let (before, last) = (self.earlier_rows.last, emitted.last().copied());
        let first = rows.first.filter(|_| before.is_none() || before != last);
        let behind = rows.behind.map(|row| row.filter(|(_, token)| Some(*token) != last).map(|(print, _)| print));
        self.earlier_rows = EarlierRows { prints: [first, behind[0], behind[1]], last };
        is_again
    }

    /// The last token that it has emitted since it was opened.
    #[must_use]
    pub fn last_emitted(&self) -> Option<u32> {
        self.earlier_rows.last
    }
}

//! Remembers the last rows that a sequence was given, to notice a row that is sent again. That means that a worker sent
//! a buffer which was not written anew, or that the model has not read what was emitted since.

use super::Sequence;
use crate::sampling::fingerprint::Fingerprint;

/// The rows of one work that are remembered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkRows {
    /// The row after the sequence's last token.
    pub first: Option<Fingerprint>,
    /// Rows after a draft token, each with that token: the row that the last emitted token was drawn from, and the row
    /// after a token that was rejected there.
    pub behind: [Option<(Fingerprint, u32)>; 2],
}

/// The rows that a sequence remembers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct EarlierRows {
    prints: [Option<Fingerprint>; 3],
    /// The last token emitted since the sequence was opened.
    last: Option<u32>,
    /// The last token that the sequence was opened with. A worker may leave out its prompt, or give a part of it, so
    /// this is not known to be what the first row follows.
    opened_with: Option<u32>,
}

impl EarlierRows {
    /// No rows yet, in a text of these tokens.
    pub(super) fn behind(prompt: &[u32], output: &[u32]) -> Self {
        Self { opened_with: output.last().or(prompt.last()).copied(), ..Self::default() }
    }
}

impl Sequence {
    /// Remembers the rows of a work that has emitted these tokens. Returns whether its first row repeats a remembered
    /// one. No model gives the same row again, because after another text the logits differ. Rows that follow the same
    /// token again are not compared: in a text that repeats itself they are nearly alike, and in a few bits the same.
    pub fn note_rows(&mut self, rows: WorkRows, emitted: &[u32]) -> bool {
        let is_again = rows.first.is_some_and(|first| self.earlier_rows.prints.contains(&Some(first)));
        let EarlierRows { last: before, opened_with, .. } = self.earlier_rows;
        let (before, last) = (before.or(opened_with), emitted.last().copied());
        let first = rows.first.filter(|_| before.is_none() || before != last);
        let behind = rows.behind.map(|row| row.filter(|(_, token)| Some(*token) != last).map(|(print, _)| print));
        self.earlier_rows = EarlierRows { prints: [first, behind[0], behind[1]], last, opened_with };
        is_again
    }

    /// The last token that it has emitted since it was opened.
    #[must_use]
    pub fn last_emitted(&self) -> Option<u32> {
        self.earlier_rows.last
    }
}

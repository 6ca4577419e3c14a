//! A text as the tools that look back see it: the kept tokens, then tokens that are assumed to follow when looking
//! ahead.

use crate::sampling::steps::step;

/// The last tokens of prompt and output. A *position* is a number of tokens, and names the place behind them.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextView<'a> {
    kept: &'a [u32],
    ahead: &'a [u32],
}

impl<'a> TextView<'a> {
    pub(super) fn new(kept: &'a [u32], ahead: &'a [u32]) -> Self {
        Self { kept, ahead }
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len() + self.ahead.len()
    }

    /// How many tokens are kept, not looked ahead at.
    pub(super) fn kept_len(&self) -> usize {
        self.kept.len()
    }

    /// The token at a position before the end.
    pub(super) fn get(&self, at: usize) -> Option<u32> {
        self.kept.get(at).or_else(|| self.ahead.get(at - self.kept.len())).copied()
    }

    /// The tokens before a position, the last one first.
    pub(super) fn back_from(&self, at: usize) -> impl Iterator<Item = u32> {
        let (kept, ahead) = (at.min(self.kept.len()), at.saturating_sub(self.kept.len()).min(self.ahead.len()));
        self.ahead[..ahead].iter().rev().chain(self.kept[..kept].iter().rev()).copied()
    }

    /// The last `count` tokens, or all if there are fewer.
    pub(super) fn last(&self, count: usize) -> impl Iterator<Item = u32> {
        let ahead = self.ahead.len().min(count);
        let kept = self.kept.len().min(count - ahead);
        let (kept, ahead) = (&self.kept[self.kept.len() - kept..], &self.ahead[self.ahead.len() - ahead..]);
        kept.iter().chain(ahead).copied()
    }

    /// Whether the tokens before a position end with these.
    pub(super) fn ends_with(&self, at: usize, tokens: &[u32]) -> bool {
        tokens.len() <= at && self.back_from(at).zip(tokens.iter().rev()).all(|(a, &b)| a == b)
    }

    /// How many tokens before `at` agree with the last ones of the text; counts up to `most`.
    pub(super) fn repeated_before(&self, at: usize, most: usize) -> usize {
        // Usually only a few agree, so two iterators would cost more than these look-ups.
        let is_same = |back: &usize| self.get(at - 1 - back) == self.get(self.len() - 1 - back);
        (0..most.min(at)).take_while(|back| (step(), is_same(back)).1).count()
    }

    /// How far the last `len` tokens repeat themselves; see [`EndRepeats`].
    pub(super) fn end_repeats(self, len: usize) -> EndRepeats<'a> {
        EndRepeats { text: self, lens: vec![len], begin: 0, end: 0 }
    }

    /// Whether the `count` tokens before `at` equal the last `count` of the text.
    pub(super) fn repeats_before(&self, at: usize, count: usize) -> bool {
        count <= at && self.back_from(at).zip(self.back_from(self.len())).take(count).all(|(a, b)| a == b)
    }
}

/// How far the end of a text repeats itself: for each distance, how many tokens, from the last one back, equal the
/// token that many places before. This is the Z-function of the reversed text, found one distance after the other. Each
/// comparison that holds moves the furthest place known to repeat on, so all distances together cost at most one
/// comparison for each of them and one for each token, whatever the text.
#[derive(Debug)]
pub(super) struct EndRepeats<'a> {
    text: TextView<'a>,
    /// What is known for each distance from 0 on.
    lens: Vec<usize>,
    /// The furthest place known to repeat, counted from the end, and where its repetition begins.
    end: usize,
    begin: usize,
}

impl EndRepeats<'_> {
    /// How far the end repeats itself at the next distance, which must be less than the number of tokens.
    pub(super) fn find_next(&mut self) -> usize {
        let (len, distance) = (self.lens[0], self.lens.len());
        let back = |at: usize| self.text.get(self.text.len() - 1 - at);
        let is_known = distance < self.end;
        let mut repeat = if is_known { self.lens[distance - self.begin].min(self.end - distance) } else { 0 };
        // If the known repeat stops before the furthest place, it stops there for good.
        let may_go_on = |repeat: usize| distance + repeat < len && distance + repeat >= self.end;
        while may_go_on(repeat) && (step(), back(repeat) == back(distance + repeat)).1 {
            repeat += 1;
        }
        if distance + repeat > self.end {
            (self.begin, self.end) = (distance, distance + repeat);
        }
        self.lens.push(repeat);
        repeat
    }

    /// What was found for each distance; for 0, all tokens.
    pub(super) fn into_lens(self) -> Vec<usize> {
        self.lens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_wherever_it_is_cut() {
        let all = [1, 2, 3, 1, 2];
        for cut in 0..=all.len() {
            let text = TextView::new(&all[..cut], &all[cut..]);
            assert_eq!((text.len(), text.kept_len()), (5, cut));
            assert_eq!((0..6).map(|at| text.get(at)).collect::<Vec<_>>()[..5], all.map(Some));
            assert_eq!(text.get(5), None);
            for at in 0..=5 {
                assert!(text.back_from(at).eq(all[..at].iter().rev().copied()), "{cut} {at}");
                assert!(text.last(at).eq(all[5 - at..].iter().copied()), "{cut} {at}");
            }
            assert!(text.last(9).eq(all));
            assert!(text.ends_with(5, &[1, 2]) && text.ends_with(2, &[1, 2]) && text.ends_with(0, &[]));
            assert!(!text.ends_with(4, &[1, 2]) && !text.ends_with(2, &[9, 1, 2]));
            assert_eq!((text.repeated_before(2, 9), text.repeated_before(2, 1), text.repeated_before(3, 9)), (2, 1, 0));
            assert!(text.repeats_before(2, 2) && text.repeats_before(3, 0));
            assert!(!text.repeats_before(2, 3) && !text.repeats_before(3, 1));
        }
    }
}

//! Behind what a grammar begins: the first of some sequences of tokens in the output.

use std::collections::{HashMap, VecDeque};

/// How far the end of what was emitted goes along one of the sequences. The beginning has come nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Along(u32);

/// Sequences of tokens, all of which are looked for at once (Aho and Corasick, 1975): a token takes one step on average, however many they are.
#[derive(Debug)]
pub(super) struct Starts {
    /// Of each place, and the token that goes on from there.
    next: HashMap<(u32, u32), u32>,
    /// Of each place the longest end of its tokens that is a place, too.
    shorter: Vec<u32>,
    /// Whether a sequence ends at a place.
    is_end: Vec<bool>,
}

impl Starts {
    /// Those of a grammar; none where it begins at once.
    pub(super) fn new<'a>(sequences: impl IntoIterator<Item = &'a [u32]>) -> Self {
        let mut starts = Self { next: HashMap::new(), shorter: vec![0], is_end: vec![false] };
        sequences.into_iter().for_each(|tokens| starts.add(tokens));
        starts.tell_shorter();
        starts
    }

    fn add(&mut self, tokens: &[u32]) {
        let mut at = 0;
        for &token in tokens {
            let new = self.is_end.len() as u32;
            at = *self.next.entry((at, token)).or_insert(new);
            if at == new {
                self.is_end.push(false);
                self.shorter.push(0);
            }
        }
        self.is_end[at as usize] |= at != 0;
    }

    /// Short sequences first: those behind them need theirs.
    fn tell_shorter(&mut self) {
        let mut children: HashMap<u32, Vec<(u32, u32)>> = HashMap::new();
        self.next.iter().for_each(|(&(from, token), &to)| children.entry(from).or_default().push((token, to)));
        let mut open = VecDeque::from([0]);
        while let Some(at) = open.pop_front() {
            for &(token, to) in children.get(&at).into_iter().flatten() {
                let shorter = if at == 0 { 0 } else { self.step(self.shorter[at as usize], token) };
                self.shorter[to as usize] = shorter;
                self.is_end[to as usize] |= self.is_end[shorter as usize];
                open.push_back(to);
            }
        }
    }

    fn step(&self, mut at: u32, token: u32) -> u32 {
        loop {
            match self.next.get(&(at, token)) {
                Some(&next) => return next,
                None if at == 0 => return 0,
                None => at = self.shorter[at as usize],
            }
        }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.next.is_empty()
    }

    /// Where a token leads; `None`: a sequence ends with it.
    pub(super) fn go_on(&self, from: Along, token: u32) -> Option<Along> {
        let at = self.step(from.0, token);
        (!self.is_end[at as usize]).then_some(Along(at))
    }

    /// Behind how many of these tokens a sequence ends first.
    pub(super) fn begins(&self, mut from: Along, tokens: &[u32]) -> Option<usize> {
        for (at, &token) in tokens.iter().enumerate() {
            match self.go_on(from, token) {
                Some(next) => from = next,
                None => return Some(at + 1),
            }
        }
        None
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        const EACH: usize = size_of::<((u32, u32), u32)>() + 1;
        self.next.capacity() * EACH + self.shorter.capacity() * size_of::<u32>() + self.is_end.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_of_them_counts() {
        let starts = Starts::new([&[7][..], &[1, 2, 3], &[2, 4], &[1, 1, 2, 5]]);
        let cases: [(&[u32], Option<usize>); 6] = [
            (&[0, 7, 1], Some(2)),
            (&[1, 2, 1, 2, 3], Some(5)),
            // The end of one that did not come is the beginning of another.
            (&[1, 2, 4], Some(3)),
            (&[1, 1, 2, 3], Some(4)),
            (&[1, 1, 1, 2, 5], Some(5)),
            (&[1, 2, 2, 1, 2], None),
        ];
        for (text, expected) in cases {
            assert_eq!(starts.begins(Along::default(), text), expected, "{text:?}");
        }
        assert!(Starts::new([]).is_empty() && !starts.is_empty());
    }

    proptest! {
        #[test]
        fn it_is_where_the_text_ends_with_one(
            sequences in prop::collection::vec(prop::collection::vec(0u32..3, 1..6), 1..5),
            text in prop::collection::vec(0u32..3, 0..40),
        ) {
            let starts = Starts::new(sequences.iter().map(Vec::as_slice));
            let ends = |&at: &usize| sequences.iter().any(|tokens| text[..at].ends_with(tokens));
            prop_assert_eq!(starts.begins(Along::default(), &text), (1..=text.len()).find(ends));
        }
    }
}

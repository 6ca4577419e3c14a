//! DRY's sequence breakers: given as tokens, or as texts.
//!
//! A text breaks at the token with which it is complete, however the text is cut into tokens: what counts are the bytes
//! of the tokens' own texts, one after the other. A control token has its name, such as `<|im_end|>`, and a token with
//! neither text nor name ends whatever has begun.

use crate::automaton::{Automaton, Node};
use crate::vocabulary::Vocabulary;

/// A search for the last breaker goes back by this many tokens at a time.
const PART: usize = 256;

/// An automaton over the bytes of texts.
pub(in crate::sequence) fn of_texts(texts: &[String]) -> Automaton {
    let bytes: Vec<Vec<u32>> = texts.iter().map(|text| text.bytes().map(u32::from).collect()).collect();
    Automaton::new(&bytes)
}

/// The sequence breakers of a sequence.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::sequence) struct Breakers<'a> {
    pub(in crate::sequence) tokens: Option<&'a Automaton>,
    /// Texts, and the texts of tokens.
    pub(in crate::sequence) texts: Option<(&'a Automaton, &'a Vocabulary)>,
}

/// Where the automata of breakers are in a text.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Places {
    tokens: Node,
    texts: Node,
}

impl Breakers<'_> {
    /// How many tokens the longest breaker may have: each has at least a byte.
    pub(in crate::sequence) fn longest(&self) -> usize {
        let of_texts = self.texts.map_or(0, |(texts, _)| texts.longest());
        self.tokens.map_or(0, Automaton::longest).max(of_texts)
    }

    /// Whether a token is a breaker by itself, or its text has one.
    pub(super) fn has(&self, token: u32) -> bool {
        self.tokens.is_some_and(|tokens| tokens.is_one(token))
            || self.texts.is_some_and(|(texts, of)| spelled(texts, &mut Node::default(), of.spelling(token)))
    }

    /// Where the automata are before the token at `to`. That depends on few tokens before it.
    fn before(&self, text: &[u32], to: usize) -> Places {
        let (mut from, mut bytes) = (to, 0);
        if let Some((texts, of)) = self.texts {
            while from > 0 && bytes < texts.longest() && !of.spelling(text[from - 1]).is_empty() {
                from -= 1;
                bytes += of.spelling(text[from]).len();
            }
        }
        let from = from.min(to.saturating_sub(self.tokens.map_or(0, Automaton::longest)));
        let mut places = Places::default();
        text[from..to].iter().for_each(|&token| _ = self.take(&mut places, token));
        places
    }

    /// Takes in one more token. Returns whether a breaker ends with it.
    fn take(&self, places: &mut Places, token: u32) -> bool {
        let mut ends = false;
        if let Some(tokens) = self.tokens {
            places.tokens = tokens.next(places.tokens, token);
            ends = tokens.ends(places.tokens);
        }
        match self.texts {
            Some((texts, of)) => spelled(texts, &mut places.texts, of.spelling(token)) || ends,
            None => ends,
        }
    }
}

/// Takes in the bytes of a token. Returns whether a text ends with one of them.
fn spelled(texts: &Automaton, place: &mut Node, bytes: &[u8]) -> bool {
    if bytes.is_empty() {
        *place = Node::default();
    }
    // All bytes are taken in, since the next text may begin behind the one that ends.
    bytes.iter().fold(false, |ends, &byte| {
        *place = texts.next(*place, byte.into());
        texts.ends(*place) || ends
    })
}

/// How far the end of the text is behind its sequence breakers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(in crate::sequence) struct BreakerDistance {
    /// How many of the last tokens come after every breaker.
    pub(super) tokens: u32,
    places: Places,
}

impl BreakerDistance {
    /// Computed from scratch for `text`. The count is unlimited if there is no breaker in the text or in `window`. It
    /// takes a step or two for each token from the last breaker on, and for each byte of their texts.
    pub(in crate::sequence) fn after(text: &[u32], breakers: Breakers<'_>, window: usize) -> Self {
        let first = text.len().saturating_sub(window);
        let (mut places, mut to) = (None, text.len());
        while breakers.longest() > 0 && to > first {
            let from = to.saturating_sub(PART).max(first);
            let (mut here, mut end) = (breakers.before(text, from), None);
            for (&token, behind) in text[from..to].iter().zip(from + 1..) {
                end = if breakers.take(&mut here, token) { Some(behind) } else { end };
            }
            places = places.or(Some(here));
            if let Some(end) = end {
                return Self { tokens: (text.len() - end) as u32, places: places.unwrap_or_default() };
            }
            to = from;
        }
        Self { tokens: u32::MAX, places: places.unwrap_or_default() }
    }

    /// Takes in one more token.
    pub(in crate::sequence) fn push(&mut self, token: u32, breakers: Breakers<'_>) {
        let ends = breakers.take(&mut self.places, token);
        self.tokens = if ends { 0 } else { self.tokens.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vocabulary(texts: &[&str]) -> Vocabulary {
        let texts: Vec<_> = texts.iter().map(|text| Some(text.as_bytes().to_vec())).collect();
        Vocabulary::new(&texts, b"").with_special(vec![(0, "<|end|>".to_owned())])
    }

    /// How far the ends of the beginnings of a text are behind a breaker; `None` before the first.
    fn distances(texts: &[&str], of: &Vocabulary, text: &[u32]) -> Vec<Option<u32>> {
        let texts = of_texts(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let breakers = Breakers { tokens: None, texts: Some((&texts, of)) };
        let mut since = BreakerDistance::after(&[], breakers, 100);
        let each = |&token: &u32| {
            since.push(token, breakers);
            (since.tokens < 100).then_some(since.tokens)
        };
        text.iter().map(each).collect()
    }

    #[test]
    fn a_text_breaks_however_it_is_cut() {
        let of = vocabulary(&["", "a", "\n", " \n\n ", ".\n", "\r", "<|", "end|>", "", "b"]);
        let (far, since) = (None, Some);
        assert_eq!(
            distances(&["\n"], &of, &[1, 2, 1, 3, 1, 4]),
            [far, since(0), since(1), since(0), since(1), since(0)]
        );
        // Only two of them one after the other.
        assert_eq!(
            distances(&["\n\n"], &of, &[2, 1, 2, 2, 1, 3, 4, 4]),
            [far, far, far, since(0), since(1), since(0), since(1), since(2)]
        );
        assert_eq!(distances(&["\n.\n"], &of, &[4, 4, 2]), [far, since(0), since(1)]);
        // A control token by its name, which other tokens may spell as well.
        assert_eq!(distances(&["<|end|>"], &of, &[0, 1, 6, 7]), [since(0), since(1), since(2), since(0)]);
        // A token without a text comes between.
        assert_eq!(distances(&["ab"], &of, &[1, 8, 9, 1, 9]), [far, far, far, far, since(0)]);
        // Behind a text the next may begin inside a token.
        assert_eq!(distances(&["\n", "\n\r"], &of, &[4, 5, 1]), [since(0), since(0), since(1)]);
        let texts = of_texts(&["\n".to_owned()]);
        let breakers = Breakers { tokens: None, texts: Some((&texts, &of)) };
        let having: Vec<u32> = (0..10).filter(|&token| breakers.has(token)).collect();
        assert_eq!(having, [2, 3, 4]);
    }

    proptest! {
        #[test]
        fn texts_are_found_in_what_the_tokens_spell(
            spellings in prop::collection::vec("[ab]{1,3}", 1..6),
            texts in prop::collection::vec("[ab]{1,4}", 1..4),
            text in prop::collection::vec(0..6usize, 0..20),
            far in prop_oneof![Just(0usize), 200..600usize],
            // With a window of 0 DRY is off.
            window in 1..700usize,
        ) {
            let of = vocabulary(&[&[""], &spellings.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat());
            let text: Vec<u32> = text.into_iter().map(|at| 1 + (at % spellings.len()) as u32).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let spelled = |tokens: &[u32]| tokens.iter().map(|&t| spellings[t as usize - 1].as_str()).collect::<String>();
            // A breaker ends in a token if the text up to there has one that ends behind the token before.
            let ends = |at: usize| {
                let (before, upto) = (spelled(&text[..at]).len(), spelled(&text[..=at]));
                (before + 1..=upto.len()).any(|end| texts.iter().any(|breaker| upto[..end].ends_with(breaker)))
            };
            let expected: Vec<Option<u32>> = (0..text.len())
                .map(|at| (0..=at).rev().find(|&behind| ends(behind)).map(|behind| (at - behind) as u32))
                .collect();
            prop_assert_eq!(distances(&texts, &of, &text), expected);
            let automaton = of_texts(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
            let breakers = Breakers { tokens: None, texts: Some((&automaton, &of)) };
            // Where a breaker is far behind, the search goes back part by part, and then goes on the same.
            let far = [&text[..], &vec![0; far], &text[..text.len() / 2]].concat();
            let mut pushed = BreakerDistance::after(&[], breakers, far.len());
            far.iter().for_each(|&token| pushed.push(token, breakers));
            let window = window.min(far.len());
            let opened = BreakerDistance::after(&far, breakers, window);
            let near = Some(pushed.tokens).filter(|&since| (since as usize) < window);
            prop_assert_eq!(opened.tokens, near.unwrap_or(u32::MAX));
            prop_assert_eq!(opened.places, pushed.places);
            for token in 1..=spellings.len() as u32 {
                let has = texts.iter().any(|breaker| spellings[token as usize - 1].contains(breaker));
                prop_assert_eq!(breakers.has(token), has);
            }
            prop_assert!(breakers.longest() >= texts.iter().map(|text| text.len()).max().unwrap_or(0));
        }
    }
}

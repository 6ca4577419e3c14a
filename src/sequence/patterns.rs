//! Finds the token sequences whose tokens, all but the last, a text ends with. Bad words and sequence biases then say
//! something about the last token. Only sequences that hold at a place take time, however many do not.
//!
//! An [`Automaton`] has the sequences without their last tokens. A node stands for the tokens on the way to it. It has
//! the sequences that hold after exactly these tokens, and knows the longest shorter end of its tokens that has
//! sequences too. So a row costs a step for each of these ends, which are no more than the longest sequence has tokens,
//! and a step for each sequence that holds. A token costs a step or two.
//!
//! The memory is at most 20 bytes for each token of the sequences and 4 for each sequence.

use super::dry::breakers::of_texts;
use crate::automaton::{Automaton, Node};
use crate::params::SamplingParams;
use crate::sampling::steps::step;

/// No node, in [`Patterns::shorter`].
const NONE: u32 = u32::MAX;

/// Sequences, numbered as they were given.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Patterns {
    automaton: Automaton,
    /// For each node, the index in `at` of its first sequence. One entry more marks the end of the last node's.
    first: Vec<u32>,
    /// For each node, the node of the longest proper suffix of its tokens that has sequences.
    shorter: Vec<u32>,
    /// The numbers of the sequences, by node; ascending within a node.
    at: Vec<u32>,
}

/// The patterns that parameters have themselves.
#[derive(Debug)]
pub(super) struct OwnPatterns {
    /// Bad words of two or more tokens. Those of one token are plain bans.
    pub(super) words: Option<Patterns>,
    pub(super) biases: Option<Patterns>,
    /// DRY's sequence breakers that are given as tokens.
    pub(super) breakers: Option<Automaton>,
    /// Those that are given as texts.
    pub(super) breaker_texts: Option<Automaton>,
}

impl OwnPatterns {
    /// `None` if the parameters have none.
    pub(super) fn of(params: &SamplingParams) -> Option<Box<Self>> {
        let (words, biases) = (&params.bad_words, &params.history.sequence_bias);
        let words = (!words.is_empty())
            .then(|| Patterns::new(words.iter().map(|word| if word.len() > 1 { word.as_slice() } else { &[] })));
        let biases = (!biases.is_empty()).then(|| Patterns::new(biases.iter().map(|bias| bias.token_ids.as_slice())));
        let breakers = &params.history.dry_sequence_breakers;
        let breakers = (!breakers.is_empty()).then(|| Automaton::new(breakers));
        let texts = &params.history.dry_sequence_breaker_texts;
        let breaker_texts = (!texts.is_empty()).then(|| of_texts(texts));
        let has_some = words.is_some() || biases.is_some() || breakers.is_some() || breaker_texts.is_some();
        has_some.then(|| Box::new(Self { words, biases, breakers, breaker_texts }))
    }

    pub(super) fn bytes(&self) -> usize {
        let beside = |patterns: &Option<Patterns>| patterns.as_ref().map_or(0, Patterns::bytes);
        let breakers: usize = [&self.breakers, &self.breaker_texts].into_iter().flatten().map(Automaton::bytes).sum();
        size_of::<Self>() + beside(&self.words) + beside(&self.biases) + breakers
    }
}

impl Patterns {
    /// From these sequences, numbered in order. Empty ones never hold.
    pub(super) fn new<'a>(sequences: impl Iterator<Item = &'a [u32]>) -> Self {
        let before = |sequence: &'a [u32]| sequence.split_last().map(|(_, before)| before);
        let before: Vec<Option<&[u32]>> = sequences.map(before).collect();
        let contexts: Vec<&[u32]> = before.iter().copied().flatten().filter(|before| !before.is_empty()).collect();
        let automaton = Automaton::new(&contexts);
        let node = |before: &[u32]| before.iter().fold(Node::default(), |place, &token| automaton.next(place, token));
        let mut placed: Vec<(usize, u32)> =
            (0..).zip(&before).filter_map(|(number, before)| Some((node((*before)?).node(), number))).collect();
        placed.sort_unstable();
        let nodes = automaton.nodes();
        let first: Vec<u32> = (0..=nodes).map(|node| placed.partition_point(|placed| placed.0 < node) as u32).collect();
        let at = placed.into_iter().map(|(_, number)| number).collect();
        let mut patterns = Self { automaton, first, shorter: vec![NONE; nodes], at };
        // Shorter nodes come first, so the entry of a node's suffix is already set.
        for node in 1..nodes {
            let fail = patterns.automaton.shorter(node);
            let has_some = !patterns.at_node(fail).is_empty();
            patterns.shorter[node] = if has_some { fail as u32 } else { patterns.shorter[fail] };
        }
        patterns
    }

    fn at_node(&self, node: usize) -> &[u32] {
        &self.at[self.first[node] as usize..self.first[node + 1] as usize]
    }

    /// How many sequences there are.
    pub(super) fn len(&self) -> usize {
        self.at.len()
    }

    /// The most tokens that any of them looks back at.
    pub(super) fn longest(&self) -> usize {
        self.automaton.longest()
    }

    /// The place after one more token.
    pub(super) fn next(&self, place: Node, token: u32) -> Node {
        self.automaton.next(place, token)
    }

    /// The place after `text`; only its end matters.
    pub(super) fn after(&self, text: &[u32]) -> Node {
        let end = &text[text.len().saturating_sub(self.longest())..];
        end.iter().fold(Node::default(), |place, &token| self.next(place, token))
    }

    /// The numbers of the sequences that hold at a place, ascending.
    pub(super) fn holding(&self, place: Node) -> Vec<u32> {
        let mut found = Vec::new();
        let mut node = place.node();
        loop {
            step();
            let here = self.at_node(node);
            here.iter().for_each(|_| step());
            found.extend_from_slice(here);
            match self.shorter[node] {
                NONE => break,
                shorter => node = shorter as usize,
            }
        }
        found.sort_unstable();
        found
    }

    /// Bytes they take, their own fields included.
    pub(super) fn bytes(&self) -> usize {
        let numbers = self.first.capacity() + self.shorter.capacity() + self.at.capacity();
        size_of::<Self>() - size_of::<Automaton>() + self.automaton.bytes() + numbers * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::steps::steps;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn those_that_hold_are_those_of_the_definition(
            sequences in prop::collection::vec(prop::collection::vec(0u32..3, 0..6), 0..12),
            text in prop::collection::vec(0u32..4, 0..30),
        ) {
            let patterns = Patterns::new(sequences.iter().map(Vec::as_slice));
            let mut place = Node::default();
            for at in 0..=text.len() {
                let holds = |sequence: &Vec<u32>| {
                    sequence.split_last().is_some_and(|(_, before)| text[..at].ends_with(before))
                };
                let expected: Vec<u32> = (0..).zip(&sequences).filter(|s| holds(s.1)).map(|s| s.0).collect();
                prop_assert_eq!(patterns.holding(place), expected, "{} of {:?}", at, text);
                prop_assert_eq!(patterns.after(&text[..at]), place);
                if let Some(&token) = text.get(at) {
                    place = patterns.next(place, token);
                }
            }
            let tokens: usize = sequences.iter().map(Vec::len).sum();
            let most = size_of::<Patterns>() + 20 * (tokens + 2) + 4 * sequences.len();
            prop_assert!(patterns.bytes() <= most, "{} {most}", patterns.bytes());
        }
    }

    /// As many and as long sequences as allowed. For all but the last one, everything except the first token matches the end of the text.
    #[test]
    fn a_row_costs_what_holds_and_not_what_there_is() {
        let text = vec![1; 64];
        let of = |sequences: &[Vec<u32>]| {
            let patterns = Patterns::new(sequences.iter().map(Vec::as_slice));
            let place = patterns.after(&text);
            let mut held = 0;
            (steps(|| held = patterns.holding(place).len()), steps(|| _ = patterns.next(place, 1)), held)
        };
        let late = |last: std::ops::Range<u32>| {
            last.map(|last| [vec![9], vec![1; 62], vec![last]].concat()).collect::<Vec<_>>()
        };
        assert_eq!(of(&late(0..1024)), (1, 1, 0));
        let ends: Vec<Vec<u32>> = (1..=64).map(|len| vec![1; len]).collect();
        assert_eq!(of(&ends), (64 + 64, 2, 64));
        assert_eq!(of(&[late(0..1000), vec![vec![1, 5], vec![5], vec![1, 1, 6]]].concat()), (3 + 3, 2, 3));
    }
}

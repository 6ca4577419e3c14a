//! Computes what candidates count with once [infill](crate::sampling::samplers::infill) has merged them, without
//! putting them in order.
//!
//! Texts form trees, since one may begin others. Candidates take their turns in order. So a candidate is merged into
//! the first in order of all that its text begins, or it is itself that one, and takes in all of them. No candidate
//! counts with more than the texts that it begins and the texts that begin it have together, so a subtree where that is
//! less than a fifth is skipped. A text that is as likely as the first of all that it begins would take that one in:
//! such cases are left to the walk in order.

use crate::backend::cpu::keys;
use crate::backend::cpu::passes::Values;
use crate::sampling::samplers::infill::Sums;
use crate::vocabulary::Vocabulary;

/// Marks a place without a candidate.
const GONE: u32 = u32::MAX;
/// How deep texts may be nested, each beginning the next. Those of models are some hundred deep at most: runs of
/// spaces.
const DEEPEST: usize = 256;

/// Storage, kept from row to row. Bounded by the vocabulary.
#[derive(Debug, Default)]
pub(super) struct TextStore {
    /// By text, the candidate's place in the list.
    listed: Vec<u32>,
    /// By token, the candidate's place in the list, from which the above is made.
    by_token: Vec<u32>,
    /// By text, the mass of all texts before.
    before: Vec<u64>,
}

/// Candidates by text.
struct Texts<'a> {
    known: &'a Vocabulary,
    values: &'a Values,
    sums: &'a Sums,
    store: &'a TextStore,
    counted: Vec<u64>,
}

/// What each candidate that may stay counts with, by its place in the list, and 0 for others. `None`: two candidates
/// are equal where it matters, or texts are nested too deep. Tokens that end the text are not merged.
pub(super) fn counted(
    known: &Vocabulary,
    sums: &Sums,
    values: &Values,
    is_end: &[bool],
    store: &mut TextStore,
) -> Option<Vec<u64>> {
    store.fill(known, values, is_end);
    let mut texts = Texts { known, values, sums, store, counted: vec![0; values.tokens.len()] };
    texts.count_without_text(is_end);
    texts.count(0..known.texts(), 0, DEEPEST)?;
    Some(texts.counted)
}

impl TextStore {
    fn fill(&mut self, known: &Vocabulary, values: &Values, is_end: &[bool]) {
        self.by_token.clear();
        self.by_token.resize(known.tokens(), GONE);
        for ((at, &token), &is_end) in (0..).zip(&values.tokens).zip(is_end) {
            if let Some(listed) = self.by_token.get_mut(token as usize) {
                *listed = if is_end { GONE } else { at };
            }
        }
        self.listed.clear();
        self.listed.extend(known.by_text().iter().map(|&token| self.by_token[token as usize]));
        self.before.clear();
        self.before.push(0);
        let mut sum = 0;
        self.before.extend(self.listed.iter().map(|&at| {
            sum += if at == GONE { 0 } else { values.masses[at as usize] };
            sum
        }));
    }
}

impl Texts<'_> {
    /// Candidates without a text count by themselves.
    fn count_without_text(&mut self, is_end: &[bool]) {
        for (at, &mass) in self.values.masses.iter().enumerate() {
            if self.sums.is_fifth(mass) && !is_end[at] && self.known.place(self.values.tokens[at]).is_none() {
                self.counted[at] = mass;
            }
        }
    }

    /// Counts trees that are next to each other. The texts that begin all of them have a mass of `above`, and at most
    /// `depth` levels may follow.
    fn count(&mut self, places: std::ops::Range<usize>, above: u64, depth: usize) -> Option<()> {
        let mut from = places.start;
        while from < places.end {
            let to = self.known.behind(self.known.by_text()[from]) as usize;
            if self.sums.is_fifth(self.mass(from..to) + above) {
                self.count_tree(from..to, above, depth)?;
            }
            from = to;
        }
        Some(())
    }

    fn count_tree(&mut self, places: std::ops::Range<usize>, above: u64, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        let Some(first) = self.first(places.clone()) else { return Some(()) };
        let root = self.same_text(places.start);
        if root.contains(&first) {
            self.counted[self.store.listed[first] as usize] += self.mass(places);
            return Some(());
        }
        let most = self.mass(first..first + 1);
        let mut on_the_way = Some(self.same_text(first).start);
        while let Some(place) = on_the_way.filter(|&place| place >= places.start) {
            let is_equal = |at: usize| at != first && most > 0 && self.mass(at..at + 1) == most;
            if place != self.same_text(first).start && self.same_text(place).any(is_equal) {
                return None;
            }
            on_the_way = self.known.beginning(place as u32).map(|place| place as usize);
        }
        let here = self.mass(root.clone());
        self.counted[self.store.listed[first] as usize] += here;
        self.count(root.end..places.end, above + here, depth)
    }

    /// The places of all tokens that have this text, whose first place is `first`.
    fn same_text(&self, first: usize) -> std::ops::Range<usize> {
        let place = |at: &usize| self.known.place(self.known.by_text()[*at]);
        let to = (first + 1..self.known.texts()).take_while(|at| place(at) == place(&first)).last();
        first..to.map_or(first + 1, |last| last + 1)
    }

    fn mass(&self, places: std::ops::Range<usize>) -> u64 {
        self.store.before[places.end] - self.store.before[places.start]
    }

    /// The place of the candidate that comes first in order.
    fn first(&self, places: std::ops::Range<usize>) -> Option<usize> {
        let there = places.filter(|&place| self.store.listed[place] != GONE);
        let key = |&place: &usize| {
            keys::key(self.known.by_text()[place], self.values.logits[self.store.listed[place] as usize])
        };
        there.min_by_key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::samplers::infill::{Infill, Stay};
    use proptest::prelude::*;

    /// Texts each of which is a prefix of the next. The last one has nearly all of the mass.
    fn nested(texts: usize) -> Option<Vec<u64>> {
        let known = Vocabulary::new(&(1..=texts).map(|length| Some(vec![b'a'; length])).collect::<Vec<_>>(), b"");
        let mut values = Values::default();
        for token in 0..texts {
            values.tokens.push(token as u32);
            values.logits.push(token as f32);
            values.masses.push(if token + 1 < texts { 1 + token as u64 } else { 1 << 40 });
        }
        let sums = Sums { candidates: texts, ends: 0, texts: values.masses.iter().sum() };
        counted(&known, &sums, &values, &vec![false; texts], &mut TextStore::default())
    }

    #[test]
    fn texts_that_stand_in_one_another_too_deep_are_left_to_the_walk() {
        let all = nested(DEEPEST).expect("not too deep");
        assert_eq!(all[DEEPEST - 1], (1 << 40) + (DEEPEST * (DEEPEST - 1) / 2) as u64);
        assert_eq!((nested(DEEPEST + 1), nested(9000)), (None, None));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn without_order_it_is_what_it_is_in_order(
            tokens in prop::collection::vec((prop::option::of("[ab]{0,5}"), -40..40i32), 1..60),
            out in prop::collection::vec(0..60u32, 0..10),
            ends in prop::collection::vec(0..60u32, 0..3),
        ) {
            let texts: Vec<_> = tokens.iter().map(|(text, _)| text.clone().map(String::into_bytes)).collect();
            let known = Vocabulary::new(&texts, b"");
            let mut values = Values::default();
            let there = (0..tokens.len() as u32).filter(|token| *token == 0 || !out.contains(token));
            for token in there {
                // Tokens whose masses are often equal: logits differ, but their masses do not always.
                let logit = tokens[token as usize].1 as f32 / 4.0;
                values.tokens.push(token);
                values.logits.push(logit);
                values.masses.push(((logit / 2.0).exp2() * 2.0) as u64);
            }
            let is_end: Vec<bool> = values.tokens.iter().map(|token| ends.contains(token)).collect();
            let mass_of = |is| values.masses.iter().zip(&is_end).filter(|&(_, &end)| end == is).map(|(mass, _)| mass).sum();
            let sums = Sums { candidates: is_end.len(), ends: mass_of(true), texts: mass_of(false) };
            if sums.end_it() || sums.texts == 0 {
                return Ok(());
            }
            let mut order: Vec<usize> = (0..is_end.len()).collect();
            order.sort_by_key(|&at| keys::key(values.tokens[at], values.logits[at]));
            let candidates: Vec<_> = order.iter().map(|&at| (values.tokens[at], values.masses[at])).collect();
            let expected = match (Infill { vocabulary: &known, ends: &ends }).stay(&candidates) {
                Stay::End => Stay::End,
                Stay::These(stay) => {
                    let mut stays = vec![false; order.len()];
                    order.iter().zip(stay).for_each(|(&at, stay)| stays[at] = stay);
                    Stay::These(stays)
                }
            };
            if let Some(counted) = counted(&known, &sums, &values, &is_end, &mut TextStore::default()) {
                prop_assert_eq!(sums.stay(&counted, &is_end, 0), Some(expected));
            }
        }
    }
}

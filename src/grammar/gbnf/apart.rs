//! Finds terminals that are in each other's way.
//!
//! A lexer ends a word when the next byte leads nowhere in any terminal. So a terminal ends where it should only if no
//! terminal, including itself, could go on with a byte that may follow it: for each word `w` of A and each byte `b`
//! that may follow A, no word of any B may begin with `w b`. Here all terminals are treated as if they could stand in
//! the same place.

use super::bytes::Bytes;
use super::plan::{Follows, Plan};
use derivre::{Regex, RegexBuilder};
use std::collections::{HashMap, HashSet};

/// The most pairs of states that are looked at for one grammar. Beyond that, terminals count as in each other's way,
/// and end up as single characters.
const MAX_PAIRS: usize = 200_000;
const FUEL: u64 = 10_000_000;

/// What is known about terminals, by their texts.
#[derive(Default)]
pub(super) struct Apart {
    known: HashMap<String, usize>,
    automata: Vec<Option<Regex>>,
    firsts: Vec<Bytes>,
    /// For a pair of terminals: the bytes after a word of the first with which the second can go on.
    over: HashMap<(usize, usize), Bytes>,
    pairs: usize,
}

impl Apart {
    /// The terminals that run on over what may follow another one.
    pub(super) fn too_wide(&mut self, plan: &Plan) -> Vec<usize> {
        let known: Vec<usize> = plan.terminals.iter().map(|terminal| self.known(&terminal.regex)).collect();
        let firsts: Vec<Bytes> = known.iter().map(|known| self.firsts[*known]).collect();
        let follows = Follows::of(plan, &firsts).terminals;
        let mut is_wide = |wide: usize| {
            (0..known.len()).any(|ends| {
                firsts[ends].meets(firsts[wide]) && self.over(known[ends], known[wide]).meets(follows[ends])
            })
        };
        let all = (0..known.len()).filter(|terminal| !plan.terminals[*terminal].is_character);
        all.filter(|terminal| is_wide(*terminal)).collect()
    }

    fn known(&mut self, regex: &str) -> usize {
        if let Some(known) = self.known.get(regex) {
            return *known;
        }
        let mut automaton = automaton(regex);
        let firsts = automaton.as_mut().map_or(Bytes::ALL, |automaton| {
            let start = automaton.initial_state();
            let mut firsts = Bytes::default();
            (0..=u8::MAX)
                .filter(|byte| !automaton.transition(start, *byte).is_dead())
                .for_each(|byte| firsts.insert(byte));
            firsts
        });
        self.automata.push(automaton);
        self.firsts.push(firsts);
        self.known.insert(regex.to_owned(), self.firsts.len() - 1);
        self.firsts.len() - 1
    }

    fn over(&mut self, ends: usize, wide: usize) -> Bytes {
        if let Some(known) = self.over.get(&(ends, wide)) {
            return *known;
        }
        if self.pairs > MAX_PAIRS {
            return Bytes::ALL;
        }
        let over = self.found(ends, wide).unwrap_or(Bytes::ALL);
        self.over.insert((ends, wide), over);
        over
    }

    /// Walks both automata together; `None` if that takes too long.
    fn found(&mut self, ends: usize, wide: usize) -> Option<Bytes> {
        let (mut ends, mut wide) = (self.automata[ends].clone()?, self.automata[wide].clone()?);
        let bytes = classes(&ends, &wide);
        let start = (ends.initial_state(), wide.initial_state());
        let (mut seen, mut left, mut over) = (HashSet::from([start]), vec![start], Bytes::default());
        while let Some((at, wide_at)) = left.pop() {
            self.pairs += 1;
            if self.pairs > MAX_PAIRS {
                return None;
            }
            let is_word = ends.is_accepting(at);
            for same in &bytes {
                let wide_to = wide.transition(wide_at, same[0]);
                if wide_to.is_dead() {
                    continue;
                }
                if is_word {
                    same.iter().for_each(|byte| over.insert(*byte));
                }
                let to = (ends.transition(at, same[0]), wide_to);
                if !to.0.is_dead() && seen.insert(to) {
                    left.push(to);
                }
            }
        }
        Some(over)
    }
}

fn automaton(regex: &str) -> Option<Regex> {
    let mut builder = RegexBuilder::new();
    let regex = builder.mk_regex(regex).ok()?;
    builder.into_regex_limited(regex, FUEL).ok()
}

/// Groups of bytes that neither automaton tells apart.
fn classes(one: &Regex, other: &Regex) -> Vec<Vec<u8>> {
    let mut classes: HashMap<(usize, usize), Vec<u8>> = HashMap::new();
    for byte in 0..=u8::MAX {
        classes.entry((one.alpha().map(byte), other.alpha().map(byte))).or_default().push(byte);
    }
    classes.into_values().collect()
}

//! Fill in the middle (llama.cpp `llama_sampler_infill`): ends a text where what would follow is not certain.
//!
//! Of the `n` candidates in order, those that end the text have the mass `E` together, and the others have `T`.
//!
//! 1. Where `3 n E > T` only the tokens that end the text stay.
//! 2. Else tokens are merged. For each candidate `a` in order, for each other candidate `b` in order, both not merged
//!    yet: where the text of `a` is a prefix of that of `b` or the same, the one that counts with less mass goes, or
//!    `b` if they are equal. From then on the other one counts with the sum of both.
//! 3. Candidates that count with less than a fifth of `E + T` go. Where only tokens that end the text are left, a
//!    single one of them is the result: the first that may be emitted, even if earlier samplers removed it.
//! 4. Where `k` candidates are left, with a mass of `S` together with the tokens that end the text, those that count
//!    with less than `S / (k + 1)` go.
//!
//! Tokens that end the text are never merged, and no threshold removes them. Where fewer than `min_keep` would be left
//! nothing happens, so at least one is left. The merged masses only decide who stays: candidates that stay keep their
//! own masses, as in llama.cpp, whose draw weighs logits again. All arithmetic is in integers. In llama.cpp a token
//! that ends the text may have a text and then be merged, and the last one is made up where it is masked.

use crate::sampling::candidates::Candidates;
use crate::sampling::order::Candidate;
use crate::vocabulary::Vocabulary;

/// What infill needs to know of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Infill<'a> {
    /// The tokens' texts.
    pub vocabulary: &'a Vocabulary,
    /// The tokens that end the text. The first of them that may be emitted ends it where nothing else is certain.
    pub ends: &'a [u32],
}

/// Which candidates stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stay {
    /// These, by their places in the order.
    These(Vec<bool>),
    /// None: the text ends.
    End,
}

impl Infill<'_> {
    /// The token that ends a text where nothing else is certain, given the logits of tokens after masks.
    #[must_use]
    pub fn end(&self, logit: impl Fn(u32) -> f32) -> Option<Candidate> {
        let ends = self.ends.iter().map(|&token| Candidate { token, logit: logit(token) });
        ends.into_iter().find(|end| end.logit > f32::NEG_INFINITY)
    }

    /// Which candidates stay, from their tokens and masses, in order.
    #[must_use]
    pub fn stay(&self, candidates: &[(u32, u64)]) -> Stay {
        let is_end = self.is_end(candidates);
        let mass_of =
            |ends: bool| candidates.iter().zip(&is_end).filter(|&(_, &is)| is == ends).map(|(c, _)| c.1).sum();
        let sums = Sums { candidates: candidates.len(), ends: mass_of(true), texts: mass_of(false) };
        if sums.end_it() {
            return Stay::These(is_end);
        }
        sums.stay(&self.merged(candidates, &is_end).counted, &is_end, 0).expect("no mass is left out; this is a bug")
    }

    /// The same, from the first candidates of the order, those that end the text, and the sums over all candidates:
    /// which of the first stay, and that no other does. `None` where that is not certain. None of the others may be as
    /// likely as one of the first.
    ///
    /// The others are merged after all of these. So they count with one of these or with each other, and what is
    /// missing anywhere is at most their mass together. This does not hold where two of the first are equal, and the
    /// later one takes in the earlier.
    #[must_use]
    pub fn stay_of_all(&self, first: &[(u32, u64)], sums: &Sums) -> Option<Stay> {
        let is_end = self.is_end(first);
        let listed: u64 = first.iter().zip(&is_end).filter(|&(_, &is_end)| !is_end).map(|(c, _)| c.1).sum();
        let merged = Some(self.merged(first, &is_end)).filter(|merged| !merged.is_by_chance)?;
        sums.stay(&merged.counted, &is_end, sums.texts - listed)
    }

    /// Which candidates end the text.
    fn is_end(&self, candidates: &[(u32, u64)]) -> Vec<bool> {
        let mut ends = self.ends.to_vec();
        ends.sort_unstable();
        candidates.iter().map(|(token, _)| ends.binary_search(token).is_ok()).collect()
    }

    fn merged(&self, candidates: &[(u32, u64)], is_end: &[bool]) -> Merged {
        let mut counted: Vec<u64> = candidates.iter().map(|c| c.1).collect();
        let mut texts = Texts::new(self.vocabulary, candidates, is_end);
        let mut is_by_chance = false;
        for at in 0..candidates.len() {
            let Some(leaf) = texts.leaf[at] else { continue };
            if !texts.is_there(leaf) {
                continue;
            }
            let range = texts.begun_by(self.vocabulary, candidates[at].0);
            texts.put(leaf, GONE);
            let mut stays = true;
            while stays && let Some(other) = texts.first_in(range.clone()) {
                let sum = counted[at] + counted[other];
                stays = counted[other] <= counted[at];
                is_by_chance |= stays && other < at && counted[at] > 0;
                let (to, from) = if stays { (at, other) } else { (other, at) };
                (counted[to], counted[from]) = (sum, 0);
                if stays && let Some(leaf) = texts.leaf[other] {
                    texts.put(leaf, GONE);
                }
            }
            if stays {
                texts.put(leaf, at as u32);
            }
        }
        Merged { counted, is_by_chance }
    }
}

/// Candidates after they were merged.
struct Merged {
    /// The mass that each counts with; 0 for those that were merged into others.
    counted: Vec<u64>,
    /// Whether a candidate was merged into one that comes after it, which is possible only if they are equal.
    is_by_chance: bool,
}

/// Sums over all candidates.
#[derive(Debug, Clone, Copy)]
pub struct Sums {
    /// How many there are. May be an upper bound, where even that many do not [end it](Self::end_it).
    pub candidates: usize,
    /// The mass of the tokens that end the text.
    pub ends: u64,
    /// The mass of the other candidates.
    pub texts: u64,
}

impl Sums {
    /// Whether only tokens that end the text stay.
    #[must_use]
    pub fn end_it(&self) -> bool {
        3 * self.candidates as u128 * u128::from(self.ends) > u128::from(self.texts)
    }

    /// Whether a text that counts with this mass passes the first threshold, a fifth of the total.
    #[must_use]
    pub fn is_fifth(&self, mass: u64) -> bool {
        5 * u128::from(mass) >= u128::from(self.ends) + u128::from(self.texts)
    }

    /// Which candidates stay. Each counts with at least its mass in `counted`, and all together with at most `missing`
    /// more. `None` where the missing mass would decide. Candidates that are not in `counted` have no more than what is
    /// missing.
    #[must_use]
    pub fn stay(&self, counted: &[u64], is_end: &[bool], missing: u64) -> Option<Stay> {
        let texts =
            || counted.iter().zip(is_end).filter(|&(&mass, &is_end)| mass > 0 && !is_end).map(|(&mass, _)| mass);
        let is_open = |mass| !self.is_fifth(mass) && self.is_fifth(mass + missing);
        if missing > 0 && (self.is_fifth(missing) || texts().any(is_open)) {
            return None;
        }
        let stay = || texts().filter(|&mass| self.is_fifth(mass));
        let (left, sum) = (stay().count() as u128, u128::from(self.ends) + stay().map(u128::from).sum::<u128>());
        if left == 0 {
            return Some(Stay::End);
        }
        let missing = u128::from(missing);
        let stays_for_sure = |mass: u64| (left + 1) * u128::from(mass) >= sum + missing;
        let goes_for_sure = |mass: u64| (left + 1) * (u128::from(mass) + missing) < sum;
        if missing > 0 && stay().any(|mass| !stays_for_sure(mass) && !goes_for_sure(mass)) {
            return None;
        }
        let stays = |(&mass, &is_end): (&u64, &bool)| is_end || self.is_fifth(mass) && stays_for_sure(mass);
        Some(Stay::These(counted.iter().zip(is_end).map(stays).collect()))
    }
}

/// Marks a leaf without a candidate.
const GONE: u32 = u32::MAX;

/// Candidates in the order of their texts, as the leaves of a tree that finds the candidate of a range which comes
/// first in the order of candidates. So every merge takes one walk through the tree, and there are fewer merges than
/// candidates.
struct Texts {
    /// Places of texts in the vocabulary, ascending.
    places: Vec<u32>,
    /// Each candidate's leaf; `None`: the candidate is not merged.
    leaf: Vec<Option<usize>>,
    /// For each inner node the lesser of its two children, with the root at 1; the leaves follow.
    tree: Vec<u32>,
}

impl Texts {
    fn new(vocabulary: &Vocabulary, candidates: &[(u32, u64)], is_end: &[bool]) -> Self {
        let placed = candidates.iter().zip(is_end).enumerate().filter(|&(_, (_, &is_end))| !is_end);
        let mut order: Vec<(u32, usize)> =
            placed.filter_map(|(at, (c, _))| vocabulary.place(c.0).map(|place| (place, at))).collect();
        order.sort_unstable();
        let mut texts = Self {
            places: order.iter().map(|&(place, _)| place).collect(),
            leaf: vec![None; candidates.len()],
            tree: vec![GONE; 2 * order.len()],
        };
        for (leaf, &(_, at)) in order.iter().enumerate() {
            texts.leaf[at] = Some(leaf);
            texts.put(leaf, at as u32);
        }
        texts
    }

    /// The leaves of candidates whose text begins with that of a token.
    fn begun_by(&self, vocabulary: &Vocabulary, token: u32) -> std::ops::Range<usize> {
        let from = vocabulary.place(token).unwrap_or(GONE);
        let leaf = |place: u32| self.places.partition_point(|&other| other < place);
        leaf(from)..leaf(vocabulary.behind(token))
    }

    fn is_there(&self, leaf: usize) -> bool {
        self.tree[self.places.len() + leaf] != GONE
    }

    fn put(&mut self, leaf: usize, candidate: u32) {
        let mut node = self.places.len() + leaf;
        self.tree[node] = candidate;
        while node > 1 {
            node /= 2;
            self.tree[node] = self.tree[2 * node].min(self.tree[2 * node + 1]);
        }
    }

    /// The first candidate that is still there among these leaves.
    fn first_in(&self, leaves: std::ops::Range<usize>) -> Option<usize> {
        let (mut from, mut to) = (leaves.start + self.places.len(), leaves.end + self.places.len());
        let mut first = GONE;
        while from < to {
            if from % 2 == 1 {
                first = first.min(self.tree[from]);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                first = first.min(self.tree[to]);
            }
            (from, to) = (from / 2, to / 2);
        }
        (first != GONE).then_some(first as usize)
    }
}

/// Which candidates stay.
#[must_use]
pub fn stay(left: &Candidates, infill: &Infill<'_>) -> Stay {
    let masses: Vec<(u32, u64)> = left.kept().iter().map(|w| (w.candidate.token, w.mass)).collect();
    infill.stay(&masses)
}

/// Removes the candidates that do not stay.
pub fn apply(left: &mut Candidates, infill: &Infill<'_>) {
    match stay(left, infill) {
        Stay::These(stay) => left.remove(|at, _| !stay[at]),
        Stay::End => left.keep_end(),
    }
}

//! The tokens of a row while they pass through a [chain](super::chain) of samplers.

use super::entropy::{entropy, entropy_term};
use super::filters::{self, Weighted};
use super::mass;
use super::observed::Seen;
use super::order::Candidate;
use super::samplers::cutoffs::{self, Masses};
use super::samplers::skew::Along;
use super::sort;
use super::watermark::tournament::{self, Tournament};

/// Candidates in [order](super::order), with their masses at the temperature so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidates {
    kept: Vec<Weighted>,
    /// How many tokens the row has, including those that are not candidates.
    vocab_size: usize,
    /// The first candidate's logit.
    max: f32,
    /// The product of all temperatures so far.
    temperature: f64,
    /// The factor from logit distance to exponent at this temperature.
    scale: f32,
    /// No filter keeps fewer candidates than this.
    min_keep: usize,
    /// The candidate that ends the text where nothing else is certain, even if a step has removed it; see
    /// [`infill`](super::samplers::infill).
    end: Option<Candidate>,
    /// The distribution before [`reshape_by_mass`](Self::reshape_by_mass).
    seen: Option<Seen>,
    /// The candidates' cumulative masses from [`reshape_along`](Self::reshape_along).
    along: Option<Along>,
}

/// What filters or a chain keep of a row: the basis of its distribution.
#[derive(Debug)]
pub struct Survivors {
    /// The candidates that are left.
    pub kept: Vec<Weighted>,
    /// The largest logit; exponents are relative to it.
    pub max: f32,
    /// The factor from logit distance to exponent.
    pub scale: f32,
    /// The distribution that the step which gave new logits by mass [saw](Candidates::reshape_by_mass).
    pub seen: Option<Seen>,
}

impl Survivors {
    /// The first token alone, as greedy sampling keeps it.
    #[must_use]
    pub(super) fn greedy(best: Candidate) -> Self {
        let kept = vec![Weighted { candidate: best, mass: mass::MASS_ONE }];
        Self { kept, max: best.logit, scale: 1.0, seen: None }
    }
}

impl Candidates {
    /// The candidates of a row of `vocab_size` tokens, at temperature 1.
    #[must_use]
    pub fn new(candidates: Vec<Candidate>, vocab_size: usize, min_keep: usize) -> Self {
        Self::cooled(candidates, vocab_size, min_keep, 1.0)
    }

    /// As `new`, but at a temperature, as if the candidates had been [cooled](Self::cool) by it.
    #[must_use]
    pub fn cooled(candidates: Vec<Candidate>, vocab_size: usize, min_keep: usize, temperature: f64) -> Self {
        let kept = candidates.into_iter().map(|candidate| Weighted { candidate, mass: 0 }).collect();
        let (scale, max, end) = (mass::scale_of(temperature), 0.0, None);
        let mut new = Self { kept, vocab_size, max, temperature, scale, min_keep, end, seen: None, along: None };
        new.rank();
        new
    }

    /// Sets the candidate that ends the text where nothing else is certain.
    #[must_use]
    pub fn with_end(self, end: Option<Candidate>) -> Self {
        Self { end, ..self }
    }

    /// Puts candidates in order and computes their masses.
    fn rank(&mut self) {
        sort::in_order(&mut self.kept, |weighted| weighted.candidate);
        self.weigh();
    }

    /// Computes masses relative to the largest logit, which is the first.
    fn weigh(&mut self) {
        self.max = self.kept.first().map_or(0.0, |first| first.candidate.logit);
        for weighted in &mut self.kept {
            weighted.mass = mass::mass(mass::exponent(weighted.candidate.logit, self.max, self.scale));
        }
    }

    /// The candidates.
    #[must_use]
    pub fn kept(&self) -> &[Weighted] {
        &self.kept
    }

    /// How many tokens the row has.
    pub(super) fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The sum of the candidates' masses.
    #[must_use]
    pub fn total(&self) -> u64 {
        filters::total(&self.kept)
    }

    /// No filter keeps fewer candidates than this.
    pub(super) fn min_keep(&self) -> usize {
        self.min_keep
    }

    /// The first candidate's logit.
    pub(super) fn max(&self) -> f32 {
        self.max
    }

    /// The product of all temperatures so far.
    pub(super) fn temperature(&self) -> f64 {
        self.temperature
    }

    /// The factor from logit distance to exponent at this temperature.
    pub(super) fn scale(&self) -> f32 {
        self.scale
    }

    /// The exponent of a candidate.
    #[must_use]
    pub fn exponent(&self, weighted: &Weighted) -> f32 {
        mass::exponent(weighted.candidate.logit, self.max, self.scale)
    }

    /// Entropy in nats.
    #[must_use]
    pub fn entropy(&self) -> f64 {
        self.entropy_and_total().0
    }

    /// Divides logits by a temperature, on top of earlier temperatures.
    pub fn cool(&mut self, temperature: f64) {
        self.temperature *= temperature;
        self.scale = mass::scale_of(self.temperature);
        self.weigh();
    }

    /// Gives every candidate a new logit, a function of its distance to the largest logit at the temperature so far.
    /// The temperature becomes 1.
    pub fn reshape(&mut self, logit: impl Fn(f32) -> f32) {
        self.reshape_each(|_, _, distance| logit(distance));
    }

    /// As `reshape`, but the new logit may also depend on the candidate and on its place in the order.
    pub fn reshape_each(&mut self, logit: impl Fn(usize, &Weighted, f32) -> f32) {
        let per_temperature = (1.0 / self.temperature) as f32;
        for (place, weighted) in self.kept.iter_mut().enumerate() {
            let distance = (weighted.candidate.logit - self.max) * per_temperature;
            weighted.candidate.logit = logit(place, weighted, distance);
        }
        (self.temperature, self.scale) = (1.0, mass::scale(1.0));
        self.rank();
    }

    /// Gives every candidate a new logit, a function of its mass. The temperature becomes 1. The masses before are kept
    /// as `seen`.
    pub fn reshape_by_mass(&mut self, logit: impl Fn(u64) -> f32) {
        let mut masses: Vec<(u32, u64)> = self.kept.iter().map(|w| (w.candidate.token, w.mass)).collect();
        masses.sort_unstable();
        self.seen = Some(Seen { masses, total: self.total() });
        self.kept.iter_mut().for_each(|weighted| weighted.candidate.logit = logit(weighted.mass));
        (self.temperature, self.scale) = (1.0, mass::scale(1.0));
        self.rank();
    }

    /// Gives every candidate of nonzero mass a new logit, a function of its own mass and of the cumulative mass up to
    /// and including it. Candidates without mass are removed, and the temperature becomes 1. The cumulative masses are
    /// kept, for draws with this power.
    pub fn reshape_along(&mut self, power: f64, logit: impl Fn(u64, u64) -> f32) {
        self.kept.retain(|weighted| weighted.mass > 0);
        let (mut up_to, mut tokens) = (0, vec![]);
        for weighted in &mut self.kept {
            up_to += weighted.mass;
            weighted.candidate.logit = logit(weighted.mass, up_to);
            tokens.push((weighted.candidate.token, up_to));
        }
        self.along = Some(Along::new(power, tokens));
        (self.temperature, self.scale) = (1.0, mass::scale(1.0));
        self.rank();
    }

    /// Plays a tournament: every candidate gets a new logit, or is removed if it has no weight left. The temperature
    /// becomes 1.
    pub fn play(&mut self, played: &Tournament<'_>) {
        let (weights, total) = played.play(self.kept.iter().map(|w| (w.candidate.token, w.mass)));
        for (weighted, &weight) in self.kept.iter_mut().zip(&weights) {
            weighted.candidate.logit = tournament::logit(weight, total);
        }
        let mut weights = weights.iter();
        self.kept.retain(|_| weights.next().is_some_and(|&weight| weight > 0));
        (self.temperature, self.scale) = (1.0, mass::scale(1.0));
        self.rank();
    }

    /// Keeps the first `count` candidates and those with the same logit as the last of them.
    pub fn keep_first_and_ties(&mut self, count: usize) {
        let last = self.kept.get(count.max(self.min_keep).saturating_sub(1)).map(|last| last.candidate.logit);
        self.kept.retain(|weighted| last.is_none_or(|last| weighted.candidate.logit >= last));
    }

    /// Keeps the first `count` candidates.
    pub fn keep_first(&mut self, count: usize) {
        self.kept.truncate(count.max(self.min_keep));
    }

    /// Keeps the candidates that `wanted` accepts, and the first `min_keep`.
    pub fn keep(&mut self, wanted: impl Fn(&Weighted) -> bool) {
        let mut place = 0;
        self.kept.retain(|weighted| {
            place += 1;
            place <= self.min_keep || wanted(weighted)
        });
    }

    /// Keeps candidates with a mass of at least `need`.
    pub fn keep_mass(&mut self, need: u64) {
        self.keep(|weighted| weighted.mass >= need);
    }

    /// Sorts candidates by `deviation`, equal ones in order, and keeps the shortest prefix whose mass reaches `need`.
    /// With `ties`, also keeps all that deviate as much as the last of the prefix.
    pub fn keep_nearest(&mut self, need: u64, ties: bool, deviation: impl Fn(&Self, &Weighted) -> f32) {
        let mut nearest: Vec<(f32, Weighted)> = self.kept.iter().map(|w| (deviation(self, w), *w)).collect();
        nearest.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut sum = 0;
        let crossing = nearest.iter().position(|(_, weighted)| {
            sum += weighted.mass;
            sum >= need
        });
        let kept = crossing.map_or(nearest.len(), |at| at + 1);
        let equal = nearest[..kept].last().map(|last| last.0).filter(|_| ties);
        let (places, kept) = (0.., kept.max(self.min_keep));
        let left = nearest
            .into_iter()
            .zip(places)
            .filter(|&((deviation, _), place)| place < kept || equal.is_some_and(|equal| deviation <= equal));
        self.kept = left.map(|((_, weighted), _)| weighted).collect();
        self.rank();
    }

    /// Removes the candidates that `unwanted` accepts, unless fewer than `min_keep` would be left.
    pub fn remove(&mut self, unwanted: impl Fn(usize, &Weighted) -> bool) {
        let left: Vec<Weighted> =
            self.kept.iter().enumerate().filter(|&(at, w)| !unwanted(at, w)).map(|(_, w)| *w).collect();
        if left.len() >= self.min_keep {
            self.kept = left;
            self.rank();
        }
    }

    /// Keeps only the candidate that ends the text. Does nothing if there is none, or if `min_keep` is above 1.
    pub fn keep_end(&mut self) {
        if let Some(candidate) = self.end.filter(|_| self.min_keep <= 1) {
            self.kept = vec![Weighted { candidate, mass: 0 }];
            self.rank();
        }
    }

    /// Takes the cumulative masses that [`reshape_along`](Self::reshape_along) kept.
    pub fn take_along(&mut self) -> Option<Along> {
        self.along.take()
    }

    /// The candidates that are left after the last step.
    #[must_use]
    pub fn into_survivors(self) -> Survivors {
        Survivors { kept: self.kept, max: self.max, scale: self.scale, seen: self.seen }
    }
}

impl Masses for Candidates {
    fn total(&self) -> u64 {
        filters::total(&self.kept)
    }

    fn entropy_and_total(&self) -> (f64, u64) {
        let total = self.total();
        (entropy(self.kept.iter().map(|w| entropy_term(self.exponent(w), w.mass)).sum(), total), total)
    }

    fn squares_and_total(&self) -> (u128, u128) {
        cutoffs::squares(self.kept.iter().map(|w| w.mass))
    }

    fn candidates(&self) -> usize {
        self.kept.len()
    }
}

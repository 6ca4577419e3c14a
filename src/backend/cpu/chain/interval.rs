//! Typical sampling that leaves much of a row: an interval of logits, at whose ends tokens are left up to a key. A
//! sample estimates where it ends. What surely lies inside is only added up, and what is near the ends is listed.

use super::ChainStore;
use super::after::After;
use super::listing::WholeRow;
use super::shaped::{Shaped, Typical};
use super::typical::{Asked, DEVIATIONS, Guess, typical_last};
use crate::backend::cpu::distribution::Store;
use crate::backend::cpu::keys;
use crate::backend::cpu::passes::{BLOCK, Range, Weigh};
use crate::sampling::mass::{exponent, mass};

/// The signed distance of a logit from the centre. It never falls as the logit rises.
#[derive(Clone, Copy)]
struct Distance {
    weigh: Weigh,
    centre: f32,
}

impl Distance {
    fn of(self, logit: f32) -> f32 {
        exponent(logit, self.weigh.max, self.weigh.scale) - self.centre
    }

    /// The least logit whose distance is wanted. If a distance is wanted, all larger ones must be.
    fn first(self, wanted: impl Fn(f32) -> bool) -> f32 {
        keys::least(f32::INFINITY, |logit| wanted(self.of(logit)))
    }

    /// The logits that deviate by less than this.
    fn below(self, most: f32) -> Range {
        Range { low: self.first(|d| d > -most), high: self.first(|d| d >= most) }
    }

    /// The logits that deviate by no more than this.
    fn up_to(self, most: f32) -> Range {
        Range { low: self.first(|d| d >= -most), high: self.first(|d| d > most) }
    }
}

/// What lies outside of one interval and inside of a wider one, on both sides.
fn around(inside: Range, outside: Range) -> [Range; 2] {
    [Range { low: outside.low, high: inside.low }, Range { low: inside.high, high: outside.high }]
}

impl Typical {
    /// The listed tokens at the very ends that are left.
    fn ties_of(self, store: &ChainStore) -> impl Iterator<Item = (u32, f32)> {
        let [lower, upper] = self.ties;
        let is_tie =
            move |logit: f32| (logit >= lower.low) & (logit < lower.high) | (logit >= upper.low) & (logit < upper.high);
        let listed = store.values.tokens.iter().copied().zip(store.values.logits.iter().copied());
        listed.filter(move |&(token, logit)| is_tie(logit) && self.keeps(token, logit))
    }
}

impl WholeRow<'_, '_> {
    /// What typical sampling leaves, where only temperatures follow and only a token is wanted: its mass by block, the
    /// rule and the total. `None` where the guess was off, or all ends lie beyond the row.
    pub(super) fn interval(
        &mut self,
        asked: Asked,
        guess: &Guess,
        after: &After<'_>,
        lists: &mut Store,
        store: &mut ChainStore,
    ) -> Option<u64> {
        let mut sums = lists.take_sums();
        let typical = DEVIATIONS.into_iter().find_map(|most| self.ends(asked, guess, most, &mut sums, store));
        let total = typical.map(|typical| {
            self.cool_by(after);
            let typical = Typical { weigh: Weigh { scale: self.weigh.scale, ..typical.weigh }, ..typical };
            self.sums_of(typical, &mut sums, store)
        });
        lists.give_sums(sums);
        total
    }

    /// Where the interval ends, by the weights before this step. `None` if the guess was off by more than `most`
    /// deviations.
    fn ends(
        &self,
        asked: Asked,
        guess: &Guess,
        most: f32,
        sums: &mut Vec<u64>,
        store: &mut ChainStore,
    ) -> Option<Typical> {
        let Asked { rule, need, centre } = asked;
        let (distance, doubt) = (Distance { weigh: self.weigh, centre }, most * guess.doubt(need as f32));
        let widths = [need as f32 - doubt, need as f32 + doubt].map(|mass| guess.width(mass));
        let (inside, outside) = (distance.below(widths[0]), distance.up_to(widths[1]));
        let is_inside = inside.low > f32::MIN && inside.low < inside.high && inside.low <= self.view.max;
        if !is_inside || outside.low <= f32::MIN || !outside.high.is_finite() {
            return None;
        }
        let need = need.checked_sub(self.view.range_sums(self.weigh, inside, sums)).filter(|&need| need > 0)?;
        self.view.in_both(self.weigh, around(inside, outside), &mut store.values);
        store.plain = store.values.tokens.len();
        let (deviation, last) = self.left(store).nearest(need, centre)?;
        let (below, up_to) = (distance.below(deviation), distance.up_to(deviation));
        let (_, last) = typical_last(rule, last);
        let typical = Typical { weigh: self.weigh, inside: below, ties: around(below, up_to), last };
        // The largest logit that is left. It is one of those listed, if these reach beyond those that are not.
        let within = |range: Range, logit: f32| (logit >= range.low) & (logit < range.high);
        let above = Range { low: inside.high, high: below.high };
        let larger = |most: f32, logit: f32| if within(above, logit) & (logit > most) { logit } else { most };
        let most = store.values.logits.iter().fold(f32::NEG_INFINITY, |most, &logit| larger(most, logit));
        let ties = typical.ties_of(store).map(|(_, logit)| logit).filter(|&logit| logit >= inside.high);
        let most = ties.fold(most, f32::max);
        let max =
            if most > f32::NEG_INFINITY { Some(most) } else { Some(self.view.max).filter(|&max| max < inside.high) };
        Some(Typical { weigh: Weigh { max: max?, ..self.weigh }, ..typical })
    }

    /// The mass that is left, by block and in total. The store lists all tokens at the ends.
    fn sums_of(&self, typical: Typical, sums: &mut Vec<u64>, store: &mut ChainStore) -> u64 {
        let Typical { weigh, inside, .. } = typical;
        let mut total = self.view.range_sums(weigh, inside, sums);
        for (token, logit) in typical.ties_of(store) {
            let mass = mass(exponent(logit, weigh.max, weigh.scale));
            sums[token as usize / BLOCK] += mass;
            total += mass;
        }
        store.shaped = Shaped::typical(typical);
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_where_the_distance_says() {
        let distance = Distance { weigh: Weigh { max: 3.5, scale: 1.44 }, centre: -2.0 };
        for most in [0.0f32, 1e-3, 0.7, 12.0] {
            let (below, up_to) = (distance.below(most), distance.up_to(most));
            for range in [below, up_to] {
                for logit in [range.low.next_down(), range.low, range.high.next_down(), range.high] {
                    let deviation = distance.of(logit).abs();
                    assert_eq!((below.low..below.high).contains(&logit), deviation < most, "{most} {logit}");
                    assert_eq!((up_to.low..up_to.high).contains(&logit), deviation <= most, "{most} {logit}");
                }
            }
        }
    }
}

//! Tail-free sampling of a whole row: sorts the logits that count, without their tokens. What is left ends at one of
//! them.

use super::ChainStore;
use super::after::After;
use super::listing::WholeRow;
use super::whole::StepResult;
use crate::backend::cpu::distribution::{Distribution, Store, reach_of};
use crate::backend::cpu::keys;
use crate::backend::cpu::passes::{PAD, Range};
use crate::params::TfsRule;
use crate::sampling::entropy::real;
use crate::sampling::mass::fraction;
use crate::sampling::samplers::tail_free::{self, LEAST, LISTED};

/// How many second differences are added up together.
const CHUNK: usize = 64;
const LANES: usize = 8;

/// As [`kept`](crate::sampling::samplers::tail_free::kept), from all masses. In f64, which holds slopes exactly, since
/// they add up to little more than the mass they begin with.
fn kept(masses: &[u64], tokens: usize, z: f32) -> usize {
    let mut counted: Vec<f64> = masses.iter().map(|&mass| if mass >= LEAST { real(mass) } else { 0.0 }).collect();
    let places = counted.len().min(tokens.saturating_sub(2));
    // There is no curvature beyond the places.
    counted.resize(places.next_multiple_of(CHUNK).max(counted.len()) + 2, 0.0);
    let slope = |at: usize| (counted[at] - counted[at + 1]).max(0.0);
    let curvature = |at: usize| (slope(at) - slope(at + 1)).abs();
    let chunk_sum = |from: usize| {
        if from + CHUNK > places {
            return (from..places).map(curvature).sum::<f64>();
        }
        let here = &counted[from..from + CHUNK + 2];
        let mut lanes = [0.0; LANES];
        for i in 0..CHUNK {
            let (first, second) = ((here[i] - here[i + 1]).max(0.0), (here[i + 1] - here[i + 2]).max(0.0));
            lanes[i % LANES] += (first - second).abs();
        }
        lanes.into_iter().sum()
    };
    let sums: Vec<u64> = (0..places).step_by(CHUNK).map(|from| chunk_sum(from) as u64).collect();
    let total: u64 = sums.iter().sum();
    if total == 0 {
        return tokens;
    }
    let most = u128::from(fraction(z)) * u128::from(total);
    let is_beyond = |sum: u64| u128::from(sum) << 32 > most;
    let mut sum = 0;
    for (chunk, here) in sums.into_iter().enumerate() {
        if is_beyond(sum + here) {
            let mut places = chunk * CHUNK..places;
            let flat = places.find(|&at| {
                sum += curvature(at) as u64;
                is_beyond(sum)
            });
            return flat.expect("the chunk sums to its sum; this is a bug") + 1;
        }
        sum += here;
    }
    tokens - 1
}

impl WholeRow<'_, '_> {
    /// Tail-free sampling.
    pub(super) fn tail_free(
        &mut self,
        rule: TfsRule,
        z: f32,
        after: &After<'_>,
        lists: &mut Store,
        store: &mut ChainStore,
    ) -> StepResult {
        let low = reach_of(self.weigh, LISTED).max(f32::MIN);
        self.view.tokens(Range { low, high: f32::INFINITY }, &mut store.values);
        let (listed, candidates) = (store.values.tokens.len(), self.view.count(f32::MIN) as usize);
        let ChainStore { values, sorter, sorted: (sorted, masses), .. } = &mut *store;
        sorter.sort(&values.logits, sorted);
        sorted.resize(listed.next_multiple_of(PAD), f32::NEG_INFINITY);
        masses.resize(sorted.len(), 0);
        self.view.passes().masses(sorted, self.weigh, masses);
        let tokens = tail_free::looked_at(rule, candidates, self.view.vocab_size());
        let kept = tail_free::kept_by(rule, kept(&masses[..listed], tokens, z), tokens);
        if kept >= candidates {
            return StepResult::Unchanged;
        }
        if kept > listed {
            return StepResult::NotDone;
        }
        // Of the tokens with the same logit as the last one that is kept, keeps the first ones.
        let bound = sorted[kept - 1];
        let equal = kept - sorted[..kept].partition_point(|&logit| logit > bound);
        let ties = values.tokens.iter().zip(&values.logits).filter(|&(_, &logit)| logit == bound);
        let mut ties: Vec<u32> = ties.map(|(&token, _)| token).collect();
        ties.sort_unstable();
        let last = keys::key(ties[equal - 1], bound);
        let all = Distribution::all(self.weigh);
        if self.may_stay(after) && !all.is_rare(self.view, bound, lists.sample()) {
            return StepResult::Finished(self.cut_at(last, after, lists));
        }
        let mut left = self.list(Range { low: bound, high: f32::INFINITY }, store);
        left.retain_up_to(Some(last), |_, _| false);
        StepResult::Listed(left.weigh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_stay_as_the_specification_says() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 24
        };
        for len in [0usize, 1, 2, 3, 63, 64, 65, 66, 67, 127, 128, 130, 1000] {
            for shape in 0..4 {
                let mut masses: Vec<u64> = (0..len).map(|_| random() >> (shape * 7)).collect();
                masses.sort_unstable_by(|a, b| b.cmp(a));
                if shape == 3 {
                    // Almost equal, but in the wrong order by one unit.
                    masses.iter_mut().enumerate().for_each(|(at, mass)| *mass = (1 << 30) + (at % 2) as u64);
                }
                let counted: Vec<u64> = masses.iter().map(|&mass| tail_free::counted(mass)).collect();
                for candidates in [len, len + 1, len + 2, len + 100].into_iter().filter(|&n| n > 0) {
                    for z in [0.0, 1e-6, 0.3, 0.95, 1.0f32.next_down()] {
                        let expected = tail_free::kept(&counted, candidates, z);
                        assert_eq!(kept(&masses, candidates, z), expected, "{len} {shape} {candidates} {z}");
                    }
                }
            }
        }
    }
}

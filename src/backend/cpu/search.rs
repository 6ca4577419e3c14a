//! Where a prefix of the order reaches a given weight, when the prefix is too long to sort.
//!
//! The weight of a token is its mass (top-p) or 1 (top-k). A sample guesses the logit, and one pass over
//! the row weighs everything above that logit exactly. The guess is off by a per cent or so; now that it
//! is known by how much, the sample has to bridge only that, so its error is far smaller: a second pass
//! lists the values in a narrow range, which are resolved exactly. A range that missed is a better guess
//! again; after [`MAX_GUESSES`] the whole remaining interval is listed, which bounds the cost.

use super::keys::{ascending, from_ascending, key};
use super::level::Passes;
use super::passes::{Range, Values, Weigh};
use super::view::View;
use crate::sampling::mass::MASS_BITS;

/// Guesses before the whole remaining interval is listed.
const MAX_GUESSES: usize = 4;
/// Half width of a listed range in standard deviations of the sampled weight. Wider lists more values,
/// narrower misses more often: 2 misses in one of twenty rows.
const DEVIATIONS: f64 = 2.0;
/// Bisection steps of a guess: its precision only has to match the sample's.
const STEPS: usize = 16;

/// What a prefix is weighed by, and how much it needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Goal {
    /// Every token weighs 1.
    pub(super) count: bool,
    /// The weight to reach, above 0.
    pub(super) need: u64,
}

/// A place in the order whose weight is known: that of all values at or above `logit`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Anchor {
    pub(super) logit: f32,
    pub(super) weight: u64,
}

/// The lists of a search, kept from row to row.
#[derive(Debug, Default)]
pub(super) struct SearchStore {
    /// Weight at or above the last range, by block.
    pub(super) sums: Vec<u64>,
    /// Values in the last range.
    pub(super) inside: Values,
    sample: Values,
}

/// The key of the last token of the smallest prefix of the order that weighs `goal.need`; `None` if all
/// tokens together weigh less. `from` is a place before it.
pub(super) fn crossing(
    view: &View<'_>,
    weigh: Weigh,
    goal: Goal,
    from: Anchor,
    store: &mut SearchStore,
) -> Option<u64> {
    let guess = Guess::new(view, weigh, goal, from, &mut store.sample);
    let below = guess.logit(&store.sample, from);
    let weight = view.weight_above(goal.count, weigh, below, &mut store.sums);
    let weighed = Anchor { logit: next_up(below), weight };
    // Invariant: the crossing is below `upper` and, if `lower` is set, not below that.
    let (mut upper, mut lower) = if weight < goal.need { (weighed, None) } else { (from, Some(weighed)) };
    for attempt in 0.. {
        let floor = lower.map_or(f32::MIN, |anchor| anchor.logit);
        let range = if attempt < MAX_GUESSES {
            guess.range(&store.sample, upper, lower)
        } else {
            Range { low: floor, high: upper.logit }
        };
        let above = view.bracket(goal.count, weigh, range, &mut store.sums, &mut store.inside);
        let inside: u64 = store.inside.masses.iter().sum();
        if above >= goal.need {
            lower = Some(Anchor { logit: range.high, weight: above });
        } else if above + inside >= goal.need {
            return Some(resolve(view, goal.need - above, &mut store.inside));
        } else if range.low <= floor {
            return None;
        } else {
            upper = Anchor { logit: range.low, weight: above + inside };
        }
    }
    unreachable!("the range of the whole interval either holds the crossing or there is none")
}

/// The next float in the order of [`ascending`], in which both zeros are one.
fn next_up(logit: f32) -> f32 {
    from_ascending(ascending(logit) + 1)
}

/// The key at which the listed values, in order, reach `need`.
fn resolve(view: &View<'_>, need: u64, inside: &mut Values) -> u64 {
    let listed = inside.tokens.len();
    // The values themselves are a narrower interval than the range, and one point when all are equal.
    let least = inside.logits.iter().copied().fold(f32::INFINITY, f32::min);
    let largest = inside.logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    inside.pad();
    let passes = view.passes();
    let weight = |bound| passes.sum_ge(&inside.logits, &inside.masses, bound);
    // Invariant: the values at or above `low` weigh enough, those at or above `high` do not.
    let (mut low, mut high) = (ascending(least), ascending(largest) + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if weight(from_ascending(middle)) >= need { low = middle } else { high = middle }
    }
    let logit = from_ascending(low);
    let mut missing = need - weight(from_ascending(high));
    // Tokens with this very logit, by id, until the rest is there.
    let mut ties: Vec<(u32, u64)> =
        (0..listed).filter(|&i| inside.logits[i] == logit).map(|i| (inside.tokens[i], inside.masses[i])).collect();
    ties.sort_unstable();
    inside.logits.truncate(listed);
    inside.masses.truncate(listed);
    for (token, mass) in ties {
        missing = missing.saturating_sub(mass);
        if missing == 0 {
            return key(token, logit);
        }
    }
    unreachable!("the ties weigh what is missing")
}

/// Guesses places from a sample of the row.
struct Guess {
    weigh: Weigh,
    goal: Goal,
    passes: Passes,
    /// Sampled weight per weight of the row.
    ratio: f64,
    /// Sum of squares over sum of the sampled weights: variance per weight.
    spread: f64,
}

impl Guess {
    fn new(view: &View<'_>, weigh: Weigh, goal: Goal, from: Anchor, sample: &mut Values) -> Self {
        view.sample(weigh, from.logit, sample);
        let ratio = sample.logits.len() as f64 / view.vocab_size() as f64;
        let (mut sum, mut squares) = (1.0f64, 1.0f64);
        if !goal.count {
            for &mass in &sample.masses {
                sum += mass as f64;
                squares += mass as f64 * mass as f64;
            }
        }
        Self { weigh, goal, passes: view.passes(), ratio, spread: squares / sum }
    }

    /// About where the crossing is, seen from a place above it.
    fn logit(&self, sample: &Values, upper: Anchor) -> f32 {
        self.reaching(sample, (self.goal.need - upper.weight) as f64 * self.ratio, f32::MIN, upper.logit)
    }

    /// A range that probably holds the crossing, not empty, within the known interval.
    fn range(&self, sample: &Values, upper: Anchor, lower: Option<Anchor>) -> Range {
        let floor = lower.map_or(f32::MIN, |anchor| anchor.logit);
        let up = self.goal.need - upper.weight;
        // The nearer anchor gives the better estimate.
        let (target, distance) = match lower {
            Some(lower) if lower.weight - self.goal.need < up => {
                let distance = (lower.weight - self.goal.need) as f64 * self.ratio;
                (self.weight(sample, lower.logit) - distance, distance)
            }
            _ => {
                let distance = up as f64 * self.ratio;
                (self.weight(sample, upper.logit) + distance, distance)
            }
        };
        let margin = DEVIATIONS * (self.spread * distance.max(self.spread)).sqrt();
        let low = self.reaching(sample, target + margin, floor, upper.logit);
        let high = self.reaching(sample, target - margin, low, upper.logit);
        Range { low, high: next_up(high).min(upper.logit) }
    }

    /// Sampled weight at or above `logit`.
    fn weight(&self, sample: &Values, logit: f32) -> f64 {
        if self.goal.count {
            self.passes.count_ge(&sample.logits, logit.max(f32::MIN)) as f64
        } else {
            self.passes.sum_ge(&sample.logits, &sample.masses, logit) as f64
        }
    }

    /// About the largest logit at or above which the sample weighs `target`, from `floor` to below `top`.
    fn reaching(&self, sample: &Values, target: f64, floor: f32, top: f32) -> f32 {
        // Nothing further below the maximum than this has mass, so masses are bisected from there.
        let massless = self.weigh.max - 1.1 * MASS_BITS as f32 / self.weigh.scale;
        let from_massless = !self.goal.count && self.weight(sample, massless) >= target;
        let start = if from_massless { massless.max(floor) } else { floor };
        let (mut low, mut high) = (ascending(start), ascending(top.min(self.weigh.max)));
        for _ in 0..STEPS {
            if high <= low + 1 {
                break;
            }
            let middle = if start > f32::MIN {
                // Even steps in logits, since integers are dense around 0.
                ascending(from_ascending(low) / 2.0 + from_ascending(high) / 2.0).clamp(low + 1, high - 1)
            } else {
                low + (high - low) / 2
            };
            if self.weight(sample, from_ascending(middle)) >= target { low = middle } else { high = middle }
        }
        from_ascending(low)
    }
}

//! Where a prefix of the order reaches a given weight, when the prefix is too long to sort.
//!
//! The weight of a token is its mass (top-p) or 1 (top-k). A sample guesses a narrow range of logits
//! around the place, one pass over the row weighs everything above the range exactly and lists what is
//! inside, and the list is resolved exactly. A guess that missed says by how much, so the next is much
//! narrower; after [`MAX_GUESSES`] the whole remaining interval is listed, which bounds the cost.

use super::keys::{ascending, from_ascending, key};
use super::passes::{Range, Values, Weigh};
use super::view::View;
use crate::sampling::mass::{self, MASS_ONE};

/// Guesses before the whole remaining interval is listed.
const MAX_GUESSES: usize = 4;
/// Half width of a guess in (upper bounds of) standard deviations of the sampled weight. Wider lists more
/// values, narrower misses more often: 1 misses in fewer than one of ten rows.
const GUESS_DEVIATIONS: f64 = 1.0;
/// Bisection steps of a guess: its precision only has to match the sample's.
const GUESS_STEPS: usize = 18;

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
    spread: Values,
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
    let mut guess = Guess::new(view, weigh, goal, from, &mut store.spread);
    // Invariant: the crossing is below `upper` and, if `lower` is set, not below that.
    let (mut upper, mut lower) = (from, None::<Anchor>);
    for attempt in 0.. {
        let floor = lower.map_or(f32::MIN, |anchor| anchor.logit);
        let range = if attempt < MAX_GUESSES {
            guess.range(&store.spread, upper, lower)
        } else {
            Range { low: floor, high: upper.logit }
        };
        let above = view.bracket(goal.count, weigh, range, &mut store.sums, &mut store.inside);
        let inside: u64 = store.inside.masses.iter().sum();
        if above >= goal.need {
            lower = Some(Anchor { logit: range.high, weight: above });
        } else if above + inside >= goal.need {
            return Some(resolve(view, range, goal.need - above, &mut store.inside));
        } else if range.low <= floor {
            return None;
        } else {
            upper = Anchor { logit: range.low, weight: above + inside };
        }
    }
    unreachable!("the range of the whole interval either holds the crossing or there is none")
}

/// The key at which the listed values, in order, reach `need`.
fn resolve(view: &View<'_>, range: Range, need: u64, inside: &mut Values) -> u64 {
    let listed = inside.tokens.len();
    inside.pad();
    let passes = view.passes();
    let weight = |bound| passes.sum_ge(&inside.logits, &inside.masses, bound);
    // Invariant: the values at or above `low` weigh enough, those at or above `high` do not.
    let (mut low, mut high) = (ascending(range.low), ascending(range.high));
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

/// Guesses ranges from a sample of the row.
struct Guess {
    weigh: Weigh,
    goal: Goal,
    passes: super::level::Passes,
    /// Sampled weight per weight of the row.
    ratio: f64,
}

impl Guess {
    fn new(view: &View<'_>, weigh: Weigh, goal: Goal, from: Anchor, spread: &mut Values) -> Self {
        view.sample(weigh, from.logit, spread);
        let ratio = spread.logits.len() as f64 / view.vocab_size() as f64;
        Self { weigh, goal, passes: view.passes(), ratio }
    }

    /// A range that probably holds the crossing, not empty, within the known interval.
    fn range(&mut self, spread: &Values, upper: Anchor, lower: Option<Anchor>) -> Range {
        let to_upper = self.goal.need - upper.weight;
        let (target, distance) = match lower {
            // The nearer anchor gives the better estimate.
            Some(lower) if lower.weight - self.goal.need < to_upper => {
                let distance = (lower.weight - self.goal.need) as f64 * self.ratio;
                (self.weight(spread, lower.logit) - distance, distance)
            }
            _ => {
                let distance = to_upper as f64 * self.ratio;
                (self.weight(spread, upper.logit) + distance, distance)
            }
        };
        // A sampled weight is a sum of weights of at most `heaviest`, so its variance is at most this.
        let heaviest = self.heaviest(upper.logit);
        let margin = GUESS_DEVIATIONS * (heaviest * distance.max(heaviest)).sqrt();
        let floor = lower.map_or(f32::MIN, |anchor| anchor.logit);
        let low = self.reaching(spread, target + margin, floor, upper.logit);
        let high = self.reaching(spread, target - margin, floor, upper.logit);
        // One step up keeps the range from being empty; `reaching` itself is reached by enough.
        let above = |logit: f32| from_ascending(ascending(logit) + 1);
        Range { low, high: above(high).max(above(low)).min(upper.logit) }
    }

    fn heaviest(&self, logit: f32) -> f64 {
        if self.goal.count {
            return 1.0;
        }
        let y = mass::exponent(logit.min(self.weigh.max), self.weigh.max, self.weigh.scale);
        mass::mass(y).min(MASS_ONE) as f64
    }

    /// Sampled weight at or above `logit`.
    fn weight(&self, spread: &Values, logit: f32) -> f64 {
        if self.goal.count {
            self.passes.count_ge(&spread.logits, logit.max(f32::MIN)) as f64
        } else {
            self.passes.sum_ge(&spread.logits, &spread.masses, logit) as f64
        }
    }

    /// About the largest logit at or above which the sample weighs `target`, from `floor` to below `top`.
    fn reaching(&self, spread: &Values, target: f64, floor: f32, top: f32) -> f32 {
        let (mut low, mut high) = (ascending(floor), ascending(top.min(self.weigh.max)));
        for _ in 0..GUESS_STEPS {
            if high - low <= 1 {
                break;
            }
            let middle = low + (high - low) / 2;
            if self.weight(spread, from_ascending(middle)) >= target { low = middle } else { high = middle }
        }
        from_ascending(low)
    }
}

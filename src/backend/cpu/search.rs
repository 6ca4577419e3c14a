//! Finds where a prefix of the order reaches a given weight, when the prefix is too long to sort.
//!
//! The weight of a token is its mass (top-p) or 1 (top-k). A guess of the logit comes from a sample, and one pass over
//! the row weighs everything above that logit exactly; for top-p this is the same pass that finds the total. The guess
//! is off by a per cent or so. Once it is known by how much, the values that bridge the gap are listed, in a pass that
//! only compares, and the crossing among them is found exactly. If a list is too short, the known place moves to its
//! end, and a longer list follows. Where the guess is off by much, the row is weighed again at a nearer place. After
//! [`MAX_GUESSES`] the whole remaining interval is listed, which bounds the cost: no value is listed twice.

use super::keys::{self, ascending, from_ascending, key};
use super::level::Passes;
use super::passes::{PAD, Range, Sample, Values, Weigh};
use super::view::View;
use crate::sampling::mass::MASS_BITS;
use std::ops::ControlFlow;

/// How many lists and weighing passes there are before the whole remaining interval is listed.
const MAX_GUESSES: i32 = 6;
/// How much longer than estimated the first list is made, in standard deviations of the sampled weight.
const DEVIATIONS: f64 = 2.0;
/// A list holds at most about one token in this many; beyond that, weighing the row once more is faster.
const LIST_SHARE: usize = 16;
/// Bisection steps of a guess, in even steps of logits and in steps of the integers that order floats. A guess need not
/// be more precise than the sample.
const STEPS: usize = 12;
const INTEGER_STEPS: usize = 16;
/// Among this many values or fewer, the crossing is found by sorting.
const SORTED: usize = 64;
/// More values are narrowed down by this many of them at a time.
const PIVOTS: usize = 64;

/// How a prefix is weighed, and which weight it has to reach.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrefixGoal {
    /// Every token weighs 1.
    pub(super) count: bool,
    /// The weight to reach, above 0.
    pub(super) need: u64,
}

/// A place in the order with its known weight: that of all values at or above `logit`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Anchor {
    pub(super) logit: f32,
    pub(super) weight: u64,
}

impl Anchor {
    /// The place before every value.
    pub(super) const TOP: Anchor = Anchor { logit: f32::INFINITY, weight: 0 };
}

/// The lists of a search. Kept from row to row.
#[derive(Debug, Default)]
pub(super) struct SearchStore {
    /// In a search by mass: the mass by block at the known place, and, once the crossing is found, the kept mass by
    /// block.
    pub(super) sums: Vec<u64>,
    pub(super) inside: Values,
    pub(super) sample: Sample,
    moved: Vec<u64>,
}

impl SearchStore {
    /// Moves the listed masses that `which` selects into the sums by block, or out of them.
    fn shift(&mut self, into: bool, which: impl Fn(u32, f32) -> bool) {
        self.inside.by_block(self.sums.len(), &mut self.moved, |token, logit, _| which(token, logit));
        for (sum, &moved) in self.sums.iter_mut().zip(&self.moved) {
            *sum = if into { *sum + moved } else { *sum - moved };
        }
    }
}

/// The key of the last token of the smallest prefix of the order that weighs `goal.need`; `None` if all tokens together
/// weigh less. `at` is a place whose weight is known; in a search by mass `store.sums` holds that weight by block. The
/// crossing lies below `guess.from`.
pub(super) fn crossing(
    view: &View<'_>,
    guess: &Guess,
    goal: PrefixGoal,
    mut at: Anchor,
    store: &mut SearchStore,
) -> Option<u64> {
    // Invariant: the crossing lies in the interval.
    let mut interval = Range { low: f32::MIN, high: guess.from.logit };
    for attempt in 0.. {
        if at.weight >= goal.need {
            interval.low = at.logit
        } else {
            interval.high = at.logit
        }
        if interval.high <= f32::MIN {
            return None;
        }
        match guess.next(&store.sample, goal, at, interval, attempt) {
            Probe::Weigh(to) => at = weighed(view, guess, to, store),
            Probe::List(to) => match listed(view, guess.weigh, goal, at, to, store) {
                ControlFlow::Break(crossing) => return Some(crossing),
                ControlFlow::Continue(next) => at = next,
            },
        }
    }
    unreachable!("the list of the whole interval either holds the crossing or there is none")
}

/// Lists the values between the known place `at` and the place `to`. Returns the key of the crossing, if it is one of
/// them, or else `to` with its weight. In a search by mass the sums by block follow: they are those at the crossing or
/// at `to`.
fn listed(
    view: &View<'_>,
    weigh: Weigh,
    goal: PrefixGoal,
    at: Anchor,
    to: f32,
    store: &mut SearchStore,
) -> ControlFlow<u64, Anchor> {
    let up = at.weight >= goal.need;
    let range = if up { Range { low: at.logit, high: to } } else { Range { low: to, high: at.logit } };
    view.between(goal.count, weigh, range, &mut store.inside);
    let listed: u64 = store.inside.masses.iter().sum();
    let above = if up { at.weight - listed } else { at.weight };
    let found = (above < goal.need && above + listed >= goal.need)
        .then(|| resolve(view, goal.need - above, range, &mut store.inside));
    if !goal.count {
        match found.map(keys::up_to) {
            Some(kept) => store.shift(!up, |token, logit| kept(token, logit) != up),
            // There is no crossing in the list, so the whole list changes sides.
            None => store.shift(!up, |_, _| true),
        }
    }
    match found {
        Some(crossing) => ControlFlow::Break(crossing),
        None => ControlFlow::Continue(Anchor { logit: to, weight: if up { above } else { above + listed } }),
    }
}

/// The weight at and above a place; in a search by mass also by block.
pub(super) fn weighed(view: &View<'_>, guess: &Guess, logit: f32, store: &mut SearchStore) -> Anchor {
    let weight = if guess.count { view.count(logit) } else { view.split(guess.weigh, logit, &mut store.sums).above };
    Anchor { logit, weight }
}

/// The next float in the order of [`ascending`], in which both zeros are the same.
pub(super) fn next_up(logit: f32) -> f32 {
    from_ascending(ascending(logit) + 1)
}

/// The previous float in that order.
fn next_down(logit: f32) -> f32 {
    from_ascending(ascending(logit) - 1)
}

/// A place between two places of the order of [`ascending`] that are not neighbours. It halves the distance in logits,
/// since the integers are dense around 0.
fn even_middle(low: u32, high: u32) -> u32 {
    ascending(from_ascending(low) / 2.0 + from_ascending(high) / 2.0).clamp(low + 1, high - 1)
}

/// The key at which the listed values, in order, reach `need`.
fn resolve(view: &View<'_>, need: u64, range: Range, inside: &mut Values) -> u64 {
    inside.pad();
    // Invariant: the values at or above `low` weigh enough; those at or above `high` weigh `above`, which is not
    // enough.
    let (mut low, mut high, mut above) = (range.low, range.high, 0);
    let mut left = inside.tokens.len();
    let count = |bound| view.passes().count_ge(&inside.logits, bound);
    while left > SORTED && next_up(low) < high {
        // Bounds are some of the values themselves, since many values may be equal. The last narrowing separates the
        // values equal to the one found.
        let pivots = pivots(&inside.logits[..inside.tokens.len()], low..high, left);
        let mut narrow = |bound: f32| {
            let weight = view.passes().sum_ge(&inside.logits, &inside.masses, bound);
            if weight >= need {
                low = bound
            } else {
                (high, above) = (bound, weight)
            }
            weight >= need
        };
        let found = pivots.partition_point(|&pivot| narrow(pivot));
        if found > 0 {
            narrow(next_up(pivots[found - 1]));
        }
        left = count(low) - count(high);
    }
    inside.unpad();
    if next_up(low) >= high { nth_tie(low, need - above, inside) } else { sorted(low..high, need - above, inside) }
}

/// Up to [`PIVOTS`] of the `left` values in an interval, ascending and distinct.
fn pivots(values: &[f32], interval: std::ops::Range<f32>, left: usize) -> Vec<f32> {
    let mut pivots = Vec::with_capacity(PIVOTS);
    let step = left.div_ceil(PIVOTS);
    if left == values.len() {
        pivots.extend(values.iter().step_by(step));
    } else {
        pivots.extend(values.iter().filter(|&value| interval.contains(value)).step_by(step));
    }
    pivots.sort_unstable_by(f32::total_cmp);
    pivots.dedup();
    pivots
}

/// The key at which the values equal to `logit`, taken by token id, reach `need`.
fn nth_tie(logit: f32, need: u64, inside: &Values) -> u64 {
    let equal = |i: &usize| inside.logits[*i] == logit;
    let first = (0..inside.tokens.len()).find(equal).expect("the ties weigh something; this is a bug");
    let number = need.div_ceil(inside.masses[first]) as usize;
    let mut tokens: Vec<u32> = (first..inside.tokens.len()).filter(equal).map(|i| inside.tokens[i]).collect();
    // Blocks that a view replaces are listed last, so tokens may be out of order.
    tokens.sort_unstable();
    key(tokens[number - 1], logit)
}

/// The key at which the few values in an interval reach `need`, found by sorting.
fn sorted(interval: std::ops::Range<f32>, need: u64, inside: &Values) -> u64 {
    let mut rest = Vec::with_capacity(SORTED);
    for (i, chunk) in inside.logits.chunks(PAD).enumerate() {
        // Most chunks hold none of the few values that are left.
        if chunk.iter().fold(false, |any, logit| any | interval.contains(logit)) {
            let here = (i * PAD..).zip(chunk).filter(|(_, logit)| interval.contains(logit));
            rest.extend(here.map(|(at, &logit)| (key(inside.tokens[at], logit), inside.masses[at])));
        }
    }
    rest.sort_unstable();
    let mut sum = 0;
    let crossing = rest.iter().find(|&&(_, mass)| {
        sum += mass;
        sum >= need
    });
    crossing.expect("the interval weighs enough; this is a bug").0
}

/// What to do with a place: list the values from the known place to it, or weigh what is above it.
enum Probe {
    List(f32),
    Weigh(f32),
}

/// Guesses places from a sample of the row.
pub(super) struct Guess {
    weigh: Weigh,
    passes: Passes,
    /// The crossing lies below this place.
    from: Anchor,
    count: bool,
    /// Sampled weight per weight of the whole row.
    ratio: f64,
    /// Sampled weight below `from`.
    sampled: f64,
    /// Sum of squares over sum of the sampled weights: the variance per weight.
    spread: f64,
}

impl Guess {
    pub(super) fn new(view: &View<'_>, weigh: Weigh, count: bool, from: Anchor, sample: &mut Sample) -> Self {
        view.sample(weigh, from.logit, sample);
        let ratio = sample.taken as f64 / view.vocab_size() as f64;
        let guess = Self { weigh, passes: view.passes(), from, count, ratio, sampled: 0.0, spread: 1.0 };
        if count {
            return guess;
        }
        let (mut sums, mut squares) = ([0.0f32; 16], [0.0f32; 16]);
        for chunk in sample.weights.chunks_exact(16) {
            for i in 0..16 {
                sums[i] += chunk[i];
                squares[i] += chunk[i] * chunk[i];
            }
        }
        let (sampled, squares) = (f64::from(sums.iter().sum::<f32>()), f64::from(squares.iter().sum::<f32>()));
        Self { sampled, spread: (squares + 1.0) / (sampled + 1.0), ..guess }
    }

    /// An estimate of the weight of all tokens.
    pub(super) fn total(&self) -> f64 {
        self.from.weight as f64 + self.sampled / self.ratio
    }

    /// An estimate of the logit at which the prefix weighs `need`.
    pub(super) fn logit(&self, sample: &Sample, need: f64) -> f32 {
        let target = (need - self.from.weight as f64) * self.ratio;
        self.reaching(|logit| self.weight(sample, logit), target, f32::MIN, self.from.logit)
    }

    /// The next place to look at: probably on the other side of the crossing, as seen from the end `at` of its
    /// interval, or at least not too far.
    fn next(&self, sample: &Sample, goal: PrefixGoal, at: Anchor, interval: Range, attempt: i32) -> Probe {
        let up = at.weight >= goal.need;
        if attempt >= MAX_GUESSES {
            return Probe::List(if up { interval.high } else { interval.low });
        }
        let distance = goal.need.abs_diff(at.weight) as f64 * self.ratio;
        let margin = f64::from(1 + attempt) * DEVIATIONS * (self.spread * distance.max(self.spread)).sqrt();
        let weight = |logit: f32| self.weight(sample, logit);
        // A sample hardly sees mass that a few tokens hold, so by mass alone far too much would be listed.
        let number = |logit: f32| self.passes.count_ge(&sample.logits, logit.max(f32::MIN)) as f64;
        let (here, most) = (number(at.logit), (sample.taken / LIST_SHARE) as f64);
        let step = |measure: &dyn Fn(f32) -> f64, target: f64, Range { low, high }: Range| {
            let place = self.reaching(measure, target, low, high);
            if up { next_up(place).min(high) } else { place.min(next_down(high)).max(low) }
        };
        let target = weight(at.logit) + if up { -distance - margin } else { distance + margin };
        let to = if target > 0.0 { step(&weight, target, interval) } else { interval.high };
        let far = (number(to) - here).abs();
        if far <= most {
            return Probe::List(to);
        }
        let share = most.max(far / 4.0);
        let near = step(&number, here + if up { -share } else { share }, interval);
        // Equal values cannot be separated.
        if (number(near) - here).abs() <= 2.0 * share && interval.low < near && near < interval.high {
            Probe::Weigh(near)
        } else {
            Probe::List(to)
        }
    }

    /// Sampled weight at or above `logit`.
    fn weight(&self, sample: &Sample, logit: f32) -> f64 {
        if self.count {
            self.passes.count_ge(&sample.logits, logit.max(f32::MIN)) as f64
        } else {
            f64::from(self.passes.sampled_ge(sample, logit))
        }
    }

    /// An estimate of the largest logit, from `floor` to below `top`, at which `measure` reaches `target`.
    fn reaching(&self, measure: impl Fn(f32) -> f64, target: f64, floor: f32, top: f32) -> f32 {
        // No token further below the maximum than this has mass, so masses are bisected from there.
        let massless = self.weigh.max - 1.1 * MASS_BITS as f32 / self.weigh.scale;
        let start = if self.count { floor } else { massless.max(floor) };
        let (mut low, mut high) = (ascending(start), ascending(top.min(self.weigh.max)));
        for _ in 0..if start > f32::MIN { STEPS } else { INTEGER_STEPS } {
            if high <= low + 1 {
                break;
            }
            let middle = if start > f32::MIN { even_middle(low, high) } else { low + (high - low) / 2 };
            if measure(from_ascending(middle)) >= target { low = middle } else { high = middle }
        }
        from_ascending(low)
    }
}

//! How long the next draft should be, from the acceptance seen so far.
//!
//! A draft of `k` tokens takes the time of `1 + k * (draft_cost + verify_cost)` target steps. It emits
//! `E(k) = 1 + a1 + a1 a2 + … + a1 … ak` tokens in expectation, where `ad` is the chance that the draft token at depth
//! `d` is accepted if those before it were. The advice is the `k` with the largest `E(k)` per time. With the same
//! chance at all depths this is Leviathan et al. 2023, theorem 3.8: `(1 - a^(k+1)) / ((1 - a) (1 + k c))`.
//!
//! **Estimates.** With every step, outcomes at every depth lose 1/[`WINDOW`] of their weight. A depth's estimate starts
//! as that of the depth before it, which counts as [`PRIOR_WEIGHT`] outcomes; the first depth's estimate starts at
//! [`PRIOR`]. So a depth that is not reached any more is assumed to be like the one before it, and is tried again.
//!
//! **Back from 0.** While nothing is drafted, past outcomes fade in favour of the prior, until one token seems to pay
//! again. Such trials cost a hopeless sequence at most `PRIOR * PRIOR_WEIGHT / WINDOW`, 2 %, of its time. If costs are
//! above the prior, that moment never comes. So after [`WINDOW`] steps without a draft one token is advised, and again
//! as long as it is accepted, unless even a sure token would not pay.
//!
//! **It only advises.** The estimates are not a function of the tokens: they are lost when a sequence is opened again,
//! and start anew. Whether the text depends on the length of drafts is up to the rules. With a proposer without chance
//! it does not. With a draft model the distribution of the text does not, but which random number decides which token
//! does. So a worker that replays texts with a draft model has to replay its draft lengths too.

use crate::params::{DraftLengthParams, MAX_DRAFT_TOKENS};

/// The number of steps after which an outcome has 1/e of its weight.
const WINDOW: u32 = 64;
/// The chance of acceptance that is assumed at first. It lies between the 0.3 of prompt lookup on plain prose and the
/// 0.8 of a good draft model.
const PRIOR: f64 = 0.6;
/// How many outcomes a prior counts as.
const PRIOR_WEIGHT: f64 = 2.0;

/// The outcomes of one sequence's drafts. At most 512 bytes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Acceptance {
    depths: Vec<Seen>,
    /// Steps without a draft since the first token of a draft was last rejected.
    skipped: u32,
    /// Whether a token of this step's draft was rejected. Outcomes behind it do not count.
    rejected: bool,
}

/// Outcomes at one depth; old ones count less.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Seen {
    tested: f32,
    accepted: f32,
}

impl Acceptance {
    /// The most memory that it holds, besides its own fields.
    pub const MAX_BYTES: usize = MAX_DRAFT_TOKENS as usize * size_of::<Seen>();

    /// Records whether a draft token at `depth` was accepted: once for each depth, from 0 on. Depth 0 begins a new
    /// step. Outcomes behind the first rejection do not count; block verification has some. In a tree, a depth is
    /// accepted if one of the siblings is.
    pub fn record(&mut self, depth: usize, accepted: bool) {
        if depth == 0 {
            self.age();
            self.skipped = if accepted { self.skipped } else { 0 };
        }
        let behind = depth > 0 && self.rejected;
        self.rejected = behind || !accepted;
        if behind || depth >= MAX_DRAFT_TOKENS as usize {
            return; // not a chance given that all tokens before it were accepted, or longer than any advice
        }
        if depth >= self.depths.len() {
            self.depths.resize(depth + 1, Seen::default());
        }
        self.depths[depth].tested += 1.0;
        self.depths[depth].accepted += f32::from(u8::from(accepted));
    }

    /// Records a step without a draft because the advice was 0. Steps in which a proposer found nothing are not
    /// recorded.
    pub fn record_skipped(&mut self) {
        self.age();
        self.skipped = self.skipped.saturating_add(1);
    }

    /// The length of the next draft, possibly 0, that emits the most tokens per time.
    #[must_use]
    pub fn advise(&self, params: &DraftLengthParams) -> u32 {
        let cost = f64::from(params.draft_cost) + f64::from(params.verify_cost);
        match best_length(self.chances(), cost, params.max_draft_tokens) {
            0 if self.skipped >= WINDOW && cost < 1.0 => 1,
            best => best,
        }
    }

    fn age(&mut self) {
        let keep = 1.0 - 1.0 / WINDOW as f32;
        for seen in &mut self.depths {
            seen.tested *= keep;
            seen.accepted *= keep;
        }
    }

    /// The estimated chance of acceptance at each depth; endless.
    fn chances(&self) -> impl Iterator<Item = f64> {
        let seen = self.depths.iter().copied().chain(std::iter::repeat(Seen::default()));
        seen.scan(PRIOR, |chance, seen| {
            let accepted = f64::from(seen.accepted) + *chance * PRIOR_WEIGHT;
            *chance = accepted / (f64::from(seen.tested) + PRIOR_WEIGHT);
            Some(*chance)
        })
    }
}

/// The length of at most `most` with the largest expected number of tokens per time; of equally good lengths the
/// shortest.
fn best_length(chances: impl Iterator<Item = f64>, cost: f64, most: u32) -> u32 {
    let (mut reached, mut tokens) = (1.0, 1.0);
    let mut best = (0, 1.0);
    for (length, chance) in (1..=most).zip(chances) {
        reached *= chance;
        tokens += reached;
        let rate = tokens / (1.0 + f64::from(length) * cost);
        if rate > best.1 {
            best = (length, rate);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::philox::{Purpose, uniform_at};
    use crate::speculative::numbers::unit;
    use proptest::prelude::*;

    fn params(cost: f32) -> DraftLengthParams {
        DraftLengthParams::new(cost)
    }

    /// Tokens per unit of time for drafts of `length`, from the definition.
    fn rate(chances: &[f64], cost: f64, length: usize) -> f64 {
        let emitted: f64 = (0..=length).map(|k| chances[..k].iter().product::<f64>()).sum();
        emitted / (1.0 + length as f64 * cost)
    }

    fn best_rate(chances: &[f64], cost: f64) -> f64 {
        (0..=chances.len()).map(|length| rate(chances, cost, length)).fold(0.0, f64::max)
    }

    proptest! {
        #[test]
        fn the_best_length_is_that_of_trying_all(
            chances in prop::collection::vec(0.0f64..=1.0, 1..=64), cost in 0.0f64..2.0
        ) {
            let best = best_length(chances.iter().copied(), cost, chances.len() as u32) as usize;
            prop_assert!((rate(&chances, cost, best) - best_rate(&chances, cost)).abs() < 1e-12);
            let shorter = (0..best).map(|length| rate(&chances, cost, length)).fold(0.0, f64::max);
            prop_assert!(shorter < rate(&chances, cost, best) + 1e-12, "of equals the shortest");
        }
    }

    #[test]
    fn with_one_chance_it_is_leviathans_theorem() {
        for alpha in [0.05, 0.3, 0.5, 0.7, 0.8, 0.9, 0.99] {
            for cost in [0.0, 0.01, 0.02, 0.1, 0.29, 0.49, 0.69, 0.95] {
                let improvement =
                    |k: i32| (1.0 - f64::powi(alpha, k + 1)) / ((1.0 - alpha) * (1.0 + f64::from(k) * cost));
                let most = (0..=16).map(improvement).fold(0.0, f64::max);
                let advised = best_length(std::iter::repeat(alpha), cost, 16);
                assert!((improvement(advised as i32) - most).abs() < 1e-12, "alpha {alpha}, cost {cost}: {advised}");
                // Corollary 3.9: some length pays if and only if alpha > c.
                assert_eq!(advised > 0, alpha > cost, "alpha {alpha}, cost {cost}");
            }
        }
    }

    #[test]
    fn by_hand() {
        // 1, 1.5 / 1.1, 1.75 / 1.2 = 1.458, 1.875 / 1.3 = 1.442
        assert_eq!(best_length(std::iter::repeat(0.5), 0.1, 16), 2);
        assert_eq!(best_length(std::iter::repeat(0.5), 0.1, 1), 1);
        // If rates are equal, the shortest wins: tokens that are never accepted are not drafted, even at no cost.
        assert_eq!(best_length([0.5].into_iter().chain(std::iter::repeat(0.0)), 0.0, 16), 1);
        // A weak first depth before certain ones: 1.2 / 1.3, 1.4 / 1.6, … never 1.
        assert_eq!(best_length([0.2].into_iter().chain(std::iter::repeat(1.0)), 0.3, 16), 0);
        // 1 + 0.2 k against 1 + 0.1 k: as long as possible.
        assert_eq!(best_length([0.2].into_iter().chain(std::iter::repeat(1.0)), 0.1, 16), 16);
    }

    #[test]
    fn estimates_by_hand() {
        let chances = |acceptance: &Acceptance| acceptance.chances().take(3).collect::<Vec<f64>>();
        let mut acceptance = Acceptance::default();
        assert_eq!(chances(&acceptance), [0.6; 3]);
        acceptance.record(0, true);
        acceptance.record(1, false);
        let first = (1.0 + 1.2) / 3.0;
        assert_eq!(chances(&acceptance), [first, first * 2.0 / 3.0, first * 2.0 / 3.0]);
        acceptance.record(0, false);
        let (seen, first) = (63.0 / 64.0, (63.0 / 64.0 + 1.2) / (1.0 + 63.0 / 64.0 + 2.0));
        assert_eq!(chances(&acceptance)[..2], [first, first * 2.0 / (seen + 2.0)]);
        (0..5000).for_each(|_| acceptance.record_skipped());
        assert!(chances(&acceptance).iter().all(|chance| (chance - 0.6).abs() < 1e-12), "all is forgotten");
    }

    #[test]
    fn behind_a_rejection_nothing_counts() {
        let after = |outcomes: &[bool]| {
            let mut acceptance = Acceptance::default();
            for _ in 0..2 {
                outcomes.iter().enumerate().for_each(|(depth, &accepted)| acceptance.record(depth, accepted));
            }
            acceptance
        };
        assert_eq!(after(&[true, false, false, true]), after(&[true, false]));
        assert_ne!(after(&[true, false]), after(&[true]));
    }

    #[test]
    fn it_begins_with_some_tokens_and_none_where_they_cannot_pay() {
        let advised = |cost| Acceptance::default().advise(&params(cost));
        assert_eq!([0.0, 0.02, 0.1, 0.3, 0.6, 1.0, 10.0].map(advised), [16, 6, 3, 1, 0, 0, 0]);
        let both = DraftLengthParams { draft_cost: 0.05, verify_cost: 0.05, max_draft_tokens: 2 };
        assert_eq!(Acceptance::default().advise(&both), 2, "no more than may be");
    }

    #[test]
    fn its_size_is_bounded() {
        let mut acceptance = Acceptance::default();
        (0..1000).for_each(|depth| acceptance.record(depth, true));
        assert_eq!(acceptance.depths.len() * size_of::<Seen>(), 512);
    }

    /// A sequence whose draft tokens are accepted with these probabilities, and that follows the advice.
    #[derive(Default)]
    struct Simulation {
        acceptance: Acceptance,
        steps: u64,
        advised: Vec<u32>,
    }

    impl Simulation {
        /// Tokens per unit of time over some steps.
        fn run(&mut self, steps: usize, chances: &[f64; 16], params: &DraftLengthParams) -> f64 {
            let (mut tokens, mut time) = (0.0, 0.0);
            for _ in 0..steps {
                let length = self.acceptance.advise(params);
                let coin = |depth: usize| unit(uniform_at(11, self.steps, Purpose::Accept, depth as u32));
                let accepted = (0..length as usize).take_while(|&depth| coin(depth) < chances[depth]).count();
                tokens += 1.0 + accepted as f64;
                time += 1.0 + f64::from(length) * f64::from(params.draft_cost + params.verify_cost);
                match length {
                    0 => self.acceptance.record_skipped(),
                    _ => {
                        let tested = (accepted + 1).min(length as usize);
                        (0..tested).for_each(|depth| self.acceptance.record(depth, depth < accepted));
                    }
                }
                self.advised.push(length);
                self.steps += 1;
            }
            tokens / time
        }
    }

    /// Measured tokens per time as a share of what the best constant length would give.
    fn efficiency(simulation: &mut Simulation, steps: usize, chances: [f64; 16], cost: f32) -> f64 {
        simulation.run(steps, &chances, &params(cost)) / best_rate(&chances, f64::from(cost))
    }

    fn falling(from: f64, by: f64) -> [f64; 16] {
        std::array::from_fn(|depth| from * by.powi(depth as i32))
    }

    #[test]
    fn it_comes_close_to_the_best_constant_length() {
        let sequences =
            [falling(0.95, 1.0), falling(0.8, 1.0), falling(0.6, 1.0), falling(0.9, 0.8), falling(0.3, 1.0), [0.0; 16]];
        for cost in [0.01, 0.05, 0.1, 0.3] {
            for chances in sequences {
                let share = efficiency(&mut Simulation::default(), 4000, chances, cost);
                // It may be above 1 by chance: a few per cent over so many steps.
                assert!((0.97..1.04).contains(&share), "cost {cost}, chances {chances:?}: {share}");
            }
        }
    }

    #[test]
    fn two_windows_after_a_change_it_is_close_to_the_best_again() {
        for cost in [0.02, 0.1, 0.3] {
            let mut simulation = Simulation::default();
            for chance in [0.9, 0.1, 0.9, 0.0, 0.6] {
                simulation.run(2 * WINDOW as usize, &[chance; 16], &params(cost));
                let share = efficiency(&mut simulation, 2000, [chance; 16], cost);
                assert!((0.97..1.04).contains(&share), "cost {cost}, now {chance}: {share}");
            }
        }
    }

    #[test]
    fn it_comes_back_from_0() {
        // The last two costs are above the prior.
        for cost in [0.02, 0.1, 0.3, 0.7, 0.9] {
            let mut simulation = Simulation::default();
            simulation.run(1000, &[0.0; 16], &params(cost));
            let last = &simulation.advised[936..];
            assert!(last.contains(&0) && last.iter().all(|&length| length <= 1), "cost {cost}: {last:?}");
            simulation.run(150, &[0.99; 16], &params(cost));
            let last = &simulation.advised[1100..];
            assert!(last.iter().all(|&length| length >= 2), "cost {cost}: {last:?}");
        }
        // Not even a certain token pays.
        let mut simulation = Simulation::default();
        simulation.run(1000, &[1.0; 16], &params(1.0));
        assert_eq!(simulation.advised, [0; 1000]);
    }

    #[test]
    fn trying_costs_little_where_all_is_hopeless() {
        for cost in [0.01, 0.1, 0.3, 0.6, 0.9] {
            let share = efficiency(&mut Simulation::default(), 4000, [0.0; 16], cost);
            assert!(share > 0.975, "cost {cost}: {share}");
        }
    }

    #[test]
    fn the_same_outcomes_give_the_same_state() {
        let run = || {
            let mut simulation = Simulation::default();
            simulation.run(500, &falling(0.8, 0.95), &params(0.1));
            (simulation.acceptance, simulation.advised)
        };
        assert_eq!(run(), run());
    }
}

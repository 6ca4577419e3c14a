//! A chain of samplers: the steps of a row whose sequence asks for more than temperature, top-k, top-p and min-p, or
//! for another order.
//!
//! Candidates are the tokens with a finite logit after masks, bias and penalties. Each step sees the candidates that
//! the step before left, with masses at the temperature so far: `mass = floor(2^y * 2^40)`,
//! `y = (x - x_max) * log2(e) / temperature`, where `x_max` is the largest logit that is left. Every filter keeps at
//! least `min_keep` candidates, if there are as many.

use super::candidates::Candidates;
use super::order::Candidate;
use super::row::Filters;
use super::samplers::infill::Infill;
use super::samplers::xtc::Ignored;
use super::samplers::{
    adaptive_p, cutoffs, infill, min_eos_p, min_k, mirostat, skew, smoothing, tail_free, temperature, top_h,
    top_n_sigma, typical, xtc,
};
use super::watermark::tournament::Tournament;
use super::{filters, mass};
pub use crate::params::ChainStep;
use crate::params::XtcRule;
use crate::params::state::SamplerState;

/// A row's chain of steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chain<'a> {
    /// The steps, in order.
    pub steps: &'a [ChainStep],
    /// No filter keeps fewer candidates than this.
    pub min_keep: u32,
    /// Tokens that XTC never excludes; ascending.
    pub protected: &'a [u32],
    /// A random number from [`Purpose::Xtc`](super::philox::Purpose::Xtc), which decides whether XTC happens at this
    /// position.
    pub xtc: u64,
    /// What samplers remember of earlier tokens.
    pub state: SamplerState,
    /// EOS tokens, for [`ChainStep::MinEosP`].
    pub eos: &'a [u32],
    /// What [`ChainStep::Infill`] needs to know; `None`: the step does nothing.
    pub infill: Option<Infill<'a>>,
    /// The tournament that [`ChainStep::Tournament`] plays; `None`: there is none at this position.
    pub tournament: Option<Tournament<'a>>,
}

impl<'a> Chain<'a> {
    /// A chain of these steps, which need nothing but the filters' parameters.
    #[must_use]
    pub fn of_filters(steps: &'a [ChainStep]) -> Self {
        let state = SamplerState::default();
        Self { steps, min_keep: 1, protected: &[], xtc: 0, state, eos: &[], infill: None, tournament: None }
    }
}

/// Runs the chain on the candidates of a row of `vocab_size` tokens. Returns what is left of them.
#[must_use]
pub fn run(candidates: Vec<Candidate>, vocab_size: usize, filters: &Filters, chain: &Chain<'_>) -> Candidates {
    watched(candidates, vocab_size, filters, chain, |_, _| ())
}

/// As [`run`], but calls `look` with the candidates at first, without a step, and after each step.
pub fn watched(
    candidates: Vec<Candidate>,
    vocab_size: usize,
    filters: &Filters,
    chain: &Chain<'_>,
    mut look: impl FnMut(Option<&ChainStep>, &Candidates),
) -> Candidates {
    let end = chain.infill.and_then(|infill| {
        let logit = |token| candidates.iter().find(|c| c.token == token).map_or(f32::NEG_INFINITY, |c| c.logit);
        infill.end(logit)
    });
    let mut left = Candidates::new(candidates, vocab_size, chain.min_keep as usize).with_end(end);
    look(None, &left);
    for step in chain.steps {
        apply(step, filters, chain, &mut left);
        look(Some(step), &left);
    }
    if !draws_along(chain.steps) {
        left.take_along();
    }
    left
}

/// Whether a row is drawn from in the order of its candidates instead of by token ids, see [`skew`].
#[must_use]
pub fn draws_along(steps: &[ChainStep]) -> bool {
    matches!(steps.last(), Some(ChainStep::Skew(_)))
}

/// Takes one step.
pub(super) fn apply(step: &ChainStep, filters: &Filters, chain: &Chain<'_>, left: &mut Candidates) {
    if let Some(need) = cutoffs::least_mass(step, filters, chain, left) {
        return left.keep_mass(need);
    }
    match *step {
        ChainStep::MinEosP(p) => min_eos_p::apply(left, p, chain.eos),
        ChainStep::Temperature => left.cool(f64::from(filters.temperature)),
        ChainStep::DynamicTemperature { low, high, exponent } => {
            left.cool(temperature::dynamic(left.entropy(), left.kept().len(), low, high, exponent));
        }
        ChainStep::Smoothing { factor, curve } => left.reshape(smoothing::curve(factor, curve)),
        ChainStep::AtMost(most) => left.keep_first(most as usize),
        ChainStep::TopK => left.keep_first(filters.top_k as usize),
        ChainStep::TopKTies => left.keep_first_and_ties(filters.top_k as usize),
        // Top-p that decays, and is off otherwise, begins at 1 and cuts nothing there.
        ChainStep::TopP if filters.top_p >= 1.0 => {}
        ChainStep::TopP => {
            left.keep_first(filters::reaching(left.kept(), mass::top_p_need(filters.top_p, left.total())))
        }
        ChainStep::TypicalP(rule, p) => typical::apply(left, rule, p),
        ChainStep::Tfs(rule, z) => tail_free::apply(left, rule, z),
        ChainStep::TopNSigma(n) => top_n_sigma::apply(left, n),
        ChainStep::MinK(tau) => min_k::apply(left, tau),
        ChainStep::TopH(share) => top_h::apply(left, share),
        ChainStep::Xtc { rule, probability, threshold } => apply_xtc(rule, probability, threshold, chain, left),
        ChainStep::Mirostat { .. } => {
            chain.state.mirostat_mu.into_iter().for_each(|mu| mirostat::apply_first(left, mu));
        }
        ChainStep::Infill => chain.infill.iter().for_each(|known| infill::apply(left, known)),
        ChainStep::AdaptiveP { target, .. } => {
            let average = chain.state.adaptive.into_iter();
            average.for_each(|average| adaptive_p::apply(left, adaptive_p::adapted(target, average)));
        }
        ChainStep::Skew(by) => skew::apply(left, by),
        ChainStep::Tournament => chain.tournament.iter().for_each(|played| left.play(played)),
        // Named one by one, so that no new step can be overlooked.
        ChainStep::MinP | ChainStep::MinPAbove | ChainStep::TopA(_) | ChainStep::PLess { .. } => {}
        ChainStep::EpsilonCutoff(_) | ChainStep::EtaCutoff(_) => {}
    }
}

/// XTC, by chance or as its expectation.
fn apply_xtc(rule: XtcRule, probability: f32, threshold: f32, chain: &Chain<'_>, left: &mut Candidates) {
    let ignored = Ignored::by(rule, chain.protected);
    if rule.expected {
        xtc::apply_expected(left, probability, threshold, ignored);
    } else if xtc::happens(probability, chain.xtc) {
        xtc::apply(left, threshold, ignored);
    }
}

//! Takes a list of tokens through samplers while unlisted tokens may still be left beside them.
//!
//! As long as unlisted tokens may be left, only those steps are taken whose result they cannot change. The first step
//! that leaves only listed tokens ends this: from then on the list is all there is.

use super::NeedsUnlisted;
use super::rest::Rest;
use crate::params::Sampler;
use crate::sampling::candidates::Candidates;
use crate::sampling::chain::{self, Chain, ChainStep};
use crate::sampling::filters;
use crate::sampling::mass;
use crate::sampling::order::Candidate;
use crate::sampling::row::Filters;
use crate::sampling::samplers::infill::{self, Stay};
use crate::sampling::samplers::min_eos_p;
use crate::sampling::samplers::xtc;

/// The tokens that are not listed, while some of them may be left.
#[derive(Debug, Clone, Copy)]
struct Unlisted<'a> {
    rest: &'a Rest,
    /// Whether some of them may have been cut off.
    cut: bool,
    /// Whether an EOS token may be one of them.
    eos: bool,
}

/// What may be among the tokens that are not listed.
#[derive(Debug, Clone, Copy)]
pub(super) struct MayBeUnlisted<'a> {
    /// Bounds on them; `None`: there are none.
    pub(super) rest: Option<&'a Rest>,
    /// Whether one of them may be the token that ends a text where nothing else is certain.
    pub(super) end: bool,
    /// Whether an EOS token may be one of them.
    pub(super) eos: bool,
}

/// Takes the steps of a chain. Returns whether unlisted tokens may be left beside the others; if so, none of them has a
/// mass.
///
/// # Errors
/// What reaches beyond the listed tokens.
pub(super) fn run_chain(
    left: &mut Candidates,
    filters: &Filters,
    chain: &Chain<'_>,
    may_be: MayBeUnlisted<'_>,
) -> Result<bool, NeedsUnlisted> {
    let mut unlisted = may_be.rest.map(|rest| Unlisted { rest, cut: false, eos: may_be.eos });
    for step in chain.steps {
        match unlisted {
            Some(others) => unlisted = others.take(step, left, filters, chain)?,
            None if may_be.end && ends(step, left, chain) => return Err(NeedsUnlisted::Sampler(Sampler::Infill)),
            None => chain::apply(step, filters, chain, left),
        }
    }
    match unlisted {
        None => Ok(false),
        Some(Unlisted { rest, .. }) if certain(left, rest) > 0 && rest.has_no_mass(left.max(), left.scale()) => {
            Ok(true)
        }
        Some(_) => Err(NeedsUnlisted::Draw),
    }
}

/// A chain whose first steps are taken without weighing tokens: temperatures change no token's place, and only the
/// first tokens matter to a top-k right after them.
pub(super) struct ChainStart<'a> {
    /// The first tokens, as many as these steps can leave.
    pub(super) tokens: &'a [Candidate],
    pub(super) temperature: f64,
    /// The steps that are still to be taken, including the top-k.
    pub(super) steps: &'a [ChainStep],
}

impl<'a> ChainStart<'a> {
    /// Takes the first steps of a chain, on tokens in order.
    pub(super) fn new(tokens: &'a [Candidate], filters: &Filters, chain: &Chain<'a>, rest: Option<&Rest>) -> Self {
        let cooling = chain.steps.iter().take_while(|step| **step == ChainStep::Temperature).count();
        let (cooled, steps) = chain.steps.split_at(cooling);
        let temperature = cooled.iter().fold(1.0, |so_far, _| so_far * f64::from(filters.temperature));
        let most = match steps.first() {
            Some(ChainStep::TopK) => filters.top_k.max(chain.min_keep) as usize,
            Some(&ChainStep::AtMost(most)) => most.max(chain.min_keep) as usize,
            _ => tokens.len(),
        };
        let is_certain = |most: usize| match rest {
            Some(rest) => most > 0 && tokens.get(most - 1).is_some_and(|last| last.precedes(&rest.edge)),
            None => most < tokens.len(),
        };
        let tokens = if is_certain(most) { &tokens[..most] } else { tokens };
        Self { tokens, temperature, steps }
    }
}

/// Whether a step ends the text.
fn ends(step: &ChainStep, left: &Candidates, chain: &Chain<'_>) -> bool {
    let known = chain.infill.filter(|_| *step == ChainStep::Infill && chain.min_keep <= 1);
    known.is_some_and(|known| infill::stay(left, &known) == Stay::End)
}

/// How many of the listed tokens, from the first on, come before all unlisted ones.
pub(super) fn certain(left: &Candidates, rest: &Rest) -> usize {
    left.kept().partition_point(|weighted| weighted.candidate.precedes(&rest.edge))
}

impl<'a> Unlisted<'a> {
    /// Takes a step; `None`: no unlisted tokens are left after it.
    fn take(
        self,
        step: &ChainStep,
        left: &mut Candidates,
        filters: &Filters,
        chain: &Chain<'_>,
    ) -> Result<Option<Self>, NeedsUnlisted> {
        let (vocab_size, min_keep) = (left.vocab_size(), chain.min_keep as usize);
        let certain = certain(left, self.rest);
        let top_k = (filters.top_k as usize).max(min_keep);
        let taken = match *step {
            ChainStep::Temperature => Ok(Some(self)),
            ChainStep::AtMost(most) if (most as usize).max(min_keep) >= vocab_size => return Ok(Some(self)),
            ChainStep::AtMost(most) if (most as usize).max(min_keep) <= certain => Ok(None),
            // Only unlisted tokens may be cut off.
            ChainStep::AtMost(_) if certain == left.kept().len() => return Ok(Some(Self { cut: true, ..self })),
            ChainStep::TopK | ChainStep::TopKTies if top_k >= vocab_size => return Ok(Some(self)),
            ChainStep::TopK if top_k <= certain => Ok(None),
            ChainStep::TopKTies if self.has_all_ties(left, top_k) => Ok(None),
            ChainStep::TopP if filters.top_p >= 1.0 => return Ok(Some(self)),
            ChainStep::TopP => return self.nucleus(left, filters.top_p, min_keep, certain).map(|()| None),
            ChainStep::MinP if certain >= min_keep.max(1) => Ok(self.of_mass(mass::min_p_need(filters.min_p), left)),
            ChainStep::MinPAbove if certain >= min_keep.max(1) => {
                Ok(self.of_mass(mass::min_p_above(filters.min_p), left))
            }
            ChainStep::Xtc { rule, probability, .. } if !rule.expected && !xtc::happens(probability, chain.xtc) => {
                Ok(Some(self))
            }
            ChainStep::MinEosP(p) => return self.ends(p, left, chain, certain),
            ChainStep::Tournament if chain.tournament.is_none() => Ok(Some(self)),
            ChainStep::Infill if chain.infill.is_none() => Ok(Some(self)),
            _ => Err(step.sampler().map_or(NeedsUnlisted::Draw, NeedsUnlisted::Sampler)),
        };
        if taken.is_ok() {
            chain::apply(step, filters, chain, left);
        }
        taken
    }

    /// Unlisted tokens that may have a mass of at least `need`; `None`: none has.
    fn of_mass(self, need: u64, left: &Candidates) -> Option<Self> {
        let most = self.rest.most_of_one(left.max(), left.scale());
        if most < need as f64 { None } else { Some(Self { cut: true, ..self }) }
    }

    /// Whether the first k tokens are certain, and all that are equal to the last of them.
    fn has_all_ties(&self, left: &Candidates, top_k: usize) -> bool {
        let last = top_k.checked_sub(1).and_then(|last| left.kept().get(last));
        last.is_some_and(|last| last.candidate.logit > self.rest.edge.logit)
    }

    /// Takes min-EOS-p's step. The total is known only within bounds, which have to agree on whether an EOS token is
    /// likely.
    fn ends(
        self,
        p: f32,
        left: &mut Candidates,
        chain: &Chain<'_>,
        certain: usize,
    ) -> Result<Option<Self>, NeedsUnlisted> {
        let beyond = Err(NeedsUnlisted::Sampler(Sampler::MinEosP));
        if chain.eos.is_empty() {
            return Ok(Some(self));
        }
        if certain == 0 {
            return beyond;
        }
        let (least, most) = self.totals(left);
        let ends = left.kept().iter().filter(|w| chain.eos.contains(&w.candidate.token));
        let (count, heaviest) = ends.fold((0, 0), |(count, most), end| (count + 1, end.mass.max(most)));
        let of_others = if self.eos { self.rest.most_of_one(left.max(), left.scale()) } else { 0.0 };
        if heaviest.max(of_others as u64) < min_eos_p::need(p, least) {
            return Ok(Some(self));
        }
        if self.eos || heaviest < min_eos_p::need(p, most) {
            return beyond;
        }
        if count < chain.min_keep as usize {
            return Ok(Some(self));
        }
        min_eos_p::apply(left, p, chain.eos);
        Ok(None)
    }

    /// Bounds on the sum of all masses.
    fn totals(&self, left: &Candidates) -> (u64, u64) {
        let (low, high) = self.rest.masses(left.max(), left.scale(), left.temperature());
        let listed = left.total();
        (listed + if self.cut { 0 } else { low }, listed + high)
    }

    /// Takes top-p's step. The total is known only within bounds, which have to agree on where it is reached.
    fn nucleus(&self, left: &mut Candidates, top_p: f32, min_keep: usize, certain: usize) -> Result<(), NeedsUnlisted> {
        let beyond = NeedsUnlisted::Sampler(Sampler::TopP);
        if certain == 0 {
            return Err(beyond);
        }
        let (least, most) = self.totals(left);
        let count = |total: u64| filters::crossing(left.kept(), mass::top_p_need(top_p, total)).ok_or(beyond);
        let kept = count(least)?;
        if kept != count(most)? || kept.max(min_keep) > certain {
            return Err(beyond);
        }
        left.keep_first(kept);
        Ok(())
    }
}

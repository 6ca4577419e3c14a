//! What a step of a chain needs to know of the steps after it: no list is made of a row for as long as these allow.

use crate::params::{MirostatVersion, TypicalRule, XtcRule};
use crate::sampling::chain::{Chain, ChainStep};
use crate::sampling::row::Filters;
use crate::sampling::samplers::xtc;

/// The steps after the current one, and the row's parameters, which are the same for all its steps.
#[derive(Clone, Copy)]
pub(super) struct After<'a> {
    /// The steps, in order.
    pub(super) steps: &'a [ChainStep],
    /// What these steps have in common.
    pub(super) rest: Rest,
    pub(super) filters: &'a Filters,
    pub(super) chain: &'a Chain<'a>,
}

impl<'a> After<'a> {
    pub(super) fn new(steps: &'a [ChainStep], filters: &'a Filters, chain: &'a Chain<'a>) -> Self {
        Self { steps, rest: Rest::of(steps, filters, chain), filters, chain }
    }
}

/// What kind of steps come after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing.
    Nothing,
    /// Only temperatures.
    Temperatures,
    /// Temperatures, and a skew at the very end.
    Skewed,
    /// Steps that only look at masses, so it makes no difference to them whether tokens without mass are there.
    Masses,
    /// Anything.
    Steps,
}

impl Rest {
    fn of(steps: &[ChainStep], filters: &Filters, chain: &Chain<'_>) -> Self {
        let mut active = steps.iter().filter(|step| !is_idle(step, filters, chain)).peekable();
        if active.peek().is_none() {
            Self::Nothing
        } else if active.clone().all(|step| matches!(step, ChainStep::Temperature)) {
            Self::Temperatures
        } else if let Some((ChainStep::Skew(_), before)) = steps.split_last()
            && Self::of(before, filters, chain).only_weighs()
        {
            Self::Skewed
        } else if active.all(looks_at_masses) {
            Self::Masses
        } else {
            Self::Steps
        }
    }

    /// Whether nothing but temperatures follows.
    pub(super) fn only_weighs(self) -> bool {
        matches!(self, Self::Nothing | Self::Temperatures)
    }
}

/// Whether a step does nothing on any row.
pub(super) fn is_idle(step: &ChainStep, filters: &Filters, chain: &Chain<'_>) -> bool {
    match *step {
        ChainStep::Temperature => filters.temperature == 1.0,
        ChainStep::Xtc { rule, probability, .. } => !rule.expected && !xtc::happens(probability, chain.xtc),
        ChainStep::TopP => filters.top_p >= 1.0,
        ChainStep::Mirostat { .. } => chain.state.mirostat_mu.is_none(),
        ChainStep::MinEosP(_) => chain.eos.is_empty(),
        ChainStep::Infill => chain.infill.is_none(),
        ChainStep::AdaptiveP { .. } => chain.state.adaptive.is_none(),
        ChainStep::Tournament => chain.tournament.is_none(),
        _ => false,
    }
}

/// Whether a step does the same to tokens that have a mass if tokens without mass come after all of them.
fn looks_at_masses(step: &ChainStep) -> bool {
    match *step {
        ChainStep::AtMost(_)
        | ChainStep::TopK
        | ChainStep::TopP
        | ChainStep::MinP
        | ChainStep::MinPAbove
        | ChainStep::TopA(_)
        | ChainStep::EpsilonCutoff(_)
        | ChainStep::EtaCutoff(_)
        | ChainStep::PLess { norm: false }
        | ChainStep::TypicalP(TypicalRule::Reached, _)
        | ChainStep::Mirostat { version: MirostatVersion::Two, .. } => true,
        ChainStep::Xtc { rule, threshold, .. } => rule == XtcRule::default() && threshold > 0.0,
        _ => false,
    }
}

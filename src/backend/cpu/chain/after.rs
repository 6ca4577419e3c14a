//! What a step of a chain may need to know of the steps after it: a row stays without a list for as long as these allow.

use crate::sampling::chain::{Chain, Step};
use crate::sampling::row::Filters;
use crate::sampling::samplers::xtc;

/// The steps after the one that is done, and the parameters of the row, which are the same for all its steps.
#[derive(Clone, Copy)]
pub(super) struct After<'a> {
    /// In order.
    pub(super) steps: &'a [Step],
    /// What they have in common.
    pub(super) rest: Rest,
    pub(super) filters: &'a Filters,
    pub(super) chain: &'a Chain<'a>,
}

impl<'a> After<'a> {
    pub(super) fn new(steps: &'a [Step], filters: &'a Filters, chain: &'a Chain<'a>) -> Self {
        Self { steps, rest: Rest::of(steps, filters, chain), filters, chain }
    }
}

/// What comes after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing.
    Nothing,
    /// Only temperatures.
    Temperatures,
    /// Temperatures, and at the very end a skew.
    Skewed,
    /// Steps that look at masses alone, so that it is all the same to them whether tokens without mass are there.
    Masses,
    /// Anything.
    Steps,
}

impl Rest {
    fn of(steps: &[Step], filters: &Filters, chain: &Chain<'_>) -> Self {
        let mut active = steps.iter().filter(|step| !is_idle(step, filters, chain)).peekable();
        if active.peek().is_none() {
            Self::Nothing
        } else if active.clone().all(|step| matches!(step, Step::Temperature)) {
            Self::Temperatures
        } else if let Some((Step::Skew(_), before)) = steps.split_last()
            && Self::of(before, filters, chain).only_weighs()
        {
            Self::Skewed
        } else if active.all(looks_at_masses) {
            Self::Masses
        } else {
            Self::Steps
        }
    }

    /// Whether nothing but temperatures comes.
    pub(super) fn only_weighs(self) -> bool {
        matches!(self, Self::Nothing | Self::Temperatures)
    }
}

/// Whether a step does nothing on any row.
pub(super) fn is_idle(step: &Step, filters: &Filters, chain: &Chain<'_>) -> bool {
    match *step {
        Step::Temperature => filters.temperature == 1.0,
        Step::Xtc { probability, .. } | Step::XtcUnlessIgnored { probability, .. } => {
            !xtc::happens(probability, chain.xtc)
        }
        Step::TopP => filters.top_p >= 1.0,
        Step::MirostatV1 { .. } | Step::MirostatV2 { .. } => chain.state.mirostat_mu.is_none(),
        Step::MinEosP(_) => chain.eos.is_empty(),
        Step::Infill => chain.infill.is_none(),
        Step::AdaptiveP { .. } => chain.state.adaptive.is_none(),
        Step::Tournament => chain.tournament.is_none(),
        _ => false,
    }
}

/// Tokens without mass that come after all that have one change nothing that such a step does to these.
fn looks_at_masses(step: &Step) -> bool {
    match *step {
        Step::AtMost(_)
        | Step::TopK
        | Step::TopP
        | Step::MinP
        | Step::MinPAbove
        | Step::TopA(_)
        | Step::EpsilonCutoff(_)
        | Step::EtaCutoff(_)
        | Step::PLess
        | Step::TypicalP(_)
        | Step::MirostatV2 { .. } => true,
        Step::Xtc { threshold, .. } => threshold > 0.0,
        _ => false,
    }
}

//! What a sequence's chain of samplers is made of.

use super::rules::in_order;
use crate::params::{SamplingParams, Step};

/// A chain of samplers, and its lists.
#[derive(Debug, Default)]
pub(super) struct OwnChain {
    pub(super) steps: Option<Vec<Step>>,
    /// Tokens that XTC leaves alone, ascending; `None`: those of the base.
    pub(super) protected: Option<Vec<u32>>,
    /// Tokens that end the text, in the order in which they are tried; for infill only.
    pub(super) ends: Vec<u32>,
}

impl OwnChain {
    /// Of parameters; `None` if they have none of it.
    pub(super) fn of(params: &SamplingParams) -> Option<Box<Self>> {
        let own = &params.samplers.xtc_ignore_token_ids;
        let protected = (!own.is_empty()).then(|| in_order(own.clone()));
        let chain = Self { steps: params.steps(), protected, ends: Vec::new() };
        (chain.steps.is_some() || chain.protected.is_some()).then(|| Box::new(chain))
    }

    pub(super) fn bytes(&self) -> usize {
        let steps = self.steps.as_ref().map_or(0, Vec::capacity) * size_of::<Step>();
        let tokens = self.protected.as_ref().map_or(0, Vec::capacity) + self.ends.capacity();
        size_of::<Self>() + steps + tokens * size_of::<u32>()
    }

    pub(super) fn has_min_eos_p(&self) -> bool {
        self.steps.iter().flatten().any(|step| matches!(step, Step::MinEosP(_)))
    }

    pub(super) fn has_infill(&self) -> bool {
        self.steps.as_ref().is_some_and(|steps| steps.contains(&Step::Infill))
    }
}

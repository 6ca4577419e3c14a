//! What a sequence's chain of samplers is made of.

use super::rules::in_order;
use crate::params::{SamplingParams, Step};

/// A chain of samplers, and its lists.
#[derive(Debug, Default)]
pub(super) struct OwnChain {
    pub(super) steps: Option<Vec<Step>>,
    /// Tokens that XTC leaves alone, ascending; `None`: those of the base.
    pub(super) protected: Option<Vec<u32>>,
}

impl OwnChain {
    /// Of parameters; `None` if they have none of it.
    pub(super) fn of(params: &SamplingParams) -> Option<Box<Self>> {
        let own = &params.samplers.xtc_ignore_token_ids;
        let protected = (!own.is_empty()).then(|| in_order(own.clone()));
        let chain = Self { steps: params.steps(), protected };
        (chain.steps.is_some() || chain.protected.is_some()).then(|| Box::new(chain))
    }

    pub(super) fn bytes(&self) -> usize {
        let steps = self.steps.as_ref().map_or(0, Vec::capacity) * size_of::<Step>();
        size_of::<Self>() + steps + self.protected.as_ref().map_or(0, Vec::capacity) * size_of::<u32>()
    }
}
